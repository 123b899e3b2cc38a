"""A list of run folders, finished or not. It does not import torch, so that `lifelabel runs` is fast.

The files of a run folder are untrusted: a damaged one is named in the state of its run, and code that prints their
text must escape it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError
from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.records import says_finished
from lifelabel.utils.files import below, read_limited
from lifelabel.utils.text import task_text
from lifelabel.utils.yaml_reader import parse_yaml

_MAX_BYTES, _MAX_YAML_BYTES = 64 << 20, 1 << 20
_WRITTEN = {names.LOCK, names.CHECKPOINT, names.ENVIRONMENT, names.HISTORY, names.METRICS}
"""A run folder has a config.yaml and at least one of these. Other programs write a config.yaml too."""


@dataclass(frozen=True)
class ListedRun:
    """What is known of a run. None: not known, or not yet."""

    folder: str
    """Relative to the folder that was listed."""
    state: str
    """`finished`, `running`, `stopped` or `damaged`."""
    reason: str | None = None
    """Why it is damaged."""
    task: int | None = None
    """The task that was begun last, from 1."""
    tasks: int | None = None
    task_name: str | None = None
    """The name of that task, if tasks have names."""
    stream: str | None = None
    label: str | None = None
    """The method and the options that are not the default; only the method before the first task is finished."""
    seed: int | None = None
    mAP: float | None = None
    CF1: float | None = None
    OF1: float | None = None
    forgetting: float | None = None
    """Scores and forgetting (of mAP) are fractions, and None before the run is finished."""
    seconds: float | None = None
    date: str | None = None
    commit: str | None = None

    @property
    def state_text(self) -> str:
        """The state in one line: `finished`, `task 3/10`, `running: task 3/10`, or `damaged: reason`."""
        if self.state == "finished":
            return self.state
        if self.state == "damaged":
            return f"damaged: {self.reason}"
        task = task_text(self.task or 1, [""] * ((self.task or 1) - 1) + [self.task_name or ""], of=self.tasks)
        return f"running: {task}" if self.state == "running" else task


def list_runs(top: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[ListedRun]:
    """All runs in `top` and below it, by folder. Links to folders are not followed, except `top` itself.

    `on_error` is called for each folder that cannot be read.
    """
    for path, folders, files in os.walk(top, onerror=on_error):
        if names.CONFIG in files and _WRITTEN.intersection(files):
            folders.clear()
            folder = Path(path)
            yield _read(folder, folder.relative_to(top).as_posix())
        folders.sort()


def _read(folder: Path, name: str) -> ListedRun:
    known: dict[str, Any] = {"task": 1}
    try:
        known |= _from_config(folder / names.CONFIG)
        metrics = _read_json(folder / names.METRICS)
        if metrics is not None:
            known |= _from_metrics(metrics)
            known |= _from_environment(_read_json(folder / names.ENVIRONMENT))
    except UserError as error:
        return ListedRun(name, "damaged", str(error), **known)
    state = "finished" if says_finished(metrics) else "running" if RunFolder(folder).is_running else "stopped"
    return ListedRun(name, state, **known)


def _from_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    with _checked(names.METRICS):
        found = _names(metrics)
        tasks = len(metrics["tasks"])
        if not says_finished(metrics):
            ended = metrics["per_task"][-1]["task"] if metrics["per_task"] else 0
            titles = metrics.get("task_names") or []
            name = _text(titles[int(ended)]) if int(ended) < len(titles) else None
            return {**found, "task": int(ended) + 1, "tasks": tasks, "task_name": name}
        final = metrics["final"]
        scores = {key: _number(final[key]) for key in HEADLINE}
        forgetting = _number((final.get("forgetting") or {}).get("mAP"))
        return {**found, "task": tasks, "tasks": tasks, **scores, "forgetting": forgetting}


def _names(values: dict[str, Any]) -> dict[str, Any]:
    return {"stream": _text(values["stream"]), "label": _text(values["method"]), "seed": int(values["seed"])}


def _from_environment(environment: dict[str, Any] | None) -> dict[str, Any]:
    if environment is None:
        raise UserError(f"{names.ENVIRONMENT} is missing")
    with _checked(names.ENVIRONMENT):
        return {
            "label": _text(environment["label"]), "seconds": _number(environment["seconds"]),
            "date": _text(environment["date"]), "commit": environment["commit"] and _text(environment["commit"]),
        }  # fmt: skip


def _from_config(path: Path) -> dict[str, Any]:
    with _checked(path.name):
        return _names(parse_yaml(_read_text(path, _MAX_YAML_BYTES) or "", path.name, "correct it"))


def _read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object in a file; None if there is no such file."""
    text = _read_text(path)
    with _checked(path.name, "is not JSON"):
        value = None if text is None else json.loads(text)
    if text is not None and not isinstance(value, dict):
        raise UserError(f"{path.name} is not a JSON object")
    return value


def _read_text(path: Path, limit: int = _MAX_BYTES) -> str | None:
    if not os.path.lexists(path):
        return None
    try:
        return read_limited(below(path.parent, path.name), limit).decode()
    except (UserError, ValueError):
        raise UserError(f"{path.name} cannot be read") from None


@contextlib.contextmanager
def _checked(name: str, what: str = "has other content than that of a run") -> Iterator[None]:
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        raise UserError(f"{name} {what}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):  # the text of a list of YAML aliases can have billions of characters
        raise TypeError("not a text")
    return value


def _number(value: Any) -> float | None:
    if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
        raise TypeError("not a finite number")
    return value
