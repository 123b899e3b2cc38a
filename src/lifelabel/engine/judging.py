"""Metrics of scores: over which images and classes each is computed. This runs in the process of the label server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.metrics.functions import HEADLINE, Scored, forgetting, mean_of_known, relative_forgetting, without_nan
from lifelabel.streams.base import Stream, Task

__all__ = ["judge", "judge_earlier", "summarise", "task_of_image"]


def judge_earlier(stream: Stream, index: int, rows: np.ndarray, scores: np.ndarray) -> dict[str, float | None]:
    """The metrics of the cumulative test set of task `index`, from logits of its classes after the last task."""
    labels = torch.from_numpy(stream.test.labels.take(rows).dense(slice(0, stream.tasks[index].end)))
    of_task = task_of_image(stream)[rows] <= index
    return without_nan(_headline(torch.from_numpy(scores), labels, of_task))


def judge(
    stream: Stream, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None, sizes: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """The metrics after `done` tasks, from logits of the test images `rows`.

    `seen` is over the classes so far on the cumulative test set (the images of the tasks so far). `by_task` is row t of
    a[t][j]: the classes of task j on all test images, the same images for all t. After the last task all metrics are
    computed.
    """
    test, tasks = stream.test, stream.tasks
    task_of = task_of_image(stream)[rows]
    logits = torch.from_numpy(scores)
    labels = torch.from_numpy(test.labels.take(rows).dense(slice(0, tasks[done - 1].end)))
    record: dict[str, Any] = {
        "task": done,
        "seen": _headline(logits, labels, task_of < done),
        "by_task": [_headline(logits[:, task.columns], labels[:, task.columns]) for task in tasks[:done]],
    }
    if done == len(tasks):
        scored = Scored.from_logits(logits, labels)
        record["conventions"] = scored.all_metrics()
        record["ap"] = dict(zip(stream.classes, scored.ap.tolist(), strict=True))
    if matrix is not None and stream.truth is not None:
        record["acm_error"] = _acm_error(matrix, stream.truth[: len(matrix), : len(matrix)], sizes)
    return without_nan(record)


def task_of_image(stream: Stream) -> np.ndarray:
    """For each test image, the first task in which it is scored."""
    task_of = np.full(len(stream.test), len(stream.tasks))
    for index, rows in reversed(list(enumerate(stream.test.rows))):
        task_of[rows] = index
    return task_of


def _acm_error(matrix: np.ndarray, truth: np.ndarray, sizes: Sequence[int]) -> dict[str, float]:
    """Mean absolute error of the off-diagonal entries, of all and by block."""
    task = np.repeat(np.arange(len(sizes)), sizes)
    row, column = task[:, None], task[None, :]
    off = ~np.eye(len(matrix), dtype=bool)
    blocks = {"all": off, "intra": off & (row == column), "old_new": row < column, "new_old": row > column}
    error = np.abs(matrix - truth)
    return {name: float(error[where].mean()) for name, where in blocks.items() if where.any()}


def summarise(records: Sequence[dict[str, Any]], tasks: Sequence[Task]) -> dict[str, Any]:
    """metrics.json: the final metrics, forgetting by both definitions, the matrices a[t][j], and every record."""
    summary: dict[str, Any] = {
        "classes": [name for task in tasks for name in task.classes],
        "tasks": [list(task.classes) for task in tasks],
        "finished": bool(records) and records[-1]["task"] == len(tasks),
        "by_task": {name: _by_task(records, name, len(tasks)) for name in HEADLINE},
        "per_task": list(records),
    }
    if summary["finished"]:
        last = records[-1]
        lifelong = len(records) == len(tasks) > 1
        final: dict[str, Any] = dict(last["seen"])
        final["cumulative_mean"] = {n: mean_of_known([s[n] for s in last["cumulative"]]) for n in HEADLINE}
        if lifelong:
            final["forgetting"] = {n: forgetting(summary["by_task"][n]) for n in HEADLINE}
            final["relative_forgetting"] = {
                n: relative_forgetting([r["seen"][n] for r in records], [s[n] for s in last["cumulative"]])
                for n in HEADLINE
            }
        if "acm_error" in last:
            final["acm_error"] = last["acm_error"]
        summary["final"] = {**final, "conventions": last["conventions"], "ap": last["ap"]}
    return without_nan(summary)


def _headline(logits: Tensor, labels: Tensor, rows: np.ndarray | None = None) -> dict[str, float]:
    """The metrics of A.5 over the given rows, or over all rows."""
    where = slice(None) if rows is None else torch.from_numpy(rows)
    return Scored.from_logits(logits[where], labels[where]).headline()


def _by_task(records: Sequence[dict[str, Any]], name: str, tasks: int) -> list[list[float | None]]:
    """a[t][j] of one metric, with None above the diagonal."""
    rows = [[score[name] for score in record["by_task"]] for record in records]
    return [row + [None] * (tasks - len(row)) for row in rows]
