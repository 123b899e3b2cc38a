"""Metrics of scores: over which images and classes each is computed. This runs in the process of the label server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lifelabel.metrics.curves import precision_over_recall, score_counts
from lifelabel.metrics.functions import Scored
from lifelabel.metrics.over_tasks import HEADLINE, without_nan
from lifelabel.runs.records import TaskRecord
from lifelabel.streams.stream import Split, Stream, Task, task_of_class


def judge_earlier(stream: Stream, index: int, rows: np.ndarray, scores: np.ndarray) -> dict[str, float | None]:
    """The metrics of the cumulative test set of task `index`, from logits of its classes after the last task."""
    labels, logits = _labels(stream.test, rows, scores)
    return without_nan(_headline(logits, labels, _cumulative(stream, index + 1, rows)))


def judge(
    stream: Stream, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None
) -> tuple[TaskRecord, dict[str, np.ndarray]]:  # fmt: skip
    """The metrics after `done` tasks, from logits of the test images `rows`, and the details for reports.

    `seen` is over the classes so far on the cumulative test set (the images of the tasks so far). `by_task` is row t of
    a[t][j]: the classes of task j on all test images, the same images for all t. After the last task all metrics are
    computed, also by group of classes, and before the first task of a stream that extends a run the AP of every class.
    `positives` has the number of test images of each class.

    The details are over all test images: the AP of each class, `score_counts` by task of the class, and after the last
    task `precision_over_recall` with probabilities as thresholds.
    """
    tasks = stream.tasks
    labels, logits = _labels(stream.test, rows, scores)
    by_task = [Scored.from_logits(logits[:, task.columns], labels[:, task.columns]) for task in tasks[:done]]
    record: TaskRecord = {
        "task": done,
        "seen": _headline(logits, labels, _cumulative(stream, done, rows)),
        "by_task": [scored.headline() for scored in by_task],
    }
    # unknown labels have the score minus infinity and are not counted
    counts = [score_counts(s.probabilities.numpy(), s.labels.numpy(), s.scores.isfinite().numpy()) for s in by_task]
    details = {"ap": torch.cat([scored.ap for scored in by_task]).numpy(), "counts": np.stack(counts)}
    if done == len(tasks):
        record["conventions"] = Scored.from_logits(logits, labels).all_metrics()
        details["precision"], limits = precision_over_recall(logits.numpy(), labels.numpy())
        details["thresholds"] = torch.from_numpy(limits).sigmoid().numpy()
        if stream.groups:
            record["groups"] = _groups(stream, logits, labels)
    if done in (stream.learned, len(tasks)):
        record["ap"] = dict(zip(stream.classes[: tasks[done - 1].end], details["ap"].tolist(), strict=True))
    if done == len(tasks):
        record["positives"] = dict(zip(stream.classes, labels.sum(0).tolist(), strict=True))
    if matrix is not None and stream.truth is not None:
        record["acm_error"] = _acm_error(matrix, stream.truth[: len(matrix), : len(matrix)], tasks[:done])
    return without_nan(record), details


def _labels(split: Split, rows: np.ndarray, scores: np.ndarray) -> tuple[Tensor, Tensor]:
    """The labels of images for the classes of `scores`, and the scores: minus infinity if the label is unknown.

    An unknown label is then a negative with the lowest rank, which changes neither AP nor precision and recall.
    """
    columns = slice(0, scores.shape[1])
    if split.unknown is not None:
        scores = np.where(split.unknown.take(rows).select_classes(range(scores.shape[1])).dense(), -np.inf, scores)
    return torch.from_numpy(split.labels.take(rows).dense(columns)), torch.from_numpy(scores)


def _cumulative(stream: Stream, done: int, rows: np.ndarray) -> np.ndarray | None:
    """Which of the test images `rows` are in the cumulative test set of the first `done` tasks; None: all of them.

    The classes of a run that is extended are scored on all images, before and after the extension.
    """
    return None if done == stream.learned else task_of_image(stream)[rows] < done


def task_of_image(stream: Stream) -> np.ndarray:
    """For each test image, the first task in which it is scored."""
    task_of = np.full(len(stream.test), len(stream.tasks))
    for index, rows in reversed(list(enumerate(stream.test.rows))):
        task_of[rows] = index
    return task_of


def _groups(stream: Stream, logits: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """mAP, CF1 and OF1 of the classes of each group, on all test images."""
    column = {name: index for index, name in enumerate(stream.classes)}
    found = {}
    for group, names in stream.groups.items():
        columns = [column[name] for name in names]
        scores = Scored.from_logits(logits[:, columns], labels[:, columns]).headline()
        found[group] = {name: scores[name] for name in HEADLINE}
    return found


def _acm_error(matrix: np.ndarray, truth: np.ndarray, tasks: Sequence[Task]) -> dict[str, float]:
    """Mean absolute error of the off-diagonal entries, of all and by block."""
    task = task_of_class(tasks)
    row, column = task[:, None], task[None, :]
    off = ~np.eye(len(matrix), dtype=bool)
    blocks = {"all": off, "intra": off & (row == column), "old_new": row < column, "new_old": row > column}
    error = np.abs(matrix - truth)
    return {name: float(error[where].mean()) for name, where in blocks.items() if where.any()}


def _headline(logits: Tensor, labels: Tensor, rows: np.ndarray | None = None) -> dict[str, float]:
    """The metrics of A.5 over the given rows, or over all rows."""
    where = slice(None) if rows is None else torch.from_numpy(rows)
    return Scored.from_logits(logits[where], labels[where]).headline()
