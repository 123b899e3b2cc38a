"""A stream with its tasks in another order, its first tasks alone, or scored on training images that were held out.

The last two are for choosing options. Nothing of the test images, of later tasks or of hidden labels is then used: a
held-out image carries the labels that its own task shows, and a class that its task does not show counts as absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

import numpy as np

from lifelabel.errors import UserError
from lifelabel.streams.base import Labels, Split, Stream, cut_classes


@dataclass(frozen=True)
class Part:
    """Which part of a stream a run uses; as it stands, all of it in its own order."""

    task_order: int = 0
    first_tasks: int | None = None
    hold_out: float = 0.0


def part_of(stream: Stream, part: Part) -> Stream:
    """The stream with its tasks in the given order, then the first of them, then with images held out."""
    if part.task_order:
        stream = reordered(stream, part.task_order)
    if part.first_tasks is not None:
        stream = first(stream, part.first_tasks)
    return scored_on_training(stream, part.hold_out) if part.hold_out else stream


def reordered(stream: Stream, order: int) -> Stream:
    """The same tasks, each with its classes and images, in the `order`-th random order; the labels move with them."""
    turn = np.random.default_rng(order).permutation(len(stream.tasks)).tolist()
    old = [stream.tasks[index] for index in turn]
    columns = np.concatenate([np.arange(task.first, task.last) for task in old])
    tasks = cut_classes(tuple(name for task in old for name in task.classes), [len(task.classes) for task in old])
    splits = [
        dataclasses.replace(split, labels=split.labels.choose(columns), rows=tuple(split.rows[i] for i in turn))
        for split in (stream.train, stream.test)
    ]
    truth = None if stream.truth is None else stream.truth[np.ix_(columns, columns)]
    rules = {**stream.rules, "task_order": order}
    return dataclasses.replace(stream, tasks=tasks, train=splits[0], test=splits[1], truth=truth, rules=rules)


def first(stream: Stream, count: int) -> Stream:
    """The stream as it is after its first `count` tasks: no later class, no later image."""
    if count > len(stream.tasks):
        raise UserError(f"first_tasks is {count}, and stream {stream.name} has {len(stream.tasks)} tasks")
    tasks = stream.tasks[:count]
    classes = tasks[-1].last
    splits = [
        dataclasses.replace(split, labels=split.labels.choose(range(classes)), rows=split.rows[:count])
        for split in (stream.train, stream.test)
    ]
    truth = None if stream.truth is None else stream.truth[:classes, :classes]
    rules = {**stream.rules, "first_tasks": count}
    return dataclasses.replace(stream, tasks=tasks, train=splits[0], test=splits[1], truth=truth, rules=rules)


def scored_on_training(stream: Stream, share: float) -> Stream:
    """The same tasks with a share of their images held out and scored in place of the test images.

    Which ones follows from their names alone. The true matrix is left out: it is made from hidden labels.
    """
    train = stream.train
    held = np.zeros(len(train), bool)
    for row in train.used().tolist():
        digest = hashlib.sha256(train.names[row].encode("utf-8", "surrogateescape")).digest()
        held[row] = int.from_bytes(digest[:4], "big") < share * 2**32
    rows = tuple(own[held[own]] for own in train.rows)
    for task, own in zip(stream.tasks, rows, strict=True):
        if not len(own):
            raise UserError(f"hold_out {share} leaves no image of task {task.index + 1} to score: hold out more")
    shown = [
        labels.row() * labels.classes + labels.column
        for task in stream.tasks
        for labels in [_only(train.labels, train.rows[task.index]).within(task.columns)]
    ]
    visible = Labels.of_keys(np.concatenate(shown), len(train), train.labels.classes)
    seen = np.zeros(len(train), bool)
    scored = []
    for own in rows:  # an image of several tasks is scored from the first on
        scored.append(own[~seen[own]])
        seen[own] = True
    test = Split(train.images, train.names, visible, tuple(scored))
    kept = dataclasses.replace(train, rows=tuple(own[~held[own]] for own in train.rows))
    rules = {**stream.rules, "hold_out": share}
    return dataclasses.replace(stream, train=kept, test=test, truth=None, rules=rules)


def _only(labels: Labels, rows: np.ndarray) -> Labels:
    """The labels of some rows; the others have none."""
    chosen = np.zeros(len(labels), bool)
    chosen[rows] = True
    inside = chosen[labels.row()]
    return Labels(np.concatenate([[0], np.cumsum(inside)])[labels.start], labels.column[inside], labels.classes)
