"""Forgetting of mAP of the same runs, under several readings of A.5 of the AGCN paper.

    python -m benchmarks.forgetting [--methods agcn,lwf,er] [--seed 0] [--json FILE]

Each method learns the stream scenes and keeps its model after every task. a[t][j] is the mAP of the classes of task j
after task t, in points, on the images of the column. Forgetting is the mean over the tasks j < T of a reference minus
a[T][j]: the highest a[l][j] with j <= l < T, or in columns with "first" a[j][j].
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch

import lifelabel
from benchmarks.common import Results, make_parser
from lifelabel import metrics
from lifelabel.engine.judging import task_of_image
from lifelabel.images.transforms import load_batch
from lifelabel.runs.names import model_of_task
from lifelabel.streams import build

IMAGES = ("all", "cumulative j", "task j", "cumulative l")


def tables(run: Path) -> dict[str, np.ndarray]:
    """a[t][j] in points, by the images that it is computed on."""
    stream = build("scenes", {})
    tasks, first_task, test = len(stream.tasks), task_of_image(stream), stream.test
    labels = test.labels.dense()
    found = {name: np.full((tasks, tasks), np.nan) for name in IMAGES}
    for t in range(tasks):
        model = lifelabel.load(run / model_of_task(t + 1))
        pixels, _, _ = load_batch(test.images, np.arange(len(test)), model.info.image_size, "none", None)
        logits = model.logits(torch.from_numpy(pixels)).numpy()
        for j in range(t + 1):
            chosen = (first_task < tasks, first_task <= j, first_task == j, first_task <= t)
            for name, rows in zip(IMAGES, chosen, strict=True):
                columns = stream.tasks[j].columns
                found[name][t, j] = 100 * metrics.mean_average_precision(
                    logits[rows][:, columns], labels[rows][:, columns]
                )
    return found


def main() -> None:
    given = make_parser(__doc__, methods="agcn,lwf,er", seed=0).parse_args()
    results = Results(given, "method", "scenes")
    with tempfile.TemporaryDirectory() as folder:
        for method in given.methods.split(","):
            run = Path(folder) / method
            done = lifelabel.train(run, method=method, seed=given.seed, keep_tasks=True, device=given.device)
            a = tables(run)
            figures = {name: metrics.forgetting(table) for name, table in a.items()}
            first = a["all"].diagonal()[:-1] - a["all"][-1, :-1]
            relative = done.metrics["final"]["relative_forgetting"]["mAP"]
            assert np.isclose(figures["all"], 100 * done.metrics["final"]["forgetting"]["mAP"], atol=0.01)
            figures |= {"all, first": first.mean(), "relative, %": 100 * relative}
            results.add(method, {name: round(float(value), 2) for name, value in figures.items()})


if __name__ == "__main__":
    main()
