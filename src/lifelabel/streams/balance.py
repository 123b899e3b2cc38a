"""Each image to one of the tasks that own a label of it, so that tasks are as equal in size as can be (A.2).

docs/streams/protocols.md tells the algorithm.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from lifelabel.streams.base import Labels


def allot(shown: Labels, draws: np.ndarray, load: np.ndarray) -> np.ndarray:
    """One task for every image, out of those it shows, so that sizes are as equal as they can be.

    `shown` is images x tasks, `draws` a number an image that decides which of equal ones goes where, and `load` how
    many images each task has already.

    >>> shown = Labels.of_lists([[0], [0], [0, 1], [0, 1, 2]], classes=3)
    >>> allot(shown, np.zeros(4, np.uint64), np.zeros(3, int)).tolist()
    [0, 0, 1, 2]
    """
    kind, first = _kinds(shown)
    kinds = shown.take(first)
    shares = balance(kinds, np.bincount(kind, minlength=len(kinds)), load)
    task = np.empty(len(shown), np.int64)
    task[np.lexsort((draws, kind))] = np.repeat(kinds.column, shares)
    return task


def _kinds(shown: Labels) -> tuple[np.ndarray, np.ndarray]:
    """Number the distinct sets of tasks: the number of every image's, and an image of each."""
    column = np.ascontiguousarray(shown.column, ">i4")  # big-endian bytes sort as the numbers do
    raw, start = column.tobytes(), (4 * shown.start).tolist()
    sets = [raw[begin:end] for begin, end in itertools.pairwise(start)]
    number = {key: index for index, key in enumerate(sorted(set(sets)))}
    kind = np.array([number[key] for key in sets], np.int64)
    first = np.zeros(len(number), np.int64)
    first[kind] = np.arange(len(kind))
    return kind, first


def balance(kinds: Labels, images: np.ndarray, load: np.ndarray) -> np.ndarray:
    """How many images of each kind go to each of its tasks (an entry each of `kinds`, which is kinds x tasks).

    In the end no image can move to a task with at least two images less than its own: each sweep lowers the sum of
    squared sizes, so there is an end.
    """
    task, start, number = kinds.column.tolist(), kinds.start.tolist(), images.tolist()
    filled, count = load.tolist(), [0] * len(kinds.column)

    def divide(kind: int) -> None:
        entries = range(start[kind], start[kind + 1])
        for entry in entries:
            filled[task[entry]] -= count[entry]
        for entry, share in zip(entries, pour([filled[task[e]] for e in entries], number[kind]), strict=True):
            count[entry] = share
            filled[task[entry]] += share

    for kind in np.argsort(kinds.per_image(), kind="stable").tolist():
        divide(kind)
    while len(uneven := _uneven(kinds, np.array(count), np.array(filled))):
        for kind in uneven.tolist():
            divide(kind)
    return np.array(count, np.int64)


def pour(load: Sequence[int], images: int) -> list[int]:
    """What each task gets where images go one by one to the least filled (the first of equals).

    >>> pour([5, 0, 3], 6)
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
    """The kinds of which an image could move to a task with at least two images less."""
    if not len(kinds):
        return np.empty(0, np.int64)
    size, begin = load[kinds.column], kinds.start[:-1]
    largest = np.maximum.reduceat(np.where(count > 0, size, 0), begin)
    return np.flatnonzero(largest - np.minimum.reduceat(size, begin) >= 2)
