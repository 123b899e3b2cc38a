"""The job of one run on a Slurm cluster: it trains the run, and writes its progress and its end to a file.

Slurm signals the job ahead of its time limit. The run then writes a checkpoint, and the job is requeued.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from lifelabel.errors import UserError
from lifelabel.registry import load_plugin
from lifelabel.search.planned_run import PlannedRun, Reporter, RunState, train_planned
from lifelabel.utils.files import below, read_limited, write_text

RUNS_FILE = "runs.json"
"""A file in the folder of a submission: the runs of its jobs, in the order of the job array."""
TIME_LIMIT_SIGNAL = signal.SIGUSR2
"""The signal that Slurm sends ahead of the time limit."""
_WRITE_SECONDS = 5.0
"""The shortest time between two writes of the progress."""
_MAX_BYTES = 64 << 20


def write_runs(folder: Path, planned: Sequence[PlannedRun], plugins: Sequence[str]) -> None:
    """Write the runs of a submission, with all their options and with absolute paths."""
    runs = [
        {"name": plan.name, "folder": str(plan.folder.absolute()), "values": plan.config.to_dict()} for plan in planned
    ]
    write_text(folder / RUNS_FILE, json.dumps({"plugins": list(plugins), "runs": runs}, indent=1))


def read_runs(folder: Path) -> tuple[list[PlannedRun], list[str]]:
    """The runs of a submission, and the plug-ins that they need."""
    path = below(folder, RUNS_FILE)
    try:
        content = json.loads(read_limited(path, _MAX_BYTES))
        runs = [PlannedRun(run["name"], Path(run["folder"]), run["values"]) for run in content["runs"]]
        return runs, list(content["plugins"])
    except (ValueError, TypeError, KeyError):
        raise UserError(f"{path} is damaged: delete {folder}, and give the command again") from None


def _state_file(folder: Path, index: int) -> Path:
    return below(folder, f"{index}.json")


def read_state(folder: Path, index: int) -> RunState | None:
    """The state of a run of a submission; None if its job has not started, or if the file is damaged."""
    path = _state_file(folder, index)
    if not path.exists():
        return None
    try:
        values = json.loads(read_limited(path, _MAX_BYTES))
        return RunState(**{**values, "end": values["end"] and tuple(values["end"])})
    except (UserError, ValueError, TypeError, KeyError):
        return None


def run_job(folder: str, index: int) -> None:
    """Train or resume one run of a submission, in its job."""
    job = _Job(Path(folder), index)
    signal.signal(TIME_LIMIT_SIGNAL, lambda *_: job.stop_at_time_limit())
    kind, text = job.train()
    if kind == "stopped" and job.time_limit_reached:
        if job.has_progressed:
            text = _requeue()
            if not text:
                return
        else:
            kind, text = "failure", "no step ended within the time limit of its job: give a longer one (--slurm time=…)"
    job.state.end = kind, text
    job.write()


class _Job(Reporter):
    """The run of this job. Its state is written to a file."""

    def __init__(self, folder: Path, index: int):
        super().__init__()
        self.folder, self.index = folder, index
        self.time_limit_reached = False
        self.write()

    def train(self) -> tuple[str, str]:
        """Train or resume the run. Returns the kind of its end, and the reason."""
        if "OMP_NUM_THREADS" not in os.environ:  # the same number on every node: it changes the last bits of a float
            torch.set_num_threads(int(os.environ.get("SLURM_CPUS_PER_TASK", 1)))
        try:
            runs, plugins = read_runs(self.folder)
            for plugin in plugins:
                load_plugin(plugin)
            return train_planned(runs[self.index], callback=self)
        except UserError as error:
            return "user error", str(error)

    def stop_at_time_limit(self) -> None:
        """Stop the run with a checkpoint. A run that is still being set up has none, and fails."""
        self.time_limit_reached = True
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            raise UserError("its set-up took longer than the time limit of its job: give a longer one (--slurm time=…)")
        signal.raise_signal(signal.SIGTERM)

    @property
    def has_progressed(self) -> bool:
        """Whether this job has learned images. Without progress, it would be requeued for ever."""
        return self.state.images > self.state.learned_before

    def write(self) -> None:
        self.written = time.monotonic()
        write_text(_state_file(self.folder, self.index), json.dumps(dataclasses.asdict(self.state)))

    def publish(self) -> None:
        if time.monotonic() - self.written >= _WRITE_SECONDS or not self.state.images:
            with contextlib.suppress(UserError):  # the run matters, not its display
                self.write()


def _requeue() -> str:
    """Requeue this job. Returns the reason if that is not possible."""
    job = os.environ["SLURM_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in os.environ:  # one job of an array has the id of the array, which stands for all jobs
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    reason = " ".join(done.stderr.split())
    return f"reached its time limit, and could not be requeued ({reason}); the same command continues it"


if __name__ == "__main__":
    run_job(sys.argv[1], int(os.environ.get("SLURM_ARRAY_TASK_ID", 0)))
