"""What the commands that train many runs share: their flags, and the training of their plans."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from lifelabel.cli.common import make_display
from lifelabel.cli.completion import complete_name
from lifelabel.errors import UserError, unknown
from lifelabel.utils.files import below

if TYPE_CHECKING:
    from lifelabel.search.comparison import Plan
    from lifelabel.search.local_runs import LocalRuns
    from lifelabel.search.planned_run import Outcome, PlannedRun
    from lifelabel.search.slurm import SlurmJobs

_PLACES = ("local", "slurm")

RepeatRuns = Annotated[bool, typer.Option("--overwrite", help="Repeat runs that exist.")]


@dataclass(frozen=True)
class Place:
    """Where runs are trained, by the flags of a command. Flags that do not fit are refused."""

    jobs: Annotated[
        int | None,
        typer.Option(help="Runs at a time [default: one on each GPU, or on each core, up to 8; on a cluster 256]."),
    ] = None
    on: Annotated[
        str,
        typer.Option(
            help="Where runs are trained: local, or slurm, a job for each run. Ctrl-C cancels the jobs with a "
            "checkpoint; if the command is killed, they continue.",
            autocompletion=complete_name(lambda: _PLACES),
        ),
    ] = "local"
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="With --on slurm: a long option of sbatch, such as partition=gpu, time=4:00:00, gpus-per-node=1, "
            "mem=32G or account=NAME. Repeatable. [default: time=60 minutes, requeued when reached; one GPU with "
            "--device cuda]",
        ),
    ] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --on slurm: print the job script, and submit nothing.")
    ] = False
    prints_script: ClassVar[bool] = True
    """Whether --dry-run prints a job script, and so needs a cluster."""

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise UserError(f"--jobs must be at least 1, not {self.jobs}")
        if self.on not in _PLACES:
            raise unknown("place for --on", self.on, _PLACES)
        if self.on == "local" and (self.slurm or (self.dry_run and self.prints_script)):
            raise UserError(f"{'--slurm' if self.slurm else '--dry-run'} needs --on slurm")

    @property
    def is_cluster(self) -> bool:
        return self.on == "slurm"

    def local(self, device: object) -> LocalRuns:
        from lifelabel.search.local_runs import LocalRuns, default_jobs

        return LocalRuns(self.jobs or default_jobs(str(device)))

    def cluster(self, folder: Path, device: object) -> SlurmJobs:
        """The files of the jobs are in the folder `slurm` of `folder`."""
        from lifelabel.search.slurm import MAX_JOBS, SlurmJobs, job_options

        options = job_options(self.slurm or (), str(device))
        return SlurmJobs(below(folder.absolute(), "slurm"), options, self.jobs or MAX_JOBS)

    def print_script(self, planned: Sequence[PlannedRun], folder: Path, device: object) -> None:
        """Print the job script of the runs that are missing."""
        print(self.cluster(folder, device).dry_run(planned), end="")


def train_plans(
    plans: Sequence[Plan], place: Place, out: Path, *, overwrite: bool, quiet: bool
) -> list[list[Outcome]] | None:
    """Train the missing runs of plans. Returns the outcomes of each plan, or None if only the job script was printed.

    All runs are trained in one call, so that no core and no GPU waits for the end of a plan.
    """
    from lifelabel.search.scheduler import run_all

    planned = [run for plan in plans for run in plan.runs]
    device = plans[0].shared.get("device", "auto")
    backend = place.cluster(out, device) if place.is_cluster else place.local(device)
    if place.dry_run:
        place.print_script(planned, out, device)
        return None
    command = given_command({"--overwrite"})
    display = make_display(quiet)
    outcomes = iter(run_all(planned, overwrite=overwrite, display=display, command=command, backend=backend))
    return [[next(outcomes) for _ in plan.runs] for plan in plans]


def given_command(without: set[str]) -> str:
    """The command that was given, without some flags."""
    return shlex.join(["lifelabel", *(word for word in sys.argv[1:] if word not in without)])
