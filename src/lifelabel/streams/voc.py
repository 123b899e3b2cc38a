"""Reader of PASCAL VOC: image sets and labels of `VOCdevkit/VOC2007` or `VOC2012`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from lifelabel.errors import UserError
from lifelabel.images.source import Names, Problems
from lifelabel.streams.class_names import VOC_CLASSES
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.label_files import read_lines
from lifelabel.streams.labels import Labels
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import shorten

_SETS = {"2007": ("trainval", "test"), "2012": ("train", "val")}
"""The image sets for training and for test. The test labels of 2012 are not public."""
_MAX_LIST_BYTES, _MAX_XML_BYTES = 16 << 20, 1 << 20
"""Real lists have at most 0.2 MB, real annotations at most 10 kB."""


def read(root: Path, year: str = "2007", difficult: str = "positive") -> Collection:
    """The images of one year. `root` is VOC2007 (VOC2012), or VOCdevkit, or the folder that contains VOCdevkit.

    If all objects of a class in an image are marked difficult, the image has that label ("positive") or not
    ("negative").
    """
    folder, image_root, prefix = _year_folder(root, f"VOC{year}")
    problems = Problems()
    train, test = (_pool(folder, prefix, name, difficult == "positive", problems) for name in _SETS[year])
    return Collection("voc", image_root, VOC_CLASSES, train, test, problems)


def _year_folder(root: Path, name: str) -> tuple[Path, Path, str]:
    """The folder of the year, the root of the image names, and the prefix of the image names."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: give the folder that contains VOCdevkit")
    for folder in (root / "VOCdevkit" / name, root / name):
        if folder.is_dir():
            return folder, root, f"{name}/"
    absolute = Path(os.path.abspath(root))
    if absolute.name == name:
        return root, absolute.parent, f"{name}/"
    if (root / "ImageSets").is_dir() and not re.fullmatch(r"VOC\d{4}", absolute.name):
        return root, root, ""
    raise UserError(f"there is no {name} in {root}: give a folder that contains VOCdevkit/{name}, {name} or ImageSets")


def _pool(folder: Path, prefix: str, name: str, difficult: bool, problems: Problems) -> Pool:
    """The images of one image set. Labels are from its lists per class if all 20 exist, else from the annotations.

    An image whose labels cannot be read is skipped: it cannot be distinguished from an image without labels.
    """
    main = folder / "ImageSets" / "Main"
    labels: dict[str, list[int]] = {key: [] for _, (key, *_) in _lines(main / f"{name}.txt")}
    lists = [main / f"{label}_{name}.txt" for label in VOC_CLASSES]
    missing = [path for path in lists if not path.is_file()]
    if not missing:
        for column, path in enumerate(lists):
            _add_list(labels, column, path, difficult, problems)
    elif (folder / "Annotations").is_dir():
        for key in list(labels):
            _add_annotation(labels, key, folder / "Annotations" / f"{key}.xml", difficult, problems)
    else:
        raise UserError(f"no labels for VOC's {name} images: neither {missing[0]} nor {folder / 'Annotations'} exists")
    if not labels:
        reason = "; ".join(problems.lines()) or "the list is empty"
        raise UserError(f"none of the images of {main / f'{name}.txt'} has labels: {reason}")
    names = Names(f"{prefix}JPEGImages/{key}.jpg" for key in labels)
    return Pool(names, Labels.from_lists(labels.values(), len(VOC_CLASSES)))


def _lines(path: Path) -> Iterator[tuple[int, Sequence[str]]]:
    """The number and the words of each line that is not blank. The first word is an image id."""
    for count, line in enumerate(read_lines(path, _MAX_LIST_BYTES), start=1):
        if words := line.split():
            if not re.fullmatch(r"[A-Za-z0-9_-]+", words[0]):
                raise UserError(f"{path} line {count}: '{shorten(words[0])}' is not an image id")
            yield count, words


def _add_list(labels: dict[str, list[int]], column: int, path: Path, difficult: bool, problems: Problems) -> None:
    """Add the labels of one class. Each line is an image and 1 (present), -1 (absent) or 0 (only difficult objects)."""
    listed = set()
    for count, (key, *value) in _lines(path):
        if value not in (["1"], ["0"], ["-1"]):
            raise UserError(f"{path} line {count}: expected 1, 0 or -1 after {key}, not '{shorten(' '.join(value))}'")
        listed.add(key)
        if key in labels and (value == ["1"] or (difficult and value == ["0"])):
            labels[key].append(column)
    for key in [key for key in labels if key not in listed]:
        problems.add("images skipped: missing in the list of a class", f"{key} in {path.name}")
        del labels[key]


def _add_annotation(labels: dict[str, list[int]], key: str, path: Path, difficult: bool, problems: Problems) -> None:
    """Add the labels of one image: the classes of the objects in its annotation."""
    try:
        objects = _objects(read_limited(path, _MAX_XML_BYTES))
    except (UserError, ValueError, ElementTree.ParseError) as error:
        reason = shorten(str(error).replace(str(path), "it"))
        problems.add("images skipped: the annotation cannot be read", f"{path.name} ({reason})")
        del labels[key]
        return
    for label, is_difficult in objects:
        if label not in VOC_CLASSES:
            problems.add("objects of an unknown class", f"'{shorten(label)}' in {path.name}")
        elif difficult or not is_difficult:
            labels[key].append(VOC_CLASSES.index(label))


def _objects(data: bytes) -> list[tuple[str, bool]]:
    """The class of each object, and whether it is difficult."""
    # Decoded first, so that an encoding declared in the file cannot hide a DOCTYPE. Entities and references to other
    # files are possible only with a DOCTYPE.
    text = data.decode("utf-8-sig")
    if "<!DOCTYPE" in text:
        raise ValueError("has a DOCTYPE, which VOC files do not have")
    objects = ElementTree.fromstring(text).findall("object")
    return [((o.findtext("name") or "").strip(), (o.findtext("difficult") or "").strip() == "1") for o in objects]
