"""The time that weighted-ridge takes to solve the systems of all tasks, relative to the Cholesky factors alone.

    python -m benchmarks.ridge [--device cpu] [--tasks 10] [--dim 3905]

cholesky   The factors of all systems, by torch.
solve      Solutions and calibration of all tasks, and the strength of regularisation of the last one.
"""

from __future__ import annotations

import torch

from benchmarks.common import Results, make_parser, seconds
from lifelabel.methods.ridge import Regression, TaskSums
from lifelabel.methods.weighted_ridge import RIDGES
from lifelabel.nn.device import resolve_device

CLASSES = 4


def make_sums(tasks: int, dim: int, device: torch.device) -> TaskSums:
    """The sums of random features of 500 images a task."""
    generator = torch.Generator(device).manual_seed(0)
    sums = TaskSums(dim, device)
    for _ in range(tasks):
        sums.begin_task(CLASSES)
        phi = torch.randn(500, dim, generator=generator, device=device)
        phi[:, -1] = 1
        labels = (phi[:, :CLASSES] > 1).float()
        sums.add(phi, labels, torch.ones_like(labels, dtype=torch.bool))
    return sums


def main() -> None:
    given = make_parser(__doc__, tasks=10, dim=3905).parse_args()
    device = resolve_device(given.device)
    results = Results(given, "", f"{given.tasks} tasks", f"{given.dim} dimensions")
    sums = make_sums(given.tasks, given.dim, device)

    def make(task: int) -> Regression:
        return Regression(sums.total, *sums.of_task(task), 0.2)

    def factors() -> None:
        for task in range(given.tasks):
            make(task).factor(1.0)

    def solutions() -> None:
        for task in range(given.tasks):
            make(task).solve(1.0).calibrate()
        for ridge in RIDGES:
            make(given.tasks - 1).solve(ridge)

    make(0).factor(1.0)  # libraries are loaded
    cholesky, solve = seconds(factors, device), seconds(solutions, device)
    results.add("Cholesky factors alone, s", cholesky)
    results.add("all solutions, calibration and the choice of γ, s", solve)
    results.add("ratio", solve / cholesky)


if __name__ == "__main__":
    main()
