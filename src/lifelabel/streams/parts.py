"""A stream with its tasks in another order, its first tasks alone, or scored on training images that were held out.

The last two are for choosing options. Nothing of the test images, of later tasks or of hidden labels is then used: a
held-out image carries the labels that its own task shows, and a class that its task does not show counts as absent.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lifelabel.errors import UserError
from lifelabel.streams.base import Labels, Split, Stream, Task, cut_classes, task_of_class


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
    turn = turns(len(stream.tasks), order)[-1]
    old = [stream.tasks[index] for index in turn]
    columns = np.concatenate([np.arange(task.first, task.last) for task in old])
    tasks = cut_classes(tuple(name for task in old for name in task.classes), [len(task.classes) for task in old])
    train, test = (
        dataclasses.replace(split, labels=split.labels.choose(columns), rows=tuple(split.rows[i] for i in turn))
        for split in (stream.train, stream.test)
    )
    if len(train.used()) < sum(map(len, train.rows)):  # overlap: a test image is scored once it has a known class
        test = _from_first_label(test, tasks)
    truth = None if stream.truth is None else stream.truth[np.ix_(columns, columns)]
    rules = {**stream.rules, "task_order": order}
    return dataclasses.replace(stream, tasks=tasks, train=train, test=test, truth=truth, rules=rules)


def _from_first_label(split: Split, tasks: Sequence[Task]) -> Split:
    """Each image moved to the first task that owns one of its labels; one that shows none stays."""
    task_of = np.full(len(split), len(tasks))
    shown = split.labels.row(), task_of_class(tasks)[split.labels.column]
    np.minimum.at(task_of, *shown)
    used = split.used()
    stays = [rows[task_of[rows] == len(tasks)] for rows in split.rows]
    moved = [used[task_of[used] == task.index] for task in tasks]
    rows = tuple(np.union1d(*pair) for pair in zip(stays, moved, strict=True))
    return dataclasses.replace(split, rows=rows)


def turns(tasks: int, orders: int) -> list[list[int]]:
    """Random orders of the tasks, all different and none the stream's own; the first k are the same however many.

    >>> turns(3, 2)
    [[2, 0, 1], [2, 1, 0]]
    """
    if orders >= math.factorial(min(tasks, 20)):
        raise UserError(f"there is no task_order {orders} of {tasks} tasks: only {math.factorial(tasks) - 1} others")
    rng = np.random.default_rng(0)
    drawn: list[list[int]] = []
    while len(drawn) < orders:
        turn = rng.permutation(tasks).tolist()
        if turn != sorted(turn) and turn not in drawn:
            drawn.append(turn)
    return drawn


def first(stream: Stream, count: int) -> Stream:
    """The stream as it is after its first `count` tasks: no later class, no later image."""
    if count > len(stream.tasks):
        raise UserError(
            f"stream {stream.name} has {len(stream.tasks)} tasks, not {count}: lower first_tasks (--tasks of tune)"
        )
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

    Which ones follows from their names alone, so an image of several tasks is held out of all of them, and carries
    what any of them shows. The true matrix is left out: it is made from hidden labels.
    """
    train = stream.train
    held = np.zeros(len(train), bool)
    for row in train.used().tolist():
        digest = hashlib.sha256(train.names[row].encode("utf-8", "surrogateescape")).digest()
        held[row] = int.from_bytes(digest[:4], "big") < share * 2**32
    rows = tuple(own[held[own]] for own in train.rows)
    kept = tuple(own[~held[own]] for own in train.rows)
    for task, out, left in zip(stream.tasks, rows, kept, strict=True):
        if not len(out) or not len(left):
            what, do = ("score", "more") if len(left) else ("learn", "less")
            raise UserError(f"hold_out {share} leaves no image of task {task.index + 1} to {what}: hold out {do}")
    visible = _visible(train.labels, stream.tasks, rows)
    seen = np.zeros(len(train), bool)
    scored = []
    for own in rows:  # an image of several tasks is scored from the first on
        scored.append(own[~seen[own]])
        seen[own] = True
    test = Split(train.images, train.names, visible, tuple(scored))
    rules = {**stream.rules, "hold_out": share}
    train = dataclasses.replace(train, rows=kept)
    return dataclasses.replace(stream, train=train, test=test, truth=None, rules=rules)


def _visible(labels: Labels, tasks: Sequence[Task], rows: Sequence[np.ndarray]) -> Labels:
    """What each task shows of its own rows; every other row has no label."""
    keys = []
    for task, own in zip(tasks, rows, strict=True):
        shown = labels.take(own).within(task.columns)
        keys.append(own[shown.row()] * labels.classes + shown.column)
    return Labels.of_keys(np.concatenate(keys), len(labels), labels.classes)
