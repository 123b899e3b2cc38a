"""A user's own table: an image a row, its labels in one column or in a 0/1 column a class.

CSV, text with tabs, or Parquet. Rows that cannot be used are left out and counted; a table as a whole is refused only
where nothing can be made of it. See docs/streams/table.md.
"""

from __future__ import annotations

import codecs
import csv
import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, short
from lifelabel.streams.base import Labels, Names, Problems
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.files import safe_path

IMAGE = ("image", "file", "file_name", "filename", "path")
SPLITS = {"train": False, "test": True, "val": True, "valid": True, "validation": True}
"""What a `split` column may say, and whether that is the test."""
FLAGS = {"": False, "0": False, "0.0": False, "false": False, "no": False}
FLAGS |= {"1": True, "1.0": True, "true": True, "yes": True}

TEXT, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")

MAX_ROWS = 10_000_000
MAX_CLASSES = 20_000
MAX_CLASS_NAME = 200
MAX_LINE = 1 << 23

Cell = str | tuple[str, ...]
"""A field as text; a list of labels, as Parquet can hold one, as a tuple."""


def read(path: Path, root: Path | None, *, test_share: float = 0.2, seed: int = 0) -> Collection:
    """The images and labels of a table; image names are relative to `root` (the table's folder where it is None).

    Where no `split` column says it, whether an image is held out for the test follows from (seed, name) alone, so
    that more rows do not move those that are there.
    """
    problems = Problems()
    rows = _rows(path, problems)
    header = next(rows, None)
    if header is None:
        raise UserError(f"{path} is empty: a table begins with a row of column names")
    gathered = _Gathered(_layout(path, header[1], problems), test_share, seed)
    word = "row" if path.suffix.lower() in PARQUET else "line"
    for count, (number, cells) in enumerate(rows, start=1):
        if count > MAX_ROWS:
            raise UserError(f"{path} has more than {MAX_ROWS:,} rows: divide it")
        try:
            gathered.add(cells)
        except _Remark as remark:
            problems.add(remark.kind, f"{word} {number}" + (f": {remark.detail}" if remark.detail else ""))
    return gathered.collection(path, root, problems)


def class_name(text: str) -> str:
    """A class name without spaces around it, its accents composed; ValueError says why it cannot be one.

    >>> class_name(" cafe\u0301 ") == "caf\u00e9"
    True
    """
    name = unicodedata.normalize("NFC", text.strip())
    if not name:
        raise ValueError("a class without a name")
    if len(name) > MAX_CLASS_NAME:
        raise ValueError(f"a class name of more than {MAX_CLASS_NAME} characters: '{short(name)}…'")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise ValueError(f"a class name with control characters: {short(name)!r}")
    return name


class _Remark(Exception):
    """What is to be counted about a row."""

    def __init__(self, kind: str, detail: str = ""):
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class _Layout:
    """Which column is what; `classes` gives the class of each 0/1 column, where labels are not in one column."""

    width: int
    image: int
    labels: int | None
    split: int | None
    task: int | None
    classes: dict[int, str]


def _layout(path: Path, header: Sequence[Cell], problems: Problems) -> _Layout:
    names = [str(cell).strip() for cell in header]
    lower = [name.lower() for name in names]
    places: dict[str, int | None] = {}
    for special in ("labels", "split", "task"):
        if lower.count(special) > 1:
            raise UserError(f"{path} has {lower.count(special)} columns called '{special}': keep one")
        places[special] = lower.index(special) if special in lower else None
    image = next((place for place, name in enumerate(lower) if name in IMAGE), None)
    if image is None:
        hint = " (separate the columns by commas or tabs)" if len(names) == 1 else ""
        raise UserError(
            f"{path} has no image column: its first row must name one {', '.join(IMAGE[:-1])} or {IMAGE[-1]}, "
            f"and reads {short(', '.join(names))}{hint}"
        )
    rest = {place: name for place, name in enumerate(names) if place not in (image, *places.values())}
    if places["labels"] is not None:
        for name in rest.values():
            problems.add("columns that are not used, as there is a column 'labels'", short(name))
        rest = {}
    elif not rest:
        raise UserError(f"{path} has no labels: add a column 'labels' (a;b;c) or a 0/1 column for each class")
    return _Layout(len(names), image, places["labels"], places["split"], places["task"], _class_columns(path, rest))


def _class_columns(path: Path, columns: dict[int, str]) -> dict[int, str]:
    if len(columns) > MAX_CLASSES:
        raise UserError(f"{path} has {len(columns):,} class columns: at most {MAX_CLASSES:,} are read")
    seen: dict[str, int] = {}
    for place, text in columns.items():
        try:
            name = class_name(text)
        except ValueError as error:
            raise UserError(f"{path}: column {place + 1} is {error}; rename it or take it out") from None
        if name in seen:
            raise UserError(f"{path}: columns {seen[name] + 1} and {place + 1} are both called '{short(name)}'")
        seen[name] = place
    return {place: name for name, place in seen.items()}


class _Gathered:
    """The rows read so far, one entry an image."""

    def __init__(self, layout: _Layout, test_share: float, seed: int):
        self.layout, self.test_share, self.seed = layout, test_share, seed
        self.classes = {name: column for column, name in enumerate(layout.classes.values())}
        self.columns = {place: self.classes[name] for place, name in layout.classes.items()}
        self.place: dict[str, int] = {}
        self.labels: list[tuple[int, ...]] = []
        self.test: list[bool] = []
        self.task: list[str] = []
        self.known: dict[str, str] = {}
        """The class that a text in the column `labels` names."""

    def add(self, cells: Sequence[Cell]) -> None:
        layout = self.layout
        if len(cells) != layout.width:
            raise _Remark("rows with the wrong number of fields", f"{len(cells)} instead of {layout.width}")
        name = self._name(str(cells[layout.image]).strip())
        test = self._held_out(name) if layout.split is None else self._split(str(cells[layout.split]))
        task = "" if layout.task is None else str(cells[layout.task]).strip()
        row = self.place.get(name)
        if row is not None and (test, task) != (self.test[row], self.task[row]):
            raise _Remark("rows that give an image another split or task; its first row counts", name)
        shown = self._flags(cells) if layout.labels is None else self._listed(cells[layout.labels])
        if row is None:
            self.place[name] = len(self.place)
            self.labels.append(shown)
            self.test.append(test)
            self.task.append(task)
        elif set(shown) == set(self.labels[row]):
            raise _Remark("rows that repeat an earlier one", name)
        else:
            self.labels[row] = (*self.labels[row], *shown)
            raise _Remark("rows that give an image other labels; they are united", name)

    def _name(self, text: str) -> str:
        if not text:
            raise _Remark("rows without an image")
        try:
            return safe_path(text)
        except ValueError as error:
            raise _Remark("rows with an image path that is not allowed", f"{short(text)!r}: {error}") from None

    def _held_out(self, name: str) -> bool:
        digest = hashlib.blake2b(f"{self.seed} {name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self.test_share * 2**64

    def _split(self, text: str) -> bool:
        try:
            return SPLITS[text.strip().lower()]
        except KeyError:
            raise _Remark("rows whose split is neither train, val nor test", repr(short(text))) from None

    def _flags(self, cells: Sequence[Cell]) -> tuple[int, ...]:
        shown = []
        for place, cell in enumerate(cells):
            if cell == "0" or place not in self.columns:
                continue
            flag = FLAGS.get(str(cell).strip().lower())
            if flag is None:
                detail = f"'{short(self.layout.classes[place])}' is {short(cell)!r}"
                raise _Remark("rows with a label that is neither 0 nor 1", detail)
            if flag:
                shown.append(self.columns[place])
        return tuple(shown)

    def _listed(self, cell: Cell) -> tuple[int, ...]:
        parts = cell.split(";") if isinstance(cell, str) else cell
        try:
            names = [
                self.known.get(part) or self.known.setdefault(part, class_name(part)) for part in parts if part.strip()
            ]
        except ValueError as error:
            raise _Remark("rows with a class name that is not allowed", str(error)) from None
        shown = tuple(self.classes.setdefault(name, len(self.classes)) for name in names)
        if len(self.classes) > MAX_CLASSES:
            raise UserError(f"the column 'labels' names more than {MAX_CLASSES:,} classes")
        return shown

    def collection(self, path: Path, root: Path | None, problems: Problems) -> Collection:
        if not self.place:
            why = f": {problems.lines()[-1]}" if problems else ""
            raise UserError(f"{path} has no row that can be used{why}")
        if not any(self.labels):
            raise UserError(f"{path} has no labels: none of its {len(self.place):,} images shows a class")
        tasks = task_numbers(self.task)
        test = np.array(self.test)
        train, held_out = (self._pool(np.flatnonzero(test == kind), tasks) for kind in (False, True))
        for pool, kind in ((train, "training"), (held_out, "test")):
            if not len(pool.names):
                hint = "give more rows or another test share" if self.layout.split is None else "see its column 'split'"
                raise UserError(f"{path} has no {kind} image: {hint}{problems.brief()}")
        classes = tuple(self.classes)
        for column in np.flatnonzero(train.labels.counts() == 0):
            problems.add("classes without a training image", classes[column])
        return Collection(path.name, path.parent if root is None else root, classes, train, held_out, problems)

    def _pool(self, rows: np.ndarray, tasks: np.ndarray | None) -> Pool:
        names = list(self.place)
        labels = Labels.of_lists((self.labels[row] for row in rows), len(self.classes))
        return Pool(Names(names[row] for row in rows), labels, None if tasks is None else tasks[rows])


def task_numbers(tasks: list[str]) -> np.ndarray | None:
    """0 … for each image: in the order of the numbers where all are whole numbers, else of first appearance.

    >>> task_numbers(["10", "2", "", "10"]).tolist(), task_numbers(["b", "a", "b"]).tolist()
    ([1, 0, -1, 1], [0, 1, 0])
    """
    texts = [text for text in dict.fromkeys(tasks) if text]
    if not texts:
        return None
    whole = {text: re.fullmatch(r"([+-]?[0-9]{1,18})(\.0*)?", text) for text in texts}
    keys: dict[str, Any] = {text: int(match[1]) for text, match in whole.items() if match}
    if len(keys) == len(texts):
        order = sorted(set(keys.values()))
    else:
        keys, order = {text: text for text in texts}, texts
    number = {key: index for index, key in enumerate(order)}
    return np.array([number[keys[text]] if text else -1 for text in tasks], np.int64)


def _rows(path: Path, problems: Problems) -> Iterator[tuple[int, Sequence[Cell]]]:
    """The header and then every row that is not blank, each with its number for messages."""
    if not path.is_file():
        raise UserError(f"there is no table {path}: give a {', '.join((*TEXT, *PARQUET))} file")
    if path.suffix.lower() in PARQUET:
        return _parquet_rows(path)
    if path.suffix.lower() in TEXT:
        return _text_rows(path, problems)
    raise UserError(f"{path} is not a table that can be read: give a {', '.join((*TEXT, *PARQUET))} file")


def _text_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Sequence[Cell]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = iter(functools.partial(file.readline, MAX_LINE), "")
            first = next(lines, "")
            reader = csv.reader(itertools.chain([first], lines), delimiter="\t" if "\t" in first else ",", strict=True)
            while True:
                begin = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:  # the reader goes on with the line after
                    problems.add("places that cannot be read", f"lines {begin} to {reader.line_num}: {error}")
                    continue
                if any(cells):
                    yield begin, cells
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8: {_first_bad_byte(path)}; save the table as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _first_bad_byte(path: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with path.open("rb") as file:
        while True:
            chunk = file.read(1 << 16)
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                return f"line {line} has the byte 0x{error.object[error.start]:02X}"
            line += chunk.count(b"\n")


def _parquet_rows(path: Path) -> Iterator[tuple[int, Sequence[Cell]]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path}: Parquet needs pyarrow: pip install 'lifelabel[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            yield 0, list(file.schema_arrow.names)
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    number += 1
                    yield number, [_text(value) for value in values]
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {short(' '.join(str(error).split()))}") from None


def _text(value: Any) -> Cell:
    if isinstance(value, list):
        return tuple(str(part) for part in value)
    return "" if value is None or value != value else str(value)
