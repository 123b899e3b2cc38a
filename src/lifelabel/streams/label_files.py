"""Files of labels: their content with limits, and checks of its types.

A value of the wrong type in an export is refused with its place in the file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lifelabel.errors import UserError, unknown
from lifelabel.images.source import Problems
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import shorten

SPLITS = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val"}
SPLITS |= {"dev": "val", "test": "test", "testing": "test"}
"""The names of splits in tables, folders, file names, tags and `--rows`, and what each of them means."""

LABEL_FIELDS = ("label", "labels", "tag", "tags", "class", "classes", "category", "categories")
"""Usual names of the labels of an image in tables, metadata and exports."""

_MAX_BYTES = 4 << 30
"""As for the files of COCO, of which the largest has 0.4 GiB."""
_TYPE_NAMES = {
    dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a fraction", bool: "true or false",
    type(None): "missing",
}  # fmt: skip


def as_list(value: Any) -> list[Any]:
    """The value itself if it is a list, else a list of it alone."""
    return value if isinstance(value, list) else [value]


def split_in(path: str) -> str | None:
    """The split that a folder of an image's path names."""
    return next((SPLITS[part.lower()] for part in path.split("/")[:-1] if part.lower() in SPLITS), None)


class Entry(NamedTuple):
    """One image of an export: its path or URL as far as the tool states it, its class names, and its split."""

    image: str
    labels: Sequence[str]
    split: str | None = None
    is_id: bool = False
    """Whether `image` has no suffix, as in exports that name an image by its file name without the suffix."""


def read_lines(path: Path, limit: int) -> list[str]:
    """The lines of a list of a public data set, without spaces around them. Blank lines are empty texts."""
    try:
        return [line.strip() for line in read_limited(path, limit).decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file: download it again") from None


def parse_json(data: bytes, path: Path, hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """The content of a JSON file of a public data set. `hook` may replace each object, during parsing."""
    try:
        return json.loads(data, object_hook=hook)
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged: it is not valid JSON; download it again") from None


def load(path: Path) -> Any:
    """The content of a JSON file; of a file with one JSON value per line, or of a CSV file, a list."""
    data = read_limited(path, _MAX_BYTES)
    suffix = path.suffix.lower()
    if suffix not in (".json", ".jsonl"):
        return _load_csv(path, data)
    try:
        if suffix == ".jsonl":
            return [json.loads(line) for line in data.decode("utf-8-sig").split("\n") if line.strip()]
        return json.loads(data, object_hook=_without_shapes)
    except RecursionError:
        raise UserError(f"{path} is nested too deeply: it is not an export of an annotation tool") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {shorten(str(error))}; export it again") from None


def _without_shapes(item: dict[str, Any]) -> dict[str, Any]:
    """Without the coordinates of an annotation: they are nine tenths of a file and would be kept in memory."""
    for key, unused in (("category_id", ("segmentation", "bbox")), ("label_id", ("points", "rle"))):
        if key in item:
            for name in unused:
                item.pop(name, None)
    return item


def _load_csv(path: Path, data: bytes) -> list[dict[str, str]]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path} is not UTF-8: see line {line}; save it as UTF-8") from None
    delimiter = "\t" if "\t" in text.partition("\n")[0] else ","
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        return [dict(zip(header, cells, strict=False)) for cells in reader if any(cells)]
    except csv.Error as error:
        hint = "choose the JSON export instead" if "limit" in str(error) else "export it again"
        raise UserError(f"{path}: line {reader.line_num} cannot be read: {error}; {hint}") from None


@dataclass(frozen=True)
class Export:
    """A file of an annotation tool, where its problems go, and the field of labels that was chosen."""

    path: Path
    problems: Problems
    field: str | None = None

    def expect(self, value: Any, types: tuple[type, ...], where: str, *index: object) -> Any:
        """The value, if it has one of the types. `where % index` is its place in the file."""
        if type(value) not in types:
            expected = " or ".join(_TYPE_NAMES[each] for each in types)
            place = shorten(where % index)
            raise UserError(f"{self.path}: {place} is {_TYPE_NAMES[type(value)]}, but must be {expected}")
        return value

    def objects(self, value: Any, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
        """The objects of a list with their positions."""
        for i, item in enumerate(self.expect(value, (list,), "%s", where)):
            yield i, self.expect(item, (dict,), "%s[%d]", where, i)

    def skip(self, kind: str, where: str) -> None:
        """Count an entry that cannot be used."""
        self.problems.add(kind, f"{where} in {self.path.name}")

    def check_field(self, names: Iterable[str]) -> None:
        """Raise `UserError` if the chosen field is none of the file."""
        if self.field is not None and self.field not in names:
            raise unknown(f"field of {self.path}", self.field, names)
