"""What a stream is: classes in the order they arrive, tasks, and images that know their task.

A stream holds complete labels; a method never holds a stream. What a method gets is a `TrainView`,
whose labels were cut down to the columns of one task when it was made.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ImageSource = Callable[[np.ndarray], np.ndarray]
"""Row numbers in, uint8 images (B × height × width × 3) out; the same rows always give the same images."""


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
    """Images with complete labels (N × C, bool) and the task each image is allotted to (N, int)."""

    images: ImageSource
    labels: np.ndarray
    task: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TrainView:
    """The training images of one task, with the labels of that task and no others."""

    task: Task
    images: ImageSource
    rows: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Images and visible labels at `positions` (0 … len - 1)."""
        return self.images(self.rows[positions]), self.labels[positions]


@dataclass(frozen=True)
class Stream:
    """A lifelong stream: training images are disjoint across tasks, test images carry all labels."""

    name: str
    tasks: tuple[Task, ...]
    train: Split
    test: Split
    truth: np.ndarray | None = None
    """The true P(C_i | C_j) over all classes, entry [i, j], where it is known."""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for task in self.tasks for name in task.classes)

    def train_view(self, index: int) -> TrainView:
        """What task `index` shows: its own images, its own labels."""
        task = self.tasks[index]
        rows = np.flatnonzero(self.train.task == index)
        return TrainView(task, self.train.images, rows, self.train.labels[rows, task.columns].copy())

    def joint_view(self) -> TrainView:
        """All training images as one task with complete labels: the upper bound's view, not a lifelong one."""
        task = Task(0, self.classes, 0)
        return TrainView(task, self.train.images, np.arange(len(self.train)), self.train.labels.copy())

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 over tasks, labels, allotment and a sample of the images: two equal ones ran the same stream."""
        digest = hashlib.sha256()
        for task in self.tasks:
            digest.update(repr((task.index, task.classes)).encode())
        for split in (self.train, self.test):
            digest.update(np.packbits(split.labels).tobytes())
            digest.update(split.task.astype("<i8").tobytes())
            digest.update(split.images(np.arange(min(8, len(split)))).tobytes())
        return digest.hexdigest()


def split_classes(classes: tuple[str, ...], tasks: int) -> tuple[Task, ...]:
    """Cut `classes` into `tasks` runs of equal length (the first ones take one more where it does not divide)."""
    small, extra = divmod(len(classes), tasks)
    cut, first = [], 0
    for index in range(tasks):
        size = small + (index < extra)
        cut.append(Task(index, classes[first : first + size], first))
        first += size
    return tuple(cut)
