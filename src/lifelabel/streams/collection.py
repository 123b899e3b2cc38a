"""Labelled photographs on a disk, before a protocol makes a stream of them.

Each source (`coco`, `nus_wide`, `voc`, `table`) has a function `read` that returns a `Collection`.
`protocols.make_stream` makes a stream of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lifelabel.images.source import Names, Problems
from lifelabel.streams.labels import Labels


@dataclass(frozen=True)
class Pool:
    """The training or test images of a collection: names, and labels over all its classes."""

    names: Names
    labels: Labels
    task: np.ndarray | None = None
    """The task of each image (0 …, -1 for none), if the source states it."""
    unknown: Labels | None = None
    """The labels that are unknown, in the shape of `labels`, which has 0 there; None if all labels are known."""

    @property
    def given(self) -> np.ndarray:
        """The task of each image, -1 if the source states none."""
        return np.full(len(self.names), -1) if self.task is None else self.task

    def take(self, rows: np.ndarray) -> Pool:
        """The given images, in that order."""
        task = None if self.task is None else self.task[rows]
        unknown = None if self.unknown is None else self.unknown.take(rows)
        return Pool(self.names.take(rows), self.labels.take(rows), task, unknown)


@dataclass(frozen=True)
class Collection:
    """A labelled set of photographs with its division into training and test. Classes keep the order of the source."""

    name: str
    root: Path
    classes: tuple[str, ...]
    train: Pool
    test: Pool
    problems: Problems = field(default_factory=Problems)
    task_names: tuple[str, ...] = ()
    """The names of the tasks that the source states, if they have names."""
    listed: bool = False
    """Whether the source lists the names of an image's labels. A name that is not listed may be one that came later."""
    val: Pool | None = None
    """The validation images: for the choice of options, thresholds and calibration."""

    @functools.cached_property
    def column_of(self) -> dict[str, int]:
        """The column of each class."""
        return {name: column for column, name in enumerate(self.classes)}
