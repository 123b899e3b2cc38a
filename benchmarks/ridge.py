"""The time that weighted-ridge takes to solve the systems of all tasks, relative to the Cholesky factors alone.

    python -m benchmarks.ridge [--device cpu] [--tasks 10] [--dim 3905]

cholesky   The factors of all systems, by torch.
solve      Solutions and calibration of all tasks, and the strength of regularisation of the last one.
"""

from __future__ import annotations

import time

import torch

from benchmarks.common import make_parser, print_header, synchronize, write_json
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
    parser = make_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--dim", type=int, default=3905)
    given = parser.parse_args()
    device = resolve_device(given.device)
    print_header(given, f"{given.tasks} tasks", f"{given.dim} dimensions")
    sums = make_sums(given.tasks, given.dim, device)
    regressions = [lambda task=task: Regression(sums.total, *sums.of_task(task), 0.2) for task in range(given.tasks)]
    regressions[0]().factor(1.0)  # libraries are loaded
    row = {}
    synchronize(device)
    start = time.perf_counter()
    for make in regressions:
        make().factor(1.0)
    synchronize(device)
    row["cholesky"] = time.perf_counter() - start
    start = time.perf_counter()
    for make in regressions:
        make().solve(1.0).calibrate()
    for ridge in RIDGES:
        regressions[-1]().solve(ridge)
    synchronize(device)
    row["solve"] = time.perf_counter() - start
    row["solve/cholesky"] = row["solve"] / row["cholesky"]
    print("".join(f"{name:>16}" for name in row))
    print("".join(f"{value:>16.4g}" for value in row.values()), flush=True)
    names = ("Cholesky factors alone, s", "all solutions, calibration and the choice of γ, s", "ratio")
    write_json(given, "", dict(zip(names, row.values(), strict=True)))


if __name__ == "__main__":
    main()
