"""The evaluator: scores in, every metric by its convention out. What reads labels runs in the keeper's process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel import metrics
from lifelabel.backbones import send
from lifelabel.methods.base import Method
from lifelabel.recording import in_passing
from lifelabel.saving import Sent
from lifelabel.streams.base import Stream, Task

CURVES = ("mAP", "CF1", "OF1")


@torch.no_grad()
def features(method: Method, batches: Iterable[Tensor], stop: Callable[[], None]) -> list[Tensor]:
    """What the method sees in the images of `batches` (uint8 pixels), each image once; kept on the host."""
    kept: list[Tensor] = []
    last: Sent | None = None
    most = 0
    for pixels in batches:
        stop()
        most = max(most, len(pixels))
        with in_passing(len(pixels) < most):
            ahead = Sent(method.features(method.setting.backbone.to_input(pixels)))
        if last is not None:  # it arrives while the device has the next at work
            kept.append(last.read().clone())  # not in pinned memory
        last = ahead
    return kept if last is None else [*kept, last.read().clone()]


@torch.no_grad()
def score(method: Method, seen: Iterable[Tensor], first: int | None = None) -> np.ndarray:
    """Logits of all images whose features are given: of all seen classes, or of the `first` ones.

    This runs where the method is; `judge`, which knows the labels, runs in the keeper's process.
    """
    scores = torch.cat([method.logits(send(part, method.setting.device), first).cpu() for part in seen])
    if not bool(scores.isfinite().all()):
        raise FloatingPointError("the scores of the test images are not finite")
    return scores.numpy()


def earlier(stream: Stream, index: int, rows: np.ndarray, scores: np.ndarray) -> dict[str, float | None]:
    """The figures of task `index`'s cumulative test set, scored after the last task, from logits of its classes."""
    labels = torch.from_numpy(stream.test.labels.take(rows).dense(slice(0, stream.tasks[index].last)))
    wanted = task_of_image(stream)[rows] <= index
    return metrics.without_nan(headline(torch.from_numpy(scores), labels, wanted))


def judge(
    stream: Stream, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None, sizes: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    """The figures after `done` of the stream's tasks, from logits of the test images `rows`.

    `seen` is over the classes so far on the cumulative test set (images allotted to the tasks so far); `by_task` is
    row t of a[t][j]: the classes of task j on all test images, one fixed set for all t. After the last task every
    convention is computed.
    """
    test, tasks = stream.test, stream.tasks
    task_of = task_of_image(stream)[rows]
    logits = torch.from_numpy(scores)
    labels = torch.from_numpy(test.labels.take(rows).dense(slice(0, tasks[done - 1].last)))
    record: dict[str, Any] = {
        "task": done,
        "seen": headline(logits, labels, task_of < done),
        "by_task": [headline(logits[:, task.columns], labels[:, task.columns]) for task in tasks[:done]],
    }
    if done == len(tasks):
        scored = metrics.Scored.of_logits(logits, labels)
        record["conventions"] = scored.conventions()
        record["ap"] = dict(zip(stream.classes, scored.ap.tolist(), strict=True))
    if matrix is not None and stream.truth is not None:
        record["acm_error"] = acm_error(matrix, stream.truth[: len(matrix), : len(matrix)], sizes)
    return metrics.without_nan(record)


def task_of_image(stream: Stream) -> np.ndarray:
    """For each test image, the task from which on it is scored."""
    task_of = np.full(len(stream.test), len(stream.tasks))
    for index, own in reversed(list(enumerate(stream.test.rows))):
        task_of[own] = index
    return task_of


def acm_error(matrix: np.ndarray, truth: np.ndarray, sizes: Sequence[int]) -> dict[str, float]:
    """Mean absolute error of the off-diagonal entries, in all and by block (the diagonal is 1 by definition)."""
    task = np.repeat(np.arange(len(sizes)), sizes)
    row, column = task[:, None], task[None, :]
    off = ~np.eye(len(matrix), dtype=bool)
    blocks = {"all": off, "intra": off & (row == column), "old_new": row < column, "new_old": row > column}
    error = np.abs(matrix - truth)
    return {name: float(error[where].mean()) for name, where in blocks.items() if where.any()}


def summarise(records: Sequence[dict[str, Any]], tasks: Sequence[Task]) -> dict[str, Any]:
    """metrics.json: the final score, forgetting by both definitions, the matrices a[t][j], and every record."""
    summary: dict[str, Any] = {
        "classes": [name for task in tasks for name in task.classes],
        "tasks": [list(task.classes) for task in tasks],
        "finished": bool(records) and records[-1]["task"] == len(tasks),
        "by_task": {name: _triangle(records, name, len(tasks)) for name in CURVES},
        "per_task": list(records),
    }
    if summary["finished"]:
        last = records[-1]
        lifelong = len(records) == len(tasks) > 1
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
    return metrics.without_nan(summary)


def headline(logits: Tensor, labels: Tensor, rows: np.ndarray | None = None) -> dict[str, float]:
    """A.5's figures of some columns, over the given rows (all, where none are given)."""
    where = slice(None) if rows is None else torch.from_numpy(rows)
    return metrics.Scored.of_logits(logits[where], labels[where]).headline()


def _triangle(records: Sequence[dict[str, Any]], name: str, tasks: int) -> list[list[float | None]]:
    rows = [[score[name] for score in record["by_task"]] for record in records]
    return [row + [None] * (tasks - len(row)) for row in rows]
