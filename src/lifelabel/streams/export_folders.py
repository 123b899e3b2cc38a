"""Data sets that are a folder: YOLO, and image folders of Hugging Face. See docs/streams/convert.md.

YOLO has data.yaml, images, and a text file of boxes or polygons for each image: that of `images/train/a.jpg` is
`labels/train/a.txt`. Each of its lines begins with the number of a class. An image folder has metadata.jsonl or
metadata.csv beside the images.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError
from lifelabel.images.decode import IMAGE_SUFFIXES
from lifelabel.images.photographs import path_below
from lifelabel.images.source import Problems
from lifelabel.streams.label_files import LABEL_FIELDS, SPLITS, Entry, Export, as_list, load, split_in
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import list_of_texts, shorten
from lifelabel.utils.yaml_reader import parse_yaml

YAML_SUFFIXES = (".yaml", ".yml")
_NAME_FILES = ("classes.txt", "obj.names")
"""Files of class names that tools write in place of data.yaml, one name per line."""
_MAX_BYTES = 16 << 20
_METADATA_FILES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")


# YOLO


def is_yolo(names: Sequence[str]) -> bool:
    """Whether some of the files of a folder are the label files of images in it, or it has data.yaml.

    >>> is_yolo(["images/a.jpg", "labels/a.txt"]), is_yolo(["dog/a.jpg", "dog/a.txt"]), is_yolo(["data.yaml"])
    (True, False, True)
    """
    files = set(names)
    if not files.isdisjoint(("data.yaml", "data.yml")):
        return True
    found = files.intersection(_label_file(name) for name in names if name.lower().endswith(IMAGE_SUFFIXES))
    beside = not files.isdisjoint(_NAME_FILES)
    return any(beside or "labels" in place.split("/")[:-1] for place in found)


def read_yolo(root: Path, yaml: Path | None, names: Sequence[str], problems: Problems) -> Iterator[Entry]:
    """The images with the classes of their boxes. `names` are the files below `root`.

    `yaml` is the file with the class names and the splits; None: it is searched.
    """
    images = sorted(name for name in names if name.lower().endswith(IMAGE_SUFFIXES))
    files = set(names)
    classes, splits = _description(root, yaml, files, problems)
    split_of = _split_images(root, splits, images, files, problems) if splits else {n: split_in(n) for n in images}
    labelled = {name for name in split_of if _label_file(name) in files}
    if not labelled:
        raise UserError(
            f"{root} has no label file of an image (such as {_label_file(next(iter(split_of), 'images/a.jpg'))}): give "
            "the folder that has the images and the labels"
        )
    problems.add_all("images that are in no split of data.yaml", [name for name in images if name not in split_of])
    without = [name for name in split_of if name not in labelled]
    problems.add_all("images without a label file, read as images without labels", without)
    for name, split in split_of.items():
        labels = _labels(root, _label_file(name), classes, problems) if name in labelled else ()
        yield Entry(name, list(labels), split)


def _label_file(image: str) -> str:
    """The label file of an image: `images` is replaced by `labels` in its path, where it occurs last.

    >>> _label_file("images/train/a.jpg"), _label_file("train/images/b.png"), _label_file("obj_train_data/c.jpg")
    ('labels/train/a.txt', 'train/labels/b.txt', 'obj_train_data/c.txt')
    """
    place = "/labels/".join(f"/{image}".rsplit("/images/", 1))[1:]
    return place.rpartition(".")[0] + ".txt"


def _description(
    root: Path, yaml: Path | None, files: set[str], problems: Problems
) -> tuple[dict[int, str], dict[str, list[str]]]:
    """The class names by their numbers, and the folders or lists of the images of each split."""
    found = [yaml] if yaml else sorted(root / n for n in files if "/" not in n and n.lower().endswith(YAML_SUFFIXES))
    contents = {path: parse_yaml(read_limited(path, _MAX_BYTES), str(path), "correct it") for path in found}
    used = {path: each for path, each in contents.items() if isinstance(each, Mapping) and each.get("names")}
    if len(used) > 1:
        raise UserError(f"{root} has several files with names ({', '.join(p.name for p in used)}): give one of them")
    for path, content in used.items():
        export = Export(path, problems)
        base = content.get("path")
        if not isinstance(base, str) or base.startswith(("/", "..", "~")) or base[1:2] == ":":
            base = ""  # it leads out of the folder, or is that of another machine
        splits: dict[str, list[str]] = {}
        for key, split in SPLITS.items():
            for text in filter(None, as_list(content.get(key))):
                place = _inside(root, base, export.expect(text, (str,), "%s", key), files)
                if place is not None:
                    splits.setdefault(split, []).append(place)
                elif split == "train":
                    raise UserError(f"{path}: {key} is '{shorten(text)}', which is not in {root}: correct the path")
                else:
                    problems.add("splits of data.yaml without a folder", f"{key}: {shorten(text)}")
        return _class_names(content["names"], export), splits
    for name in _NAME_FILES:
        if name in files:
            lines = read_limited(root / name, _MAX_BYTES).decode("utf-8", "replace").splitlines()
            return {number: text.strip() for number, text in enumerate(lines) if text.strip()}, {}
    raise UserError(
        f"{root} is a YOLO data set without class names: add a data.yaml with names (names: [person, car]), or, if its "
        "folders are classes, give --format folders"
    )


def _class_names(names: Any, export: Export) -> dict[int, str]:
    """The class names by number. `names` is a list, or a mapping from numbers to names."""
    pairs = names.items() if isinstance(names, Mapping) else enumerate(export.expect(names, (list,), "names"))
    found = {}
    for key, name in pairs:
        if not str(key).isdecimal():
            raise UserError(
                f"{export.path}: names has the key '{shorten(key)}', but the keys must be the numbers of the classes"
            )
        found[int(key)] = str(export.expect(name, (str, int), "names[%s]", key))
    return found


def _inside(root: Path, base: str, text: str, files: set[str]) -> str | None:
    """A folder or a list in a data.yaml, relative to the root; None if it is not there.

    Tools write `../train/images` for the folder beside data.yaml, and a `path` of the machine that made the data set.
    """
    try:
        text = path_below(text, (root.absolute(), root.resolve())) if text.startswith("/") else text
    except ValueError:
        return None
    text = text.replace("\\", "/")
    for joined in (posixpath.join(base, text), re.sub(r"^(\.\./)+", "", text)):
        place = posixpath.normpath(joined)
        if place in files or any(name.startswith(f"{place}/") for name in files) or place == ".":
            return place
    return None


def _split_images(
    root: Path, splits: Mapping[str, Sequence[str]], images: Sequence[str], files: set[str], problems: Problems
) -> dict[str, str | None]:
    """The split of each image. An image of several splits is in the first of them."""
    found: dict[str, str | None] = {}
    for split in ("train", "val", "test"):
        for place in splits.get(split, ()):
            if place not in files:
                chosen = [name for name in images if place == "." or name.startswith(f"{place}/")]
            else:
                chosen = list(_listed_images(root, place, files, problems))
            repeated = [name for name in chosen if found.get(name, split) != split]
            problems.add_all("images that occur again in another split; the first one counts", repeated)
            for name in chosen:
                found.setdefault(name, split)
    return found


def _listed_images(root: Path, place: str, files: set[str], problems: Problems) -> Iterator[str]:
    """The images in a text file with one path per line, relative to the file or to the root."""
    folder = posixpath.dirname(place)
    for line in read_limited(root / place, _MAX_BYTES).decode("utf-8", "replace").splitlines():
        if not line.strip():
            continue
        try:
            path = path_below(line.strip(), (root.absolute(), root.resolve()))
        except ValueError:
            path = ""
        name = next((each for each in (posixpath.join(folder, path), path) if path and each in files), None)
        if name is None:
            problems.add(f"images of {place} without a file", shorten(line.strip()))
        else:
            yield name


def _labels(root: Path, place: str, classes: Mapping[int, str], problems: Problems) -> dict[str, None]:
    """The class names of the lines of a label file, each once."""
    found: dict[str, None] = {}
    for number, line in enumerate(read_limited(root / place, _MAX_BYTES).splitlines(), start=1):
        fields = line.split(maxsplit=5)
        if not fields:
            continue
        first = fields[0].removesuffix(b".0")
        if len(fields) < 5 or not first.isdigit() or len(first) > 9:
            problems.add("lines of label files that cannot be read", f"{place}, line {number}")
        elif int(first) not in classes:
            problems.add("boxes of a class that has no name", f"class {int(first)} in {place}, line {number}")
        else:
            found[classes[int(first)]] = None
    return found


# Image folders


def is_metadata(name: str) -> bool:
    return name.rpartition("/")[2].lower() in _METADATA_FILES


def read_image_folder(root: Path, names: Sequence[str], problems: Problems, field: str | None) -> Iterator[Entry]:
    """The images of all metadata files among the files `names` below `root`. `field` is the field of labels."""
    listed = set()
    for name in sorted(filter(is_metadata, names)):
        path = root / name
        if path.suffix.lower() == ".parquet":
            raise UserError(f"{path} cannot be read: write it as metadata.jsonl or metadata.csv")
        rows = load(path)
        export = Export(path, problems, field)
        for i, row in enumerate(rows):
            if "file_name" not in export.expect(row, (dict,), "row %d", i + 1):
                raise UserError(
                    f"{path} has no file_name in row {i + 1}; if its folders are classes, give --format folders"
                )
        chosen = _field(rows, export)
        folder = name.rpartition("/")[0]
        for i, row in enumerate(rows):
            image = export.expect(row["file_name"], (str,), "row %d, file_name", i + 1)
            image = f"{folder}/{image}" if folder else image
            listed.add(image)
            labels = _metadata_labels(_value(row, chosen), export, f"row {i + 1}, {chosen}")
            if labels is None:
                problems.add(f"images without a value of '{chosen}'", image)
                continue
            yield Entry(image, labels, split_in(image))
    left = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES) and name not in listed]
    problems.add_all("images that are in no metadata file", left)


def _field(rows: Sequence[Mapping[str, Any]], export: Export) -> str:
    """The given field of labels, else the only one that has a usual name."""
    fields = dict.fromkeys(name for row in rows for name in row)
    parts = (part for row in rows for part in as_list(row.get("objects")))
    fields |= dict.fromkeys(f"objects.{name}" for part in parts if isinstance(part, dict) for name in part)
    export.check_field(fields)
    found = [name for name in fields if name.removeprefix("objects.").lower() in LABEL_FIELDS]
    if export.field is None and len(found) != 1:
        names = ", ".join(map(shorten, found or fields))
        reason = "several columns" if found else "no column"
        raise UserError(
            f"{export.path} has {reason} of labels (such as label or objects.categories): give --field NAME ({names})"
        )
    return export.field or found[0]


def _value(row: Mapping[str, Any], field: str) -> Any:
    """The value of a field. `objects.NAME` is in an object of lists, or in a list of objects."""
    outer, _, inner = field.partition(".")
    if field in row or outer != "objects":
        return row.get(field)
    objects = row.get(outer)
    if isinstance(objects, list):
        return [part.get(inner) for part in objects if isinstance(part, dict)]
    return objects.get(inner) if isinstance(objects, dict) else None


def _metadata_labels(value: Any, export: Export, where: str) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        texts = list_of_texts(value)
        value = value.split(";") if texts is None else texts
    labels = [export.expect(part, (str, int), "%s", where) for part in as_list(value) if part is not None]
    if any(isinstance(label, int) for label in labels):
        export.skip("images whose labels are numbers, which become the names of the classes", where)
    return [str(label) for label in labels if str(label).strip()]
