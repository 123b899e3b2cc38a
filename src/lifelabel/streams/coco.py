"""Reader of COCO: labels from `annotations/instances_{train,val}{2014,2017}.json`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError, unknown
from lifelabel.images.photographs import safe_path
from lifelabel.images.source import Names, Problems
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.label_files import parse_json
from lifelabel.streams.labels import Labels
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import shorten

_EDITIONS = (
    ("annotations/instances_train2014.json", "annotations/instances_val2014.json"),
    ("annotations/instances_train2017.json", "annotations/instances_val2017.json"),
)
"""The training and validation file of each edition. The first complete edition is read."""
_MAX_BYTES = 4 << 30
"""The real instances_train2014.json has 0.4 GiB."""
# Nine tenths of a file are the coordinates of polygons. Without them it is read in a third of the time.
_POLYGONS = re.compile(rb'"segmentation":\s*\[[\[\]\d\s.,eE+-]*\]')
_USED_KEYS = ("id", "name", "file_name", "categories", "images", "annotations")


@dataclass(frozen=True)
class _Instances:
    """The content of one file: class names by COCO id, file names, and the columns of each image (with repeats)."""

    classes: tuple[str, ...]
    names: list[str]
    columns: list[list[int]]

    @property
    def pool(self) -> Pool:
        return Pool(Names(self.names), Labels.from_lists(self.columns, len(self.classes)))


def read(root: Path) -> Collection:
    """The training and validation images of the edition under `root`; of 2014 if both editions are complete.

    An image has a label if at least one region of it is annotated with that class. Crowd regions count.
    """
    if not root.is_dir():
        raise UserError(f"there is no folder {root}: give the folder that contains COCO's folder annotations")
    missing = {pair: [name for name in pair if not (root / name).is_file()] for pair in _EDITIONS}
    pair = min(_EDITIONS, key=lambda pair: len(missing[pair]))
    if missing[pair]:
        raise UserError(
            f"{root} has no {' and no '.join(missing[pair])}: COCO needs both files of 2014 or both of 2017 "
            "(from annotations_trainval2014.zip or annotations_trainval2017.zip)"
        )
    problems = Problems()
    train, test = (_read_instances(root / name, problems) for name in pair)
    if train.classes != test.classes:
        raise UserError(
            f"{root / pair[1]} does not list the same categories as {pair[0]}: both files must be from one data set"
        )
    return Collection("coco", root, train.classes, train.pool, test.pool, problems)


def labels_by_name(root: Path, classes: Sequence[str]) -> dict[str, frozenset[int]] | None:
    """The labels of each image as columns of `classes`, by its file name and by its `number`.

    None if there are no annotations. One file of an edition is enough here.
    """
    paths = annotation_files(root)
    labels: dict[str, frozenset[int]] = {}
    column_of = {name: column for column, name in enumerate(classes)}
    for path in paths:
        part = _read_instances(path, Problems())
        for name in column_of:
            if name not in part.classes:
                raise unknown(f"category for {path}", name, part.classes)
        new_column = [column_of.get(name) for name in part.classes]
        for name, columns in zip(part.names, part.columns, strict=True):
            labels[name] = labels[number(name)] = frozenset(c for k in columns if (c := new_column[k]) is not None)
    return labels if paths else None


def read_named(root: Path, names: Sequence[str]) -> Collection:
    """The images `names`, found as in `labels_by_name`, with the labels of all categories. There are no test images.

    Images that the annotations do not have are left out.
    """
    parts = [_read_instances(path, Problems()) for path in annotation_files(root)]
    classes = parts[0].classes
    if any(part.classes != classes for part in parts):
        raise UserError(
            f"the files in {root / 'annotations'} do not list the same categories: take both from one data set"
        )
    columns = {
        key: of_image
        for part in parts
        for name, of_image in zip(part.names, part.columns, strict=True)
        for key in (name, number(name))
    }
    found = {name: columns.get(name, columns.get(number(name))) for name in names}
    labels = {name: of_image for name, of_image in found.items() if of_image is not None}
    train = Pool(Names(labels), Labels.from_lists(labels.values(), len(classes)))
    return Collection("coco", root, classes, train, Pool(Names(()), Labels.from_lists([], len(classes))))


def annotation_files(root: Path) -> list[Path]:
    """The files of annotations of the edition that has more of them under `root`."""
    return max(([root / name for name in pair if (root / name).is_file()] for pair in _EDITIONS), key=len)


def number(name: str) -> str:
    """The 12 digits that both editions use for the same image. A name without them is returned unchanged.

    >>> number("COCO_train2014_000000000009.jpg"), number("000000000009.jpg"), number("mine.jpg")
    ('000000000009', '000000000009', 'mine.jpg')
    """
    digits = re.search(r"(?<!\d)(\d{12})\.\w+$", name)
    return digits[1] if digits else name


def _read_instances(path: Path, problems: Problems) -> _Instances:
    """Read one file. Entries that cannot be used are skipped and added to `problems`."""
    data = _POLYGONS.sub(b'"segmentation":0', read_limited(path, _MAX_BYTES))
    content = parse_json(data, path, _keep_used)
    classes, column_of = _categories(_get_list(content, "categories", path), path)
    names, row_of = _images(_get_list(content, "images", path), path, problems)
    columns: list[list[int]] = [[] for _ in names]
    for pair in _get_list(content, "annotations", path):
        image, category = pair if isinstance(pair, tuple) else (None, None)
        if image not in row_of:
            problems.add("annotations of an image that is not listed", f"image {image!r} in {path.name}")
        elif category not in column_of:
            problems.add("annotations of a category that is not listed", f"category {category} in {path.name}")
        else:
            columns[row_of[image]].append(column_of[category])
    return _Instances(classes, names, columns)


def _keep_used(item: dict[str, Any]) -> Any:
    """The values of a JSON object that labels need; an annotation becomes (image id, category id).

    Called for each object during parsing, because a complete file takes too much memory.
    """
    if "image_id" in item:
        image, category = item["image_id"], item.get("category_id")
        return (image if isinstance(image, (int, str)) else None), (category if isinstance(category, int) else None)
    return {key: item[key] for key in _USED_KEYS if key in item}


def _get_list(content: Any, key: str, path: Path) -> list[Any]:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, list):
        raise UserError(f"{path} has no list '{key}': it must be an instances file of COCO")
    return value


def _categories(items: list[Any], path: Path) -> tuple[tuple[str, ...], dict[int, int]]:
    """The names in the order of their ids, and the column of each id."""
    names: dict[int, str] = {}
    for item in items:
        key, name = (item.get("id"), item.get("name")) if isinstance(item, dict) else (None, None)
        if not isinstance(key, int) or not isinstance(name, str) or not name or not name.isprintable():
            raise UserError(f"{path} has a category without an id (a number) and a name: {shorten(item)}")
        if key in names:
            raise UserError(f"{path} lists category {key} twice")
        names[key] = name
    if len(set(names.values())) < len(names) or not names:
        raise UserError(f"{path} must list at least one category, each with a different name")
    return tuple(names[key] for key in sorted(names)), {key: column for column, key in enumerate(sorted(names))}


def _images(items: list[Any], path: Path, problems: Problems) -> tuple[list[str], dict[int | str, int]]:
    """The file names, each once, and the row of each image id."""
    row_of: dict[int | str, int] = {}
    rows: dict[str, int] = {}
    for item in items:
        try:
            key, name = item["id"], safe_path(item["file_name"])
        except (KeyError, TypeError, ValueError):
            key, name = None, ""
        if not isinstance(key, int | str):
            problems.add("images skipped: no id or no usable file name", f"{shorten(item)} in {path.name}")
            continue
        if name in rows:
            problems.add("images listed twice", f"{name} in {path.name}")
        row = rows.setdefault(name, len(rows))
        if row_of.setdefault(key, row) != row:
            raise UserError(f"{path} uses the image id {shorten(key)} for two files; one of them is {shorten(name)}")
    if not rows:
        raise UserError(f"{path} lists no images")
    return list(rows), row_of
