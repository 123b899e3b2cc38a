"""Runs in processes of this machine.

The calling process never uses a GPU. On a GPU, which takes up to 30 s to initialise, a process trains several runs one
after the other. On the CPU every run has a new process.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.metrics.functions import METRICS
from lifelabel.nn.backbones import BACKBONES
from lifelabel.registry import Registry, register_items
from lifelabel.runs.folder import RunFolder
from lifelabel.search.planned_run import ActiveRun, Backend, Outcome, PlannedRun, Reporter, Waiting, train_planned
from lifelabel.streams import STREAMS
from lifelabel.utils.processes import num_cores, start_child

_POLL_SECONDS = 0.25
_MAX_CPU_JOBS = 8
"""The default limit on the CPU, because every run needs memory."""
_REGISTRIES: tuple[Registry[Any], ...] = (METHODS, STREAMS, BACKBONES, METRICS)


def default_jobs(device: str = "auto") -> int:
    """Runs at a time: one on each GPU; on the CPU one on each core, up to 8.

    On two cores, two runs with one thread each took 0.8 of the time of two runs with two threads, one after the other.
    """
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return gpus or (1 if device.startswith(("cuda", "mps")) else min(_MAX_CPU_JOBS, num_cores()))


class RunProcess(ActiveRun):
    """A run in its own process, which sends its state."""

    def __init__(self, number: int, plan: PlannedRun, slot: int):
        super().__init__(number, plan)
        self.slot, self.reusable = slot, _is_reusable(plan)
        self.new = not RunFolder(plan.folder).is_run
        self.began: float | None = None

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
            self.pipe.send(self.plan)

    def poll(self) -> bool:
        alive = self.process.is_alive()  # before the messages are read: a process may send some and end after this line
        with contextlib.suppress(EOFError, OSError):
            while self.pipe.poll():
                self.set_state(self.pipe.recv())
                if self.state.tasks and self.began is None:
                    self.began = time.monotonic()
        return not alive or (self.reusable and self.state.end is not None)

    @property
    def can_take_next(self) -> bool:
        """Whether the process can train another run. After an exception its state is unknown."""
        return self.reusable and self.process.is_alive() and self.state.end == ("finished", "")

    def reason(self) -> str:
        return _exit_reason(self.process.exitcode)

    def describe(self) -> str:
        if self.began is None:
            return super().describe()
        seconds = time.monotonic() - self.began
        speed = (self.state.images - self.state.learned_before) / seconds if seconds else 0
        return f"{super().describe()}  {speed:,.0f} img/s"

    def end(self) -> None:
        self.pipe.close()  # ends a process that waits for another run
        self.process.join(10)
        if self.process.is_alive():  # the exit of a process can block after an error of the GPU
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class LocalRuns(Backend):
    """The backend of the scheduler for this machine. In a `with` block, processes with a GPU are kept for later calls.

    Until a run has started to train, which shows that the options of all runs are valid, only one run is started.
    """

    def __init__(self, jobs: int = 1):
        self.jobs = max(1, jobs)
        self.threads = max(1, num_cores() // self.jobs)
        """Threads of every run. The number is constant: a resumed run is bit-identical only with the same number."""
        self.active: list[RunProcess] = []
        self.idle: list[RunProcess] = []
        """Runs that have ended, whose process can train another one."""
        self.keeps_idle = self.options_valid = False

    def __enter__(self) -> LocalRuns:
        self.keeps_idle = True
        return self

    def __exit__(self, *error: object) -> None:
        self.keeps_idle = False
        self.close()

    @contextlib.contextmanager
    def claim(self, missing: Sequence[tuple[int, PlannedRun]], overwrite: bool) -> Iterator[dict[int, Outcome]]:
        self.options_valid = False
        yield {}

    def start(self, waiting: Waiting, note: Callable[[str], None]) -> None:
        self.options_valid |= any(run.began is not None for run in self.active)
        while waiting and len(self.active) < (self.jobs if self.options_valid else 1):
            slot = min(set(range(self.jobs)) - {run.slot for run in self.active})
            run = RunProcess(*waiting.popleft(), slot)
            with contextlib.suppress(OSError):
                run.plan.error_file.unlink()
            previous = next((each for each in self.idle if each.slot == slot and run.reusable), None)
            if previous:
                self.idle.remove(previous)
            if previous and previous.process.is_alive():
                run.reuse(previous)
            else:
                run.start(self.threads)
            self.active.append(run)

    def wait(self) -> None:
        wait([part for run in self.active for part in (run.process.sentinel, run.pipe)], _POLL_SECONDS)

    def finish(self, run: RunProcess, more: bool) -> None:
        super().finish(run, more)
        if run.can_take_next and (more or self.keeps_idle):
            self.idle.append(run)
        else:
            run.end()
        kind, text = run.state.end or ("died", "")
        self.options_valid |= kind == "finished" or run.began is not None
        if kind == "user error" and run.new and not self.options_valid:
            raise UserError(text)

    def stop(self) -> None:
        for run in self.active:
            run.process.terminate()  # repeatedly: a process that has just started may miss the first signal

    def close(self) -> None:
        for run in [*self.active, *([] if self.keeps_idle else self.idle)]:
            run.kill()
            run.pipe.close()
        self.active.clear()
        if not self.keeps_idle:
            self.idle.clear()


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


class _PipeReporter(Reporter):
    """Sends the state to the waiting process. If that process has ended, the run stops with a checkpoint."""

    def __init__(self, pipe: Connection):
        super().__init__()
        self.pipe = pipe

    def publish(self) -> None:
        try:
            self.pipe.send(self.state)
        except OSError:
            signal.raise_signal(signal.SIGTERM)


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
            plan, reporter = pipe.recv(), _PipeReporter(pipe)
            reporter.state.end = train_planned(plan, reporter)
            pipe.send(reporter.state)
            if not reusable:
                return
            gc.collect()  # free the GPU memory of the run here: a child that the next run forks must not do it
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
