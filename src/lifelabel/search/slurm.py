"""Runs as jobs of a Slurm cluster: the files of the runs show which are finished, and squeue which jobs wait or run.

No accounting is needed. If the scheduler is killed, the jobs continue. The next call finds them in the queue and waits
for them.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lifelabel.config.config import Config
from lifelabel.errors import UserError
from lifelabel.registry import loaded_plugins
from lifelabel.runs.folder import RunFolder
from lifelabel.search import slurm_job
from lifelabel.search.planned_run import ActiveRun, Backend, Outcome, PlannedRun, Waiting, differences, existing_outcome
from lifelabel.search.slurm_job import RUNS_FILE, TIME_LIMIT_SIGNAL, read_runs, read_state, write_runs
from lifelabel.utils.files import below, write_text

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


@dataclass(frozen=True)
class _Queued:
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


class _Job(ActiveRun):
    """The job of a run. It writes its state to a file."""

    def __init__(self, number: int, plan: PlannedRun, folder: Path, index: int, job_id: str):
        super().__init__(number, plan)
        self.folder, self.index, self.id = folder, index, job_id
        self.is_running, self.misses, self.most_misses = False, 0, _MISSES

    def poll(self) -> bool:
        self.set_state(read_state(self.folder, self.index) or self.state)
        return self.state.end is not None or self.misses >= self.most_misses

    def describe(self) -> str:
        return f"job {self.id}  {super().describe()}"

    def outcome(self) -> Outcome:
        if self.state.end is None:
            with contextlib.suppress(UserError):
                if RunFolder(self.plan.folder).is_finished:
                    self.state.end = "finished", ""
        return super().outcome()

    def reason(self) -> str:
        """Slurm has the state of a job for some minutes after its end."""
        done = subprocess.run(["scontrol", "show", "job", self.id], capture_output=True, text=True)
        found = re.search(r"JobState=(\w+).*ExitCode=\d+:(\d+)", done.stdout, re.DOTALL)
        state = found[1] if found else "UNKNOWN"
        if found and int(found[2]) == TIME_LIMIT_SIGNAL:  # it came before the run could handle it
            state = "TIMEOUT"
        log = self.folder / f"{self.id}.out"
        return f"its job {self.id} ended without a result ({state}){_HINTS.get(state, '')}; its output is in {log}"


class SlurmJobs(Backend):
    """The backend of the scheduler for a cluster. `folder` has the files of the jobs, `options` are those of sbatch."""

    at_once = "; the jobs were cancelled"
    has_queue = True

    def __init__(self, folder: Path, options: Mapping[str, str | bool], jobs: int = MAX_JOBS):
        self.folder, self.options, self.jobs = folder, options, jobs
        self.active: list[_Job] = []
        self.adopted = 0
        """The number of jobs that an earlier call has submitted."""
        self.stopping = False
        self.next_queue = self.next_files = 0.0
        """When squeue is called again, and when the files are read again."""

    def dry_run(self, planned: Sequence[PlannedRun]) -> str:
        """The job script of the runs that are not finished, and the list of these runs as comments."""
        missing = [plan for plan in planned if existing_outcome(plan) is None]
        if not missing:
            return f"# all {len(planned)} runs are finished, or their folders hold other runs: nothing to submit\n"
        listed = "".join(f"# run {index}: {plan.name} → {plan.folder}\n" for index, plan in enumerate(missing))
        return f"{self._script(self.folder / 'NEW', len(missing))}\n{listed}"

    def _script(self, folder: Path, count: int) -> str:
        """The script of a job array. Its training process takes the place of the shell: Slurm can signal it alone."""
        options = {
            **self.options, "array": f"0-{count - 1}%{min(count, self.jobs)}", "job-name": f"{_NAME}{folder.name}",
            "nodes": "1", "open-mode": "append", "output": f"{folder}/%A_%a.out",
        }  # fmt: skip
        lines = [
            f"#SBATCH --{k}" + ("" if v is True else f"={shlex.quote(str(v))}") for k, v in sorted(options.items())
        ]
        command = shlex.join([sys.executable, "-u", "-m", slurm_job.__name__, str(folder)])
        return "\n".join(["#!/bin/bash", *lines, "", f"exec {command}", ""])

    @contextlib.contextmanager
    def claim(self, missing: Sequence[tuple[int, PlannedRun]], overwrite: bool) -> Iterator[dict[int, Outcome]]:
        """Find the jobs of earlier calls. With `overwrite` they are refused, also those with other options."""
        if not shutil.which("sbatch"):
            raise UserError("--on slurm needs the commands of Slurm: log in to the cluster, or give --on local")
        folder = RunFolder(self.folder)
        folder.create()
        with folder.locked():  # two calls must not submit the same run
            jobs, refused = self._earlier_jobs(missing), {}
            if jobs and overwrite:
                ids = " ".join(job.id for job, _ in jobs)
                raise UserError(
                    f"jobs of an earlier call are active: cancel them (scancel {ids}), or leave out --overwrite"
                )
            for job, other in jobs:
                if other:
                    text = f"job {job.id} of an earlier call trains it with other options ({other[0]}): cancel that job"
                    refused[job.number] = Outcome(job.plan, text)
                else:
                    self.active.append(job)
            self.adopted = len(self.active)
            yield refused

    def _earlier_jobs(self, missing: Sequence[tuple[int, PlannedRun]]) -> list[tuple[_Job, list[str]]]:
        """The jobs of earlier calls that wait or run, with the options in which they differ."""
        names = [path.parent.name for path in self.folder.glob(f"*/{RUNS_FILE}")]
        folders = {name: below(self.folder, name) for name in names}
        queue = _read_queue(folders.values())
        if queue is None:
            raise UserError("squeue did not answer: is the controller of Slurm running?")
        runs = {name: read_runs(folders[name])[0] for name in {name for name, _ in queue}}
        wanted = {str(plan.folder.absolute()): (number, plan) for number, plan in missing}
        found = []
        for (name, index), queued in queue.items():
            earlier = runs[name][index]
            if str(earlier.folder) in wanted:
                job = _Job(*wanted[str(earlier.folder)], folders[name], index, queued.id)
                job.poll()
                if job.state.end is None:  # else it ends just now
                    found.append((job, differences(Config.make(earlier.values), job.plan.config)))
        return found

    def start(self, waiting: Waiting, note: Callable[[str], None]) -> None:
        """Submit all runs as one array: Slurm starts them."""
        if self.adopted:
            note(f"in the queue: {_count(self.adopted)} of an earlier call")
            self.adopted = 0
        if not waiting:
            return
        folder = self.folder / secrets.token_hex(4)
        RunFolder(folder).create()
        write_runs(folder, [plan for _, plan in waiting], loaded_plugins())
        write_text(folder / "job.sh", self._script(folder, len(waiting)))
        for _, plan in waiting:
            with contextlib.suppress(OSError):
                plan.error_file.unlink()
        done = subprocess.run(["sbatch", "--parsable", str(folder / "job.sh")], capture_output=True, text=True)
        if done.returncode != 0:
            (folder / RUNS_FILE).unlink()  # no job belongs to it
            raise UserError(f"{' '.join(done.stderr.split())} (change the options with --slurm)")
        array = done.stdout.strip().partition(";")[0]  # the name of the cluster may follow
        self.active += [
            _Job(number, plan, folder, index, f"{array}_{index}") for index, (number, plan) in enumerate(waiting)
        ]
        note(f"{_count(len(waiting))} submitted: {array}; the output is in {folder}")
        waiting.clear()

    def wait(self) -> None:
        """Wait until the files of the jobs are read again. Now and then, call squeue."""
        time.sleep(max(0.0, self.next_files - time.monotonic()))
        self.next_files = time.monotonic() + _FILES_SECONDS
        if time.monotonic() < self.next_queue:
            return
        if self.stopping:
            self.stop_at_once()
        queue = _read_queue({job.folder for job in self.active})
        self.next_queue = time.monotonic() + (_STOPPING_SECONDS if self.stopping else _QUEUE_SECONDS)
        if queue is None:  # the controller may restart: the jobs continue
            return
        for job in self.active:
            queued = queue.get((job.folder.name, job.index))
            job.misses = 0 if queued else job.misses + 1
            job.is_running = queued is not None and not queued.waiting

    def stop(self) -> None:
        if not self.stopping:
            self.stopping, self.next_queue = True, 0.0
            for job in self.active:
                job.most_misses = 1

    def stop_at_once(self) -> None:
        """Cancel the jobs. Those that run get SIGTERM in the training process only, and have any time they need."""
        ids = [job.id for job in self.active]
        for options in (["--state=PENDING"], ["--state=RUNNING", "--batch", "--signal=TERM"]):
            if ids:
                subprocess.run(["scancel", "--quiet", *options, *ids], capture_output=True)


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"
