"""What lies on the disk, before any protocol: images with complete labels, already divided into training and test.

Each source of photographs (`coco`, `nus_wide`, `voc`) is a file with one function, `read(root) -> Collection`.
`protocols.py` makes streams of collections.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lifelabel.errors import UserError
from lifelabel.streams.base import Labels, Names, Problems


@dataclass(frozen=True)
class Pool:
    """Images by name, and the labels of each over all classes of the collection."""

    names: Names
    labels: Labels
    task: np.ndarray | None = None
    """The task of each image (0 …, -1 for none) where the source itself says so."""


@dataclass(frozen=True)
class Collection:
    """A labelled set of photographs. `classes` are in the order of the source itself."""

    name: str
    root: Path
    classes: tuple[str, ...]
    train: Pool
    test: Pool
    problems: Problems = field(default_factory=Problems)


def contents(path: Path, most: int) -> bytes:
    """The bytes of a file that nobody vouches for: no more than `most` of them, and not of a pipe, which would wait."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a regular file: this cannot be the right one")
        if status.st_size > most:
            raise UserError(f"{path} has more than {most:,} bytes: this cannot be the right file")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
