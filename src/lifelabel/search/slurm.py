"""Many runs on a Slurm cluster, with the rules of `lifelabel.search.scheduler`: each run is a job.

The files of the runs show which runs are finished, and squeue shows which jobs wait or run. No accounting is needed.
If this process is killed, the jobs go on. The next call finds them in the queue and waits for them.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lifelabel.config.config import Config
from lifelabel.errors import Stopped, UserError
from lifelabel.registry import loaded_plugins
from lifelabel.runs.folder import RunFolder
from lifelabel.search.scheduler import (
    Display,
    Outcome,
    PlannedRun,
    clear_runs,
    differences,
    error_file,
    existing_outcome,
)
from lifelabel.search.slurm_job import RUNS_FILE, TIME_LIMIT_SIGNAL, JobState, read_runs, state_file, write_runs
from lifelabel.utils.files import below
from lifelabel.utils.processes import catch_stop_signals

if TYPE_CHECKING:
    from lifelabel.search.slurm_submit import Submitter

__all__ = ["MAX_JOBS", "Cluster", "dry_run", "job_options", "run_all"]

MAX_JOBS = 256
"""The default limit of jobs that run at the same time. The cluster has its own limits."""
_QUEUE_SECONDS = 10.0
"""The time between two calls of squeue."""
_STOPPING_SECONDS = 2.0
"""The same while jobs are cancelled."""
_FILES_SECONDS = 1.0
"""The time between two reads of the files of the jobs."""
_MISSES = 2
"""Calls of squeue without a job until it has ended: files of another machine can appear some seconds later."""
_NAME = "lifelabel-"
"""The start of the names of jobs. The name of the folder of the submission follows."""
_SIGNAL = f"B:{TIME_LIMIT_SIGNAL.name.removeprefix('SIG')}@"
"""The signal ahead of the time limit, to the training process only. The seconds follow."""
_DEFAULTS: dict[str, str | bool] = {"time": "60", "cpus-per-task": "2", "requeue": True, "signal": f"{_SIGNAL}120"}
_GPU_DEFAULTS: dict[str, str | bool] = {"gpus-per-node": "1", "cpus-per-task": "8"}
_GPU_OPTIONS = {"gpus", "gres", "gpus-per-node", "gpus-per-task", "gpus-per-socket"}
_RESERVED = {
    "array", "job-name", "output", "error", "open-mode", "nodes", "ntasks", "ntasks-per-node", "requeue", "no-requeue",
    "chdir", "wrap", "wait", "parsable", "test-only",
}  # fmt: skip
"""Options of sbatch that this module sets, or that have no meaning for its jobs."""
_HINTS = {
    "CANCELLED": "; the same command continues it",
    "OUT_OF_MEMORY": "; give it more with --slurm mem=…",
    "TIMEOUT": "; give it more with --slurm time=…",
    "NODE_FAIL": "; the same command continues it",
    "PREEMPTED": "; the same command continues it",
}


@dataclass(frozen=True)
class Cluster:
    """Where runs are trained: a folder for the files of the jobs, and the options of sbatch."""

    folder: Path
    options: Mapping[str, str | bool]


def job_options(given: Sequence[str], device: str = "auto") -> dict[str, str | bool]:
    """The options of sbatch: the defaults, and those given as `NAME=VALUE`, or `NAME` for an option without a value.

    >>> job_options(["partition=long", "time=4:00:00", "exclusive"])["time"]
    '4:00:00'
    >>> job_options([], "cuda")["gpus-per-node"]
    '1'
    """
    options: dict[str, str | bool] = {}
    for text in given:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--").replace("_", "-")
        if not re.fullmatch(r"[a-z][a-z0-9-]+", name) or (equals and not value) or not text.isprintable():
            raise UserError(f"--slurm takes NAME=VALUE with a long option of sbatch, such as mem=16G, not '{text}'")
        if name in _RESERVED:
            raise UserError(f"--slurm {name}: each job is one run, and lifelabel sets this option; remove it")
        if name == "signal" and not re.fullmatch(rf"{_SIGNAL}\d+", value):
            raise UserError(f"--slurm signal: only the seconds can be changed, as in signal={_SIGNAL}600")
        options[name] = value if equals else True
    has_gpu = not _GPU_OPTIONS.isdisjoint(options)
    gpu = _GPU_DEFAULTS if has_gpu or device.startswith("cuda") else {}
    gpu = {name: value for name, value in gpu.items() if not (has_gpu and name in _GPU_OPTIONS)}
    return {**_DEFAULTS, **gpu, **options}


def dry_run(planned: Sequence[PlannedRun], jobs: int, cluster: Cluster) -> str:
    """The job script of the runs that are not finished, and the list of these runs as comments."""
    missing = [plan for plan in planned if existing_outcome(plan) is None]
    if not missing:
        return f"# all {len(planned)} runs are finished, or their folders hold other runs: nothing to submit\n"
    script = _submitter(cluster.folder / "NEW", cluster.options, jobs).script(len(missing))
    listed = "".join(f"# run {index}: {plan.name} → {plan.folder}\n" for index, plan in enumerate(missing))
    return f"{script.rstrip()}\n\n{listed}"


def run_all(
    planned: Sequence[PlannedRun], jobs: int = MAX_JOBS, *, overwrite: bool = False, display: Display | None = None,
    command: str = "", cluster: Cluster,
) -> list[Outcome]:  # fmt: skip
    """Train the runs that are missing as jobs, `jobs` at a time. Returns one outcome per run, in the given order.

    On Ctrl-C and SIGTERM the jobs are cancelled, each run writes a checkpoint, and `Stopped` is raised with `command`,
    the command that continues.
    """
    scheduler = _JobScheduler(planned, jobs, display or Display(), cluster)
    hint = f"; continue with: {command}" if command else ""
    with catch_stop_signals(scheduler.request_stop):
        try:
            scheduler.begin(overwrite)
            scheduler.work()
        except KeyboardInterrupt:
            scheduler.cancel()
            raise Stopped(f"stopped at once; the jobs were cancelled{hint}") from None
        finally:
            scheduler.end()
    if None in scheduler.outcomes:
        raise Stopped(f"stopped{hint}")
    return [outcome for outcome in scheduler.outcomes if outcome]


def _submitter(folder: Path, options: Mapping[str, str | bool], jobs: int) -> Submitter:
    """The object that submits the jobs whose files are in `folder`."""
    try:
        from lifelabel.search.slurm_submit import Submitter
    except ImportError as error:
        if error.name != "submitit":
            raise
        raise UserError("--on slurm needs the package submitit: pip install 'lifelabel[slurm]'") from None
    return Submitter(folder, _NAME + folder.name, options, jobs)


@dataclass(frozen=True)
class _Queued:
    """A job in the queue."""

    id: str
    waiting: bool


def _read_queue(folders: Iterable[Path]) -> dict[tuple[str, int], _Queued] | None:
    """The jobs of submissions that wait or run, by the name of the folder and the index; None: Slurm did not answer."""
    names = ",".join(_NAME + folder.name for folder in folders)
    if not names:
        return {}
    options = ("--me", "--array", "--noheader", f"--name={names}", "--format=%i|%j|%T")
    done = subprocess.run(["squeue", *options], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    found = {}
    for line in done.stdout.splitlines():
        job, name, state = line.strip().split("|")
        found[name.removeprefix(_NAME), int(job.partition("_")[2] or 0)] = _Queued(job, state == "PENDING")
    return found


class _Job:
    """The job of a run, with the content of its file."""

    def __init__(self, number: int, plan: PlannedRun, folder: Path, index: int, job_id: str, adopted: bool):
        self.number, self.plan, self.folder, self.index, self.id = number, plan, folder, index, job_id
        self.adopted = adopted
        """Whether an earlier call has submitted it."""
        self.waiting, self.displayed, self.misses = True, False, 0
        self.state: JobState | None = None
        self.notes: list[str] = []
        self._notes_read = 0

    def read(self) -> None:
        self.state = JobState.read(state_file(self.folder, self.index)) or self.state
        if self.state:
            self.notes += self.state.notes[self._notes_read :]
            self._notes_read = max(self._notes_read, len(self.state.notes))

    @property
    def fraction(self) -> float:
        return self.state.images / self.state.total if self.state and self.state.total else 0.0

    def describe(self) -> str:
        s = self.state
        if not (s and s.tasks):
            return f"job {self.id}  setting up"
        return f"job {self.id}  task {min(s.task + 1, s.tasks)}/{s.tasks}  {s.images:,}/{s.total:,} images"

    def outcome(self) -> Outcome:
        """The outcome of a job that has ended."""
        if self.state and self.state.end:
            kind, text = self.state.end
        else:
            kind, text = "died", self._reason()
        finished = kind == "finished" or _is_finished(self.plan.folder)
        return Outcome(self.plan, None if finished else text, new=finished, diverged=kind == "diverged")

    def _reason(self) -> str:
        """Why a job ended without a result. Slurm has the state of a job for some minutes after its end."""
        done = subprocess.run(["scontrol", "show", "job", self.id], capture_output=True, text=True)
        found = re.search(r"JobState=(\w+).*ExitCode=\d+:(\d+)", done.stdout, re.DOTALL)
        state = found[1] if found else "UNKNOWN"
        if found and int(found[2]) == TIME_LIMIT_SIGNAL:  # it came before the run could handle it
            state = "TIMEOUT"
        log = self.folder / f"{self.id}_0_log.out"
        return f"its job {self.id} ended without a result ({state}){_HINTS.get(state, '')}; its output is in {log}"


def _count(jobs: Sequence[object]) -> str:
    return "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs"


def _is_finished(folder: Path) -> bool:
    with contextlib.suppress(UserError):
        return RunFolder(folder).is_finished
    return False


class _JobScheduler:
    """Submits the runs, and waits for their jobs."""

    def __init__(self, planned: Sequence[PlannedRun], jobs: int, display: Display, cluster: Cluster):
        self.planned, self.jobs, self.display, self.cluster = planned, jobs, display, cluster
        self.outcomes: list[Outcome | None] = [None] * len(planned)
        self.active: list[_Job] = []
        self.next_queue = 0.0
        """When squeue is called again."""
        self.stop_requested = self.display_begun = False

    def begin(self, overwrite: bool) -> None:
        """Find the runs that are finished and the jobs of earlier calls, and submit the other runs."""
        missing = self._find_missing()
        if overwrite or missing:
            if not shutil.which("sbatch"):
                raise UserError("--on slurm needs the commands of Slurm: log in to the cluster, or give --on local")
            folder = RunFolder(self.cluster.folder)
            folder.create()
            with folder.locked():  # two calls must not submit the same run
                self._adopt(overwrite)
                if overwrite:
                    self._overwrite()
                missing = self._find_missing()
                self._begin_display()
                if self.active:
                    self.display.note(f"in the queue: {_count(self.active)} of an earlier call")
                self._submit(missing)
        else:
            self._begin_display()

    def _begin_display(self) -> None:
        self.display.begin(self.outcomes)
        self.display_begun = True

    def end(self) -> None:
        if self.display_begun:
            self.display.end()

    def _find_missing(self) -> list[int]:
        """The numbers of the runs without an outcome and without a job."""
        taken = {job.number for job in self.active}
        for number, plan in enumerate(self.planned):
            if self.outcomes[number] is None and number not in taken:
                self.outcomes[number] = existing_outcome(plan)
        return [n for n, outcome in enumerate(self.outcomes) if outcome is None and n not in taken]

    def _overwrite(self) -> None:
        if self.active:
            ids = " ".join(job.id for job in self.active)
            raise UserError(
                f"jobs of an earlier call are active: cancel them (scancel {ids}), or leave out --overwrite"
            )
        clear_runs(self.planned)
        self.outcomes = [None] * len(self.planned)

    def _adopt(self, overwrite: bool) -> None:
        """Find the jobs of earlier calls that still wait or run. With `overwrite`, also those with other options."""
        names = [path.parent.name for path in self.cluster.folder.glob(f"*/{RUNS_FILE}")]
        folders = {name: below(self.cluster.folder, name) for name in names}
        queue = _read_queue(folders.values())
        if queue is None:
            raise UserError("squeue did not answer: is the controller of Slurm running?")
        runs = {name: read_runs(folders[name])[0] for name in {name for name, _ in queue}}
        numbers = {str(plan.folder.absolute()): number for number, plan in enumerate(self.planned)}
        for (name, index), queued in queue.items():
            earlier = runs[name][index]
            number = numbers.get(str(earlier.folder))
            if number is None or (self.outcomes[number] and not overwrite):
                continue
            job = _Job(number, self.planned[number], folders[name], index, queued.id, adopted=True)
            job.read()
            if job.state and job.state.end:  # it ends just now
                continue
            other = [] if overwrite else differences(Config.make(earlier.values), job.plan.config)
            if other:
                text = f"job {queued.id} of an earlier call trains it with other options ({other[0]}): cancel that job"
                self.outcomes[number] = Outcome(job.plan, text)
            else:
                self.active.append(job)

    def _submit(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        folder = self.cluster.folder / secrets.token_hex(4)
        submitter = _submitter(folder, self.cluster.options, self.jobs)
        RunFolder(folder).create()
        write_runs(folder, [self.planned[number] for number in numbers], loaded_plugins())
        for number in numbers:
            with contextlib.suppress(OSError):
                error_file(self.planned[number].folder).unlink()
        try:
            ids = submitter.submit_runs(len(numbers))
        except UserError:
            (folder / RUNS_FILE).unlink()  # no job belongs to it
            raise
        for index, (number, job_id) in enumerate(zip(numbers, ids, strict=True)):
            self.active.append(_Job(number, self.planned[number], folder, index, job_id, adopted=False))
        self.display.note(f"{_count(numbers)} submitted: {ids[0].partition('_')[0]}; the output is in {folder}")

    def work(self) -> None:
        while self.active:
            if time.monotonic() >= self.next_queue:
                self._update_queue()
            for job in list(self.active):
                job.read()
                if (job.state and job.state.end) or job.misses >= (1 if self.stop_requested else _MISSES):
                    self._finish(job)
            running = [job for job in self.active if job.displayed]
            self.display.queue(len(self.active) - len(running), len(running))
            self.display.update(running)
            if self.active:
                time.sleep(_FILES_SECONDS)

    def _update_queue(self) -> None:
        if self.stop_requested:
            self.cancel()
        queue = _read_queue({job.folder for job in self.active})
        self.next_queue = time.monotonic() + (_STOPPING_SECONDS if self.stop_requested else _QUEUE_SECONDS)
        if queue is None:  # the controller may restart: the jobs go on
            return
        for job in self.active:
            queued = queue.get((job.folder.name, job.index))
            job.misses = 0 if queued else job.misses + 1
            self._show(job, queued is not None and not queued.waiting)

    def _show(self, job: _Job, running: bool) -> None:
        if running and not job.displayed:
            self.display.started(job)
        elif job.displayed and not running:
            self.display.removed(job)
        job.displayed = running

    def _finish(self, job: _Job) -> None:
        self._show(job, False)
        self.active.remove(job)
        outcome = job.outcome()
        if outcome.error and job.adopted and job.state is None and not self.stop_requested:
            self._submit([job.number])  # the earlier call was killed while it submitted the job
        elif not (outcome.error and self.stop_requested):
            self.outcomes[job.number] = outcome
            self.display.ended(outcome)

    def request_stop(self) -> None:
        """The first Ctrl-C or SIGTERM: the jobs are cancelled with a checkpoint. The second one: do not wait for it."""
        if self.stop_requested:
            raise KeyboardInterrupt
        self.stop_requested, self.next_queue = True, 0.0

    def cancel(self) -> None:
        """Cancel the jobs. Those that run get SIGTERM in the training process only, and have any time they need."""
        ids = [job.id for job in self.active]
        for options in (["--state=PENDING"], ["--state=RUNNING", "--batch", "--signal=TERM"]):
            if ids:
                subprocess.run(["scancel", "--quiet", *options, *ids], capture_output=True)
