"""Flags of commands that train many runs: on this machine, or on a Slurm cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.common import check_jobs
from lifelabel.cli.completion import complete_name
from lifelabel.errors import UserError, unknown
from lifelabel.utils.files import below

if TYPE_CHECKING:
    from lifelabel.search.scheduler import Outcome, PlannedRun
    from lifelabel.search.slurm import Cluster

__all__ = ["DryRun", "On", "Place", "SbatchOptions"]

_PLACES = ("local", "slurm")

On = Annotated[
    str,
    typer.Option(
        help="Where runs are trained: local, or slurm, a job for each run. Ctrl-C cancels the jobs with a checkpoint; "
        "if the command is killed, they go on.",
        autocompletion=complete_name(lambda: _PLACES),
    ),
]
SbatchOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="NAME=VALUE",
        help="With --on slurm: a long option of sbatch, such as partition=gpu, time=4:00:00, gpus-per-node=1, mem=32G "
        "or account=NAME. Repeatable. [default: time=60 minutes, requeued when reached; one GPU with --device cuda]",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --on slurm: print the job script, and submit nothing.")]


@dataclass(frozen=True)
class Place:
    """Where runs are trained, by the flags of a command. Flags that do not fit are refused."""

    on: str = "local"
    options: Sequence[str] = ()
    """Options of sbatch."""
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.on not in _PLACES:
            raise unknown("place for --on", self.on, _PLACES)
        if self.on == "local" and (self.options or self.dry_run):
            raise UserError(f"{'--slurm' if self.options else '--dry-run'} needs --on slurm")

    @property
    def is_cluster(self) -> bool:
        return self.on == "slurm"

    def check_jobs(self, jobs: int | None, device: object) -> int:
        """The number of runs at a time: the given one, or the default for the machine or the cluster."""
        if self.is_cluster and jobs is None:
            from lifelabel.search.slurm import MAX_JOBS

            return MAX_JOBS
        return check_jobs(jobs, device)

    def runner(self, folder: Path, device: object) -> Callable[..., list[Outcome]]:
        """The function that trains many runs. The files of jobs are in the folder `slurm` of `folder`."""
        if not self.is_cluster:
            from lifelabel.search.scheduler import run_all

            return run_all
        from lifelabel.search import slurm

        return functools.partial(slurm.run_all, cluster=self._cluster(folder, device))

    def print_script(self, planned: Sequence[PlannedRun], jobs: int, folder: Path, device: object) -> None:
        """Print the job script of the runs that are missing."""
        from lifelabel.search import slurm

        print(slurm.dry_run(planned, jobs, self._cluster(folder, device)), end="")

    def _cluster(self, folder: Path, device: object) -> Cluster:
        from lifelabel.search import slurm

        return slurm.Cluster(below(folder.absolute(), "slurm"), slurm.job_options(self.options, str(device)))
