"""Labelled images for the evaluation or the calibration of a model: rows of a table, or images of a stream."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.streams import table
from lifelabel.streams.base import ImageSource, Names, Problems, Split, Stream, manifest_lines
from lifelabel.streams.collection import Pool
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.shards import add_problems, find_images

__all__ = ["ROWS", "LabelledPart", "LabelledSet", "from_stream", "from_table"]

ROWS = ("test", "train", "all")
"""Which images of a table or of a stream are used."""


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


@dataclass(frozen=True)
class LabelledSet:
    """Images with labels of `classes`. `kind` states which images of the source they are."""

    name: str
    kind: str
    classes: tuple[str, ...]
    parts: tuple[LabelledPart, ...]
    problems: Problems

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


def from_table(
    path: Path,
    root: Path | None,
    rows: str = "test",
    *,
    test_share: float | None = None,
    seed: int = 0,
    separator: str = ";",
    **names: Any,
) -> LabelledSet:
    """Rows of a table, one of `ROWS`. Images without a label are used too: they have none of the classes.

    Without a column `split`, all rows are test rows; with `test_share`, those that a run with this share and seed uses
    for test. `names` are `alias`, `merge_case` and `known` of `table.read`.
    """
    share = 1.0 if test_share is None else test_share  # 1: all rows, unless there is a column `split`
    found = table.read(path, root, test_share=share, seed=seed, separator=separator, required=(), **names)
    if test_share is None and not len(found.train.names) and rows == "test":
        rows = "all"  # there is no column `split`, or it has no training row
    pools = {"test": [found.test], "train": [found.train], "all": [found.train, found.test]}[rows]
    parts = tuple(_pool_part(pool, found.root) for pool in pools if len(pool.names))
    add_problems(found.problems, *(part.images for part in parts))
    if not parts:
        raise UserError(f"{path} has no {rows} row: a column 'split' marks them; or give --rows all")
    return LabelledSet(path.name, "all rows" if rows == "all" else f"{rows} rows", found.classes, parts, found.problems)


def _pool_part(pool: Pool, root: Path) -> LabelledPart:
    unknown = None if pool.unknown is None else Unknown.of_entries(pool.unknown)
    rows = np.arange(len(pool.names))
    return LabelledPart(find_images(root, pool.names), rows, pool.labels, unknown, np.zeros(len(rows), np.int64))


def from_stream(stream: Stream, rows: str = "test") -> LabelledSet:
    """Images of a stream: its test images, its training images, or both."""
    if rows != "test" and not stream.train.complete:
        raise UserError(
            f"the training images of {stream.name} have only the labels of their own task: give --rows test"
        )
    splits = {"test": [stream.test], "train": [stream.train], "all": [stream.train, stream.test]}[rows]
    kind = {"test": "test images", "train": "training images", "all": "training and test images"}[rows]
    parts = tuple(_split_part(split) for split in splits)
    if not any(map(len, parts)):
        raise UserError(f"{stream.name} has no {kind}: give another --rows")
    return LabelledSet(stream.name, kind, stream.classes, parts, stream.problems)


def _split_part(split: Split) -> LabelledPart:
    used = split.used()
    task = np.zeros(len(split), np.int64)
    for index, rows in reversed(list(enumerate(split.rows))):
        task[rows] = index
    unknown = None if split.unknown is None else split.unknown.take(used)
    return LabelledPart(split.images, used, split.labels.take(used), unknown, task[used])
