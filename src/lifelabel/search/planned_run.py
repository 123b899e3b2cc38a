"""A run of many: its plan, how it ended before, and its training in this process."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback
from lifelabel.errors import Diverged, Stopped, UserError
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.files import below, write_text
from lifelabel.utils.text import shorten

__all__ = [
    "Outcome", "PlannedRun", "clear_runs", "differences", "error_file", "existing_outcome", "train_planned",
]  # fmt: skip

_MAX_MESSAGE = 500
"""Characters of the message of an unexpected exception that are reported."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to train: its name in messages, its folder, and its options for `Config.make`."""

    name: str
    folder: Path
    values: dict[str, Any]

    @property
    def config(self) -> Config:
        return Config.make(self.values).with_absolute_paths()


@dataclass(frozen=True)
class Outcome:
    """The end of a run. A run without an error is finished."""

    planned: PlannedRun
    error: str | None = None
    new: bool = False
    """Whether it was trained or resumed by this call. False if it was finished before."""
    diverged: bool = False
    """Whether the error is `lifelabel.errors.Diverged`."""

    @staticmethod
    def of_end(planned: PlannedRun, kind: str, text: str) -> Outcome:
        """The outcome of a run that ended now, with the kind and the reason that `train_planned` returns."""
        finished = kind == "finished"
        return Outcome(planned, None if finished else text, new=finished, diverged=kind == "diverged")


def clear_runs(planned: Iterable[PlannedRun]) -> None:
    """Delete the files of runs that are repeated."""
    for plan in planned:
        if RunFolder(plan.folder).is_run:
            with RunFolder(plan.folder).new(overwrite=True):
                pass


def existing_outcome(plan: PlannedRun) -> Outcome | None:
    """The outcome of a run that is finished, or whose folder holds another run; None if the run must be trained."""
    folder = RunFolder(plan.folder)
    try:
        if not folder.is_run:
            return None
        other = differences(Config.make(folder.read_config()), plan.config)
        if other:
            more = ", …" if len(other) > 3 else ""
            raise UserError(
                f"{plan.folder} holds a run with other options ({', '.join(other[:3])}{more}): choose another --out, "
                "or give --overwrite"
            )
        return Outcome(plan) if folder.is_finished else None
    except UserError as error:
        return Outcome(plan, str(error))
    except (KeyError, TypeError):
        return Outcome(plan, f"{folder / names.METRICS} is damaged: train it again with --overwrite")


def differences(existing: Config, wanted: Config) -> list[str]:
    """The options in which two runs differ, without free options, as `lr 0.1, not 0.2`.

    >>> differences(Config.make({"lr": 0.1}), Config.make({"lr": 0.2, "device": "cpu", "method_options": {"mix": 1}}))
    ['lr 0.1, not 0.2', 'method.mix 0.05, not 1.0']
    """
    entries = existing.entries(), wanted.entries()
    found = []
    for name, entry in {**entries[1], **entries[0]}.items():
        old, new = (each[name].value if name in each else None for each in entries)
        if not entry.declaration.get("free") and old != new:
            found.append(f"{name} {shorten(old)}, not {shorten(new)}")
    return found


def train_planned(plan: PlannedRun, callback: Callback) -> tuple[str, str]:
    """Train or resume a run. Returns the kind of its end, and the reason."""
    try:
        folder = RunFolder(below(plan.folder.parent, plan.folder.name))
        if not folder.is_run:
            engine.train(plan.folder, plan.values, callback=callback)
        else:
            wanted = plan.config
            with folder.locked():
                if Config.make(folder.read_config()) != wanted:  # they differ in free options only
                    folder.write_text(names.CONFIG, wanted.to_yaml())
            engine.resume(plan.folder, callback)
    except Diverged as error:
        return "diverged", str(error)
    except UserError as error:
        return "user error", str(error)
    except Stopped:
        return "stopped", "was stopped; the same command continues it"
    except KeyboardInterrupt:
        return "stopped", "was stopped at once"
    except Exception as error:
        return "failure", _failure(error, plan.folder)
    return "finished", ""


def error_file(folder: Path) -> Path:
    """The file for the traceback of a failed run. It is next to the run folder, which may not exist."""
    return folder.with_name(f"{folder.name}.error.txt")


def _failure(error: Exception, folder: Path) -> str:
    """An unexpected exception as one line. The traceback is written to a file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines()
    message = ": ".join(dict.fromkeys(line.strip() for line in lines[:1] + lines[-1:]))[:_MAX_MESSAGE]
    path = error_file(folder)
    with contextlib.suppress(OSError, UserError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(traceback.format_exception(error)))
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}{f': {message}' if message else ''} ({where}); the traceback is in {path}"
