"""Reader of NUS-WIDE: a list of images, a list of 81 concepts, and one file of zeros and ones per concept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.photographs import names_in, safe_path
from lifelabel.images.source import Names, Problems
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.label_files import read_lines
from lifelabel.streams.labels import Labels
from lifelabel.streams.table import class_name
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import shorten

_FOLDERS = frozenset(
    ("nus-wide", "nus_wide", "nuswide", "imagelist", "conceptslist", "groundtruth", "alllabels", "traintestlabels")
)
"""Folders that are searched for lists and labels, in any nesting and in upper or lower case."""
_MAX_DEPTH = 5
"""As in root/NUS-WIDE/Groundtruth/Groundtruth/AllLabels."""
_MAX_BYTES = 64 << 20
"""The real Imagelist.txt has 8 MB."""
_PARTS = ("Train", "Test")


def read(root: Path, split: str = "official", share: float = 0.221, seed: int = 0) -> Collection:
    """The images of Imagelist.txt with their labels of 81 concepts. Images without a label are included.

    The split "official" divides them by TrainImagelist.txt and TestImagelist.txt. The split "share" uses the given
    share of all images for test, drawn with `seed`.
    """
    if not root.is_dir():
        raise UserError(
            f"there is no folder {root}: give the folder that contains NUS-WIDE's folders ImageList and Groundtruth"
        )
    files, problems = _Files(root), Problems()
    try:
        classes = tuple(class_name(line) for line in files.lines("Concepts81.txt"))
    except ValueError as error:
        raise UserError(f"{files.path('Concepts81.txt')} has {error}: download it again") from None
    if len(set(classes)) < len(classes):
        raise UserError(f"{files.path('Concepts81.txt')} lists a concept twice: download it again")
    if split == "share":
        train, test = _split_by_share(_pool(files, classes), share, seed)
    else:
        train, test = _split_official(files, classes, problems)
    return Collection("nus-wide", root, classes, train, test, problems)


def image_list(root: Path) -> list[str] | None:
    """The names of all images in the order of Imagelist.txt; None if there is no such file."""
    files = _Files(root)
    return files.names("Imagelist.txt") if "Imagelist.txt" in files else None


def official_lists(root: Path) -> tuple[list[str], list[str]]:
    """The names of all images in the order of TrainImagelist.txt, and in that of TestImagelist.txt."""
    train, test = (_Files(root).names(f"{part}Imagelist.txt") for part in _PARTS)
    return train, test


def all_labels(root: Path, concepts: Sequence[str]) -> Labels | None:
    """The labels of all images for the given concepts, in the order of Imagelist.txt.

    None if there is no Imagelist.txt, or no label file for any of the concepts.
    """
    files = _Files(root)
    if "Imagelist.txt" not in files or not any(file in files for file in _label_files(concepts, "")):
        return None
    return _pool(files, concepts).labels


class _Files:
    """The text files of NUS-WIDE under a folder. The case of their names does not matter."""

    def __init__(self, root: Path):
        self.root = root
        self.paths: dict[str, Path] = {}
        folders = [root]
        for _ in range(_MAX_DEPTH):
            inner = []
            for folder in folders:
                for name in sorted(names_in(folder)):
                    if name.lower().endswith(".txt"):
                        self.paths.setdefault(name.lower(), folder / name)
                    elif name.lower() in _FOLDERS and os.path.isdir(folder / name):
                        inner.append(folder / name)
            folders = inner

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.paths

    def path(self, name: str) -> Path:
        """The path of a file. Raises `UserError` if there is none."""
        if name not in self:
            raise self.missing(name)
        return self.paths[name.lower()]

    def missing(self, what: str) -> UserError:
        return UserError(
            f"there is no {what} under {self.root}, nor in its folders ImageList, ConceptsList and Groundtruth (with "
            "AllLabels and TrainTestLabels): unpack the zip files of NUS-WIDE into that folder"
        )

    def lines(self, name: str) -> list[str]:
        """The lines of a list, without blank lines."""
        path = self.path(name)
        lines = list(filter(None, read_lines(path, _MAX_BYTES)))
        if not lines:
            raise UserError(f"{path} is empty: download it again")
        return lines

    def names(self, name: str) -> list[str]:
        """The images of a list, with forward slashes."""
        names = []
        for line in self.lines(name):
            try:
                names.append(safe_path(line))
            except ValueError as error:
                raise UserError(
                    f"{self.path(name)} has the image path '{shorten(line)}', which is not allowed: {error}"
                ) from None
        return names


def _pool(files: _Files, concepts: Sequence[str], part: str = "") -> Pool:
    """All images, or those of the part "Train" or "Test" in the order of its list, with their labels."""
    names = files.names(f"{part}Imagelist.txt")
    paths = [files.path(file) for file in _label_files(concepts, part)]
    dense = np.zeros((len(names), len(concepts)), bool)
    for column, path in enumerate(paths):
        values = _values(path)
        if len(values) != len(names):
            raise UserError(
                f"{path} has {len(values):,} labels for the {len(names):,} images of "
                f"{files.path(f'{part}Imagelist.txt')}: both files must be from the same download"
            )
        dense[:, column] = values
    return Pool(Names(names), Labels.from_dense(dense))


def _values(path: Path) -> np.ndarray:
    """The values of a file with one 0 or 1 per line, as booleans."""
    data = np.frombuffer(read_limited(path, _MAX_BYTES), np.uint8)
    # Starts with False for a separator before the first byte, so that every value can be compared with its neighbour.
    filled = np.concatenate([[False], ~np.isin(data, np.frombuffer(b" \t\r\n", np.uint8))])
    values = data[filled[1:]]
    if not np.isin(values, np.frombuffer(b"01", np.uint8)).all() or (filled[1:] & filled[:-1]).any():
        raise UserError(f"{path} must contain one 0 or 1 per line, and contains something else: download it again")
    return values == ord("1")


def _label_files(concepts: Sequence[str], part: str) -> list[str]:
    return [f"Labels_{concept}_{part}.txt" if part else f"Labels_{concept}.txt" for concept in concepts]


def _split_official(files: _Files, concepts: Sequence[str], problems: Problems) -> tuple[Pool, Pool]:
    """Training and test images by the lists of NUS-WIDE. Labels are from TrainTestLabels if complete, or AllLabels."""
    missing = [file for part in _PARTS for file in _label_files(concepts, part) if file not in files]
    if not missing:
        return _pool(files, concepts, "Train"), _pool(files, concepts, "Test")
    if missing_all := [file for file in _label_files(concepts, "") if file not in files]:
        raise files.missing(f"{missing[0]} and no {missing_all[0]}")
    pool = _pool(files, concepts)
    row_of = {name: row for row, name in enumerate(pool.names)}
    pools = []
    for part in _PARTS:
        listed = files.names(f"{part}Imagelist.txt")
        if unknown := [name for name in listed if name not in row_of]:
            kind = f"images of {part}Imagelist.txt that are not in Imagelist.txt"
            problems.add(kind, unknown[0], len(unknown))
        pools.append(pool.take(np.array([row_of[name] for name in listed if name in row_of], np.int64)))
    return pools[0], pools[1]


def _split_by_share(pool: Pool, share: float, seed: int) -> tuple[Pool, Pool]:
    """Training and test images, with the given share for test.

    Images are sorted by a hash of seed and name. So the draw is the same on every machine, and the test images of a
    smaller share are a part of those of a larger share.
    """
    digests = [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in pool.names]
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), np.int64)
    count = max(1, round(share * len(order)))
    train, test = np.sort(order[count:]), np.sort(order[:count])
    return pool.take(train), pool.take(test)
