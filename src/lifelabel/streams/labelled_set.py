"""Labelled images for the evaluation or the calibration of a model: rows of a table, or images of a stream."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, unknown
from lifelabel.images.hashes import TrainedImages
from lifelabel.images.shards import add_problems, find_images
from lifelabel.images.source import ImageSource, Names, Problems
from lifelabel.streams import table
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.label_files import SPLITS
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.protocols import unknown_labels
from lifelabel.streams.stream import Split, Stream, manifest_lines

_ROWS = ("test", "val", "train", "all")
"""Which images of a table or of a stream are used."""
_SHOWN = 3
"""Names of training images that are shown."""


@dataclass(frozen=True)
class LabelledPart:
    """Some images of one source: their rows there, and for each of these images its labels and its task (0 …)."""

    images: ImageSource
    rows: np.ndarray
    labels: Labels
    unknown: Unknown | None
    task: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: np.ndarray) -> LabelledPart:
        """The given images, in that order."""
        unknown = None if self.unknown is None else self.unknown.take(index)
        return LabelledPart(self.images, self.rows[index], self.labels.take(index), unknown, self.task[index])


@dataclass(frozen=True)
class LabelledSet:
    """Images with labels of `classes`. `kind` states which images of the source they are."""

    name: str
    kind: str
    classes: tuple[str, ...]
    parts: tuple[LabelledPart, ...]
    problems: Problems
    found: int = 0
    """The number of training images of the model among the images of the source."""
    examples: tuple[str, ...] = ()
    """The names of the first ones."""
    namesakes: int = 0
    """The number of other images that have the name of a training image."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def fingerprint(self) -> str:
        """SHA-256 of the classes, the images and their labels. The order of the images has no effect."""
        lines: list[str] = []
        for part in self.parts:
            names = Names(part.images.name(row) for row in part.rows.tolist())
            lines += manifest_lines(names, part.labels)
            if part.unknown is not None:
                lines += [f"? {line}" for line in manifest_lines(names, part.unknown.entries)]
                lines += [f"? {np.flatnonzero(part.unknown.classes).tolist()}"]
        text = "\n".join([*self.classes, "", *sorted(lines)])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True)
class Trained:
    """What is known of the training of a model: its images, and the task of each of its classes.

    Training images are left out of a set, unless `included`.
    """

    images: TrainedImages | None = None
    task_of_class: Mapping[str, int] = dataclasses.field(default_factory=dict)
    included: bool = False
    progress: Callable[[int, int], None] | None = None


def check_rows(rows: str | None) -> str | None:
    """The name of the images that a user has chosen, in the form of `_ROWS`."""
    found = rows if rows is None else SPLITS.get(rows.lower(), rows.lower())
    if found is not None and found not in _ROWS:
        raise unknown("rows", found, _ROWS)
    return found


def from_table(
    path: Path, root: Path | None, rows: str | None = None, *, separator: str = ";", first: str = "test",
    trained: Trained | None = None, **names: Any,
) -> LabelledSet:  # fmt: skip
    """Rows of a table, one of `_ROWS`. Images without a label are used too: they have none of the classes.

    Without `rows` these are the `first` ones ("test" or "val"), or the others if there are none; if there is no column
    `split`, all rows. `names` are `alias`, `merge_case` and `known` of `table.read`.
    """
    # with this share all rows are test rows, unless there is a column `split`
    found = table.read(path, root, test_share=1.0, separator=separator, required=(), **names)
    assert found.val is not None
    pools = {"test": found.test, "val": found.val, "train": found.train}
    if rows is None:
        rows = next((name for name in (first, "test", "val") if len(pools[name].names)), "test")
    if rows == "test" and len(found.test.names) == sum(len(pool.names) for pool in pools.values()):
        rows = "all"
    chosen = [pool for name, pool in pools.items() if rows in (name, "all") and len(pool.names)]
    if not chosen:
        raise UserError(f"{path} has no {rows} row: a column 'split' marks them; or give --rows all")
    parts = [_pool_part(pool, found.root) for pool in chosen]
    add_problems(found.problems, *(part.images for part in parts))
    labelled = LabelledSet(path.name, f"{rows} rows", found.classes, tuple(parts), found.problems)
    compared, masks = _compare(labelled, trained or Trained())
    new_in = _task_of_class(found, parts, masks, trained.task_of_class if trained else {})
    return dataclasses.replace(compared, parts=tuple(_with_tasks(part, new_in) for part in compared.parts))


def _pool_part(pool: Pool, root: Path) -> LabelledPart:
    unknown = None if pool.unknown is None else Unknown.of_entries(pool.unknown)
    rows = np.arange(len(pool.names))
    task = np.full(len(rows), -1) if pool.task is None else pool.task
    return LabelledPart(find_images(root, pool.names), rows, pool.labels, unknown, task)


def _task_of_class(
    found: Collection, parts: Sequence[LabelledPart], trained: Sequence[np.ndarray], of_model: Mapping[str, int]
) -> np.ndarray | None:
    """The task of the table in which each class is new for the model, -1 if in none; None if tasks say nothing.

    A list of names with a task does not state the labels of later tasks. As in a run, a class is new in the first task
    whose training images have it: the table's column `split` marks them, or they were learned.
    """
    if not found.listed or found.test.task is None:
        return None
    learned = [part.take(np.flatnonzero(mask)) for part, mask in zip(parts, trained, strict=True)]
    known = [(found.train.labels, found.train.task), *((part.labels, part.task) for part in learned)]
    if not any(len(labels) for labels, _ in known):
        known = [(part.labels, part.task) for part in parts]
    first = np.full(len(found.classes), np.iinfo(np.int64).max)
    for labels, task in known:
        assert task is not None
        entry = task[labels.row()]
        np.minimum.at(first, labels.column[entry >= 0], entry[entry >= 0])
    model_task = np.array([of_model.get(name, -1) for name in found.classes])
    # in an extension, old classes can be new in the table: the last task of the model is the one that was new
    last = max(part.task.max() for part in parts)
    tasks = [task for task in np.unique(first[first <= last]).tolist() if model_task[first == task].max() >= 0]
    table_task = {int(model_task[first == task].max()): task for task in tasks}
    if not tasks or len(table_task) < len(tasks):
        return None
    return np.array([table_task.get(task, -1) for task in model_task.tolist()])


def _with_tasks(part: LabelledPart, new_in: np.ndarray | None) -> LabelledPart:
    """The labels of classes that did not exist yet when an image was labelled are unknown."""
    entries = None if part.unknown is None else part.unknown.entries
    pool = Pool(Names(()), part.labels, part.task, entries)
    unknown = unknown_labels(pool, np.zeros(part.labels.classes, bool), new_in)
    return dataclasses.replace(part, unknown=unknown, task=np.zeros_like(part.task))


def from_stream(stream: Stream, rows: str | None = None, trained: Trained | None = None) -> LabelledSet:
    """Images of a stream: its test images, its training images, or both."""
    rows = rows or "test"
    if rows in ("train", "all") and not stream.train.complete:
        raise UserError(
            f"the training images of {stream.name} have only the labels of their own task: give --rows test"
        )
    splits = {"test": [stream.test], "train": [stream.train], "all": [stream.train, stream.test]}.get(rows, [])
    kind = {"train": "training images", "all": "training and test images"}.get(rows, f"{rows} images")
    parts = tuple(_split_part(split) for split in splits)
    if not any(map(len, parts)):
        raise UserError(f"{stream.name} has no {kind}: give another --rows")
    labelled = LabelledSet(stream.name, kind, stream.classes, parts, stream.problems)
    return _compare(labelled, trained or Trained())[0]


def _split_part(split: Split) -> LabelledPart:
    used = split.used()
    task = np.zeros(len(split), np.int64)
    for index, rows in reversed(list(enumerate(split.rows))):
        task[rows] = index
    unknown = None if split.unknown is None else split.unknown.take(used)
    return LabelledPart(split.images, used, split.labels.take(used), unknown, task[used])


def _compare(labelled: LabelledSet, trained: Trained) -> tuple[LabelledSet, list[np.ndarray]]:
    """The set without the training images of a model, and which images of each part are training images."""
    if trained.images is None:
        return labelled, [np.zeros(len(part), bool) for part in labelled.parts]
    masks, namesakes, done = [], 0, 0
    examples: list[str] = []
    for part in labelled.parts:

        def advance(count: int, _: int, before: int = done) -> None:
            if trained.progress is not None:
                trained.progress(before + count, len(labelled))

        mask, same_name = trained.images.find(part.images, part.rows, advance)
        masks.append(mask)
        namesakes, done = namesakes + int(same_name.sum()), done + len(part)
        examples += [part.images.name(row) for row in part.rows[mask][:_SHOWN].tolist()]
    count = sum(int(mask.sum()) for mask in masks)
    parts, kind = labelled.parts, labelled.kind
    if count and not trained.included:
        left = [part.take(np.flatnonzero(~mask)) for part, mask in zip(parts, masks, strict=True)]
        parts, kind = tuple(part for part in left if len(part)), f"{kind} without training images"
    if not parts:
        raise UserError(
            f"all {count:,} images ({labelled.kind} of {labelled.name}) are training images of the model: give others, "
            "or --include-trained, with which the figures are too high"
        )
    shown = dataclasses.replace(
        labelled, kind=kind, parts=parts, found=count, examples=tuple(examples[:_SHOWN]), namesakes=namesakes
    )
    return shown, masks
