"""Photographs as files under a folder: where each name lies, found by listing folders and not by asking file by file.

Names come from lists that others wrote. A name can only lead downwards from the root, by its text: `..`, absolute paths
and drive letters are refused. Links are followed (`train2014 -> /data/coco/train2014` is common), so what the owner of
the root linked into it counts as under it.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from lifelabel import images  # the module, not its names: `images` imports this package too
from lifelabel.streams.base import BadImage, Names

FOLDERS = (
    "images",
    "Images",
    "train2014",
    "val2014",
    "train2017",
    "val2017",
    "images/train2014",
    "images/val2014",
    "images/train2017",
    "images/val2017",
    "JPEGImages",
    "VOCdevkit",
    "Flickr",
    "images/Flickr",
    "Images/Flickr",
    "NUS-WIDE/Flickr",
    "NUS-WIDE/images",
)
"""Where photographs lie below the root, besides the root itself; the first place that has the file counts."""

LONGEST = 1024
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udc7f\udd00-\udfff]")
_COCO = re.compile(r"(?:.*/)?(COCO_(?:train|val|test)2014_(\d{12}\.jpg))")


def safe_path(text: str) -> str:
    r"""A relative path with forward slashes from text that nobody vouches for; ValueError says what is wrong with it.

    >>> safe_path(r".\actor\\0001.jpg")
    'actor/0001.jpg'
    >>> safe_path("a/../../secret.jpg")
    Traceback (most recent call last):
    ValueError: leads out of its folder ("..")
    """
    if len(text) > LONGEST:
        raise ValueError(f"longer than {LONGEST:,} characters")
    if _UNSAFE.search(text):
        raise ValueError("control characters in a path")
    text = text.replace("\\", "/")
    if text.startswith("/"):
        raise ValueError("an absolute path")
    if text[1:2] == ":" and text[0].isalpha():
        raise ValueError("a path with a drive letter")
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError('leads out of its folder ("..")')
    if not parts:
        raise ValueError("an empty path")
    return "/".join(parts)


class FileImages:
    """The photographs of a split: `names` as they lie under `root`, or in one of `FOLDERS` below it.

    Without a root all of them are absent. Holds two lists of names and no open file, so it is cheap to send to
    another process.
    """

    knows_labels = False

    def __init__(self, root: Path | None, names: Names):
        self.root = root
        self.names = names
        self.found = Names(("" for _ in names) if root is None else _find(root, names))
        """Where each one lies, relative to the root; empty where there is none."""
        self.present: np.ndarray = np.diff(self.found.end, prepend=0) > 0

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        return self.names[row]

    def sealed(self) -> FileImages:
        return self

    def open(self) -> FileImages:
        return self

    def take(self, rows: np.ndarray) -> FileImages:
        """The same photographs in another order, without looking for them again."""
        other = FileImages(None, self.names.take(rows))
        other.root, other.found, other.present = self.root, self.found.take(rows), self.present[rows]
        return other

    def picture(self, row: int, least: int = 0) -> Image.Image:
        if not self.present[row]:
            raise BadImage("no such file")
        return images.open_picture(f"{self.root}/{self.found[row]}", least)


def _find(root: Path, names: Iterable[str]) -> Iterator[str]:
    """For each name the path below the root that has it, or nothing."""
    tops = ["", *(f"{folder}/" for folder in FOLDERS if (root / folder).is_dir())]
    listing = functools.cache(functools.partial(_list, root))

    @functools.cache
    def places(folder: str) -> list[tuple[str, frozenset[str]]]:
        """The folders that can hold files of `folder`, and the files of each."""
        both = ((top + folder, listing(top + folder)) for top in tops)
        return [(place, files) for place, files in both if files]

    for name in names:
        hits = (place + file for folder, file in _ways(name) for place, files in places(folder) if file in files)
        yield next(hits, "")


def _ways(name: str) -> Iterator[tuple[str, str]]:
    """What a photograph may be called: its folder (empty, or with a slash at its end) and file name, likeliest first.

    COCO's names are unique, so there the folder does not matter; the edition of 2017 dropped their first part.
    """
    try:
        path = safe_path(name)
    except ValueError:
        return
    folder, slash, file = path.rpartition("/")
    yield folder + slash, file
    if coco := _COCO.fullmatch(path):
        yield "", coco[1]
        yield "", coco[2]


def _list(root: Path, folder: str) -> frozenset[str]:
    """The names in a folder; none where it does not exist or cannot be read."""
    try:
        with os.scandir(root / folder) as entries:
            return frozenset(entry.name for entry in entries)
    except OSError:
        return frozenset()
