"""The scheduler: many runs at the same time, each in its own process.

Finished runs are recognised by their files and are not repeated. Stopped runs continue from their checkpoint. A run
that fails is reported with its reason, and the others continue. The calling process never uses a GPU. On a GPU, which
takes up to 30 s to initialise, a process trains several runs one after the other. On the CPU every run has a new
process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Protocol

import torch

from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback
from lifelabel.errors import Diverged, Stopped, UserError
from lifelabel.methods import METHODS
from lifelabel.metrics.functions import METRICS
from lifelabel.nn.backbones import BACKBONES
from lifelabel.registry import Registry, register_items
from lifelabel.runs import names as run_names
from lifelabel.runs.folder import RunFolder
from lifelabel.streams import STREAMS, Task
from lifelabel.streams.stream import task_names
from lifelabel.utils.files import below, write_text
from lifelabel.utils.processes import catch_stop_signals, num_cores, start_child
from lifelabel.utils.text import shorten, task_text

__all__ = [
    "ActiveRun", "Display", "Outcome", "PlannedRun", "RunProcess", "WorkerPool", "clear_runs", "default_jobs",
    "differences", "error_file", "existing_outcome", "run_all", "train_planned",
]  # fmt: skip

_POLL_SECONDS = 0.25
_MAX_CPU_JOBS = 8
"""The default limit on the CPU, because every run needs memory."""
_REGISTRIES: tuple[Registry[Any], ...] = (METHODS, STREAMS, BACKBONES, METRICS)
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


class ActiveRun(Protocol):
    """A run that is trained now, in a process of this machine or as a job of a cluster."""

    number: int
    plan: PlannedRun
    notes: list[str]
    """Lines for the user that were not displayed yet."""

    @property
    def fraction(self) -> float:
        """The fraction of the images that are learned."""

    def describe(self) -> str:
        """The progress as text."""


class Display:
    """Callbacks of the scheduler. This class does nothing."""

    def begin(self, outcomes: Sequence[Outcome | None]) -> None:
        """The scheduler starts. None stands for a run that is not trained yet."""

    def started(self, run: ActiveRun) -> None:
        """A run is active now."""

    def update(self, running: Sequence[ActiveRun]) -> None:
        """The active runs may have new messages. This is called at least once per second."""

    def queue(self, waiting: int, running: int) -> None:
        """On a cluster: the number of jobs that wait, and of those that run."""

    def note(self, line: str) -> None:
        """A line of information for the user."""

    def removed(self, run: ActiveRun) -> None:
        """A run is no longer active."""

    def ended(self, outcome: Outcome) -> None:
        """A run is finished or has failed. This is not called for a run that was stopped."""

    def end(self) -> None:
        """The scheduler ends."""


def run_all(
    planned: Sequence[PlannedRun], jobs: int = 1, *, overwrite: bool = False, display: Display | None = None,
    command: str = "", pool: WorkerPool | None = None,
) -> list[Outcome]:  # fmt: skip
    """Train the runs that are missing, `jobs` at a time. Returns one outcome per run, in the given order.

    A `UserError` in the set-up of the first new run is a mistake in the options of all runs, and is raised. On Ctrl-C
    and SIGTERM every run writes a checkpoint, and `Stopped` is raised with `command`, the command that continues.
    `pool` keeps processes with an initialised GPU for the next call.
    """
    display = display or Display()
    if overwrite:  # all of them now: if the scheduler is stopped, the next call trains those that are left
        clear_runs(planned)
    outcomes = [existing_outcome(plan) for plan in planned]
    missing = [index for index, outcome in enumerate(outcomes) if outcome is None]
    display.begin(outcomes)
    try:
        if missing:
            scheduler = _Scheduler([planned[index] for index in missing], jobs, overwrite, display, pool)
            hint = f"; continue with: {command}" if command else ""
            try:
                with catch_stop_signals(scheduler.request_stop):
                    for number, outcome in scheduler.work():
                        outcomes[missing[number]] = outcome
            except KeyboardInterrupt:
                raise Stopped(f"stopped at once{hint}") from None
            finally:
                scheduler.kill()
            if None in outcomes:
                raise Stopped(f"stopped{hint}")
    finally:
        display.end()
    return [outcome for outcome in outcomes if outcome]


def clear_runs(planned: Sequence[PlannedRun]) -> None:
    """Delete the files of runs that are repeated."""
    for plan in planned:
        if RunFolder(plan.folder).is_run:
            with RunFolder(plan.folder).new(overwrite=True):
                pass


def default_jobs(device: str = "auto") -> int:
    """Runs at a time: one on each GPU; on the CPU one on each core, up to 8.

    On two cores, two runs with one thread each took 0.8 of the time of two runs with two threads, one after the other.
    """
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return gpus or (1 if device.startswith(("cuda", "mps")) else min(_MAX_CPU_JOBS, num_cores()))


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
        return Outcome(plan, f"{folder / run_names.METRICS} is damaged: train it again with --overwrite")


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


def error_file(folder: Path) -> Path:
    """The file for the traceback of a failed run. It is next to the run folder, which may not exist."""
    return folder.with_name(f"{folder.name}.error.txt")


# The waiting process


class RunProcess:
    """A run in its own process, with the content of its last messages."""

    def __init__(self, number: int, plan: PlannedRun, slot: int, overwrite: bool):
        self.number, self.plan, self.slot, self.overwrite = number, plan, slot, overwrite
        self.reusable = _is_reusable(plan)
        self.new = overwrite or not RunFolder(plan.folder).is_run
        self.notes: list[str] = []
        self.began: float | None = None
        self.result: tuple[str, str] | None = None
        """The kind of the end, and the reason. None while the run is active."""
        self.tasks = self.task = self.total = self.images = self.images_before = 0

    def start(self, threads: int) -> None:
        own = tuple(registry.own_items() for registry in _REGISTRIES)
        args = (own, threads, _visible_gpu(self.plan.config.device, self.slot), self.reusable)
        self.process, self.pipe = start_child(_worker_main, *args, needed=own, preload=__name__, daemon=False)
        self._assign()

    def reuse(self, previous: RunProcess) -> None:
        """Run in the process of another run that is finished."""
        self.process, self.pipe = previous.process, previous.pipe
        self._assign()

    def _assign(self) -> None:
        with contextlib.suppress(OSError):  # `poll` detects a process that has ended
            self.pipe.send((self.plan, self.overwrite))

    def poll(self) -> bool:
        """Read the messages of the process. Returns whether the run or its process has ended."""
        alive = self.process.is_alive()  # before the messages are read: a process may send some and end after this line
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                kind, *rest = self.pipe.recv()
                getattr(self, f"_on_{kind}")(*rest)
        return not alive or (self.reusable and self.result is not None)

    @property
    def can_take_next(self) -> bool:
        """Whether the process can train another run. After an exception its state is unknown."""
        return self.reusable and self.process.is_alive() and self.result is not None and self.result[0] == "finished"

    def _on_begin(self, tasks: int, total: int, task: int, learned: int, names: list[str]) -> None:
        self.names = names
        self.began, self.tasks, self.total, self.task = time.monotonic(), tasks, total, task
        self.images = self.images_before = learned

    def _on_steps(self, task: int, images: int) -> None:
        self.task = task
        self.images += images

    def _on_note(self, line: str) -> None:
        self.notes.append(line)

    def _on_end(self, kind: str, text: str) -> None:
        self.result = kind, text

    def outcome(self) -> Outcome:
        kind, text = self.result or ("died", _exit_reason(self.process.exitcode))
        finished = kind == "finished"
        return Outcome(self.plan, None if finished else text, new=finished, diverged=kind == "diverged")

    @property
    def fraction(self) -> float:
        """The fraction of the images that are learned."""
        return self.images / self.total if self.total else 0.0

    def describe(self) -> str:
        if self.began is None:
            return "setting up"
        seconds = time.monotonic() - self.began
        speed = (self.images - self.images_before) / seconds if seconds else 0
        task = task_text(min(self.task + 1, self.tasks), self.names, of=self.tasks)
        return f"{task}  {self.images:,}/{self.total:,} images  {speed:,.0f} img/s"


class WorkerPool:
    """Idle processes with an initialised GPU, for several calls of `run_all`. The end of the `with` block ends them."""

    def __init__(self) -> None:
        self.idle: list[RunProcess] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *error: object) -> None:
        for run in self.idle:
            run.process.kill()
        for run in self.idle:
            run.process.join()
            run.pipe.close()


class _Scheduler:
    """Starts the runs, waits for them, and yields the number and outcome of each."""

    def __init__(
        self, planned: Sequence[PlannedRun], jobs: int, overwrite: bool, display: Display,
        pool: WorkerPool | None = None,
    ):  # fmt: skip
        self.waiting = deque(enumerate(planned))
        self.jobs = max(1, min(jobs, len(planned)))
        self.threads = max(1, num_cores() // max(1, jobs))
        """Threads of every run. The number is constant: a resumed run is bit-identical only with the same number."""
        self.overwrite, self.display = overwrite, display
        self.running: list[RunProcess] = []
        self.pool, self.keep_pool = pool or WorkerPool(), pool is not None
        self.options_valid = False
        """Whether a run has started to train, which shows that the options of all runs are valid."""
        self.stop_requested = False

    def work(self) -> Iterator[tuple[int, Outcome]]:
        while self.running or (self.waiting and not self.stop_requested):
            self.fill()
            wait([run.process.sentinel for run in self.running] + [run.pipe for run in self.running], _POLL_SECONDS)
            for run in list(self.running):
                ended = run.poll()
                self.options_valid |= run.began is not None
                if ended:
                    self.finish(run)
                    if not (self.stop_requested and run.outcome().error):
                        self.display.ended(run.outcome())
                        yield run.number, run.outcome()
            if self.stop_requested:
                for run in self.running:
                    run.process.terminate()  # repeatedly: a process that has just started may miss the first signal
            self.display.update(self.running)

    def fill(self) -> None:
        """Start runs in the free slots. Until the options are known to be valid, only one run is started."""
        while self.waiting and not self.stop_requested and len(self.running) < (self.jobs if self.options_valid else 1):
            used = {run.slot for run in self.running}
            slot = min(set(range(self.jobs)) - used)
            run = RunProcess(*self.waiting.popleft(), slot, self.overwrite)
            with contextlib.suppress(OSError):
                error_file(run.plan.folder).unlink()
            idle = self.pool.idle
            previous = next((each for each in idle if each.slot == slot and run.reusable), None)
            if previous:
                idle.remove(previous)
            if previous and previous.process.is_alive():
                run.reuse(previous)
            else:
                run.start(self.threads)
            self.running.append(run)
            self.display.started(run)

    def finish(self, run: RunProcess) -> None:
        self.running.remove(run)
        if run.can_take_next and (self.waiting or self.keep_pool) and not self.stop_requested:
            self.pool.idle.append(run)
        else:
            run.pipe.close()  # ends a process that waits for another run
            run.process.join(10)
            if run.process.is_alive():  # the exit of a process can block after an error of the GPU
                run.process.kill()
                run.process.join()
        self.display.removed(run)
        kind, text = run.result or ("died", "")
        if kind == "user error" and run.new and not self.options_valid:
            raise UserError(text)
        self.options_valid |= kind == "finished"

    def request_stop(self) -> None:
        """The first Ctrl-C or SIGTERM: every run writes a checkpoint. The second one: stop at once."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested = True

    def kill(self) -> None:
        for run in self.running:
            run.process.kill()
        for run in self.running:
            run.process.join()
        if not self.keep_pool:
            self.pool.__exit__()


def _is_reusable(plan: PlannedRun) -> bool:
    """Whether the process of a run can train other runs after it. This is so on a GPU."""
    device = plan.config.device
    return device.startswith("cuda") or (device == "auto" and torch.cuda.device_count() > 0)


def _visible_gpu(device: str, slot: int) -> str | None:
    """The GPU of a slot, for CUDA_VISIBLE_DEVICES; None if there is only one GPU.

    The option `device` is not changed: a run has the same configuration on every GPU.
    """
    count = torch.cuda.device_count() if device in ("auto", "cuda") else 0  # does not initialise CUDA
    if count < 2:
        return None
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[slot % count].strip() if len(names) >= count else str(slot % count)


def _exit_reason(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"its process was killed ({name}){': was there enough memory?' if name == 'SIGKILL' else ''}"
    return f"its process exited without a message (exit code {code})"


# The training process


class _PipeCallback(Callback):
    """Sends progress to the waiting process. If that process has ended, the run stops with a checkpoint."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe

    def send(self, *message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            signal.raise_signal(signal.SIGTERM)

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None:
        self.send("begin", len(tasks), images, task, learned, task_names(tasks))

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        self.send("steps", task, images)

    def note(self, line: str) -> None:
        self.send("note", line)


def _worker_main(
    pipe: Connection, own: tuple[dict[str, Any], ...], threads: int, gpu: str | None, reusable: bool
) -> None:
    """The main function of a run process. It ignores Ctrl-C: the waiting process forwards it as SIGTERM."""
    register_items(_REGISTRIES, own)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    with contextlib.suppress(OSError, EOFError):  # there are no more runs, or the waiting process has ended
        while True:
            plan, overwrite = pipe.recv()
            pipe.send(("end", *train_planned(plan, overwrite, _PipeCallback(pipe))))
            if not reusable:
                return
            gc.collect()  # free the GPU memory of the run here: a child that the next run forks must not do it
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()


def train_planned(plan: PlannedRun, overwrite: bool, callback: Callback) -> tuple[str, str]:
    """Train or resume a run. Returns the kind of its end, and the reason."""
    try:
        folder = RunFolder(below(plan.folder.parent, plan.folder.name))
        if overwrite or not folder.is_run:
            engine.train(plan.folder, plan.values, overwrite=overwrite, callback=callback)
        else:
            wanted = plan.config
            with folder.locked():
                if Config.make(folder.read_config()) != wanted:  # they differ in free options only
                    folder.write_text(run_names.CONFIG, wanted.to_yaml())
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
