"""The data model of a stream: classes, tasks, images and labels.

A `Stream` holds complete labels. The training process never holds a `Stream` (see `lifelabel.engine.label_server`). It
gets a `TrainView` of one task at a time, which has only the visible labels of its images: those of the classes of the
task, or, with `labels="known"`, all known labels of the classes so far. Labels of later classes are always hidden.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.source import ImageSource, Names, Problems
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.utils.text import task_text

LABELS = ("task", "known")
"""The values of the option `labels` of streams."""
LABELS_HELP = (
    "labels of a training image that a method gets: those of the classes of its task, or all known labels of the "
    "classes so far"
)
GIVEN_TASKS = "given by the source"
"""The rule `tasks` of a stream whose source states the task of each image."""
_MAX_MATRIX_CLASSES = 4000


@dataclass(frozen=True)
class Task:
    """One task of a stream. Its new classes have the columns `offset` … `end - 1` of all classes."""

    index: int
    classes: tuple[str, ...]
    offset: int
    name: str = ""
    """The name that the source gives the task; empty for none. It is not in the fingerprint."""

    @property
    def text(self) -> str:
        """How messages call the task: "april", or "task 2" if it has no name."""
        return self.name or task_text(self.index + 1)

    @property
    def end(self) -> int:
        return self.offset + len(self.classes)

    @property
    def columns(self) -> slice:
        return slice(self.offset, self.end)


@dataclass(frozen=True)
class Split:
    """The training or test images: their names, their labels over all classes, and the rows of each task.

    A training image may belong to several tasks (overlapping protocols). A test image belongs to the first task in
    which it is scored.
    """

    images: ImageSource
    names: Names
    labels: Labels
    rows: tuple[np.ndarray, ...]
    complete: bool = True
    """False if the hidden labels of an image are not known."""
    unknown: Unknown | None = None
    """The labels that the source does not state. None if it states all of them."""
    home: np.ndarray | None = None
    """For blurry tasks: the home task of each image (see `blurry`). A number beyond the last task stands for all tasks
    that were cut off. None: every image is in its home tasks."""
    left_out: Names = field(default_factory=lambda: Names(()))
    """Images of the source's split that belong to no task: none of their labels is one of the stream."""

    def __len__(self) -> int:
        return len(self.names)

    def used(self) -> np.ndarray:
        """The rows that belong to some task, each once."""
        return np.unique(np.concatenate(self.rows))

    def without_images(self) -> Split:
        """The same split with no image in any task: the test images of a proxy stream."""
        return dataclasses.replace(self, rows=tuple(rows[:0] for rows in self.rows))


@dataclass(frozen=True)
class TrainView:
    """The training images of one task (rows of the split) and their visible labels.

    `labels` are over the `classes`: those of the task, or all classes so far if some labels of earlier tasks are known.
    """

    task: Task
    rows: np.ndarray
    labels: Labels
    classes: tuple[str, ...]
    unknown: Unknown | None = None
    """The visible labels that are not known. None if all are known."""
    tasks: tuple[np.ndarray, np.ndarray] | None = None
    """If not all labels are known in every image: the task that each image belongs to (of all later tasks one number),
    and the labels that are known in the images of each task (tasks x classes)."""

    def __len__(self) -> int:
        return len(self.rows)

    def known(self, index: np.ndarray) -> np.ndarray | None:
        """Which labels of the given images are known (images x classes); None if all are."""
        known = None if self.unknown is None else ~self.unknown.take(index).dense()
        if self.tasks is None:
            return known
        image_task, known_in_task = self.tasks
        of_images = known_in_task[image_task[index]]
        return of_images if known is None else of_images & known

    def take(self, index: np.ndarray) -> TrainView:
        """The given images, in that order."""
        unknown = None if self.unknown is None else self.unknown.take(index)
        tasks = None if self.tasks is None else (self.tasks[0][index], self.tasks[1])
        rows, labels = self.rows[index], self.labels.take(index)
        return dataclasses.replace(self, rows=rows, labels=labels, unknown=unknown, tasks=tasks)


@dataclass(frozen=True)
class Stream:
    """A lifelong stream: the training images of each task, and test images with complete labels."""

    name: str
    tasks: tuple[Task, ...]
    train: Split
    test: Split
    truth: np.ndarray | None = None
    """The true P(C_i | C_j) over all classes, entry [i, j], if it is known."""
    rules: dict[str, Any] = field(default_factory=dict)
    """Source, protocol, class order, seed …: how the stream was made, for its manifest."""
    dataset: str = ""
    """The public data set of the classes ("coco", "nus-wide", "voc"), for the check of pretrained weights."""
    image_size: int | None = None
    """Side in pixels of drawn images. None for photographs, which have any size."""
    problems: Problems = field(default_factory=Problems)
    labels: str = "task"
    """The visible labels of a training image: those of the classes of its task ("task"), or all known labels of the
    classes so far ("known")."""
    learned: int = 0
    """The number of first tasks that a run has learned before. The stream has no training image of them."""
    proxy: Callable[[], Stream] | None = field(default=None, repr=False, compare=False)
    """Builds the proxy stream: as many tasks, no class of this stream, no test image (a run holds out training images).
    None if there is none."""
    val: Split | None = None
    """Validation images, from which a method may choose an option (`Method.validates`). They are never trained on, and
    are in no task. None if there are none."""
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Groups of classes whose figures are reported separately, such as those with many and with few training images."""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for task in self.tasks for name in task.classes)

    @property
    def overlapping(self) -> bool:
        """Whether a training image belongs to every task that has one of its labels, by the rules of the stream."""
        return self.rules.get("protocol") == "overlap" and self.rules.get("tasks") != GIVEN_TASKS

    def visible_columns(self, task: Task) -> slice:
        """The classes whose labels are visible in the training images of a task."""
        return slice(0 if self.labels == "known" else task.offset, task.end)

    def train_view(self, index: int) -> TrainView:
        """The training images of task `index` that have a file, with their visible labels."""
        task, split = self.tasks[index], self.train
        rows = split.rows[index]
        rows = rows[split.images.present[rows]]
        first = self.visible_columns(task).start
        tasks = self._known_in_tasks(task, rows)
        if tasks is not None and tasks[1][np.unique(tasks[0]), : task.offset].any():
            first = 0  # some labels of earlier tasks are known: a batch has all classes so far
        unknown = None if split.unknown is None else split.unknown.take(rows)
        if unknown and unknown.select_classes(range(first, task.offset)).count() == len(rows) * (task.offset - first):
            first = task.offset  # no label of an earlier task is known
        columns = range(first, task.end)
        if unknown:
            unknown = unknown.select_classes(columns).without_other_tasks()
            unknown = unknown if unknown.count() else None
        if tasks is not None:
            tasks = tasks[0], tasks[1][:, first : task.end]
        labels = self.shown(task, rows, split.labels.take(rows)).select_classes(columns)
        return TrainView(task, rows, labels, self.classes[first : task.end], unknown, tasks)

    def shown(self, task: Task, rows: np.ndarray, labels: Labels) -> Labels:
        """`labels` of the training images `rows` of a task, without those that are hidden there."""
        if self.train.home is None:
            return labels.within(self.visible_columns(task))
        return labels.keep(self._shown_in(task)[self.train.home[rows][labels.row()], labels.column])

    def _stated(self) -> np.ndarray:
        """Home tasks x classes: the labels of an image that the source states. The last row is for other home tasks."""
        stated = np.full((len(self.tasks) + 1, len(self.classes)), self.train.complete)
        stated[-1] |= self.labels == "known"
        for task in self.tasks:
            stated[task.index, self.visible_columns(task)] = True
        return stated

    def _shown_in(self, task: Task) -> np.ndarray:
        """Home tasks x classes: the labels that an image shows in `task`, as far as the source states them.

        These are the labels of the visible classes of `task`, and those of the home task if that is an earlier one.
        """
        stated = self._stated()
        shown = np.zeros_like(stated)
        shown[:, self.visible_columns(task)] = True
        for earlier in self.tasks[: task.index]:
            shown[earlier.index, earlier.columns] = True
        return shown & stated

    def _known_in_tasks(self, task: Task, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """`TrainView.tasks` for the images of a task, with all classes; None if all of them show the same classes.

        Which later task an image belongs to is hidden: it would reveal a label.
        """
        if self.train.home is None:
            return None
        later = task.index + 1
        image_task, shown = np.minimum(self.train.home[rows], later), self._shown_in(task)[: later + 1]
        if np.array_equal(shown[later], shown[task.index]):
            image_task = np.minimum(image_task, task.index)
        return None if (image_task == task.index).all() else (image_task, shown)

    def joint_view(self) -> TrainView:
        """All training images as one task, for the upper bound. It has complete labels, or states which are known."""
        split = self.train
        rows = split.used()
        rows = rows[split.images.present[rows]]
        tasks = None
        if not split.complete:
            task_of_image = np.zeros(len(split), np.int32)
            for task, task_rows in zip(self.tasks, split.rows, strict=True):
                task_of_image[task_rows] = task.index
            tasks = (task_of_image if split.home is None else split.home)[rows], self._stated()
        unknown = None if split.unknown is None else split.unknown.take(rows)
        return TrainView(Task(0, self.classes, 0), rows, split.labels.take(rows), self.classes, unknown, tasks)

    def visible(self) -> Iterator[tuple[str, int, Names, Labels]]:
        """For each split and task: its kind ("train" or "test"), the task index, image names and visible labels.

        For a test image the labels of all classes are visible.
        """
        for kind, split in (("train", self.train), ("test", self.test)):
            for task, rows in zip(self.tasks, split.rows, strict=True):
                labels = split.labels.take(rows)
                visible = self.shown(task, rows, labels) if kind == "train" else labels
                yield kind, task.index, split.names.take(rows), visible

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of tasks, images and visible labels. Two runs with the same fingerprint used the same stream."""
        digest = hashlib.sha256(json.dumps([task.classes for task in self.tasks]).encode())
        for kind, index, names, labels in self.visible():
            digest.update(f"\n{kind} {index}\n".encode())
            digest.update("\n".join(manifest_lines(names, labels)).encode("utf-8", "surrogateescape"))
        if self.labels != "task":
            digest.update(f"\nlabels {self.labels}".encode())
        for kind, lines in self.unknown_lines().items():
            digest.update("\n".join([f"\nunknown {kind}", *lines]).encode("utf-8", "surrogateescape"))
        for split in (self.train, self.test):
            if split.unknown is not None and split.unknown.classes.any():
                digest.update(f"\nunknown classes {np.flatnonzero(split.unknown.classes).tolist()}".encode())
            if split.unknown is not None and split.unknown.tasks is not None:
                for array in split.unknown.tasks:
                    digest.update(b"\nunknown later classes" + array.astype(np.int64).tobytes())
        if self.train.home is not None:
            digest.update(f"\nblurry {self.train.complete}".encode())
            for rows in self.train.rows:
                digest.update(b"\ntasks of images" + self.train.home[rows].astype(np.int64).tobytes())
        if self.groups:
            digest.update(f"\ngroups {json.dumps(self.groups, sort_keys=True)}".encode())
        return digest.hexdigest()

    def unknown_lines(self) -> dict[str, list[str]]:
        """The single unknown labels of each split ("train" or "test"), as `manifest_lines`, without hidden ones."""
        found = {}
        for kind, split in (("train", self.train), ("test", self.test)):
            if split.unknown is None:
                continue
            keys, classes = [np.zeros(0, np.int64)], len(self.classes)
            for task, rows in zip(self.tasks, split.rows, strict=True):
                entries = split.unknown.entries.take(rows)
                entries = self.shown(task, rows, entries) if kind == "train" else entries
                keys.append(rows[entries.row()] * classes + entries.column)
            unknown = Labels.from_keys(np.concatenate(keys), len(split), classes)
            listed = np.flatnonzero(unknown.per_image())
            if len(listed):
                found[kind] = list(manifest_lines(split.names.take(listed), unknown.take(listed)))
        return found


def manifest_lines(names: Names, labels: Labels) -> Iterator[str]:
    """One line per image, as in a manifest: the columns of its labels, a space, its name."""
    columns, start = labels.column.tolist(), labels.start.tolist()
    for row, name in enumerate(names):
        yield f"{','.join(map(str, columns[start[row] : start[row + 1]]))} {name}"


def equal_tasks(classes: tuple[str, ...], tasks: int) -> tuple[Task, ...]:
    """Divide `classes` into tasks of `equal_sizes`."""
    return classes_to_tasks(classes, equal_sizes(len(classes), tasks))


def equal_sizes(classes: int, tasks: int) -> list[int]:
    """The sizes of `tasks` equal tasks. If `tasks` does not divide `classes`, the first tasks have one class more."""
    small, extra = divmod(classes, tasks)
    return [small + (index < extra) for index in range(tasks)]


def proxy_sizes(stream: str, sizes: Sequence[int], classes: int) -> list[int]:
    """The sizes of the tasks of a proxy stream: as equal as possible, and no task larger than in the stream.

    `sizes` are those of the stream, `classes` is the number of classes that it does not use.

    >>> proxy_sizes("photos", [4, 2, 2], 7), proxy_sizes("photos", [4, 2, 2], 50)
    ([3, 2, 2], [4, 2, 2])
    """
    if classes < len(sizes):
        raise UserError(
            f"stream {stream} has labels of {classes} other classes, too few for a proxy stream of {len(sizes)} tasks: "
            "leave out --proxy and search on the first tasks (--first-tasks)"
        )
    given = [0] * len(sizes)
    for _ in range(min(classes, sum(sizes))):
        given[min((task for task in range(len(sizes)) if given[task] < sizes[task]), key=given.__getitem__)] += 1
    return given


def classes_to_tasks(classes: tuple[str, ...], sizes: Sequence[int], names: Sequence[str] = ()) -> tuple[Task, ...]:
    """Divide `classes` into tasks of the given sizes, and with the given names, if there are any."""
    tasks, offset = [], 0
    for index, size in enumerate(sizes):
        tasks.append(Task(index, classes[offset : offset + size], offset, names[index] if names else ""))
        offset += size
    return tuple(tasks)


def task_names(tasks: Sequence[Task]) -> list[str]:
    """The names of the tasks; empty if none has a name."""
    names = [task.name for task in tasks]
    return names if any(names) else []


def task_of_class(tasks: Sequence[Task]) -> np.ndarray:
    """The task index of each class."""
    return np.repeat(np.arange(len(tasks)), [len(task.classes) for task in tasks])


def owners(labels: Labels, tasks: Sequence[Task]) -> Labels:
    """Images x tasks: the tasks that own a label of each image."""
    keys = labels.row() * len(tasks) + task_of_class(tasks)[labels.column]
    return Labels.from_keys(keys, len(labels), len(tasks))


def true_matrix(labels: Labels) -> np.ndarray | None:
    """P(C_i | C_j), entry [i, j], from complete labels; 0 if no image has C_j. None for more than 4,000 classes."""
    if labels.classes > _MAX_MATRIX_CLASSES:
        return None
    return labels.cooccurrence() / np.maximum(labels.counts(), 1)[None, :]
