"""Photographs as files under a folder. Files are found by listing folders, which is faster than one check per file.

Image names are untrusted. `safe_path` refuses names that are absolute, have a drive letter or contain `..`, so a name
cannot point outside the root. `path_below` accepts absolute names too, if they begin with the root. Links are followed
(`train2014 -> /data/coco/train2014` is common): the owner of the root made them.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from lifelabel.images.decode import open_image
from lifelabel.images.source import BadImage, Names, Problems

FOLDERS = (
    "images", "Images", "train2014", "val2014", "train2017", "val2017", "images/train2014", "images/val2014",
    "images/train2017", "images/val2017", "JPEGImages", "VOCdevkit", "Flickr", "images/Flickr", "Images/Flickr",
    "NUS-WIDE/Flickr", "NUS-WIDE/images",
)  # fmt: skip
"""Folders below the root that are searched after the root itself. The first folder that has the file is used."""

_OTHER_CASE = "images have a file whose name differs in case only; correct the names"
_MAX_PATH_LENGTH = 1024
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udc7f\udd00-\udfff]")
_COCO_NAME = re.compile(r"(?:.*/)?(COCO_(?:train|val|test)2014_(\d{12}\.jpg))")


def safe_path(text: str) -> str:
    r"""A relative path with forward slashes from untrusted text. Raises ValueError with the reason if it is not safe.

    >>> safe_path(r".\actor\\0001.jpg")
    'actor/0001.jpg'
    >>> safe_path("a/../../secret.jpg")
    Traceback (most recent call last):
    ValueError: leads out of its folder ("..")
    """
    if len(text) > _MAX_PATH_LENGTH:
        raise ValueError(f"longer than {_MAX_PATH_LENGTH:,} characters")
    if _UNSAFE.search(text):
        raise ValueError("control characters in a path")
    text = text.replace("\\", "/")
    if text.startswith("/"):
        raise ValueError("an absolute path")
    if _has_drive(text):
        raise ValueError("a path with a drive letter")
    parts = _parts(text)
    if ".." in parts:
        raise ValueError('leads out of its folder ("..")')
    if not parts:
        raise ValueError("an empty path")
    return "/".join(parts)


def path_below(text: str, roots: Sequence[Path]) -> str:
    """A safe path relative to a root, like `safe_path`. An absolute path may begin with one of `roots`.

    >>> path_below("/data/photos/a/1.jpg", [Path("/data/photos"), Path("/mnt/disk/photos")])
    'a/1.jpg'
    """
    slashed = text.replace("\\", "/")
    if not slashed.startswith("/") and not _has_drive(slashed):
        return safe_path(text)
    parts = _parts(slashed)
    for root in roots:
        above = _parts(root.as_posix())
        if parts[: len(above)] == above:
            return safe_path("/".join(parts[len(above) :]))
    raise ValueError(f"an absolute path that is not under the root {roots[0]}")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _has_drive(path: str) -> bool:
    return path[1:2] == ":" and path[0].isalpha()


class FileImages:
    """The photographs `names` of a split, under `root` or in one of the usual folders below it.

    Without a root all of them are absent. The object holds two lists of names and no open file, so sending it to
    another process is cheap.
    """

    drawn_from_labels = False

    def __init__(self, root: Path | None, names: Names):
        self.root = root
        self.names = names
        self.problems = Problems()
        self.found = Names(("" for _ in names) if root is None else _find(root, names, self.problems))
        """The path of each image relative to the root; empty if there is no file."""
        self.present: np.ndarray = np.diff(self.found.end, prepend=0) > 0

    def __len__(self) -> int:
        return len(self.names)

    def name(self, row: int) -> str:
        return self.names[row]

    def key(self, row: int) -> int:
        """A hash of the name. An image then has the same augmentation in every stream that contains it."""
        name = self.names[row].encode("utf-8", "surrogateescape")
        return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")

    def take(self, rows: np.ndarray) -> FileImages:
        """The photographs of the given rows, in that order. Folders are not searched again."""
        other = copy.copy(self)
        other.names, other.found, other.present = self.names.take(rows), self.found.take(rows), self.present[rows]
        return other

    def read(self, row: int, min_side: int = 0) -> Image.Image:
        if not self.present[row]:
            raise BadImage("no such file")
        return open_image(f"{self.root}/{self.found[row]}", min_side)


def _find(root: Path, names: Iterable[str], problems: Problems) -> Iterator[str]:
    """For each name its path relative to the root; empty if there is no file.

    A file whose name has its accents composed in another way is used, if it is the only one: the text is the same. A
    name in another case is not: on most file systems it can be another photograph. It is a problem that is counted.
    """
    prefixes = ["", *(f"{folder}/" for folder in FOLDERS if (root / folder).is_dir())]
    listing = functools.cache(lambda folder: frozenset(names_in(root / folder)))
    composed = _Near(listing, functools.partial(unicodedata.normalize, "NFC"))
    caseless = _Near(listing, lambda name: unicodedata.normalize("NFC", name).casefold())

    @functools.cache
    def candidates(folder: str) -> list[tuple[str, frozenset[str]]]:
        """The folders that can contain the files of `folder`, each with its files."""
        listings = ((prefix + folder, listing(prefix + folder)) for prefix in prefixes)
        return [(path, files) for path, files in listings if files]

    for name in names:
        hits = (path + file for folder, file in spellings(name) for path, files in candidates(folder) if file in files)
        hit = next(hits, "")
        if not hit:
            places = [(prefix + folder, file) for folder, file in spellings(name) for prefix in prefixes]
            hit = next(filter(None, (composed.find(*place) for place in places)), "")
            if not hit and (near := next(filter(None, (caseless.find(*place) for place in places)), "")):
                problems.add(_OTHER_CASE, f"{near} for {name}")
        yield hit


class _Near:
    """Files whose paths are equal to a given one after `fold`."""

    def __init__(self, listing: Callable[[str], frozenset[str]], fold: Callable[[str], str]):
        self.listing, self.fold = listing, fold
        self._folder = functools.cache(self._search)
        self._folded = functools.cache(self._fold_all)

    def find(self, folder: str, file: str) -> str:
        """The path of the only file; empty if there is none, or several. A folder is empty or ends in a slash."""
        found = self._folder(folder)
        match = "" if found is None else self._folded(found).get(self.fold(file), "")
        return f"{found}{match}" if match else ""

    def _search(self, folder: str) -> str | None:
        if not folder or self.listing(folder):
            return folder
        parent, _, name = folder[:-1].rpartition("/")
        match = self.find(f"{parent}/" if parent else "", name)
        return f"{match}/" if match else None

    def _fold_all(self, folder: str) -> dict[str, str]:
        folded: dict[str, str] = {}
        for name in self.listing(folder):
            key = self.fold(name)
            folded[key] = "" if key in folded else name
        return folded


def spellings(name: str) -> Iterator[tuple[str, str]]:
    """The possible names of a photograph, the most likely first: its folder (empty, or ending in a slash) and file.

    File names of COCO are unique, so their folder does not matter. The edition of 2017 omits the first part of a name.
    """
    try:
        path = safe_path(name)
    except ValueError:
        return
    folder, slash, file = path.rpartition("/")
    yield folder + slash, file
    if coco := _COCO_NAME.fullmatch(path):
        yield "", coco[1]
        yield "", coco[2]


def names_in(folder: Path) -> list[str]:
    """The names in a folder; none if it does not exist or cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []
