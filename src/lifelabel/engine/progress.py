"""The content of a checkpoint besides the state of the method: position, random states, and the run it belongs to.

The values of a checkpoint are untrusted: one that cannot be is a `ValueError`.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.errors import UserError
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.records import TaskRecord
from lifelabel.utils.text import shorten

_DIFFERENCES = {
    "stream": "on another stream",
    "files": "when other images had a file",
    "words": "with other word vectors",
    "weights": "from other initial weights",
}

_ROUNDING = ("device", "compile")
"""Free options with which a run continues with other rounding."""


@dataclass
class Progress:
    """The position of a run: `task` tasks are evaluated, and `step` batches of the next one are learned."""

    task: int = 0
    step: int = 0
    images: int = 0
    seconds: float = 0.0
    records: list[TaskRecord] = field(default_factory=list)
    learned: int = 0
    """Learned images of the current task."""
    bad_train: set[int] = field(default_factory=set)
    """Rows of training images that could not be read."""
    bad_test: set[int] = field(default_factory=set)
    """Rows of test images that could not be read."""
    skipped: int = 0
    """Training images of the current task that could not be read."""
    changed_options: list[dict[str, Any]] = field(default_factory=list)
    """The options that affect figures and were changed during the run: see `new_changes`."""
    extends: dict[str, Any] | None = None
    """The run that this one extends: its folder, its stream, and its training images by task."""

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "bad_train": sorted(self.bad_train), "bad_test": sorted(self.bad_test)}

    @staticmethod
    def from_dict(state: Mapping[str, Any]) -> Progress:
        """The progress in a checkpoint, which has other entries too."""
        values = {field.name: state[field.name] for field in dataclasses.fields(Progress)}
        counts = [(name, values[name]) for name in ("task", "step", "images", "learned", "skipped")]
        rows = [(name, row) for name in ("bad_train", "bad_test") for row in _listed(values[name], name)]
        for name, value in (*counts, *rows):
            _require(type(value) is int and value >= 0, name, value)
        _require(type(values["seconds"]) is float and 0 <= values["seconds"] < math.inf, "seconds", values["seconds"])
        for record in _listed(values["records"], "records"):
            fit = isinstance(record, dict) and type(record.get("task")) is int
            _require(fit and isinstance(record.get("seen"), dict), "records", record)
            _require(len(_listed(record.get("by_task"), "records")) == record["task"], "records", record)
        changes, extends = _listed(values["changed_options"], "changed_options"), values["extends"]
        _require(all(isinstance(each, dict) for each in changes), "changed_options", changes)
        values["changed_options"] = json.loads(json.dumps(changes, allow_nan=False))  # what JSON cannot hold is raised
        if extends is not None:
            _require(isinstance(extends, dict) and isinstance(extends.get("run"), str), "extends", extends)
            for each in _listed(extends.get("images"), "extends"):
                _require(each is None or type(each) is int, "extends", extends)
        return Progress(**{**values, "bad_train": set(values["bad_train"]), "bad_test": set(values["bad_test"])})

    def check(self, tasks: int, first: int, steps: Sequence[int]) -> None:
        """Raise `ValueError` unless the position is one of a run with `tasks` tasks that begins with task `first`.

        `steps` has the number of steps of each task.
        """
        _require(first <= self.task <= tasks, "task", self.task)
        _require(self.step <= (steps[self.task] if self.task < tasks else 0), "step", self.step)
        _require(len(self.records) == self.task - first, "records", f"{len(self.records)} records")


def kept_lines(state: Mapping[str, Any], name: str) -> tuple[int, str | None]:
    """The length and the SHA-256 of history.jsonl or skipped.jsonl in a checkpoint; None: not known."""
    length, digest = state[f"{name}_bytes"], state[f"{name}_sha256"]
    _require(type(length) is int and length >= 0, f"{name}_bytes", length)
    _require(digest is None or isinstance(digest, str), f"{name}_sha256", digest)
    return length, digest


def recorded_digests(state: Mapping[str, Any]) -> dict[str, str]:
    """The SHA-256 of the files that the run had written before a checkpoint, by their paths."""
    found = state["digests"]
    _require(isinstance(found, dict), "digests", found)
    _require(all(isinstance(each, str) for pair in found.items() for each in pair), "digests", found)
    return dict(found)


def new_changes(
    state: Mapping[str, Any], config: Config, resolved: Mapping[str, str], progress: Progress
) -> list[dict[str, Any]]:
    """The options that have changed since a checkpoint, and the position at which they did.

    `resolved` has the device and the precision: `auto` can be another one on another machine.
    """
    saved, at = Config.make(state["config"]).entries(), {"task": progress.task + 1, "step": progress.step}
    pairs = {name: (state["resolved"][name], value) for name, value in resolved.items()}
    _require(all(isinstance(before, str) for before, _ in pairs.values()), "resolved", state["resolved"])
    for name, (value, _) in config.entries().items():
        if value != saved[name].value:
            pairs[name] = saved[name].value, value
    return [
        {"option": name, "before": before, "after": after, **at}
        for name, (before, after) in pairs.items()
        if before != after
    ]


def affects_figures(config: Config, name: str) -> bool:
    """Whether the figures of a run can depend on a change of an option. Files that have moved have the same content."""
    declaration = config.entries()[name].declaration
    return name in _ROUNDING or not (declaration.get("free") or declaration.get("path"))


def trained_pairs(state: Mapping[str, Any]) -> np.ndarray:
    """The hashes of the training images so far, as `TrainedImages` has them."""
    found = state["trained"]
    fit = isinstance(found, Tensor) and found.dtype == torch.int64 and found.ndim == 2 and found.shape[1] == 2
    _require(fit, "trained", type(found))
    return found.numpy().view(np.uint64)


def _listed(value: Any, name: str) -> list[Any]:
    _require(isinstance(value, list), name, value)
    return value


def _require(fit: bool, name: str, value: Any) -> None:
    if not fit:
        raise ValueError(f"{name} cannot be {shorten(value)}")


def check_same_run(
    state: Mapping[str, Any], made_from: Mapping[str, str | None], config: Config, folder: RunFolder
) -> None:
    """Refuse a checkpoint of another run than `config` describes.

    `made_from` has the SHA-256 of the stream, its files, the word vectors and the initial weights. So their paths may
    differ, and so may the options that declare `resume`.
    """
    path, described = folder / names.CHECKPOINT, folder / names.CONFIG
    for name, difference in _DIFFERENCES.items():
        if state[name] != made_from[name]:
            raise UserError(f"{path} was made {difference} than {described} describes")
    saved = Config.make(state["config"]).entries()
    for name, (value, declaration) in config.entries().items():
        if declaration.get("resume") or declaration.get("path"):
            continue
        if saved[name].value != value:
            raise UserError(f"{path} was made with another {name} than {described} has: {shorten(saved[name].value)}")


def get_random_state(gpus: Sequence[torch.device]) -> dict[str, Tensor]:
    """The states of torch's random generators, on the CPU and on a GPU."""
    state = {"cpu": torch.get_rng_state()}
    for device in gpus:
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], gpus: Sequence[torch.device]) -> None:
    torch.set_rng_state(state["cpu"])
    for device in gpus:
        if "cuda" in state:  # not if the run began on the CPU
            torch.cuda.set_rng_state(state["cuda"], device)
