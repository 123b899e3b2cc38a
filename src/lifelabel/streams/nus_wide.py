"""NUS-WIDE as it is distributed: a list of images, a list of 81 concepts, and a file of zeros and ones a concept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lifelabel.errors import UserError, short, unknown
from lifelabel.streams.base import Labels, Names, Problems
from lifelabel.streams.collection import Collection, Pool, contents
from lifelabel.streams.files import safe_path
from lifelabel.streams.table import class_name

FOLDERS = frozenset(
    ("nus-wide", "nus_wide", "nuswide", "imagelist", "conceptslist", "groundtruth", "alllabels", "traintestlabels")
)
"""Folders that are looked into, in any nesting and spelling, for the lists and labels."""
LEVELS = 5
"""As in root/NUS-WIDE/Groundtruth/Groundtruth/AllLabels."""
LARGEST = 64 << 20
"""Bytes; the real Imagelist.txt has 8 MB."""
SPLITS = ("official", "share")
PARTS = ("Train", "Test")


def read(root: Path, split: str = "official", share: float = 0.221, seed: int = 0) -> Collection:
    """The images of Imagelist.txt with their 81 concepts; those that show none are kept.

    "official" divides them by TrainImagelist.txt and TestImagelist.txt; "share" holds out that share of all images for
    test, drawn by `seed`.
    """
    if split not in SPLITS:
        raise unknown("split of NUS-WIDE", split, SPLITS)
    if not 0 < share < 1:
        raise UserError(f"the share of test images must lie between 0 and 1, not {share}")
    if not root.is_dir():
        raise UserError(f"no folder {root}: give the folder that holds NUS-WIDE's ImageList and Groundtruth")
    files, problems = Files(root), Problems()
    try:
        classes = tuple(class_name(line) for line in files.lines("Concepts81.txt"))
    except ValueError as error:
        raise UserError(f"{files.need('Concepts81.txt')} has {error}: download it again") from None
    if len(set(classes)) < len(classes):
        raise UserError(f"{files.need('Concepts81.txt')} names a concept twice")
    if split == "share":
        train, test = _shared(_pool(files, classes), share, seed)
    else:
        train, test = _official(files, classes, problems)
    return Collection("nus-wide", root, classes, train, test, problems)


def image_list(root: Path) -> list[str] | None:
    """The names of all images in the order of Imagelist.txt; None where there is no such file."""
    files = Files(root)
    return files.names("Imagelist.txt") if "Imagelist.txt" in files else None


def all_labels(root: Path, concepts: Sequence[str]) -> Labels | None:
    """The given concepts of all images, in the order of Imagelist.txt; None where list or labels are not there."""
    files = Files(root)
    if "Imagelist.txt" not in files or not any(file in files for file in _label_files(concepts, "")):
        return None
    return _pool(files, concepts).labels


class Files:
    """The text files of NUS-WIDE under a folder, whatever the case of their names."""

    def __init__(self, root: Path):
        self.root = root
        self.found: dict[str, Path] = {}
        folders = [root]
        for _ in range(LEVELS):
            folders = [inner for folder in folders for inner in self._look(folder)]

    def _look(self, folder: Path) -> list[Path]:
        """Note the text files of one folder; the folders in it that are worth a look."""
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            return []
        for entry in listed:
            if entry.name.lower().endswith(".txt"):
                self.found.setdefault(entry.name.lower(), Path(entry.path))
        return [Path(entry.path) for entry in listed if entry.name.lower() in FOLDERS and entry.is_dir()]

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.found

    def need(self, name: str) -> Path:
        if name not in self:
            raise self.lacks(name)
        return self.found[name.lower()]

    def lacks(self, what: str) -> UserError:
        return UserError(
            f"no {what} under {self.root}: looked there and in its folders ImageList, ConceptsList and Groundtruth "
            "(with AllLabels and TrainTestLabels); unpack NUS-WIDE's zip files into that folder"
        )

    def lines(self, name: str) -> list[str]:
        """The lines of a list, blank ones left out."""
        path = self.need(name)
        try:
            text = contents(path, LARGEST).decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a text file: download it again") from None
        lines = [stripped for line in text.split("\n") if (stripped := line.strip())]
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
                raise UserError(f"{self.need(name)} has an unusable path '{short(line)}': {error}") from None
        return names


def _pool(files: Files, concepts: Sequence[str], part: str = "") -> Pool:
    """All images, or those of one part by its own list, with their labels."""
    names = files.names(f"{part}Imagelist.txt")
    paths = [files.need(file) for file in _label_files(concepts, part)]
    dense = np.zeros((len(names), len(concepts)), bool)
    for column, path in enumerate(paths):
        values = _values(path)
        if len(values) != len(names):
            raise UserError(
                f"{path} has {len(values):,} labels for the {len(names):,} images of "
                f"{files.need(f'{part}Imagelist.txt')}: both must come from the same distribution"
            )
        dense[:, column] = values
    return Pool(Names(names), Labels.of_dense(dense))


def _values(path: Path) -> np.ndarray:
    """The truth values of a file with a 0 or a 1 a line."""
    data = np.frombuffer(contents(path, LARGEST), np.uint8)
    # A whitespace byte before the first one, so that every value can be seen to stand alone.
    filled = np.concatenate([[False], ~np.isin(data, np.frombuffer(b" \t\r\n", np.uint8))])
    values = data[filled[1:]]
    if not np.isin(values, np.frombuffer(b"01", np.uint8)).all() or (filled[1:] & filled[:-1]).any():
        raise UserError(f"{path} must hold a 0 or a 1 a line, and holds something else: download it again")
    return values == ord("1")


def _label_files(concepts: Sequence[str], part: str) -> list[str]:
    return [f"Labels_{concept}_{part}.txt" if part else f"Labels_{concept}.txt" for concept in concepts]


def _official(files: Files, concepts: Sequence[str], problems: Problems) -> tuple[Pool, Pool]:
    """Training and test images by the lists of the distribution, with labels from either set of label files."""
    lacking = [file for part in PARTS for file in _label_files(concepts, part) if file not in files]
    if not lacking:
        return _pool(files, concepts, "Train"), _pool(files, concepts, "Test")
    if lacking_too := [file for file in _label_files(concepts, "") if file not in files]:
        raise files.lacks(f"{lacking[0]}, nor {lacking_too[0]} in its place,")
    every = _pool(files, concepts)
    row_of = {name: row for row, name in enumerate(every.names)}
    pools = []
    for part in PARTS:
        listed = files.names(f"{part}Imagelist.txt")
        known = [name for name in listed if name in row_of]
        if len(known) < len(listed):
            example = next(name for name in listed if name not in row_of)
            problems.add(f"images of {part}Imagelist.txt that Imagelist.txt lacks", example, len(listed) - len(known))
        pools.append(Pool(Names(known), every.labels.take(np.array([row_of[name] for name in known], np.int64))))
    return pools[0], pools[1]


def _shared(pool: Pool, share: float, seed: int) -> tuple[Pool, Pool]:
    """A share of the images for test. Each image's place in the draw is a hash of its name, so that the same images
    are drawn on every machine, and a smaller share is a part of a larger one."""
    places = [hashlib.sha256(f"{seed} {name}".encode()).digest() for name in pool.names]
    order = np.array(sorted(range(len(places)), key=places.__getitem__), np.int64)
    cut = max(1, round(share * len(order)))
    train, test = np.sort(order[cut:]), np.sort(order[:cut])
    return (
        Pool(pool.names.take(train), pool.labels.take(train)),
        Pool(pool.names.take(test), pool.labels.take(test)),
    )
