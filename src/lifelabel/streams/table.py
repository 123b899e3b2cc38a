"""Reader of a table with one image per row. Labels are in one column, or in one 0/1 column per class.

The table is CSV, text with tabs, or Parquet. Rows that cannot be used are skipped and counted. A table is refused only
if no stream can be made of it. See docs/streams/table.md.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, unknown
from lifelabel.images.photographs import path_below
from lifelabel.images.source import Names, Problems
from lifelabel.streams import parquet
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.label_files import LABEL_FIELDS, SPLITS
from lifelabel.streams.labels import Labels
from lifelabel.utils.files import check_regular, open_regular
from lifelabel.utils.text import MAX_TASK_NAME, list_of_texts, printable, shorten

_IMAGE_COLUMNS = ("image", "file", "file_name", "filename", "path")
_FLAGS: dict[str, bool | None] = {"0": False, "0.0": False, "false": False, "no": False}
_FLAGS |= {"1": True, "1.0": True, "true": True, "yes": True, "": None, "?": None}
"""The values of a column of a class. None: whether the image has the class is unknown."""

_SEPARATOR = ";"
_OTHER_SEPARATORS = (",", "|", "/", ":", "+", "&", " ")
"""Characters that users write in place of the separator. Class names rarely contain the first two."""

_NO_FLAG = "rows with a label that is neither 0 nor 1"
_WIDE_ROWS = "rows with more fields than the header"
_URL_ROWS = "rows whose image is a URL; images must be files: download them first"

_TEXT_SUFFIXES, _PARQUET_SUFFIXES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
_SUFFIXES = ", ".join((*_TEXT_SUFFIXES, *_PARQUET_SUFFIXES))

_MAX_ROWS = 10_000_000
_MAX_CLASSES = 20_000
_MAX_CLASS_NAME = 200
_MAX_LINE = 1 << 23

_Cell = str | tuple[str, ...]
"""A field as text. A list of labels, which Parquet can contain, is a tuple."""


def read(
    path: Path,
    root: Path | None,
    *,
    test_share: float = 0.2,
    seed: int = 0,
    separator: str = _SEPARATOR,
    required: Sequence[str] = ("training", "test"),
    alias: Sequence[str] = (),
    merge_case: bool = False,
    known: Sequence[str] = (),
) -> Collection:
    """The images and labels of a table. Image names are relative to `root` (None: the folder of the table).

    Without a column `split`, a hash of (seed, name) decides whether an image is used for test. So adding rows does not
    move the other images. `separator` separates the labels in the column `labels`. `required` lists the kinds of
    images, of "training" and "test", that the table must have. `alias` (`OLD=NEW`) renames classes, and `merge_case`
    makes one class of names that differ only in case, spaces, underscores or hyphens, which are refused otherwise.
    `known` has the classes of the model that the table is for.
    """
    if not separator:
        raise UserError("the separator of labels (stream.separator) is empty: give it as --set stream.separator='|'")
    problems = Problems()
    layout, unit, rows = _open(path, problems)
    builder = _Builder(path, path.parent if root is None else root, layout, test_share, seed, separator)
    count = 0
    for count, (number, cells) in enumerate(rows, start=1):
        if count > _MAX_ROWS:
            raise UserError(f"{path} has more than {_MAX_ROWS:,} rows: use a smaller table")
        try:
            builder.add(cells)
        except _RowProblem as problem:
            problems.add(problem.kind, f"{unit} {number}" + (f": {problem.detail}" if problem.detail else ""))
    builder.check(problems, count)
    builder.rename(alias, merge_case, known)
    return builder.collection(problems, required)


def class_name(text: str) -> str:
    """A class name without spaces around it, in Unicode form NFC. Raises ValueError with the reason if not allowed.

    >>> class_name(" cafe\u0301 ") == "caf\u00e9"
    True
    """
    name = unicodedata.normalize("NFC", text.strip())
    if not name:
        raise ValueError("a class without a name")
    if len(name) > _MAX_CLASS_NAME:
        raise ValueError(f"a class name of more than {_MAX_CLASS_NAME} characters: '{shorten(name)}…'")
    if any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in name):
        raise ValueError(f"a class name with control characters: {shorten(name)!r}")
    return name


def _entry(text: str) -> tuple[str, bool]:
    """The class name in an entry of the column `labels`, and whether the label is unknown.

    >>> _entry(" cat"), _entry("? cat")
    (('cat', False), ('cat', True))
    """
    text = text.strip()
    return class_name(text.removeprefix("?")), text.startswith("?")


class _RowProblem(Exception):
    """A problem of one row, to be counted."""

    def __init__(self, kind: str, detail: str = ""):
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class _Layout:
    """The positions of the columns in a row. `classes` has the class of each 0/1 column, if there are any.

    `similar` are those of them whose name is also a usual name of labels.
    """

    width: int
    image: int
    labels: int | None
    split: int | None
    task: int | None
    classes: dict[int, str]
    similar: tuple[int, ...]

    @property
    def used(self) -> list[int]:
        """The positions of the columns that are read."""
        special = (self.image, self.labels, self.split, self.task)
        return sorted({position for position in (*special, *self.classes) if position is not None})


def _layout(path: Path, header: Sequence[_Cell], problems: Problems) -> _Layout:
    names = [str(cell).strip() for cell in header]
    lower = [name.lower() for name in names]
    special: dict[str, int | None] = {}
    for name in ("labels", "split", "task"):
        if lower.count(name) > 1:
            raise UserError(f"{path} has {lower.count(name)} columns called '{name}': keep one")
        special[name] = lower.index(name) if name in lower else None
    image = next((position for position, name in enumerate(lower) if name in _IMAGE_COLUMNS), None)
    if image is None:
        hint = " (separate the columns by commas or tabs)" if len(names) == 1 else ""
        raise UserError(
            f"{path} has no image column: name one column {', '.join(_IMAGE_COLUMNS[:-1])} or {_IMAGE_COLUMNS[-1]}; "
            f"the columns are {shorten(', '.join(names))}{hint}"
        )
    others = {position: name for position, name in enumerate(names) if position not in (image, *special.values())}
    if special["labels"] is not None:
        for name in others.values():
            problems.add("columns that are not used because there is a column 'labels'", shorten(name))
        others = {}
    elif not others:
        raise UserError(f"{path} has no labels: add a column 'labels' (a;b;c) or a 0/1 column for each class")
    similar = tuple(position for position in others if lower[position] in LABEL_FIELDS)
    return _Layout(len(names), image, **special, classes=_classes(path, others), similar=similar)


def _classes(path: Path, columns: dict[int, str]) -> dict[int, str]:
    """The class of each 0/1 column, by position."""
    if len(columns) > _MAX_CLASSES:
        raise UserError(f"{path} has {len(columns):,} class columns: at most {_MAX_CLASSES:,} are allowed")
    position_of: dict[str, int] = {}
    for position, text in columns.items():
        try:
            name = class_name(text)
        except ValueError as error:
            raise UserError(f"{path}: column {position + 1} is {error}; rename or remove it") from None
        if name in position_of:
            earlier = position_of[name] + 1
            raise UserError(f"{path}: columns {earlier} and {position + 1} are both called '{shorten(name)}'")
        position_of[name] = position
    return {position: name for name, position in position_of.items()}


class _Builder:
    """Collects rows, with one entry per image, and makes a collection of them."""

    def __init__(self, path: Path, root: Path, layout: _Layout, test_share: float, seed: int, separator: str):
        self.path, self.root, self.layout = path, root, layout
        self.roots = root.absolute(), root.resolve()
        self.test_share, self.seed, self.separator = test_share, seed, separator
        self.classes = {name: column for column, name in enumerate(layout.classes.values())}
        self.column_at = {position: self.classes[name] for position, name in layout.classes.items()}
        self.row_of: dict[str, int] = {}
        self.labels: list[tuple[int, ...]] = []
        self.unknown: list[tuple[int, ...]] = []
        self.split: list[str] = []
        self.task: list[str] = []
        self.entry = functools.cache(_entry)
        self.has_text = False
        """Whether a field of the column `labels` is text. Parquet can contain lists, which need no separator."""

    def add(self, cells: Sequence[_Cell]) -> None:
        """Add one row. Raises `_RowProblem` if it is skipped, or if the image has an earlier row."""
        layout = self.layout
        if len(cells) != layout.width:
            kind = _WIDE_ROWS if len(cells) > layout.width else "rows with fewer fields than the header"
            raise _RowProblem(kind, f"{len(cells)} instead of {layout.width}")
        name = self._name(str(cells[layout.image]).strip())
        split = self._drawn_split(name) if layout.split is None else self._split(str(cells[layout.split]))
        task = "" if layout.task is None else str(cells[layout.task]).strip()
        row = self.row_of.get(name)
        if row is not None and (split, task) != (self.split[row], self.task[row]):
            raise _RowProblem("rows that give an image another split or task; its first row counts", name)
        labels, unknown = self._flags(cells) if layout.labels is None else self._listed(cells[layout.labels])
        if row is None:
            self.row_of[name] = len(self.row_of)
            self.labels.append(labels)
            self.unknown.append(unknown)
            self.split.append(split)
            self.task.append(task)
        elif set(labels) == set(self.labels[row]) and set(unknown) == set(self.unknown[row]):
            raise _RowProblem("rows that repeat an earlier one", name)
        else:
            self._unite(row, labels, unknown)
            raise _RowProblem("rows that give an image other labels; the labels are united", name)

    def _unite(self, row: int, labels: tuple[int, ...], unknown: tuple[int, ...]) -> None:
        """Add the labels of another row of an image. A label that one of the rows states is known."""
        before = set(self.unknown[row])
        # A row of 0/1 columns states every label that is not unknown. A list states only the labels that it has.
        both = before.intersection(unknown) if self.layout.labels is None else before.union(unknown)
        self.labels[row] = (*self.labels[row], *labels)
        self.unknown[row] = tuple(both.difference(self.labels[row]))

    def _name(self, text: str) -> str:
        if not text:
            raise _RowProblem("rows without an image")
        if "://" in text:
            raise _RowProblem(_URL_ROWS, shorten(text))
        try:
            return path_below(text, self.roots)
        except ValueError as error:
            raise _RowProblem("rows with an image path that is not allowed", f"{shorten(text)!r}: {error}") from None

    def _drawn_split(self, name: str) -> str:
        digest = hashlib.blake2b(f"{self.seed} {name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
        return "test" if int.from_bytes(digest, "big") < self.test_share * 2**64 else "train"

    def _split(self, text: str) -> str:
        try:
            return SPLITS[text.strip().lower()]
        except KeyError:
            raise _RowProblem("rows whose split is neither train, val nor test", repr(shorten(text))) from None

    def _flags(self, cells: Sequence[_Cell]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The columns of the classes whose field is 1, and of those whose field is empty or a question mark."""
        for position in self.layout.similar:
            if str(cells[position]).strip().lower() not in _FLAGS:
                raise _RowProblem(_text_rows_kind(self.layout.classes[position]), repr(shorten(cells[position])))
        labels, unknown = [], []
        for position, cell in enumerate(cells):
            if cell == "0" or position not in self.column_at:
                continue
            text = str(cell).strip().lower()
            if text not in _FLAGS:
                detail = f"'{shorten(self.layout.classes[position])}' is {shorten(cell)!r}"
                raise _RowProblem(_NO_FLAG, detail)
            flag = _FLAGS[text]
            if flag is None:
                unknown.append(self.column_at[position])
            elif flag:
                labels.append(self.column_at[position])
        return tuple(labels), tuple(unknown)

    def _listed(self, cell: _Cell | list[str]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The columns of the classes in a field of the column `labels`, and of those marked as unknown (`?name`).

        New classes get the next columns.
        """
        if isinstance(cell, str):
            texts = list_of_texts(cell) if cell.lstrip().startswith("[") else None
            self.has_text |= texts is None
            cell = cell.split(self.separator) if texts is None else texts
        parts = [part for part in cell if part.strip()]
        try:
            entries = list(map(self.entry, parts))
        except ValueError as error:
            raise _RowProblem("rows with a class name that is not allowed", str(error)) from None
        columns = tuple(self.classes.setdefault(name, len(self.classes)) for name, _ in entries)
        if len(self.classes) > _MAX_CLASSES:
            self._check_separator()
            raise UserError(f"{self.path}: the column 'labels' has more than {_MAX_CLASSES:,} classes: use fewer")
        if not any(unknown for _, unknown in entries):
            return columns, ()
        labels = tuple(column for column, (_, unknown) in zip(columns, entries, strict=True) if not unknown)
        return labels, tuple(set(columns).difference(labels))

    def check(self, problems: Problems, rows: int) -> None:
        """Raise `UserError` if most of the `rows` have the same mistake, or if labels have another separator."""
        wide, urls = (problems.counts.get(kind, 0) for kind in (_WIDE_ROWS, _URL_ROWS))
        # if some rows are too wide and no other row has two labels, then the rows with several labels are lost
        lost = self.layout.labels is not None and 10 * wide >= rows and not self._images_with_several_labels()
        if wide and (2 * wide > rows or lost):
            where = problems.examples[_WIDE_ROWS][0]
            hint = f"separate labels by '{self.separator}', or write" if self.layout.labels is not None else "write"
            raise UserError(
                f"{self.path}: {wide:,} of {rows:,} rows have more fields than the header ({where}): {hint} a field "
                "that contains a separator of columns in quotation marks"
            )
        if 2 * urls > rows:
            raise UserError(
                f"{self.path}: {urls:,} of {rows:,} images are URLs ({problems.examples[_URL_ROWS][0]}): images must "
                "be files; download them first, and write their paths into the table"
            )
        if 2 * problems.counts.get(_NO_FLAG, 0) > rows:
            raise UserError(
                f"{self.path}: {problems.counts[_NO_FLAG]:,} of {rows:,} rows have a label that is neither 0 nor 1 "
                f"({problems.examples[_NO_FLAG][0]}): write 1 or 0, or nothing if it is unknown"
            )
        for position in self.layout.similar:
            name = self.layout.classes[position]
            kind = _text_rows_kind(name)
            if 10 * problems.counts.get(kind, 0) > rows:
                raise UserError(
                    f"{self.path}: the column '{shorten(name)}' has text ({problems.examples[kind][0]}): did you mean "
                    "'labels'? Rename the column"
                )
        self._check_separator()

    def _images_with_several_labels(self) -> int:
        return sum(len(labels) + len(unknown) > 1 for labels, unknown in zip(self.labels, self.unknown, strict=True))

    def _check_separator(self) -> None:
        """Raise `UserError` if the labels look separated by another character than the default separator."""
        if self.separator != _SEPARATOR or not self.has_text:
            return
        found = _other_separator(tuple(self.classes))
        if found is None:
            return
        separator, joined = found
        columns = {self.classes[name] for name in joined}
        images = sum(not columns.isdisjoint(labels) for labels in self.labels)
        if 20 * self._images_with_several_labels() <= images:
            raise UserError(
                f"{self.path}: the labels look separated by '{separator}' and not by '{_SEPARATOR}' (such as "
                f"'{shorten(joined[0])}'): give --set stream.separator='{separator}'"
            )

    def rename(self, alias: Sequence[str], merge_case: bool, known: Sequence[str]) -> None:
        """Rename and merge classes. The labels of classes that get one name are united."""
        old = tuple(self.classes)
        new_name = _aliases(alias, old, self.path)
        renamed = [new_name.get(name, name) for name in old]
        of_model = set(known)
        groups = [
            group for group in _similar_names(dict.fromkeys((*known, *renamed))) if not of_model.issuperset(group)
        ]
        unclear = [group for group in groups if not merge_case or len(of_model.intersection(group)) > 1]
        if unclear:
            shown = ", ".join(" / ".join(shorten(name) for name in group) for group in unclear[: Problems.MAX_EXAMPLES])
            more = f" and {len(unclear) - Problems.MAX_EXAMPLES:,} more" if len(unclear) > Problems.MAX_EXAMPLES else ""
            where = " (or from a class of the model)" if any(map(of_model.intersection, unclear)) else ""
            raise UserError(
                f"{self.path} has class names that differ from another{where} only in case, spaces, underscores or "
                f"hyphens: {shown}{more}; give --merge-case to make one class of each group, or --alias OLD=NEW to "
                "rename a class: to the other name, or to another name if the classes are different"
            )
        count = Counter(column for columns in self.labels for column in columns)
        images = Counter[str]()
        for column, name in enumerate(renamed):
            images[name] += count[column]
        for group in groups:
            chosen = next((name for name in group if name in of_model), None) or max(group, key=images.__getitem__)
            new_name |= dict.fromkeys(group, chosen)
        self._set_classes([new_name.get(name, name) for name in renamed])

    def _set_classes(self, names: Sequence[str]) -> None:
        """Give each column the class `names[column]`. Columns with the same name become one."""
        if tuple(names) == tuple(self.classes):
            return
        self.classes = {name: column for column, name in enumerate(dict.fromkeys(names))}
        column_of = [self.classes[name] for name in names]
        self.labels = [tuple(column_of[column] for column in columns) for columns in self.labels]
        self.unknown = [
            tuple({column_of[column] for column in columns}.difference(labels))
            for columns, labels in zip(self.unknown, self.labels, strict=True)
        ]

    def collection(self, problems: Problems, required: Sequence[str]) -> Collection:
        """The collection of all rows. Raises `UserError` if required images or labels are missing."""
        path = self.path
        if not self.row_of:
            reason = f": {problems.lines()[-1]}" if problems else ""
            raise UserError(f"{path} has no row that can be used{reason}")
        if not any(self.labels):
            raise UserError(f"{path} has no labels: none of its images has a label{problems.brief()}")
        tasks, task_names = _ordered_tasks(self.task, problems)
        splits = np.array(self.split)
        kept = int(np.count_nonzero(splits == "val"))
        if required and kept and not (splits == "test").any():
            splits[splits == "val"] = "test"
            problems.add("val images that are used for test because the table has no test image", count=kept)
        elif required and kept:
            problems.add("val images that are kept apart from training and test", count=kept)
        train, val, test = (self._pool(np.flatnonzero(splits == value), tasks) for value in ("train", "val", "test"))
        for pool, kind in ((train, "training"), (test, "test")):
            if kind in required and not len(pool.names):
                no_split = self.layout.split is None
                hint = "add rows or change test_share" if no_split else "check its column 'split'"
                raise UserError(f"{path} has no {kind} image: {hint}{problems.brief()}")
        classes = tuple(self.classes)
        if len(train.names):
            problems.add_all("classes without a training image", classes, train.labels.counts() == 0)
        if train.unknown is not None:
            absent = len(train.names) - train.labels.counts() - train.unknown.counts()
            hint = " (an empty field is unknown, not 0)" if self.layout.labels is None else ""
            problems.add_all(f"classes that no training image is known to lack{hint}", classes, absent == 0)
        listed = self.layout.labels is not None
        return Collection(path.name, self.root, classes, train, test, problems, task_names, listed, val)

    def _pool(self, rows: np.ndarray, tasks: np.ndarray | None) -> Pool:
        names = list(self.row_of)
        labels, unknown = (
            Labels.from_lists((columns[row] for row in rows), len(self.classes))
            for columns in (self.labels, self.unknown)
        )
        task = None if tasks is None else tasks[rows]
        return Pool(Names(names[row] for row in rows), labels, task, unknown if len(unknown.column) else None)


def _text_rows_kind(column: str) -> str:
    return f"rows with text in the column '{shorten(column)}'"


def _aliases(texts: Sequence[str], classes: Sequence[str], path: Path) -> dict[str, str]:
    """The new name of each class that `OLD=NEW` texts rename."""
    found: dict[str, str] = {}
    for text in texts:
        old, equals, new = text.partition("=")
        try:
            old, new = class_name(old), class_name(new)
        except ValueError as error:
            reason = str(error) if equals else "it has no ="
            raise UserError(f"--alias takes OLD=NEW, two class names, not '{shorten(text)}': {reason}") from None
        if old not in classes:
            raise unknown(f"class in {path} for --alias:", old, classes)
        if found.setdefault(old, new) != new:
            raise UserError(f"--alias gives '{shorten(old)}' two names: keep one")
    return found


def _similar_names(classes: Iterable[str]) -> list[list[str]]:
    """Groups of names that differ only in case, spaces, underscores or hyphens.

    >>> _similar_names(["cat", "hot dog", "Cat", "hot_dog", "dog", "-"])
    [['cat', 'Cat'], ['hot dog', 'hot_dog']]
    """
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(re.sub(r"[\s_-]+", "", name.casefold()) or name, []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _other_separator(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """The character that seems to separate labels inside class names, and the names that contain it; None if none.

    A part of a name is free if it is a name too, or if it is the first part of one name and a later part of another:
    labels of an image are free in this sense. The words of 'red car' and 'blue car' are not: each has its place.

    >>> _other_separator(["dog", "cat", "dog, cat", "bird, dog", "bird"])
    (',', ['dog, cat', 'bird, dog'])
    >>> _other_separator(["red car", "blue car", "red bus", "blue bus", "dog", "hot dog"])
    """
    for separator in _OTHER_SEPARATORS:
        parts_of = {name: [part.strip(" ?") for part in name.split(separator) if part.strip(" ?")] for name in names}
        joined = {name: parts for name, parts in parts_of.items() if len(parts) > 1}
        alone = {parts[0] for parts in parts_of.values() if len(parts) == 1}
        first = {parts[0] for parts in joined.values()}
        later = {part for parts in joined.values() for part in parts[1:]}
        free, distinct = alone | first & later, len(alone | first | later)
        parts = [part for some in joined.values() for part in some]
        free_share = sum(part in free for part in parts) / max(len(parts), 1)
        if separator in ",|":
            frequent = len(joined) >= min(3, len(names) / 3)
            found = free_share >= 0.6 or distinct <= 0.5 * len(names)
        else:
            frequent = len(joined) >= 3
            # labels in a fixed order, such as the alphabetical one, are not free, but few words make many names
            few_words = distinct <= 0.25 * len(names) and len({*map(len, parts_of.values())}) >= 4
            found = few_words or (free_share >= 0.8 and distinct <= 0.75 * len(names))
        if joined and found and frequent and len(joined) >= 0.2 * len(names):
            return separator, [*joined]
    return None


def _ordered_tasks(tasks: list[str], problems: Problems) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """The task index of each image, -1 for an empty text, and the names of the tasks. None if all texts are empty.

    Numbers, dates, months and texts that differ in numbers only are sorted; others are in the order of first
    appearance, which is reported. Tasks that are numbered from 0 or 1 have no names.

    >>> index, names = _ordered_tasks(["May", "april", "", "May"], Problems())
    >>> index.tolist(), names
    ([1, 0, -1, 1], ('april', 'May'))
    """
    texts = [text for text in dict.fromkeys(tasks) if text]
    if not texts:
        return None, ()
    keys: dict[str, Any] = _sort_keys(texts)
    order = sorted(set(keys.values())) if keys else texts
    number = {key: index for index, key in enumerate(order)}
    index_of = {text: number[keys[text]] if keys else number[text] for text in texts}
    name_of = {index_of[text]: printable(text)[:MAX_TASK_NAME] for text in reversed(texts)}
    names = tuple(name_of[index] for index in range(len(order)))
    if not keys and len(texts) > 1:
        problems.add_all("tasks in the order of first appearance", names)
    if all(isinstance(key, Decimal) for key in order):
        counted = [[Decimal(start + index) for index in range(len(order))] for start in (0, 1)]
        names = () if order in counted else tuple(f"task {name}" for name in names)
    return np.array([index_of.get(text, -1) for text in tasks], np.int64), names


_MONTH = re.compile(
    r"(?<![a-z])(?:(jan(?:uary)?)|(feb(?:ruary)?)|(mar(?:ch)?)|(apr(?:il)?)|(may)|(june?)|(july?)|(aug(?:ust)?)|"
    r"(sept?(?:ember)?)|(oct(?:ober)?)|(nov(?:ember)?)|(dec(?:ember)?))(?![a-z])\.?"
)
"""The name of a month. The number of its group is that of the month."""
_YEAR_FIRST = re.compile(r"(\d{4})[-/.](\d\d?)(?:[-/.](\d\d?)(?:[T ][0-9:.,Z+-]+)?)?", re.IGNORECASE)
_YEAR_LAST = re.compile(r"\d\d?[-/. ]\d\d?[-/. ]\d{4}")
_MAX_DIGITS = 18


def _sort_keys(texts: Sequence[str]) -> dict[str, Any]:
    """A key for each text by which they are sorted; empty if they are not all numbers, dates or numbered names.

    A date with the year last is not sorted: its first number may be the day or the month.

    >>> sorted(_sort_keys(["task10", "task2"]).items()), _sort_keys(["spring", "autumn"])
    ([('task10', ((), (10,))), ('task2', ((), (2,)))], {})
    """
    if any(len(digits) > _MAX_DIGITS for text in texts for digits in re.findall(r"[0-9]+", text)):
        return {}
    if all(re.fullmatch(r"[+-]?[0-9]+(\.[0-9]*)?", text) for text in texts):
        return {text: Decimal(text) for text in texts}
    if all(_YEAR_FIRST.fullmatch(text) for text in texts):
        return {text: tuple(map(int, re.findall(r"[0-9]+", text))) for text in texts}
    lower = {text: _MONTH.sub(lambda match: f"<{match.lastindex}>", text.lower()) for text in texts}
    shapes = {re.sub(r"[0-9]+", "0", text) for text in lower.values()}
    if len(shapes) > 1 or "0" not in min(shapes) or any(map(_YEAR_LAST.fullmatch, texts)):
        return {}
    return {text: _parts(each) for text, each in lower.items()}


def _parts(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The years and months of a text, and its other numbers."""
    months, numbers = re.findall(r"<(\d+)>", text), re.findall(r"[0-9]+", re.sub(r"<\d+>", " ", text))
    years = [number for number in numbers if len(number) == 4 and number[:2] in ("19", "20")]
    others = [number for number in numbers if number not in years]
    return tuple(map(int, [*years, *months])), tuple(map(int, others))


def _open(path: Path, problems: Problems) -> tuple[_Layout, str, Iterator[tuple[int, Sequence[_Cell]]]]:
    """The layout, and every row that is not blank, each with its number in the unit for messages."""
    if not path.exists():
        raise UserError(f"there is no table {path}: give a {_SUFFIXES} file")
    check_regular(path)
    if path.suffix.lower() in _PARQUET_SUFFIXES:
        layout = _layout(path, parquet.column_names(path), problems)
        found = parquet.read_rows(path, layout.used, _MAX_ROWS)
        return layout, "row", ((number, [*map(_text, values)]) for number, values in enumerate(found, start=1))
    if path.suffix.lower() not in _TEXT_SUFFIXES:
        raise UserError(f"{path} is not a table that can be read: give a {_SUFFIXES} file")
    rows = _text_rows(path, problems)
    header = next(rows, None)
    if header is None:
        raise UserError(f"{path} is empty: its first row must contain the column names")
    return _layout(path, header[1], problems), "line", rows


def _text_rows(path: Path, problems: Problems) -> Iterator[tuple[int, Sequence[_Cell]]]:
    try:
        with open_regular(path, "r", encoding="utf-8-sig", newline="") as file:
            lines = iter(functools.partial(file.readline, _MAX_LINE), "")
            header = next(lines, "")
            delimiter = "\t" if "\t" in header else ","
            reader = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
            while True:
                begin = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:  # the reader continues with the next line
                    where = f"lines {begin} to {reader.line_num}"
                    problems.add("parts of the file that cannot be read", f"{where}: {error}")
                    continue
                if any(cells):
                    yield begin, cells
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8: {_first_bad_byte(path)}; save the table as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None


def _first_bad_byte(path: Path) -> str:
    number = 1
    with open_regular(path, "r", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for text in iter(functools.partial(file.readline, _MAX_LINE), ""):
            if bad := re.search("[\udc80-\udcff]", text):
                return f"line {number} has the byte 0x{ord(bad[0]) - 0xDC00:02X}"
            number += text.endswith("\n")
    return "it changes while it is read"


def _text(value: Any) -> _Cell:
    if isinstance(value, list):
        return tuple("" if part is None else str(part) for part in value)
    return "" if value is None or value != value else str(value)
