"""Many runs: those that are missing are trained, side by side, in processes of their own.

A run that is finished is known by its files alone, one that stopped goes on from its checkpoint, and one that fails is
listed with its reason and stops nothing else. The process that calls never touches a GPU. One that has made a GPU
ready, which takes up to half a minute, goes on with the next run; on the CPU every run has a new one.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from lifelabel import engine, processes
from lifelabel.config import Config, read_yaml
from lifelabel.environment import commit
from lifelabel.errors import Stopped, UserError, short
from lifelabel.progress import Display
from lifelabel.runfolder import RunFolder
from lifelabel.streams import Task

FREE = ("device", "compile", "workers", "checkpoint_seconds", "strict")
"""Options that do not make a run another one: one that stopped goes on with those that are given now."""
TICK = 0.25
"""Seconds between two looks at what runs."""
MOST_JOBS = 8
"""On the CPU, unless more are asked for: each takes memory too."""
LONGEST = 500
"""Letters of an exception's message that are shown."""


@dataclass(frozen=True)
class Planned:
    """One run that should exist: its name for people, its folder, and its options for `Config.make`."""

    name: str
    folder: Path
    values: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How it ended: without `error` the run is finished, and `fresh` says whether it was trained now."""

    planned: Planned
    error: str | None = None
    fresh: bool = False


def run_all(
    planned: Sequence[Planned], jobs: int = 1, *, overwrite: bool = False, console: Console | None = None,
    again: str = "", staff: Staff | None = None,
) -> list[Outcome]:  # fmt: skip
    """Train what is missing, `jobs` runs side by side; an outcome for each, in the order given.

    A mistake that shows while the first new run is set up is everybody's: it is raised. Ctrl-C and SIGTERM let every
    run write a checkpoint; `again` is the command that goes on from there. `staff` serves several calls.
    """
    if overwrite:  # all at once: after a stop, what was not redone is missing, and not the old one
        for plan in planned:
            if RunFolder(plan.folder).is_run:
                with RunFolder(plan.folder).new(overwrite=True):
                    pass
    outcomes = [look(plan) for plan in planned]
    missing = [place for place, outcome in enumerate(outcomes) if outcome is None]
    display = Display(console, outcomes)
    if missing:
        if processes.START == "fork":
            prepare_forks()
        crew = Crew([planned[place] for place in missing], jobs, overwrite, display, staff)
        go_on = f"; go on with: {again}" if again else ""
        try:
            with processes.asked_to_stop(crew.ask), display:
                for number, outcome in crew.work():
                    outcomes[missing[number]] = outcome
        except KeyboardInterrupt:
            raise Stopped(f"stopped at once{go_on}") from None
        finally:
            crew.kill()
        if None in outcomes:
            raise Stopped(f"stopped{go_on}")
    return [outcome for outcome in outcomes if outcome]


def default_jobs(device: str = "auto") -> int:
    """Runs side by side: one on each GPU; on the CPU one on each core, up to MOST_JOBS.

    On two cores, two runs of a thread each were done in 0.8 of the time that two threads took for one after the other.
    """
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return gpus or (1 if device.startswith("cuda") else min(MOST_JOBS, processes.cores()))


def prepare_forks() -> None:
    """What every run would do anew, done once, here: torch's imports at an optimiser's first step take a second."""
    commit()
    with contextlib.suppress(ImportError):
        import torch._dynamo  # noqa: F401


def look(plan: Planned) -> Outcome | None:
    """What is there of a run, by its files alone: finished, another run, or (None) something left to train."""
    folder = RunFolder(plan.folder)
    try:
        if not folder.is_run:
            return None
        there, wanted = Config.make(read_yaml(folder / "config.yaml")), config_of(plan)
        other = differences(there, wanted)
        if other:
            more = ", …" if len(other) > 3 else ""
            raise UserError(
                f"{plan.folder} holds a run with other options ({', '.join(other[:3])}{more}): choose another --out, "
                "or give --overwrite"
            )
        return Outcome(plan) if is_done(folder) else None
    except UserError as error:
        return Outcome(plan, str(error))
    except (KeyError, TypeError):
        return Outcome(plan, f"{folder / 'metrics.json'} is damaged: train it anew with --overwrite")


def is_done(folder: RunFolder) -> bool:
    """Whether a run is finished and every file of it written: the last checkpoint comes after its results."""
    results, checkpoint = folder / "metrics.json", folder / "checkpoint.pt"
    if not results.exists() or not folder.read_json("metrics.json")["finished"]:
        return False
    return not checkpoint.exists() or checkpoint.stat().st_mtime_ns >= results.stat().st_mtime_ns


def config_of(plan: Planned) -> Config:
    return Config.make(plan.values).with_absolute_paths()


def differences(there: Config, wanted: Config) -> list[str]:
    """Options in which a run differs from the one that is wanted, as `lr 0.1, not 0.2`.

    >>> differences(Config.make({"lr": 0.1}), Config.make({"lr": 0.2, "device": "cpu", "method_options": {"mix": 1}}))
    ['lr 0.1, not 0.2', 'method.mix 0.05, not 1.0']
    """
    ours, theirs = _flat(there), _flat(wanted)
    return [
        f"{name} {short(ours.get(name))}, not {short(theirs.get(name))}"
        for name in {**theirs, **ours}
        if name not in FREE and ours.get(name) != theirs.get(name)
    ]


def _flat(config: Config) -> dict[str, Any]:
    values = config.to_dict()
    for section in ("stream", "method"):
        values |= {f"{section}.{name}": value for name, value in values.pop(f"{section}_options").items()}
    return values


def error_file(folder: Path) -> Path:
    """Where the whole traceback of a failed run goes: beside its folder, which may not have become a run's."""
    return folder.with_name(f"{folder.name}.error.txt")


# The process that waits


class Job:
    """One run at work in a process of its own, and what it last said."""

    def __init__(self, number: int, plan: Planned, slot: int, overwrite: bool):
        self.number, self.plan, self.slot, self.overwrite = number, plan, slot, overwrite
        self.lasting = lasts(plan)
        self.new = overwrite or not RunFolder(plan.folder).is_run
        self.notes: list[str] = []
        self.begun: float | None = None
        self.end: tuple[str, str] | None = None
        self.tasks = self.task = self.total = self.images = self.before = 0

    def start(self, threads: int, others: Sequence[Job]) -> None:
        context: Any = multiprocessing.get_context(processes.START)
        self.pipe, theirs = context.Pipe()
        # a fork has every pipe of this process: were they left open, no run would notice that this one is gone
        ours = [job.pipe for job in [*others, self]] if processes.START == "fork" else []
        args = (theirs, ours, threads, _gpu(config_of(self.plan).device, self.slot), self.lasting)
        self.process = context.Process(target=_work, args=args)
        self.process.start()
        theirs.close()
        self.give()

    def take_over(self, job: Job) -> None:
        """Go on in the process of a job that has ended."""
        self.process, self.pipe = job.process, job.pipe
        self.give()

    def give(self) -> None:
        with contextlib.suppress(OSError):  # a process that is gone says so by itself
            self.pipe.send((self.plan, self.overwrite))

    def listen(self) -> bool:
        """Hear what the process has said; whether the run, or the process, has ended."""
        alive = self.process.is_alive()  # asked first: what a process said before it ended is in the pipe
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                kind, *rest = self.pipe.recv()
                getattr(self, f"hear_{kind}")(*rest)
        return not alive or (self.lasting and self.end is not None)

    @property
    def can_go_on(self) -> bool:
        """Whether its process may take another run: not one that an exception left in an unknown state."""
        return self.lasting and self.process.is_alive() and self.end is not None and self.end[0] == "finished"

    def hear_begin(self, tasks: int, total: int, task: int, learned: int) -> None:
        self.begun, self.tasks, self.total, self.task = time.monotonic(), tasks, total, task
        self.images = self.before = learned

    def hear_steps(self, task: int, images: int) -> None:
        self.task = task
        self.images += images

    def hear_note(self, line: str) -> None:
        self.notes.append(line)

    def hear_end(self, kind: str, text: str) -> None:
        self.end = kind, text

    def outcome(self) -> Outcome:
        kind, text = self.end or ("died", _death(self.process.exitcode))
        return Outcome(self.plan, None if kind == "finished" else text, fresh=kind == "finished")

    @property
    def share(self) -> float:
        """How much of the run is done."""
        return self.images / self.total if self.total else 0.0

    def describe(self) -> str:
        if self.begun is None:
            return "setting up"
        seconds = time.monotonic() - self.begun
        speed = (self.images - self.before) / seconds if seconds else 0
        task = f"task {min(self.task + 1, self.tasks)}/{self.tasks}"
        return f"{task}  {self.images:,}/{self.total:,} images  {speed:,.0f} img/s"


class Staff:
    """Processes that have made a GPU ready and wait for another run, between calls of `run_all`; `with` ends them."""

    def __init__(self) -> None:
        self.idle: list[Job] = []

    def __enter__(self) -> Staff:
        return self

    def __exit__(self, *error: object) -> None:
        for job in self.idle:
            job.process.kill()
        for job in self.idle:
            job.process.join()
            job.pipe.close()


class Crew:
    """The runs at work; `work` starts them, waits for them, and yields each one's number and outcome."""

    def __init__(
        self, planned: Sequence[Planned], jobs: int, overwrite: bool, display: Display, staff: Staff | None = None
    ):
        self.waiting = deque(enumerate(planned))
        self.jobs = max(1, min(jobs, len(planned)))
        self.threads = max(1, processes.cores() // max(1, jobs))
        """Of every run, however many are left: with other threads a run would not go on bit by bit."""
        self.overwrite, self.display = overwrite, display
        self.running: list[Job] = []
        self.staff, self.stays = staff or Staff(), staff is not None
        """Ended runs whose process waits for another; whether it does so when all are done."""
        self.set_up = False
        """Whether a run has come as far as training: the options that all share are then right."""
        self.stop_asked = False

    def work(self) -> Iterator[tuple[int, Outcome]]:
        while self.running or (self.waiting and not self.stop_asked):
            self.start()
            wait([job.process.sentinel for job in self.running] + [job.pipe for job in self.running], TICK)
            for job in list(self.running):
                ended = job.listen()
                self.set_up |= job.begun is not None
                if ended:
                    self.leave(job)
                    if not (self.stop_asked and job.outcome().error):
                        self.display.ended(job.outcome())
                        yield job.number, job.outcome()
            if self.stop_asked:
                for job in self.running:
                    job.process.terminate()  # again and again: one that has just been started may have missed it
            self.display.show(self.running)

    def start(self) -> None:
        """Fill the free places: one alone, until a run has shown that it can be set up."""
        while self.waiting and not self.stop_asked and len(self.running) < (self.jobs if self.set_up else 1):
            taken = {job.slot for job in self.running}
            slot = min(set(range(self.jobs)) - taken)
            job = Job(*self.waiting.popleft(), slot, self.overwrite)
            with contextlib.suppress(OSError):
                error_file(job.plan.folder).unlink()
            idle = self.staff.idle
            before = next((each for each in idle if each.slot == slot and job.lasting), None)
            if before:
                idle.remove(before)
            if before and before.process.is_alive():
                job.take_over(before)
            else:
                job.start(self.threads, [*self.running, *idle])
            self.running.append(job)
            self.display.started(job)

    def leave(self, job: Job) -> None:
        self.running.remove(job)
        if job.can_go_on and (self.waiting or self.stays) and not self.stop_asked:
            self.staff.idle.append(job)
        else:
            job.pipe.close()  # a process that waits for another run ends
            job.process.join(10)
            if job.process.is_alive():  # a broken GPU does not let it go
                job.process.kill()
                job.process.join()
        self.display.left(job)
        kind, text = job.end or ("died", "")
        if kind == "mistake" and job.new and not self.set_up:
            raise UserError(text)
        self.set_up |= kind == "finished"

    def ask(self) -> None:
        """Ctrl-C and SIGTERM ask once, and every run writes a checkpoint; the second time is at once."""
        if self.stop_asked:
            raise KeyboardInterrupt
        self.stop_asked = True

    def kill(self) -> None:
        for job in self.running:
            job.process.kill()
        for job in self.running:
            job.process.join()
        if not self.stays:
            self.staff.__exit__()


def lasts(plan: Planned) -> bool:
    """Whether a run's process is worth keeping for the next one: on a GPU."""
    device = config_of(plan).device
    return device.startswith("cuda") or (device == "auto" and torch.cuda.device_count() > 0)


def _gpu(device: str, slot: int) -> str | None:
    """Of several GPUs, the one for a slot, as CUDA_VISIBLE_DEVICES names it; None where there is nothing to choose.

    The option `device` stays as it is, so that the run is the same on every GPU.
    """
    count = torch.cuda.device_count() if device in ("auto", "cuda") else 0  # it asks the driver's library, not CUDA
    if count < 2:
        return None
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[slot % count].strip() if len(names) >= count else str(slot % count)


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return f"its process was killed ({name}){': was there enough memory?' if name == 'SIGKILL' else ''}"
    return f"its process ended without a word (exit code {code})"


# The process that trains


class Reporter(engine.Watcher):
    """Tells the process that waits. Where that one is gone, the run is asked to stop: it writes a checkpoint."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe

    def tell(self, *message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            signal.raise_signal(signal.SIGTERM)

    def begin(self, config: Config, tasks: Sequence[Task], images: int, task: int, learned: int) -> None:
        self.tell("begin", len(tasks), images, task, learned)

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        self.tell("steps", task, images)

    def note(self, line: str) -> None:
        self.tell("note", line)


def _work(pipe: Connection, inherited: Sequence[Connection], threads: int, gpu: str | None, lasting: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the engine takes both: the process that waits passes them on
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    with contextlib.suppress(OSError, EOFError):  # the process that waits has no more runs, or is gone
        while True:
            plan, overwrite = pipe.recv()
            pipe.send(("end", *_train(plan, overwrite, Reporter(pipe))))
            if not lasting:
                return
            gc.collect()  # what the run held of the GPU goes now, and not in a process that the next one forks
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()


def _train(plan: Planned, overwrite: bool, watch: engine.Watcher) -> tuple[str, str]:
    """Train or go on; how it ended, and why."""
    try:
        folder = RunFolder(plan.folder)
        if overwrite or not folder.is_run:
            engine.train(plan.folder, plan.values, overwrite=overwrite, watch=watch)
        else:
            wanted = config_of(plan)
            with folder.locked():
                if Config.make(read_yaml(folder / "config.yaml")) != wanted:  # in what is FREE
                    folder.write_text("config.yaml", wanted.to_yaml())
            engine.resume(plan.folder, watch)
    except UserError as error:
        return "mistake", str(error)
    except Stopped:
        return "stopped", "was stopped; the same command lets it go on"
    except KeyboardInterrupt:
        return "stopped", "was stopped at once"
    except Exception as error:
        return "failure", _failure(error, plan.folder)
    return "finished", ""


def _failure(error: Exception, folder: Path) -> str:
    """A line about an exception that no user meant: what, and where; the rest goes to a file."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines()
    message = ": ".join(dict.fromkeys(line.strip() for line in lines[:1] + lines[-1:]))[:LONGEST]
    path = error_file(folder)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return f"{type(error).__name__}{f': {message}' if message else ''} ({where}); the whole of it is in {path}"
