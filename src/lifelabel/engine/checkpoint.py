"""The content of a checkpoint besides the state of the method: position, random states, and the run it belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.run_folder import RunFolder
from lifelabel.errors import UserError
from lifelabel.utils.text import shorten

__all__ = ["Progress", "check_same_run", "get_random_state", "set_random_state"]

_DIFFERENCES = {
    "stream": "on another stream",
    "files": "when other images had a file",
    "words": "with other word vectors",
    "weights": "from other initial weights",
}


@dataclass
class Progress:
    """The position of a run: `task` tasks are evaluated, and `step` batches of the next one are learned."""

    task: int = 0
    step: int = 0
    images: int = 0
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)
    learned: int = 0
    """Learned images of the current task."""
    bad_train: set[int] = field(default_factory=set)
    """Rows of training images that could not be read."""
    bad_test: set[int] = field(default_factory=set)
    """Rows of test images that could not be read."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {**dataclasses.asdict(self), "bad_train": sorted(self.bad_train), "bad_test": sorted(self.bad_test)}

    @staticmethod
    def from_dict(state: Mapping[str, Any]) -> Progress:
        """The progress in a checkpoint, which has other entries too."""
        values = {field.name: state[field.name] for field in dataclasses.fields(Progress)}
        return Progress(**{**values, "bad_train": set(state["bad_train"]), "bad_test": set(state["bad_test"])})


def check_same_run(
    state: Mapping[str, Any], made_from: Mapping[str, str | None], config: Config, folder: RunFolder
) -> None:
    """Refuse a checkpoint of another run than `config` describes.

    `made_from` has the SHA-256 of the stream, its files, the word vectors and the initial weights. So their paths may
    differ, and so may the options that declare `resume`.
    """
    path, described = folder / "checkpoint.pt", folder / "config.yaml"
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
