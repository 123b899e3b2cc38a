"""The evaluator: the only place that holds complete test labels. Scores in, every metric by its convention out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel import metrics
from lifelabel.images import to_input
from lifelabel.methods.base import Method
from lifelabel.streams.base import Split, Stream

BATCH = 256
CURVES = ("mAP", "CF1", "OF1")


def evaluate(method: Method, stream: Stream, done: int, stop: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Score every test image once, after `done` of the stream's tasks; after the last one, in every convention.

    `seen` is over the classes so far on the cumulative test set (images allotted to the tasks so far); `by_task` is
    row t of a[t][j]: the classes of task j on all test images, one fixed set for all t.
    """
    test, tasks = stream.test, stream.tasks
    final = done == len(tasks)
    counts = [task.last for task in tasks[:done]]
    logits = score(method, test, counts if final else None, stop)
    labels = torch.tensor(test.labels[:, : counts[-1]])
    record: dict[str, Any] = {
        "task": done,
        "seen": headline(logits[-1], labels, test.task < done),
        "by_task": [headline(logits[-1][:, task.columns], labels[:, task.columns]) for task in tasks[:done]],
    }
    if final:
        record["cumulative"] = [
            headline(part, labels[:, :count], test.task <= j)
            for j, (part, count) in enumerate(zip(logits, counts, strict=True))
        ]
        scored = metrics.Scored.of_logits(logits[-1], labels)
        record["conventions"] = scored.conventions()
        record["ap"] = dict(zip(stream.classes, scored.ap.tolist(), strict=True))
    matrix = method.matrix()
    if matrix is not None and stream.truth is not None:
        record["acm_error"] = acm_error(matrix, stream.truth[: len(matrix), : len(matrix)], method.sizes)
    return _without_nan(record)


@torch.no_grad()
def score(method: Method, test: Split, counts: Sequence[int] | None, stop: Callable[[], None]) -> list[Tensor]:
    """Logits of all test images on the CPU: those of all seen classes, or one tensor for each of `counts`."""
    setting = method.setting
    parts: list[list[Tensor]] = []
    for first in range(0, len(test), BATCH):
        stop()
        pixels = test.images(np.arange(first, min(first + BATCH, len(test))))
        images = to_input(pixels, setting.backbone)
        batch = method.scores_of_first(images, counts) if counts else [method.scores(images)]
        parts.append([part.cpu() for part in batch])
    scores = [torch.cat(columns) for columns in zip(*parts, strict=True)]
    if not all(bool(part.isfinite().all()) for part in scores):
        raise FloatingPointError("the scores of the test images are not finite")
    return scores


def acm_error(matrix: np.ndarray, truth: np.ndarray, sizes: Sequence[int]) -> dict[str, float]:
    """Mean absolute error of the off-diagonal entries, in all and by block (the diagonal is 1 by definition)."""
    task = np.repeat(np.arange(len(sizes)), sizes)
    row, column = task[:, None], task[None, :]
    off = ~np.eye(len(matrix), dtype=bool)
    blocks = {"all": off, "intra": off & (row == column), "old_new": row < column, "new_old": row > column}
    error = np.abs(matrix - truth)
    return {name: float(error[where].mean()) for name, where in blocks.items() if where.any()}


def summarise(records: Sequence[dict[str, Any]], stream: Stream) -> dict[str, Any]:
    """metrics.json: the final score, forgetting by both definitions, the matrices a[t][j], and every record."""
    summary: dict[str, Any] = {
        "classes": list(stream.classes),
        "tasks": [list(task.classes) for task in stream.tasks],
        "finished": bool(records) and records[-1]["task"] == len(stream.tasks),
        "by_task": {name: _triangle(records, name, len(stream.tasks)) for name in CURVES},
        "per_task": list(records),
    }
    if summary["finished"]:
        last = records[-1]
        lifelong = len(records) == len(stream.tasks) > 1
        final: dict[str, Any] = dict(last["seen"])
        final["cumulative_mean"] = {n: metrics.mean_of_known([s[n] for s in last["cumulative"]]) for n in CURVES}
        if lifelong:
            final["forgetting"] = {n: metrics.forgetting(summary["by_task"][n]) for n in CURVES}
            final["relative_forgetting"] = {
                n: metrics.relative_forgetting([r["seen"][n] for r in records], [s[n] for s in last["cumulative"]])
                for n in CURVES
            }
        if "acm_error" in last:
            final["acm_error"] = last["acm_error"]
        summary["final"] = {**final, "conventions": last["conventions"], "ap": last["ap"]}
    return _without_nan(summary)


def headline(logits: Tensor, labels: Tensor, rows: np.ndarray | None = None) -> dict[str, float]:
    """A.5's figures of some columns, over the given rows (all, where none are given)."""
    where = slice(None) if rows is None else torch.from_numpy(rows)
    return metrics.Scored.of_logits(logits[where], labels[where]).headline()


def _triangle(records: Sequence[dict[str, Any]], name: str, tasks: int) -> list[list[float | None]]:
    rows = [[score[name] for score in record["by_task"]] for record in records]
    return [row + [None] * (tasks - len(row)) for row in rows]


def _without_nan(value: Any) -> Any:
    """JSON has no NaN: a score that does not exist (a class without positives) is null."""
    if isinstance(value, dict):
        return {k: _without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and np.isnan(value) else value
