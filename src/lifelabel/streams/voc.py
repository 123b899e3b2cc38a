"""PASCAL VOC as it is downloaded: image sets and labels of `VOCdevkit/VOC2007` or `VOC2012`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from lifelabel.errors import UserError, short, unknown
from lifelabel.streams.base import Labels, Names, Problems
from lifelabel.streams.collection import Collection, Pool, contents

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
SETS = {"2007": ("trainval", "test"), "2012": ("train", "val")}
"""Image sets for training and for test; the test labels of 2012 are not public."""
DIFFICULT = ("positive", "negative")
LARGEST_LIST, LARGEST_XML = 16 << 20, 1 << 20
"""Bytes; real ones have 0.2 MB and 10 kB at most."""


def read(root: Path, year: str = "2007", difficult: str = "positive") -> Collection:
    """The images of one year. `root` holds VOCdevkit, or is VOCdevkit, or is VOC2007 (VOC2012) itself.

    A class of which an image shows difficult objects alone counts as shown ("positive") or not ("negative").
    """
    if year not in SETS:
        raise unknown("year of VOC", year, SETS)
    if difficult not in DIFFICULT:
        raise unknown("value for difficult objects", difficult, DIFFICULT)
    home, top, prefix = _home(root, f"VOC{year}")
    problems = Problems()
    train, test = (_pool(home, prefix, name, difficult == "positive", problems) for name in SETS[year])
    return Collection("voc", top, CLASSES, train, test, problems)


def _home(root: Path, folder: str) -> tuple[Path, Path, str]:
    """The folder of the year, the root below which its images are named, and what their names begin with."""
    if not root.is_dir():
        raise UserError(f"no folder {root}: give the folder that holds VOCdevkit")
    for home in (root / "VOCdevkit" / folder, root / folder):
        if home.is_dir():
            return home, root, f"{folder}/"
    whole = Path(os.path.abspath(root))
    if whole.name == folder:
        return root, whole.parent, f"{folder}/"
    if (root / "ImageSets").is_dir() and not re.fullmatch(r"VOC\d{4}", whole.name):
        return root, root, ""
    raise UserError(f"no {folder} in {root}: looked for VOCdevkit/{folder}, {folder} and ImageSets in it")


def _pool(home: Path, prefix: str, name: str, difficult: bool, problems: Problems) -> Pool:
    """The images of one image set, with labels from its lists by class or else from the annotations.

    An image whose labels cannot be read is left out: it cannot be told from one that shows nothing.
    """
    main = home / "ImageSets" / "Main"
    shown: dict[str, list[int]] = {key: [] for _, (key, *_) in _lines(main / f"{name}.txt")}
    lists = [main / f"{label}_{name}.txt" for label in CLASSES]
    lacking = [path for path in lists if not path.is_file()]
    if not lacking:
        for column, path in enumerate(lists):
            _add_list(shown, column, path, difficult, problems)
    elif (home / "Annotations").is_dir():
        for key in list(shown):
            _add_annotation(shown, key, home / "Annotations" / f"{key}.xml", difficult, problems)
    else:
        raise UserError(f"no labels for VOC's {name} images: neither {lacking[0]} nor {home / 'Annotations'} is there")
    if not shown:
        raise UserError(f"none of the images of {main / f'{name}.txt'} has labels: {'; '.join(problems.lines())}")
    names = Names(f"{prefix}JPEGImages/{key}.jpg" for key in shown)
    return Pool(names, Labels.of_lists(shown.values(), len(CLASSES)))


def _lines(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """The words of each line that is not blank, with its number; the first word is an image's id."""
    try:
        text = contents(path, LARGEST_LIST).decode()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file: download it again") from None
    for count, line in enumerate(text.split("\n"), start=1):
        if words := line.split():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", words[0]):
                raise UserError(f"{path} line {count}: '{short(words[0])}' is not the id of an image")
            yield count, words


def _add_list(shown: dict[str, list[int]], column: int, path: Path, difficult: bool, problems: Problems) -> None:
    """Labels of one class: a line an image, 1 for shown, -1 for not shown, 0 for difficult objects alone."""
    seen = set()
    for count, (key, *value) in _lines(path):
        if value not in (["1"], ["0"], ["-1"]):
            raise UserError(f"{path} line {count}: expected 1, 0 or -1 after {key}, not '{short(' '.join(value))}'")
        seen.add(key)
        if key in shown and (value == ["1"] or (difficult and value == ["0"])):
            shown[key].append(column)
    for key in [key for key in shown if key not in seen]:
        problems.add("images left out: the list of a class lacks them", f"{key} in {path.name}")
        del shown[key]


def _add_annotation(shown: dict[str, list[int]], key: str, path: Path, difficult: bool, problems: Problems) -> None:
    """Labels of one image: the objects of its annotation."""
    try:
        objects = _objects(contents(path, LARGEST_XML))
    except (UserError, ValueError, ElementTree.ParseError) as error:
        reason = short(str(error).replace(str(path), "it"))
        problems.add("images left out: no annotation that can be read", f"{path.name} ({reason})")
        del shown[key]
        return
    for label, hard in objects:
        if label not in CLASSES:
            problems.add("objects that are of none of VOC's classes", f"'{short(label)}' in {path.name}")
        elif difficult or not hard:
            shown[key].append(CLASSES.index(label))


def _objects(data: bytes) -> list[tuple[str, bool]]:
    """The class of each object, and whether it is difficult."""
    # As text, so that no encoding a file declares can hide a DOCTYPE, the one door to entities and outside files.
    text = data.decode("utf-8-sig")
    if "<!DOCTYPE" in text:
        raise ValueError("has a DOCTYPE, which VOC's own files have not")
    objects = ElementTree.fromstring(text).findall("object")
    return [((o.findtext("name") or "").strip(), (o.findtext("difficult") or "").strip() == "1") for o in objects]
