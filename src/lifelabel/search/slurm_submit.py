"""Submission of a job array through submitit. This module needs the extra `slurm`."""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from lifelabel.errors import UserError
from lifelabel.search.slurm_job import run_job

__all__ = ["Submitter"]


class Submitter(SlurmExecutor):
    """submitit's executor for the jobs of one submission. `options` are options of sbatch."""

    def __init__(self, folder: Path, name: str, options: Mapping[str, str | bool], jobs: int):
        # the training process takes the place of the batch shell: Slurm can signal it without its child processes
        super().__init__(folder, python=f"exec {shlex.quote(sys.executable)}")
        self.update_parameters(
            job_name=name, wckey=None, use_srun=False, stderr_to_stdout=True, array_parallelism=jobs,
            additional_parameters=dict(options),
        )  # fmt: skip

    @classmethod
    def affinity(cls) -> int:
        """Scripts can be made on a machine without Slurm."""
        return 1

    def script(self, count: int) -> str:
        """The script for `count` runs."""
        if count > 1:
            self.parameters["map_count"] = count
        try:
            return self._make_submission_file_text(self._submitit_command_str, "")
        finally:
            self.parameters.pop("map_count", None)

    def submit_runs(self, count: int) -> list[str]:
        """Submit the runs of the folder. Returns the id of the job of each run."""
        try:
            # submitit prints what sbatch prints
            with contextlib.redirect_stderr(io.StringIO()), self.batch():
                jobs = [self.submit(run_job, str(self.folder), index) for index in range(count)]
        except (FailedJobError, FailedSubmissionError) as error:
            lines = [line for line in str(error).splitlines() if line.startswith("sbatch: ")]
            reason = " ".join(lines) or " ".join(str(error).split())
            raise UserError(f"{reason} (change the options with --slurm)") from None
        return [job.job_id for job in jobs]
