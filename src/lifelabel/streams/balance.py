"""Assigns each image to one of the tasks that own a label of it (A.2). docs/streams/protocols.md has the algorithm."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from lifelabel.streams.labels import Labels


def assign_tasks(choices: Labels, draws: np.ndarray, load: np.ndarray) -> np.ndarray:
    """One task for every image, out of its choices, with task sizes as equal as possible.

    `choices` (images x tasks) has the tasks that own a label of each image. `draws` has one number per image, which
    decides the task among images with the same choices. `load` is the number of images that each task has already.

    >>> choices = Labels.from_lists([[0], [0], [0, 1], [0, 1, 2]], classes=3)
    >>> assign_tasks(choices, np.zeros(4, np.uint64), np.zeros(3, int)).tolist()
    [0, 0, 1, 2]
    """
    kind, example = _kinds(choices)
    kinds = choices.take(example)
    shares = _balance(kinds, np.bincount(kind, minlength=len(kinds)), load)
    task = np.empty(len(choices), np.int64)
    task[np.lexsort((draws, kind))] = np.repeat(kinds.column, shares)
    return task


def _kinds(choices: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct sets of tasks ("kinds"). Returns the kind of each image, and one image of each kind."""
    column = np.ascontiguousarray(choices.column, ">i4")  # big-endian bytes sort as the numbers do
    raw, start = column.tobytes(), (4 * choices.start).tolist()
    sets = [raw[begin:end] for begin, end in itertools.pairwise(start)]
    number = {key: index for index, key in enumerate(sorted(set(sets)))}
    kind = np.array([number[key] for key in sets], np.int64)
    example = np.zeros(len(number), np.int64)
    example[kind] = np.arange(len(kind))
    return kind, example


def _balance(kinds: Labels, images: np.ndarray, load: np.ndarray) -> np.ndarray:
    """The number of images of each kind that go to each of its tasks: one number per entry of `kinds` (kinds x tasks).

    At the end no image can move to a task that has at least two images fewer than its own. The loop ends because each
    pass lowers the sum of squared task sizes.
    """
    task, start, number = kinds.column.tolist(), kinds.start.tolist(), images.tolist()
    filled, count = load.tolist(), [0] * len(kinds.column)

    def divide(kind: int) -> None:
        entries = range(start[kind], start[kind + 1])
        for entry in entries:
            filled[task[entry]] -= count[entry]
        for entry, share in zip(entries, _shares([filled[task[e]] for e in entries], number[kind]), strict=True):
            count[entry] = share
            filled[task[entry]] += share

    for kind in np.argsort(kinds.per_image(), kind="stable").tolist():
        divide(kind)
    while len(uneven := _uneven(kinds, np.array(count), np.array(filled))):
        for kind in uneven.tolist():
            divide(kind)
    return np.array(count, np.int64)


def _shares(load: Sequence[int], images: int) -> list[int]:
    """The number of images each task gets if images go one by one to the smallest task (the first one of equals).

    >>> _shares([5, 0, 3], 6)
    [0, 5, 1]
    """
    order = sorted(range(len(load)), key=load.__getitem__)
    below = reached = 0
    for task in order:
        if load[task] * reached - below > images:
            break
        below, reached = below + load[task], reached + 1
    level, extra = divmod(images + below, reached)
    share = [0] * len(load)
    for rank, task in enumerate(sorted(order[:reached])):
        share[task] = level - load[task] + (rank < extra)
    return share


def _uneven(kinds: Labels, count: np.ndarray, load: np.ndarray) -> np.ndarray:
    """The kinds with an image that could move to a task with at least two images fewer."""
    if not len(kinds):
        return np.empty(0, np.int64)
    size, begin = load[kinds.column], kinds.start[:-1]
    largest = np.maximum.reduceat(np.where(count > 0, size, 0), begin)
    return np.flatnonzero(largest - np.minimum.reduceat(size, begin) >= 2)
