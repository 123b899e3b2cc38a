"""Manifests: a stream in one text file, with the images of each task and their visible labels.

A manifest has names and labels, no pixels. See docs/streams/manifest.md for the format. A stream that was written and
read again has the same fingerprint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lifelabel.errors import UserError
from lifelabel.images.photographs import safe_path
from lifelabel.images.shards import find_images
from lifelabel.images.source import Names, Problems
from lifelabel.streams import published
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.stream import (
    LABELS,
    Split,
    Stream,
    Task,
    classes_to_tasks,
    manifest_lines,
    task_names,
    task_of_class,
    true_matrix,
)
from lifelabel.streams.table import class_name
from lifelabel.utils.files import open_regular, read_limited, write_text
from lifelabel.utils.text import MAX_TASK_NAME, shorten
from lifelabel.utils.yaml_reader import parse_yaml

_VERSION = 1
_MAX_BYTES = 500_000_000
_MAX_VALUES = 1_000_000
_MAX_HEAD = 1 << 20
"""Bytes before the tasks."""
_HEADER = "# A stream of lifelabel: images (columns they show, name) by task. See docs/streams/manifest.md.\n"

_ROW = re.compile(r"([0-9]{1,9}(?:,[0-9]{1,9})*)? (.+)", re.ASCII)
_NOT_YAML = re.compile("[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
"""Characters that YAML cannot hold in a line of text, such as bytes of a file name that are not UTF-8."""


def write(stream: Stream, path: Path, complete: bool = False) -> str:
    """Write the stream and return its fingerprint. `complete` adds the hidden labels of the training images."""
    if complete and not stream.train.complete:
        raise UserError(f"complete training labels of {stream.name} are not known: write its manifest without them")
    if stream.learned:
        raise UserError(f"{stream.name} extends a run: a manifest can be written of a whole stream only")
    if stream.train.home is not None:
        share, seed = stream.rules["blurry"], stream.rules.get("seed", 0)
        raise UserError(
            "a manifest cannot hold blurry tasks: write it without stream.blurry and with the hidden labels "
            f"(--complete), and train on it with --set stream.blurry={share} --set stream.seed={seed}"
        )
    hidden = _hidden(stream)
    head: dict[str, Any] = {"lifelabel_stream": _VERSION, "name": stream.name, "dataset": stream.dataset}
    head |= {"sha256": stream.fingerprint}
    if stream.image_size is not None:
        head["image_size"] = stream.image_size
    if stream.labels != LABELS[0]:
        head["labels"] = stream.labels
    if stream.groups:
        head["groups"] = {name: list(of_group) for name, of_group in stream.groups.items()}
    if named := task_names(stream.tasks):
        head["task_names"] = named
    splits = {"train": stream.train, "test": stream.test}
    if later := [kind for kind, split in splits.items() if split.unknown and split.unknown.tasks is not None]:
        head["later_classes_unknown"] = later
    head["rules"] = json.loads(json.dumps(stream.rules))  # a copy, as YAML writes shared objects as aliases
    blocks: dict[str, list[Iterable[str]]] = {"train": [], "test": []}
    for kind, _, names, labels in stream.visible():
        blocks[kind].append(manifest_lines(names, labels))
    lines = [_HEADER + yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120), "tasks:\n"]
    flow: dict[str, Any] = {"default_flow_style": True, "allow_unicode": True, "width": 10**9}
    lines += [f"- {yaml.safe_dump(list(task.classes), **flow).strip()}\n" for task in stream.tasks]
    for kind, tasks in blocks.items():
        lines.append(f"{kind}:\n")
        for rows in tasks:
            lines += ["- |2\n", *(f"  {_check_line(row)}\n" for row in rows)]
    for kind, rows in stream.unknown_lines().items():
        lines += [f"unknown_{kind}: |2\n", *(f"  {_check_line(row)}\n" for row in rows)]
    if complete or (stream.train.complete and not len(hidden.column)):
        with_hidden = np.flatnonzero(hidden.per_image())
        hidden_rows = list(manifest_lines(stream.train.names.take(with_hidden), hidden.take(with_hidden)))
        lines.append(f"hidden_sha256: {_sha256(hidden_rows)}\nhidden: |2\n")
        lines += [f"  {_check_line(row)}\n" for row in hidden_rows]
    write_text(path, "".join(lines))
    return stream.fingerprint


def read(path: Path, root: Path | None) -> Stream:
    """The stream in a manifest. Its images are files under `root`, or in its shards."""
    found = _load(path)
    where = str(path)
    by_task = _classes(found.get("tasks"), where)
    classes = tuple(name for names in by_task for name in names)
    tasks = classes_to_tasks(classes, [len(names) for names in by_task], _task_names(found, len(by_task), where))
    image_size = found.get("image_size")
    if image_size is not None and (type(image_size) is not int or image_size < 1):
        raise UserError(f"{where}: image_size must be a number of pixels, not {shorten(image_size)}")
    root = None if image_size is not None else root  # drawn images are not files
    labels = found.get("labels", LABELS[0])
    if labels not in LABELS:
        raise UserError(f"{where}: labels must be {' or '.join(LABELS)}, not {shorten(labels)}")
    visible = [range(0 if labels == "known" else task.offset, task.end) for task in tasks]
    train, row_of = _split(found, "train", tasks, visible, where, root)
    test, _ = _split(found, "test", tasks, [range(len(classes))] * len(tasks), where, root)
    complete = "hidden" in found
    if complete:
        train = _with_hidden(train, found, row_of, visible, where)
    train = dataclasses.replace(train, complete=complete)
    truth = true_matrix(train.labels) if complete and train.unknown is None else None
    name, dataset = (_text(found.get(key), key, where) for key in ("name", "dataset"))
    problems = Problems()
    if root is not None and dataset == "nus-wide":
        train, test = published.find_numbered_images(root, classes, train, test, problems)
    rules = _rules(found.get("rules"), where)
    groups = _groups(found.get("groups", {}), classes, where)
    stream = Stream(name, tasks, train, test, truth, rules, dataset, image_size, problems, labels, groups=groups)
    if stream.fingerprint != found.get("sha256"):
        raise UserError(
            f"{where} was changed by hand or damaged: its content does not match its sha256; get the manifest again"
        )
    return dataclasses.replace(stream, proxy=published.coco_proxy(stream, root))


def read_rules(path: Path) -> dict[str, Any]:
    """The rules in a manifest, from its beginning; empty if they cannot be read (`read` reports what is wrong)."""
    try:
        with open_regular(path) as file:
            head = file.read(_MAX_HEAD).partition(b"\ntasks:")[0]
        found = parse_yaml(head, str(path), "get the manifest again", _MAX_VALUES)
        return _rules(found.get("rules"), str(path)) if isinstance(found, dict) else {}
    except (OSError, UserError):
        return {}


# Writing


def _check_line(line: str) -> str:
    """The line itself. Raises `UserError` if YAML cannot hold it."""
    if _NOT_YAML.search(line):
        name = line.partition(" ")[2].encode("utf-8", "backslashreplace").decode()
        raise UserError(f"a manifest cannot name the image {shorten(name)!r}: rename the file, in printable UTF-8")
    return line


def _hidden(stream: Stream) -> Labels:
    """The hidden labels of training images: those outside the tasks of the image."""
    labels, row = stream.train.labels, stream.train.labels.row()
    belongs = np.zeros(len(labels), bool)
    visible = np.zeros(len(row), bool)
    for task, rows in zip(stream.tasks, stream.train.rows, strict=True):
        in_task = np.zeros(len(labels), bool)
        in_task[rows] = True
        belongs |= in_task
        columns = stream.visible_columns(task)
        visible |= (labels.column >= columns.start) & (labels.column < columns.stop) & in_task[row]
    return labels.keep(belongs[row] & ~visible)


def _sha256(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# Reading


def _load(path: Path) -> dict[str, Any]:
    found = parse_yaml(read_limited(path, _MAX_BYTES), str(path), "get the manifest again", _MAX_VALUES)
    if not isinstance(found, dict) or "lifelabel_stream" not in found:
        raise UserError(f"{path} is not the manifest of a stream: it has no line 'lifelabel_stream: {_VERSION}'")
    if type(version := found["lifelabel_stream"]) is not int or version != _VERSION:
        raise UserError(
            f"{path} is a manifest of version {shorten(version)}, but version {_VERSION} is needed: update lifelabel"
        )
    return found


def _classes(found: Any, where: str) -> list[list[str]]:
    """The classes of each task."""
    if not isinstance(found, list) or not found:
        raise UserError(f"{where}: tasks must be a list with the classes of each task, not {shorten(found)}")
    seen: set[str] = set()
    for number, task in enumerate(found, start=1):
        if not isinstance(task, list) or not task:
            raise UserError(f"{where}: task {number} must be a list of classes, not {shorten(task)}")
        for name in task:
            if not isinstance(name, str) or not name:
                raise UserError(
                    f"{where}: task {number} has a class that is not text: {shorten(name)} (put it in quotes)"
                )
            try:
                class_name(name)
            except ValueError as error:
                raise UserError(f"{where}: task {number} has {error}") from None
            if name in seen:
                raise UserError(f"{where}: task {number} names the class '{shorten(name)}' a second time")
            seen.add(name)
    return found


def _task_names(manifest: dict[str, Any], tasks: int, where: str) -> list[str]:
    """The names of the tasks; empty if they have none."""
    names = manifest.get("task_names", [])
    good = isinstance(names, list) and len(names) in (0, tasks) and all(isinstance(name, str) for name in names)
    if not good or any(len(name) > MAX_TASK_NAME or not name.isprintable() for name in names):
        raise UserError(f"{where}: task_names must be a list of {tasks} short texts, not {shorten(names)}")
    return names


def _groups(found: Any, classes: tuple[str, ...], where: str) -> dict[str, tuple[str, ...]]:
    if not isinstance(found, dict):
        raise UserError(f"{where}: groups must be lines 'group: [class, …]', not {shorten(found)}")
    known = set(classes)
    for name, of_group in found.items():
        _text(name, "the name of a group", where)
        for each in of_group if isinstance(of_group, list) and of_group else [None]:
            if not isinstance(each, str) or each not in known:
                raise UserError(
                    f"{where}: group '{shorten(name)}' must list classes of the stream, not {shorten(each)}"
                )
    return {name: tuple(of_group) for name, of_group in found.items()}


def _split(
    manifest: dict[str, Any], kind: str, tasks: Sequence[Task], visible: Sequence[range], where: str, root: Path | None
) -> tuple[Split, dict[str, int]]:
    """The images of all blocks, each once with its labels of all blocks, and the row of each name."""
    found = manifest.get(kind)
    if not isinstance(found, list) or len(found) != len(tasks) or not all(isinstance(block, str) for block in found):
        raise UserError(f"{where}: {kind} must be a list of {len(tasks)} blocks of text, one per task")
    classes = tasks[-1].end
    row_of: dict[str, int] = {}
    columns_of: defaultdict[int, list[int]] = defaultdict(list)
    rows = []
    for task, allowed, block in zip(tasks, visible, found, strict=True):
        task_rows, before = [], len(row_of)
        for columns, name in _lines(block, f"{where}: {kind} of task {task.index + 1}", allowed):
            if kind == "test" and row_of.get(name, before) < before:
                raise UserError(
                    f"{where}: test of task {task.index + 1} names '{shorten(name)}', which an earlier task has too"
                )
            task_rows.append(row_of.setdefault(name, len(row_of)))
            columns_of[task_rows[-1]] += columns
        rows.append(np.array(task_rows, np.int64))
    for name in row_of:
        try:
            safe_path(name)
        except ValueError as error:
            raise UserError(f"{where}: {kind} names the image '{shorten(name)}': {error}") from None
    names = Names(row_of)
    labels = Labels.from_lists((columns_of[row] for row in range(len(names))), classes)
    unknown = None
    if (block := manifest.get(f"unknown_{kind}")) is not None:
        unknown = Unknown.of_entries(
            _listed(block, f"{where}: unknown_{kind}", row_of, classes, "an image of the stream")
        )
    later = manifest.get("later_classes_unknown", [])
    if not isinstance(later, list):
        raise UserError(f"{where}: later_classes_unknown must be a list of train and test, not {shorten(later)}")
    if kind in later:
        task_of = np.zeros(len(names), np.int64)
        for task, of_task in zip(tasks, rows, strict=True):
            task_of[of_task] = task.index
        none = Labels.from_lists([()] * len(names), classes)
        unknown = Unknown(
            unknown.entries if unknown else none, np.zeros(classes, bool), (task_of, task_of_class(tasks))
        )
    return Split(find_images(root, names), names, labels, tuple(rows), unknown=unknown), row_of


def _listed(block: Any, where: str, row_of: dict[str, int], classes: int, kind: str) -> Labels:
    """The labels in a block of lines for some images of a split. Messages call such an image `kind`."""
    if not isinstance(block, str):
        raise UserError(f"{where} must be a block of text")
    columns_of: list[tuple[int, ...]] = [()] * len(row_of)
    for columns, name in _lines(block, where, range(classes)):
        if name not in row_of:
            raise UserError(f"{where} names '{shorten(name)}', which is not {kind}")
        columns_of[row_of[name]] = columns
    return Labels.from_lists(columns_of, classes)


def _lines(block: str, where: str, allowed: range) -> Iterator[tuple[tuple[int, ...], str]]:
    """The columns and the name of each line."""
    known: dict[str | None, tuple[int, ...]] = {None: ()}
    names: set[str] = set()
    for number, line in enumerate(block.split("\n")[:-1], start=1):
        row = _ROW.fullmatch(line)
        if row is None:
            raise UserError(f"{where}, line {number}: '{shorten(line)}' is not 'COLUMN,COLUMN,… NAME'")
        text, name = row.groups()
        if text not in known:
            known[text] = tuple(map(int, text.split(",")))
            wrong = [column for column in known[text] if column not in allowed]
            if wrong:
                raise UserError(
                    f"{where}, line {number}: column {wrong[0]} of '{shorten(name)}' is not one of "
                    f"{allowed.start} … {allowed.stop - 1}"
                )
        if name in names:
            raise UserError(f"{where}, line {number}: '{shorten(name)}' is named twice")
        names.add(name)
        yield known[text], name


def _with_hidden(split: Split, found: Any, row_of: dict[str, int], visible: Sequence[range], where: str) -> Split:
    """The training images with their hidden labels added."""
    block, block_name = found["hidden"], f"{where}: hidden"
    if isinstance(block, str) and _sha256(block.split("\n")[:-1]) != found.get("hidden_sha256"):
        raise UserError(
            f"{where} was changed by hand or damaged: hidden does not match hidden_sha256; get the manifest again"
        )
    hidden = _listed(block, block_name, row_of, split.labels.classes, "a training image")
    labels = split.labels.with_keys(hidden.keys())
    for number, (allowed_columns, of_task) in enumerate(zip(visible, split.rows, strict=True), start=1):
        allowed = slice(allowed_columns.start, allowed_columns.stop)
        if labels.take(of_task).within(allowed) != split.labels.take(of_task).within(allowed):
            raise UserError(f"{block_name} adds labels of task {number} to images of that task")
    return dataclasses.replace(split, labels=labels)


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str):
        raise UserError(f"{where}: {key} must be text, not {shorten(value)}")
    if _NOT_YAML.search(value):
        raise UserError(f"{where}: {key} has control characters: {shorten(value)!r}")
    return value


def _rules(found: Any, where: str) -> dict[str, Any]:
    try:
        json.dumps(found)
    except (TypeError, ValueError):  # for example a date: YAML reads an unquoted one as a date
        raise UserError(f"{where}: rules must be text and numbers (put a date in quotes)") from None
    if not isinstance(found, dict):
        raise UserError(f"{where}: rules must be lines 'rule: value', not {shorten(found)}")
    return found
