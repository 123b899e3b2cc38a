"""A stream as one text file, to be published: which image is in which task, and the labels it shows there.

Names and labels, no pictures; see docs/streams/manifest.md for the format. `read(write(stream))` is the same stream as
far as the protocol shows it, which its SHA-256 proves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lifelabel.errors import UserError, short
from lifelabel.streams import published
from lifelabel.streams.base import Labels, Names, Problems, Split, Stream, Task, cut_classes, row_lines, true_matrix
from lifelabel.streams.collection import contents
from lifelabel.streams.files import FileImages, safe_path
from lifelabel.streams.table import class_name

VERSION = 1
MAX_BYTES = 500_000_000
MAX_DEPTH = 20
HEADER = "# A stream of lifelabel: images (columns they show, name) by task. See docs/streams/manifest.md.\n"

_ROW = re.compile(r"([0-9]{1,9}(?:,[0-9]{1,9})*)? (.+)", re.ASCII)
_UNFIT = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""What YAML cannot hold in a line of text, such as bytes of a file name that are not UTF-8."""


def write(stream: Stream, path: Path, complete: bool = False) -> str:
    """Write the stream and return its SHA-256; with `complete` also the labels that training images do not show."""
    if complete and not stream.train.complete:
        raise UserError(f"complete training labels of {stream.name} are not known: write its manifest without them")
    hidden = _hidden(stream)
    head: dict[str, Any] = {"lifelabel_stream": VERSION, "name": stream.name, "dataset": stream.dataset}
    head |= {"sha256": stream.fingerprint}
    if stream.image_size is not None:
        head["image_size"] = stream.image_size
    head["rules"] = json.loads(json.dumps(stream.rules))  # equal parts apart, or YAML would refer from one to the other
    blocks: dict[str, list[Iterable[str]]] = {"train": [], "test": []}
    for kind, _, names, labels in stream.shown():
        blocks[kind].append(row_lines(names, labels))
    with _replacing(path) as lines:
        lines.append(HEADER + yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120))
        lines.append("tasks:\n")
        lines.extend(f"- {_flow(list(task.classes))}\n" for task in stream.tasks)
        for kind, tasks in blocks.items():
            lines.append(f"{kind}:\n")
            for rows in tasks:
                lines.append("- |2\n")
                lines.extend(f"  {_fit(row)}\n" for row in rows)
        if complete or (stream.train.complete and not len(hidden.column)):
            rows = list(_hidden_lines(stream.train.names, hidden))
            lines.append(f"hidden_sha256: {_sha256(rows)}\nhidden: |2\n")
            lines.extend(f"  {_fit(row)}\n" for row in rows)
    return stream.fingerprint


def read(path: Path, root: Path | None) -> Stream:
    """The stream in a manifest, with the pictures that lie under `root`."""
    found = _load(path)
    place = str(path)
    classes = _classes(found.get("tasks"), place)
    every = tuple(name for task in classes for name in task)
    tasks = cut_classes(every, [len(task) for task in classes])
    image_size = found.get("image_size")
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise UserError(f"{place}: image_size must be a number of pixels, not {short(image_size)}")
    root = None if image_size is not None else root  # drawn pictures do not lie anywhere
    train, row_of = _split(found.get("train"), "train", tasks, place, root)
    test, _ = _split(found.get("test"), "test", tasks, place, root)
    complete = "hidden" in found
    if complete:
        train = _with_hidden(train, found, row_of, tasks, place)
    train = dataclasses.replace(train, complete=complete)
    truth = true_matrix(train.labels) if complete else None
    name, dataset = (_text(found.get(key), key, place) for key in ("name", "dataset"))
    problems = Problems()
    if root is not None and dataset == "nus-wide":
        train, test = published.numbered(root, every, train, test, problems)
    rules = _rules(found.get("rules"), place)
    stream = Stream(name, tasks, train, test, truth, rules, dataset, image_size, problems)
    if stream.fingerprint != found.get("sha256"):
        raise UserError(f"{place} was changed by hand or damaged: its content does not fit its sha256; fetch it again")
    return stream


# Writing


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[list[str]]:
    """Lines to fill; they become the file whole or not at all."""
    lines: list[str] = []
    yield lines
    beside = path.parent / f".{path.name}.new"
    try:
        with open(beside, "w", encoding="utf-8", newline="\n") as handle:
            handle.writelines(lines)
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise UserError(f"cannot write the manifest {path}: {error.strerror}") from None


def _flow(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9).strip()


def _fit(line: str) -> str:
    if _UNFIT.search(line):
        name = line.partition(" ")[2].encode("utf-8", "backslashreplace").decode()
        raise UserError(f"a manifest cannot name the image {short(name)!r}: rename it, in plain UTF-8")
    return line


def _hidden(stream: Stream) -> Labels:
    """The labels of training images outside the tasks they belong to."""
    labels, row = stream.train.labels, stream.train.labels.row()
    belongs = np.zeros(len(labels), bool)
    visible = np.zeros(len(row), bool)
    for task, rows in zip(stream.tasks, stream.train.rows, strict=True):
        here = np.zeros(len(labels), bool)
        here[rows] = True
        belongs |= here
        visible |= (labels.column >= task.first) & (labels.column < task.last) & here[row]
    hidden = belongs[row] & ~visible
    start = np.concatenate([[0], np.cumsum(hidden)])[labels.start]
    return Labels(start, labels.column[hidden], labels.classes)


def _hidden_lines(names: Names, hidden: Labels) -> Iterator[str]:
    rows = np.flatnonzero(hidden.per_image())
    return row_lines(names.take(rows), hidden.take(rows))


def _sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# Reading


def _load(path: Path) -> dict[str, Any]:
    try:
        text = contents(path, MAX_BYTES).decode("utf-8-sig")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _guard(text, loader, path)
        found = yaml.load(text, Loader=loader)
    except UserError:
        raise
    except Exception as error:  # yaml raises its own, and whatever int(), float() or a date make of a bad value
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}," if mark else ""
        raise UserError(f"{path}{where} is not valid YAML: fetch the manifest again") from None
    if not isinstance(found, dict) or "lifelabel_stream" not in found:
        raise UserError(f"{path} is not the manifest of a stream: it has no line 'lifelabel_stream: {VERSION}'")
    if type(version := found["lifelabel_stream"]) is not int or version != VERSION:
        raise UserError(
            f"{path} is a manifest of version {short(version)}, this lifelabel reads version {VERSION}: update it"
        )
    return found


def _guard(text: str, loader: Any, path: Path) -> None:
    """Refuse what would exhaust memory or stack: references that repeat a part, and parts nested without end."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MAX_DEPTH:
            line = event.start_mark.line + 1
            raise UserError(f"{path}, line {line}, refers to another part or nests too deep: fetch the manifest again")


def _classes(found: Any, place: str) -> list[list[str]]:
    """The classes of each task."""
    if not isinstance(found, list) or not found:
        raise UserError(f"{place}: tasks must be a list with the classes of each task, not {short(found)}")
    seen: set[str] = set()
    for number, task in enumerate(found, start=1):
        if not isinstance(task, list) or not task:
            raise UserError(f"{place}: task {number} must be a list of classes, not {short(task)}")
        for name in task:
            if not isinstance(name, str) or not name:
                raise UserError(f"{place}: task {number} has a class that is no text: {short(name)} (put it in quotes)")
            try:
                class_name(name)
            except ValueError as error:
                raise UserError(f"{place}: task {number} has {error}") from None
            if name in seen:
                raise UserError(f"{place}: task {number} names the class '{short(name)}' a second time")
            seen.add(name)
    return found


def _split(found: Any, kind: str, tasks: Sequence[Task], place: str, root: Path | None) -> tuple[Split, dict[str, int]]:
    """The images of all blocks, each once with all that it shows anywhere, and the row of each name."""
    if not isinstance(found, list) or len(found) != len(tasks) or not all(isinstance(block, str) for block in found):
        raise UserError(f"{place}: {kind} must be a list of {len(tasks)} blocks of text, one a task")
    classes = tasks[-1].last
    row_of: dict[str, int] = {}
    rows, shown = [], []
    for task, block in zip(tasks, found, strict=True):
        allowed = range(classes) if kind == "test" else range(task.first, task.last)
        here, before = [], len(row_of)
        for columns, name in _lines(block, f"{place}: {kind} of task {task.index + 1}", allowed):
            if kind == "test" and row_of.get(name, before) < before:
                raise UserError(
                    f"{place}: test of task {task.index + 1} names '{short(name)}', which an earlier task has"
                )
            here.append(row_of.setdefault(name, len(row_of)))
            shown.append(columns)
        rows.append(np.array(here, np.int64))
    for name in row_of:
        try:
            safe_path(name)
        except ValueError as error:
            raise UserError(f"{place}: {kind} names the image '{short(name)}': {error}") from None
    names = Names(row_of)
    labels = _labels(np.concatenate(rows), shown, len(names), classes)
    return Split(FileImages(root, names), names, labels, tuple(rows)), row_of


def _lines(block: str, place: str, allowed: range) -> Iterator[tuple[tuple[int, ...], str]]:
    """The columns and the name of every line."""
    known: dict[str | None, tuple[int, ...]] = {None: ()}
    names: set[str] = set()
    for number, line in enumerate(block.split("\n")[:-1], start=1):
        row = _ROW.fullmatch(line)
        if row is None:
            raise UserError(f"{place}, line {number}: '{short(line)}' is not 'COLUMN,COLUMN,… NAME'")
        text, name = row.groups()
        if text not in known:
            known[text] = tuple(map(int, text.split(",")))
            wrong = [column for column in known[text] if column not in allowed]
            if wrong:
                raise UserError(
                    f"{place}, line {number}: column {wrong[0]} of '{short(name)}' is not one of "
                    f"{allowed.start} … {allowed.stop - 1}"
                )
        if name in names:
            raise UserError(f"{place}, line {number}: '{short(name)}' is named twice")
        names.add(name)
        yield known[text], name


def _labels(row: np.ndarray, shown: Sequence[tuple[int, ...]], images: int, classes: int) -> Labels:
    """Labels from the columns named for some rows; a row may come several times."""
    row = np.repeat(row, [len(columns) for columns in shown])
    column = np.array([column for columns in shown for column in columns], np.int64)
    return Labels.of_keys(row * classes + column, images, classes)


def _with_hidden(split: Split, found: Any, row_of: dict[str, int], tasks: Sequence[Task], place: str) -> Split:
    """The training images with the labels that they do not show added."""
    block, where = found["hidden"], f"{place}: hidden"
    if not isinstance(block, str):
        raise UserError(f"{where} must be a block of text")
    if _sha256(block.split("\n")[:-1]) != found.get("hidden_sha256"):
        raise UserError(f"{place} was changed by hand or damaged: hidden does not fit hidden_sha256; fetch it again")
    rows = split.labels.row().tolist()
    shown: list[tuple[int, ...]] = [(column,) for column in split.labels.column.tolist()]
    for columns, name in _lines(block, where, range(split.labels.classes)):
        if name not in row_of:
            raise UserError(f"{where} names '{short(name)}', which is no training image")
        rows.append(row_of[name])
        shown.append(columns)
    labels = _labels(np.array(rows, np.int64), shown, len(split), split.labels.classes)
    for task, of_task in zip(tasks, split.rows, strict=True):
        if labels.take(of_task).within(task.columns) != split.labels.take(of_task).within(task.columns):
            raise UserError(f"{where} gives images of task {task.index + 1} more labels of their own task")
    return dataclasses.replace(split, labels=labels)


def _text(value: Any, key: str, place: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{place}: {key} must be text, not {short(value)}")
    if _UNFIT.search(value):
        raise UserError(f"{place}: {key} has control characters: {short(value)!r}")
    return value


def _rules(found: Any, place: str) -> dict[str, Any]:
    try:
        json.dumps(found)
    except (TypeError, ValueError):  # a date, say, which YAML makes of text without quotes
        raise UserError(f"{place}: rules must be text and numbers (put a date in quotes)") from None
    if not isinstance(found, dict):
        raise UserError(f"{place}: rules must hold 'rule: value' lines, not {short(found)}")
    return found
