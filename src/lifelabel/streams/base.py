"""What a stream is: classes in the order they arrive, tasks, and the images each task shows.

A stream holds complete labels, so a method never holds a stream, and neither does the process that trains it
(`lifelabel.keeper`). What reaches them is a `TrainView`, whose labels were cut down to one task when it was made.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy as np
from PIL import Image

from lifelabel.errors import plain

LARGEST_MATRIX = 4000


class Labels:
    """Which classes each image shows: N x C truth values of which only the ones are kept.

    >>> labels = Labels.of_lists([[0, 2], [], [1]], classes=3)
    >>> labels[0].tolist(), labels.counts().tolist()
    ([0, 2], [1, 1, 1])
    >>> labels.dense().astype(int).tolist()
    [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    """

    def __init__(self, start: np.ndarray, column: np.ndarray, classes: int):
        self.start, self.column, self.classes = start, column, classes
        for array in (start, column):
            array.setflags(write=False)

    @staticmethod
    def of_lists(rows: Iterable[Iterable[int]], classes: int) -> Labels:
        """From the columns that each image shows, in any order; one that is named twice counts once."""
        start, column = [0], []
        for row in rows:
            column += sorted(set(row))
            start.append(len(column))
        return Labels(np.array(start, np.int64), np.array(column, np.int32), classes)

    @staticmethod
    def of_dense(array: np.ndarray) -> Labels:
        rows, columns = np.nonzero(array)
        start = np.searchsorted(rows, np.arange(len(array) + 1))
        return Labels(start.astype(np.int64), columns.astype(np.int32), array.shape[1])

    @staticmethod
    def of_keys(keys: np.ndarray, images: int, classes: int) -> Labels:
        """From row * classes + column of every label, in any order and with repeats."""
        keys = np.unique(keys)
        start = np.searchsorted(keys, np.arange(images + 1) * classes)
        return Labels(start.astype(np.int64), (keys % classes).astype(np.int32), classes)

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.column[self.start[row] : self.start[row + 1]]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Labels)
            and self.classes == other.classes
            and np.array_equal(self.start, other.start)
            and np.array_equal(self.column, other.column)
        )

    def row(self) -> np.ndarray:
        """The row of every entry of `column`."""
        return np.repeat(np.arange(len(self)), self.per_image())

    def per_image(self) -> np.ndarray:
        """How many classes each image shows."""
        return np.diff(self.start)

    def counts(self) -> np.ndarray:
        """How many images show each class."""
        return np.bincount(self.column, minlength=self.classes)

    def take(self, rows: np.ndarray) -> Labels:
        """The labels of some images, in that order."""
        first = self.start[rows]
        lengths = self.start[np.asarray(rows, np.int64) + 1] - first
        start = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(start[-1]) - np.repeat(start[:-1] - first, lengths)
        return Labels(start, self.column[places], self.classes)

    def choose(self, columns: Sequence[int] | np.ndarray) -> Labels:
        """Some classes alone, renumbered in the order given: `columns[k]` becomes k."""
        place = np.full(self.classes, -1, np.int32)
        place[np.asarray(columns, np.int64)] = np.arange(len(columns))
        renamed = place[self.column]
        kept, rows = renamed[renamed >= 0], self.row()[renamed >= 0]
        start = np.searchsorted(rows, np.arange(len(self) + 1)).astype(np.int64)
        return Labels(start, kept[np.lexsort((kept, rows))], len(columns))

    def within(self, columns: slice) -> Labels:
        """The same images and numbering, with the labels outside `columns` left out."""
        inside = (self.column >= columns.start) & (self.column < columns.stop)
        start = np.concatenate([[0], np.cumsum(inside)])[self.start]
        return Labels(start, self.column[inside], self.classes)

    def dense(self, columns: slice | None = None) -> np.ndarray:
        """As truth values, images x classes, of all columns or a run of them."""
        first, last = (0, self.classes) if columns is None else (columns.start, columns.stop)
        inside = (self.column >= first) & (self.column < last)
        array = np.zeros((len(self), last - first), bool)
        array[self.row()[inside], self.column[inside] - first] = True
        return array

    def together(self) -> np.ndarray:
        """C x C: how many images show both classes; the diagonal counts each class."""
        both = np.diag(self.counts().astype(np.int64))
        i, j, count = self.pairs()
        both[i, j] = both[j, i] = count
        return both

    def pairs(self, at_once: int = 1 << 22) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Classes i < j that some image shows both of, and how many do: time and memory follow the labels, not C x C.

        >>> [array.tolist() for array in Labels.of_lists([[0, 2], [0, 1, 2], [1]], classes=3).pairs()]
        [[0, 0, 1], [1, 2, 2], [1, 2, 1]]
        """
        lengths = self.per_image()
        codes, counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for length in np.unique(lengths[lengths > 1]).tolist():
            first, second = np.triu_indices(length, 1)
            starts = self.start[:-1][lengths == length]
            step = max(1, at_once // len(first))
            for at in range(0, len(starts), step):
                columns = self.column[starts[at : at + step, None] + np.arange(length)].astype(np.int64)
                code, count = np.unique(columns[:, first] * self.classes + columns[:, second], return_counts=True)
                codes.append(code)
                counts.append(count)
        code, place = np.unique(np.concatenate(codes), return_inverse=True)
        count = np.bincount(place, weights=np.concatenate(counts), minlength=len(code)).astype(np.int64)
        return code // self.classes, code % self.classes, count


class Names(Sequence[str]):
    """Many texts in two arrays: a million file names cost their bytes alone, and nothing when a process forks.

    >>> names = Names(["a.jpg", "été.jpg"])
    >>> names[1], len(names), list(names.take(np.array([1])))
    ('été.jpg', 2, ['été.jpg'])
    """

    def __init__(self, texts: Iterable[str]):
        encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
        self.end = np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self.bytes = np.frombuffer(b"".join(encoded), np.uint8)

    def __len__(self) -> int:
        return len(self.end)

    @overload
    def __getitem__(self, row: int) -> str: ...
    @overload
    def __getitem__(self, row: slice) -> list[str]: ...
    def __getitem__(self, row: int | slice) -> str | list[str]:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        start = self.end[row - 1] if row else 0
        return self.bytes[start : self.end[row]].tobytes().decode("utf-8", "surrogateescape")

    def take(self, rows: np.ndarray) -> Names:
        return Names(self[int(row)] for row in rows)


class ImageSource(Protocol):
    """The pictures of a split by row number; the same row always gives the same picture."""

    present: np.ndarray
    """For each row, whether there is a picture as far as one can tell without reading it."""

    def __len__(self) -> int: ...

    def name(self, row: int) -> str:
        """What to call the picture in a message."""

    def picture(self, row: int, least: int = 0) -> Image.Image:
        """The picture, upright, in RGB; `BadImage` says why there is none.

        With `least` a large one may come reduced, as long as neither side falls below that many pixels.
        """

    def sealed(self) -> SealedImages:
        """What the process that trains may hold."""


class SealedImages(Protocol):
    """The pictures of a split as they may be handed about: names, and how to get at the pictures."""

    @property
    def knows_labels(self) -> bool:
        """True where pictures are drawn from labels: then only a worker, in a process of its own, may `open` it."""

    @property
    def present(self) -> np.ndarray: ...

    def __len__(self) -> int: ...

    def name(self, row: int) -> str: ...

    def open(self) -> ImageSource: ...


class BadImage(Exception):
    """An image that cannot be used, and why."""


class Problems:
    """What is wrong with some data: for each kind a count and a few examples, however many there are.

    >>> problems = Problems()
    >>> problems.add("rows without an image", "line 3")
    >>> problems.lines()
    ['1 rows without an image: line 3']
    """

    SHOWN = 5

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.examples: dict[str, list[str]] = {}

    def add(self, kind: str, example: str = "", count: int = 1) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + count
        shown = self.examples.setdefault(kind, [])
        if example and len(shown) < self.SHOWN:
            shown.append(plain(example[:200]))

    def __bool__(self) -> bool:
        return bool(self.counts)

    def brief(self) -> str:
        """The counts alone, in brackets, to end an error with; nothing where nothing is wrong."""
        kinds = "; ".join(f"{count:,} {kind}" for kind, count in self.counts.items())
        return f" ({kinds})" if kinds else ""

    def lines(self) -> list[str]:
        """A line a kind, in the order they were found."""
        out = []
        for kind, count in self.counts.items():
            shown = ", ".join(self.examples[kind])
            more = ", …" if shown and count > len(self.examples[kind]) else ""
            out.append(f"{count:,} {kind}" + (f": {shown}{more}" if shown else ""))
        return out


@dataclass(frozen=True)
class Task:
    """One step of the stream: `classes` are new, and take the columns `first` … `last - 1` of all classes."""

    index: int
    classes: tuple[str, ...]
    first: int

    @property
    def last(self) -> int:
        return self.first + len(self.classes)

    @property
    def columns(self) -> slice:
        return slice(self.first, self.last)


@dataclass(frozen=True)
class Split:
    """Images, their names in the manifest, their labels over all classes of the stream, and the rows of each task.

    A training image may be a row of several tasks (overlapping protocols); a test image belongs to the task from
    which on it is scored.
    """

    images: ImageSource
    names: Names
    labels: Labels
    rows: tuple[np.ndarray, ...]
    complete: bool = True
    """False where an image's labels are known for the classes of its own task alone."""

    def __len__(self) -> int:
        return len(self.names)

    def used(self) -> np.ndarray:
        """The rows that some task shows, each once."""
        return np.unique(np.concatenate(self.rows))


@dataclass(frozen=True)
class TrainView:
    """The training images of one task (rows of the split), with the labels of that task and no others.

    `labels` are over `task.classes`. `own` is None where all of them are known; otherwise it says, for each image and
    then for each class, which task it is of: an image's labels are known for the classes of its own task.
    """

    task: Task
    rows: np.ndarray
    labels: Labels
    own: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def known(self, places: np.ndarray) -> np.ndarray | None:
        """Which labels of some of its images are known (images x classes); None where all are."""
        return None if self.own is None else self.own[0][places, None] == self.own[1][None, :]


@dataclass(frozen=True)
class Stream:
    """A lifelong stream: what each task shows for training, and test images that carry all labels."""

    name: str
    tasks: tuple[Task, ...]
    train: Split
    test: Split
    truth: np.ndarray | None = None
    """The true P(C_i | C_j) over all classes, entry [i, j], where it is known."""
    rules: dict[str, Any] = field(default_factory=dict)
    """Source, protocol, class order, seed …: how the stream came about, for its manifest."""
    dataset: str = ""
    """The public data set whose classes these are ("coco", "nus-wide", "voc"), for the check of weights."""
    image_size: int | None = None
    """Pixels a side the pictures are made for; None for photographs, which come in any size."""
    problems: Problems = field(default_factory=Problems)

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for task in self.tasks for name in task.classes)

    def train_view(self, index: int) -> TrainView:
        """What task `index` shows: its own images as far as there is a file, its own labels."""
        task, split = self.tasks[index], self.train
        rows = split.rows[index]
        rows = rows[split.images.present[rows]]
        return TrainView(task, rows, split.labels.take(rows).choose(range(task.first, task.last)))

    def joint_view(self) -> TrainView:
        """All training images as one task with complete labels: the upper bound's view, not a lifelong one.

        Where complete labels do not exist, the view says which ones do.
        """
        split = self.train
        rows = split.used()
        rows = rows[split.images.present[rows]]
        own = None
        if not split.complete:
            task_of = np.zeros(len(split), np.int32)
            for task, shown in zip(self.tasks, split.rows, strict=True):
                task_of[shown] = task.index
            own = task_of[rows], task_of_class(self.tasks)
        return TrainView(Task(0, self.classes, 0), rows, split.labels.take(rows), own)

    def shown(self) -> Iterator[tuple[str, int, Names, Labels]]:
        """All that the protocol shows: for each split and task its images and their visible labels.

        A training image shows the labels of its task, a test image those of every class of the stream.
        """
        for kind, split in (("train", self.train), ("test", self.test)):
            for task, rows in zip(self.tasks, split.rows, strict=True):
                labels = split.labels.take(rows)
                seen = labels.within(task.columns) if kind == "train" else labels
                yield kind, task.index, split.names.take(rows), seen

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that the protocol shows: two people with equal ones ran the same stream."""
        digest = hashlib.sha256(json.dumps([task.classes for task in self.tasks]).encode())
        for kind, index, names, labels in self.shown():
            digest.update(f"\n{kind} {index}\n".encode())
            digest.update("\n".join(row_lines(names, labels)).encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def row_lines(names: Names, labels: Labels) -> Iterator[str]:
    """One line an image, as in a manifest: the columns it shows, a space, its name."""
    columns, start = labels.column.tolist(), labels.start.tolist()
    for row, name in enumerate(names):
        yield f"{','.join(map(str, columns[start[row] : start[row + 1]]))} {name}"


def split_classes(classes: tuple[str, ...], tasks: int) -> tuple[Task, ...]:
    """Cut `classes` into `tasks` runs of equal length (the first ones take one more where it does not divide)."""
    small, extra = divmod(len(classes), tasks)
    return cut_classes(classes, [small + (index < extra) for index in range(tasks)])


def cut_classes(classes: tuple[str, ...], sizes: Sequence[int]) -> tuple[Task, ...]:
    """Cut `classes` into tasks of the given sizes."""
    cut, first = [], 0
    for index, size in enumerate(sizes):
        cut.append(Task(index, classes[first : first + size], first))
        first += size
    return tuple(cut)


def task_of_class(tasks: Sequence[Task]) -> np.ndarray:
    """For each class of the stream, which task brings it."""
    return np.repeat(np.arange(len(tasks)), [len(task.classes) for task in tasks])


def true_matrix(labels: Labels) -> np.ndarray | None:
    """P(C_i | C_j), entry [i, j], in images with complete labels; 0 given a class that no image shows.

    None for more classes than a matrix to look at should have.
    """
    if labels.classes > LARGEST_MATRIX:
        return None
    return labels.together() / np.maximum(labels.counts(), 1)[None, :]
