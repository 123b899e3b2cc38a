"""Sparse multi-label tables: the classes of each image, and which labels are unknown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

_DENSE = 1 << 24
"""Entries of a dense table that are in memory at a time."""


class Labels:
    """A sparse boolean table, images x classes, in compressed row form.

    Row i has its ones in the columns `column[start[i] : start[i + 1]]`, in ascending order. `scipy.sparse` offers the
    same, but would add 143 MB to the installation and 0.26 s to the import.

    >>> labels = Labels.from_lists([[0, 2], [], [1]], classes=3)
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
    def from_lists(rows: Iterable[Iterable[int]], classes: int) -> Labels:
        """From the columns of each image, in any order. Repeated columns count once."""
        start, column = [0], []
        for row in rows:
            column += sorted(set(row))
            start.append(len(column))
        return Labels(np.array(start, np.int64), np.array(column, np.int32), classes)

    @staticmethod
    def from_dense(array: np.ndarray) -> Labels:
        """From a boolean array, images x classes."""
        rows, columns = np.nonzero(array)
        start = np.searchsorted(rows, np.arange(len(array) + 1))
        return Labels(start.astype(np.int64), columns.astype(np.int32), array.shape[1])

    @staticmethod
    def from_keys(keys: np.ndarray, images: int, classes: int) -> Labels:
        """From `row * classes + column` of every label, in any order. Repeated keys count once."""
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

    def keys(self) -> np.ndarray:
        """`row * classes + column` of every label."""
        return self.row() * self.classes + self.column

    def per_image(self) -> np.ndarray:
        """The number of labels of each image."""
        return np.diff(self.start)

    def counts(self) -> np.ndarray:
        """The number of images of each class."""
        return np.bincount(self.column, minlength=self.classes)

    def take(self, rows: np.ndarray) -> Labels:
        """The given rows, in that order."""
        begin = self.start[rows]
        lengths = self.start[np.asarray(rows, np.int64) + 1] - begin
        start = np.concatenate([[0], np.cumsum(lengths)])
        index = np.arange(start[-1]) - np.repeat(start[:-1] - begin, lengths)
        return Labels(start, self.column[index], self.classes)

    def select_classes(self, columns: Sequence[int] | np.ndarray) -> Labels:
        """The given classes, renumbered: `columns[k]` becomes column k. A column -1 is a new class without labels."""
        index, new_column = np.asarray(columns, np.int64), np.full(self.classes, -1, np.int32)
        new_column[index[index >= 0]] = np.flatnonzero(index >= 0)
        renumbered = new_column[self.column]
        column, rows = renumbered[renumbered >= 0], self.row()[renumbered >= 0]
        start = np.searchsorted(rows, np.arange(len(self) + 1)).astype(np.int64)
        return Labels(start, column[np.lexsort((column, rows))], len(columns))

    def within(self, columns: slice) -> Labels:
        """The same table with every label outside `columns` removed. Columns keep their numbers."""
        return self.keep((self.column >= columns.start) & (self.column < columns.stop))

    def keep(self, mask: np.ndarray) -> Labels:
        """The same table with the labels that `mask` marks. The mask has one entry for each label."""
        start = np.concatenate([[0], np.cumsum(mask)])[self.start]
        return Labels(start, self.column[mask], self.classes)

    def with_keys(self, keys: np.ndarray) -> Labels:
        """The same table with more labels, given as in `from_keys`."""
        return Labels.from_keys(np.concatenate([self.keys(), keys]), len(self), self.classes)

    def dense(self, columns: slice | None = None) -> np.ndarray:
        """A boolean array, images x classes: all columns, or those in `columns`."""
        low, high = (0, self.classes) if columns is None else (columns.start, columns.stop)
        inside = (self.column >= low) & (self.column < high)
        array = np.zeros((len(self), high - low), bool)
        array[self.row()[inside], self.column[inside] - low] = True
        return array

    def cooccurrence(self) -> np.ndarray:
        """C x C counts of images that have both labels. The diagonal has the count of each class."""
        counts = np.diag(self.counts().astype(np.int64))
        for i, j, count in self.pairs():
            counts[i, j] = counts[j, i] = count
        return counts

    def pairs(self, block: int = 1 << 22) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Classes i < j that appear together in some image, and the number of such images: blocks in ascending order.

        Time grows with the number of such pairs in all images. Memory grows with the number of labels, not with C x C
        or with the pairs: `block` limits the pairs in memory, except that those of one class i are in one block.

        >>> [[array.tolist() for array in block] for block in Labels.from_lists([[0, 2], [0, 1, 2]], classes=3).pairs()]
        [[[0, 0, 1], [1, 2, 2], [1, 2, 1]]]
        """
        by_class = np.argsort(self.column, kind="stable")
        later = (np.repeat(self.start[1:], self.per_image()) - np.arange(len(self.column)) - 1)[by_class]
        ends = np.cumsum(self.counts())  # of the labels of each class in by_class
        pairs = np.concatenate([[0], np.cumsum(later)])
        first = 0
        while first < self.classes:
            begin = ends[first - 1] if first else 0
            fitting = np.searchsorted(pairs[ends], pairs[begin] + block, "right")
            last = max(first + 1, min(int(fitting), first + block // self.classes))
            chosen = slice(begin, ends[last - 1])
            lengths = later[chosen]
            offset = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            right = self.column[np.repeat(by_class[chosen] + 1, lengths) + offset]
            code = np.repeat(self.column[by_class[chosen]].astype(np.int64) - first, lengths) * self.classes + right
            count = np.bincount(code, minlength=1)
            found = np.flatnonzero(count)
            if len(found):
                yield first + found // self.classes, found % self.classes, count[found]
            first = last


@dataclass(frozen=True)
class Unknown:
    """The labels of a table that are not known: single entries, classes that are unknown in every image, later classes.

    >>> unknown = Unknown(Labels.from_lists([[0], []], classes=3), np.array([False, False, True]))
    >>> unknown.dense().astype(int).tolist(), unknown.count()
    ([[1, 0, 1], [0, 0, 1]], 3)
    """

    entries: Labels
    classes: np.ndarray
    """For each class, whether it is unknown in every image."""
    tasks: tuple[np.ndarray, np.ndarray] | None = None
    """The task of each image and of each class: classes of later tasks are unknown in an image."""

    @staticmethod
    def of_entries(entries: Labels) -> Unknown:
        return Unknown(entries, np.zeros(entries.classes, bool))

    def take(self, rows: np.ndarray) -> Unknown:
        """The given rows, in that order."""
        tasks = None if self.tasks is None else (self.tasks[0][rows], self.tasks[1])
        return Unknown(self.entries.take(rows), self.classes, tasks)

    def select_classes(self, columns: Sequence[int] | np.ndarray) -> Unknown:
        """The given classes, renumbered: `columns[k]` becomes column k."""
        index = np.asarray(columns, np.int64)
        tasks = None if self.tasks is None else (self.tasks[0], self.tasks[1][index])
        return Unknown(self.entries.select_classes(columns), self.classes[index], tasks)

    def without_other_tasks(self) -> Unknown:
        """The same labels. It does not reveal of which task an image is, if that is later than those of all classes."""
        if self.tasks is None:
            return self
        last = self.tasks[1].max(initial=0)
        return Unknown(self.entries, self.classes, (np.minimum(self.tasks[0], last), self.tasks[1]))

    def dense(self) -> np.ndarray:
        """A boolean array, images x classes: whether each label is unknown."""
        unknown = self.entries.dense() | self.classes
        return unknown if self.tasks is None else unknown | (self.tasks[0][:, None] < self.tasks[1])

    def count(self) -> int:
        """The number of unknown labels."""
        step = max(1, _DENSE // max(self.entries.classes, 1))
        starts = range(0, len(self.entries), step)
        parts = (self.take(np.arange(start, min(start + step, len(self.entries)))) for start in starts)
        return sum(int(np.count_nonzero(part.dense())) for part in parts)
