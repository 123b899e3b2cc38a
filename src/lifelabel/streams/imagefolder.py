"""Image folders of Hugging Face: metadata.jsonl or metadata.csv beside the images. See docs/streams/convert.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError
from lifelabel.images.source import Problems
from lifelabel.streams.label_files import IMAGE_SUFFIXES, Entry, Export, load, split_in
from lifelabel.utils.text import list_of_texts, shorten

__all__ = ["is_metadata", "read"]

_FILES = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
_FIELDS = ("label", "labels", "tag", "tags", "class", "classes", "category", "categories")
"""Names of labels. `objects`, the boxes of an image, has one of them too."""


def is_metadata(name: str) -> bool:
    return name.rpartition("/")[2].lower() in _FILES


def read(root: Path, names: Sequence[str], problems: Problems, field: str | None) -> Iterator[Entry]:
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
            labels = _labels(_value(row, chosen), export, f"row {i + 1}, {chosen}")
            if labels is None:
                problems.add(f"images without a value of '{chosen}'", image)
                continue
            yield Entry(image, labels, split_in(image))
    left = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES) and name not in listed]
    problems.add_all("images that are in no metadata file", left)


def _field(rows: Sequence[Mapping[str, Any]], export: Export) -> str:
    """The given field of labels, else the only one that has a usual name."""
    fields = dict.fromkeys(name for row in rows for name in row)
    objects = (row.get("objects") for row in rows)
    parts = (part for each in objects for part in (each if isinstance(each, list) else [each]))
    fields |= dict.fromkeys(f"objects.{name}" for part in parts if isinstance(part, dict) for name in part)
    export.check_field(fields)
    found = [name for name in fields if name.removeprefix("objects.").lower() in _FIELDS]
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


def _labels(value: Any, export: Export, where: str) -> list[str] | None:
    if isinstance(value, str):
        parts: list[Any] | None = list_of_texts(value)
        parts = value.split(";") if parts is None else parts
    else:
        parts = value if isinstance(value, list) else None if value is None else [value]
    if parts is None:
        return None
    labels = [export.expect(part, (str, int), "%s", where) for part in parts if part is not None]
    if any(isinstance(label, int) for label in labels):
        export.skip("images whose labels are numbers, which become the names of the classes", where)
    return [str(label) for label in labels if str(label).strip()]
