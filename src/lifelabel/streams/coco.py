"""COCO as it is downloaded: the labels of `annotations/instances_{train,val}{2014,2017}.json`."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError, short, unknown
from lifelabel.streams.base import Labels, Names, Problems
from lifelabel.streams.collection import Collection, Pool, contents
from lifelabel.streams.files import safe_path

EDITIONS = (
    ("annotations/instances_train2014.json", "annotations/instances_val2014.json"),
    ("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
)
"""The files of each edition, training and validation; the first edition that is there is read."""
LARGEST = 4 << 30
"""Bytes; the real instances_train2014.json has 0.4 GiB."""
# Nine tenths of a file are the numbers of outlines: without them it is read in a third of the time.
_OUTLINE = re.compile(rb'"segmentation":\s*\[[\[\]\d\s.,eE+-]*\]')


@dataclass(frozen=True)
class Instances:
    """What one file says: class names by COCO id, file names, and the classes each image shows (with repeats)."""

    classes: tuple[str, ...]
    names: list[str]
    shown: list[list[int]]

    @property
    def pool(self) -> Pool:
        return Pool(Names(self.names), Labels.of_lists(self.shown, len(self.classes)))


def read(root: Path) -> Collection:
    """Training and validation images of the edition under `root`, 2014 if both are there.

    An image shows a class if at least one region of it is annotated, crowd regions included.
    """
    if not root.is_dir():
        raise UserError(f"no folder {root}: give the folder that holds COCO's annotations folder")
    lacking = {pair: [name for name in pair if not (root / name).is_file()] for pair in EDITIONS}
    pair = min(EDITIONS, key=lambda pair: len(lacking[pair]))
    if lacking[pair]:
        raise UserError(
            f"{root} lacks {' and '.join(lacking[pair])}: COCO needs both files of 2014 or both of 2017, "
            "which come in annotations_trainval2014.zip and annotations_trainval2017.zip"
        )
    problems = Problems()
    train, test = (instances(root / name, problems) for name in pair)
    if train.classes != test.classes:
        raise UserError(f"{root / pair[1]} does not list the same categories as {pair[0]}: are they of one data set?")
    return Collection("coco", root, train.classes, train.pool, test.pool, problems)


def labels_by_name(root: Path, classes: Sequence[str]) -> dict[str, frozenset[int]] | None:
    """The columns of `classes` that each image shows, by its file name and by its `number`; None without annotations.

    One file of an edition is enough here.
    """
    files = max(([root / name for name in pair if (root / name).is_file()] for pair in EDITIONS), key=len)
    found: dict[str, frozenset[int]] = {}
    column_of = {name: column for column, name in enumerate(classes)}
    for path in files:
        part = instances(path, Problems())
        for name in column_of:
            if name not in part.classes:
                raise unknown(f"category for {path}", name, part.classes)
        columns = [column_of.get(name) for name in part.classes]
        for name, shown in zip(part.names, part.shown, strict=True):
            found[name] = found[number(name)] = frozenset(c for k in shown if (c := columns[k]) is not None)
    return found if files else None


def number(name: str) -> str:
    """The 12 digits by which both editions call the same image; a name without them as it is.

    >>> number("COCO_train2014_000000000009.jpg"), number("000000000009.jpg"), number("mine.jpg")
    ('000000000009', '000000000009', 'mine.jpg')
    """
    digits = re.search(r"(?<!\d)(\d{12})\.\w+$", name)
    return digits[1] if digits else name


def instances(path: Path, problems: Problems) -> Instances:
    """Read one file. What can be left out is left out and counted among the problems."""
    try:
        found = json.loads(_OUTLINE.sub(b'"segmentation":0', contents(path, LARGEST)), object_hook=_lean)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: not a whole JSON file; download it again") from None
    classes, column_of = _categories(_listed(found, "categories", path), path)
    names, row_of = _images(_listed(found, "images", path), path, problems)
    shown: list[list[int]] = [[] for _ in names]
    for pair in _listed(found, "annotations", path):
        image, category = pair if isinstance(pair, tuple) else (None, None)
        if image not in row_of:
            problems.add("annotations of an image that is not listed", f"image {image!r} in {path.name}")
        elif category not in column_of:
            problems.add("annotations of a category that is not listed", f"category {category} in {path.name}")
        else:
            shown[row_of[image]].append(column_of[category])
    return Instances(classes, names, shown)


def _lean(item: dict[str, Any]) -> Any:
    """Of a JSON object what labels need, taken as soon as it is parsed: the rest would fill the memory."""
    if "image_id" in item:
        image, category = item["image_id"], item.get("category_id")
        return (image if isinstance(image, (int, str)) else None), (category if isinstance(category, int) else None)
    return {key: item[key] for key in ("id", "name", "file_name", "categories", "images", "annotations") if key in item}


def _listed(found: Any, key: str, path: Path) -> list[Any]:
    listed = found.get(key) if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise UserError(f"{path} has no list '{key}': it must be one of COCO's instances files")
    return listed


def _categories(listed: list[Any], path: Path) -> tuple[tuple[str, ...], dict[int, int]]:
    """The names in the order of their ids, and the column of each id."""
    names: dict[int, str] = {}
    for item in listed:
        key, name = (item.get("id"), item.get("name")) if isinstance(item, dict) else (None, None)
        if not isinstance(key, int) or not isinstance(name, str) or not name or not name.isprintable():
            raise UserError(f"{path} has a category without an id (a number) and a name: {short(item)}")
        if key in names:
            raise UserError(f"{path} lists category {key} twice")
        names[key] = name
    if len(set(names.values())) < len(names) or not names:
        raise UserError(f"{path} must list categories, each with a name of its own")
    return tuple(names[key] for key in sorted(names)), {key: column for column, key in enumerate(sorted(names))}


def _images(listed: list[Any], path: Path, problems: Problems) -> tuple[list[str], dict[int | str, int]]:
    """The file names, each once, and the row of each image id."""
    row_of: dict[int | str, int] = {}
    rows: dict[str, int] = {}
    for item in listed:
        known = _image(item)
        if known is None:
            problems.add("images left out: no id or no usable file name", f"{short(item)} in {path.name}")
            continue
        key, name = known
        if name in rows:
            problems.add("images listed twice", f"{name} in {path.name}")
        row = rows.setdefault(name, len(rows))
        if row_of.setdefault(key, row) != row:
            raise UserError(f"{path} gives the image id {short(key)} to two files, one of them {short(name)}")
    if not rows:
        raise UserError(f"{path} lists no images")
    return list(rows), row_of


def _image(item: Any) -> tuple[int | str, str] | None:
    """The id and the file name of an image, if it has both."""
    match item:
        case {"id": int() | str() as key, "file_name": str() as text}:
            with contextlib.suppress(ValueError):
                return key, safe_path(text)
    return None
