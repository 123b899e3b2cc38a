"""A run of many: its plan, how it ended before, and its training, of which another process has the progress."""

from __future__ import annotations

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback
from lifelabel.errors import Diverged, Stopped, UserError
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.streams import Task
from lifelabel.streams.stream import task_names
from lifelabel.utils.files import below, write_text
from lifelabel.utils.text import shorten, task_text

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

    @property
    def error_file(self) -> Path:
        """The file for the traceback of a failed run. It is next to the run folder, which may not exist."""
        return self.folder.with_name(f"{self.folder.name}.error.txt")


Waiting = deque[tuple[int, PlannedRun]]
"""Runs that are not started yet, with their numbers."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run. A run without an error is finished."""

    planned: PlannedRun
    error: str | None = None
    new: bool = False
    """Whether it was trained or resumed by this call. False if it was finished before."""
    diverged: bool = False
    """Whether the error is `lifelabel.errors.Diverged`."""


@dataclass
class RunState:
    """The progress of a run that is trained in another process, and its end."""

    tasks: int = 0
    """The number of tasks; 0 before the training."""
    task: int = 0
    total: int = 0
    images: int = 0
    learned_before: int = 0
    """The images that were learned before this call."""
    names: list[str] = field(default_factory=list)
    """The names of the tasks, if they have names."""
    notes: list[str] = field(default_factory=list)
    """Lines for the user."""
    end: tuple[str, str] | None = None
    """The kind of the end and the reason, as `train_planned` returns them. None while the run is active."""


class Reporter(Callback):
    """The callback of a run that is trained for another process: it keeps the state, and publishes its changes."""

    def __init__(self) -> None:
        self.state = RunState()

    def publish(self) -> None:
        """Make the state known to the other process."""

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None:
        self.state = replace(
            self.state, tasks=len(tasks), total=images, task=task, images=learned, learned_before=learned,
            names=task_names(tasks),
        )  # fmt: skip
        self.publish()

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        self.state.task = task
        self.state.images += images
        self.publish()

    def note(self, line: str) -> None:
        self.state.notes.append(line)
        self.publish()


class ActiveRun(ABC):
    """A run that was started, in a process of this machine or as a job of a cluster, with its last known state."""

    is_running = True
    """False while its job waits in the queue of the cluster."""

    def __init__(self, number: int, plan: PlannedRun):
        self.number, self.plan, self.state = number, plan, RunState()
        self.notes: list[str] = []
        """Lines for the user that were not displayed yet."""
        self._notes_read = 0

    def set_state(self, state: RunState) -> None:
        self.state = state
        self.notes += state.notes[self._notes_read :]
        self._notes_read = max(self._notes_read, len(state.notes))

    @property
    def fraction(self) -> float:
        """The fraction of the images that are learned."""
        return self.state.images / self.state.total if self.state.total else 0.0

    def describe(self) -> str:
        s = self.state
        if not s.tasks:
            return "setting up"
        return f"{task_text(min(s.task + 1, s.tasks), s.names, of=s.tasks)}  {s.images:,}/{s.total:,} images"

    @abstractmethod
    def poll(self) -> bool:
        """Read the messages of the run. Returns whether it has ended."""

    @abstractmethod
    def reason(self) -> str:
        """Why it ended without a result."""

    def outcome(self) -> Outcome:
        """The outcome of a run that has ended."""
        kind, text = self.state.end or ("died", self.reason())
        finished = kind == "finished"
        return Outcome(self.plan, None if finished else text, new=finished, diverged=kind == "diverged")


class Backend(ABC):
    """Where runs are trained: `LocalRuns`, or `SlurmJobs` of `lifelabel.search.slurm`."""

    at_once = ""
    """What `stop_at_once` does, for a message."""
    has_queue = False
    """Whether runs may wait in the queue of a cluster after their start."""
    active: list[Any]
    """The runs that were started and have not ended, as `ActiveRun`."""

    @abstractmethod
    def claim(
        self, missing: Sequence[tuple[int, PlannedRun]], overwrite: bool
    ) -> AbstractContextManager[Mapping[int, Outcome]]:
        """A context in which no other process starts the same runs. Runs that another call has started become active.

        Yields the outcomes of runs that cannot be started, by number.
        """

    @abstractmethod
    def start(self, waiting: Waiting, note: Callable[[str], None]) -> None:
        """Start runs as long as there is room, and remove them from `waiting`."""

    @abstractmethod
    def wait(self) -> None:
        """Return when a run may have news, at least once per second."""

    def finish(self, run: Any, more: bool) -> None:
        """A run has ended. `more`: other runs wait. A mistake in the options of all runs is raised as UserError."""
        self.active.remove(run)

    @abstractmethod
    def stop(self) -> None:
        """All active runs write a checkpoint and end. Called repeatedly until they have ended."""

    def stop_at_once(self) -> None:  # noqa: B027
        """Do not wait for the active runs."""

    def close(self) -> None:  # noqa: B027
        """The scheduler ends: no process of this machine continues."""


def clear_runs(planned: Iterable[PlannedRun]) -> None:
    """Delete the files of runs that are repeated."""
    for folder in (RunFolder(plan.folder) for plan in planned):
        if folder.is_run:
            with folder.new(overwrite=True):
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
        return "failure", _failure(error, plan.error_file)
    return "finished", ""


def _failure(error: Exception, path: Path) -> str:
    """An unexpected exception as one line. The traceback is written to the file `path`."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines()
    message = ": ".join(dict.fromkeys(line.strip() for line in lines[:1] + lines[-1:]))[:_MAX_MESSAGE]
    with contextlib.suppress(OSError, UserError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, "".join(traceback.format_exception(error)))
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}{f': {message}' if message else ''} ({where}); the traceback is in {path}"
