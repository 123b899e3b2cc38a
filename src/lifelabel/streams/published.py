"""The authors' published label files, Split-COCO and Split-WIDE, and any split in their format.

`task{t}/train.csv` and `test.csv`, in a folder or in the zip as downloaded; no header; a row is a name and a 0 or 1 a
class. Training files carry the labels of their own task, test files grow: file t has the test images of tasks <= t with
the labels of all classes so far. See docs/streams/published.md.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, short
from lifelabel.streams import coco, nus_wide, paper
from lifelabel.streams.base import Labels, Names, Problems, Split, Stream, Task, cut_classes, task_of_class, true_matrix
from lifelabel.streams.collection import contents
from lifelabel.streams.files import FileImages, safe_path
from lifelabel.streams.table import class_name

MAX_BYTES = 200_000_000
MAX_RATIO = 200
"""How many times larger than in the zip a file may be; names and zeros shrink to a tenth or so."""
DEEPEST = 2
"""Folders between what the user named and the task folders."""
ALIKE = 0.5
"""Where NUS-WIDE's labels agree with the files less than this, its list is not the one that was numbered."""

_MEMBER = re.compile(r"(?:(.+)/)?task(0|[1-9]\d{0,3})/(train|test)\.csv")
_ROW = re.compile(rb"^[^,\r\n]+((?:,[01])+)\r?$", re.MULTILINE)
_COCO_NAME = re.compile(r"(.*/)?(COCO_(train|val)2014_)?[0-9]{12}\.jpg")
_NUMBER = re.compile(r"[0-9]{1,9}")
_CELLS = 1 << 22
"""How many fields are looked at together."""


def read(path: Path, root: Path | None) -> Stream:
    """The split in the folder or zip `path`, its photographs under `root`.

    Where COCO's or NUS-WIDE's own labels lie under `root`, they complete the labels of the training images.
    """
    problems = Problems()
    with contextlib.closing(_Files(path)) as files:
        train, test = ([files.table(t, kind, problems) for t in range(files.tasks)] for kind in ("train", "test"))
        named = files.classes()
    sizes = _sizes(path, train, test)
    shown, tested = _training(sizes, train, problems), _tests(sizes, test, problems)
    classes, dataset = _classes(path, named, sizes, shown.names + tested.names, problems)
    tasks = cut_classes(classes, sizes)
    _quirks(classes, shown, tested, problems)
    own = _Own()
    if root is not None and dataset:
        own = (_coco if dataset == "coco" else _nus_wide)(root, classes, shown, tested, problems)
    labels = shown.labels if own.labels is None else _completed(tasks, shown, own.labels, problems)
    train_files, test_files = own.files or (_file_names(shown.names), _file_names(tested.names))
    return Stream(
        {"coco": "split-coco", "nus-wide": "split-wide"}.get(dataset, "published"),
        tasks,
        Split(FileImages(root, Names(train_files)), Names(shown.names), labels, shown.rows, own.labels is not None),
        Split(FileImages(root, Names(test_files)), Names(tested.names), tested.labels, tested.rows),
        truth=None if own.labels is None else true_matrix(labels),
        rules={
            "source": "published split",
            "file": path.resolve().name,
            **own.rules,
        },
        dataset=dataset,
        problems=problems,
    )


@dataclass(frozen=True)
class _Table:
    """One file: its images, each once, and their labels over the file's own columns."""

    names: list[str]
    labels: Labels


@dataclass(frozen=True)
class _Side:
    """All training or all test files together: the labels they show, over all classes, and the images of each task."""

    names: list[str]
    labels: Labels
    rows: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Own:
    """What the data set itself adds: complete labels of the training images, file names (training, test), remarks."""

    labels: Labels | None = None
    files: tuple[list[str], list[str]] | None = None
    rules: dict[str, Any] = field(default_factory=dict)


class _Files:
    """The files of a split, in a folder or in a zip; what else lies there is not looked at."""

    def __init__(self, path: Path):
        self.path = path
        if path.is_dir():
            self.zip, names = None, _names_below(path)
        elif path.is_file():
            try:
                self.zip = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
                raise UserError(f"{path} is not a whole zip, download it again: {error}") from None
            names = self.zip.namelist()
        else:
            raise UserError(f"there is no {path}: give the folder or the zip that holds task0, task1, …")
        self.folder, self.tasks = _find(path, names)
        self.names = frozenset(names)
        self.known: dict[bytes, str] = {}

    def table(self, task: int, kind: str, problems: Problems) -> _Table:
        name = f"task{task}/{kind}.csv"
        try:
            return parse(self.contents(name), name, problems, self.known)
        except ValueError as error:
            raise UserError(f"{self.path}: {name} {error}") from None

    def classes(self) -> tuple[str, ...] | None:
        """What `classes.txt` beside the task folders says, a name a line."""
        if self.folder + "classes.txt" not in self.names:
            return None
        where = f"{self.path}: classes.txt"
        try:
            lines = self.contents("classes.txt").decode("utf-8-sig").splitlines()
            classes = tuple(class_name(line) for line in lines if line.strip())
        except UnicodeDecodeError:
            raise UserError(f"{where} is not UTF-8: save it as UTF-8") from None
        except ValueError as error:
            raise UserError(f"{where} has {error}") from None
        if len(set(classes)) < len(classes):
            raise UserError(f"{where} names a class twice")
        return classes

    def close(self) -> None:
        if self.zip is not None:
            self.zip.close()

    def contents(self, name: str) -> bytes:
        """The bytes of a file beside or in the task folders."""
        name, where = self.folder + name, f"{self.path}: {name}"
        try:
            if self.zip is None:
                return contents(self.path / name, MAX_BYTES)
            info = self.zip.getinfo(name)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{where} is packed in an unusual way: unpack the zip and give the folder")
            if info.file_size > MAX_RATIO * max(info.compress_size, 1 << 10):
                raise UserError(f"{where} is packed more than {MAX_RATIO} times: unpack it and give the folder")
            if info.file_size > MAX_BYTES:
                raise UserError(f"{where} has more than {MAX_BYTES:,} bytes: this cannot be the right file")
            return self.zip.read(name)
        except KeyError:
            raise UserError(f"{where} is missing") from None
        except OSError as error:
            raise UserError(f"{where} cannot be read: {error.strerror or error}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
            raise UserError(f"{where} cannot be unpacked, download the zip again: {error}") from None


def _names_below(path: Path) -> list[str]:
    """The files of interest under a folder, at the first depth that has any."""
    for depth in range(DEEPEST + 1):
        found = list(path.glob("*/" * depth + "task*/t*.csv"))
        if found:
            found += path.glob("*/" * depth + "classes.txt")
            return [file.relative_to(path).as_posix() for file in found]
    return []


def _find(path: Path, names: Sequence[str]) -> tuple[str, int]:
    """The folder that holds the task folders (empty, or with a slash at its end), and how many there are."""
    found: dict[str, set[tuple[int, str]]] = {}
    for match in filter(None, map(_MEMBER.fullmatch, names)):
        parents = match[1].split("/") if match[1] else []
        if len(parents) <= DEEPEST and all(part and not part.startswith((".", "__MACOSX")) for part in parents):
            found.setdefault("".join(f"{part}/" for part in parents), set()).add((int(match[2]), match[3]))
    if not found:
        raise UserError(
            f"{path} holds no task0/train.csv: give the folder or the zip that holds task0, task1, … (photographs of "
            "your own need a table, FILE.csv)"
        )
    if len(found) > 1:
        raise UserError(f"{path} holds several splits, {short(', '.join(sorted(found)))}: give the folder of one")
    ((folder, members),) = found.items()
    tasks = len({task for task, _ in members})
    for task in range(tasks):
        for kind in ("train", "test"):
            if (task, kind) not in members:
                raise UserError(f"{path} lacks {folder}task{task}/{kind}.csv")
    return folder, tasks


def parse(data: bytes, where: str, problems: Problems, known: dict[bytes, str] | None = None) -> _Table:
    """A file's images and labels; `known` keeps the names met before, as test files repeat them.

    >>> table = parse(b"a.jpg,0,1\\r\\nb.jpg,1,1", "task0/train.csv", Problems())
    >>> table.names, table.labels.dense().astype(int).tolist()
    (['a.jpg', 'b.jpg'], [[0, 1], [1, 1]])
    """
    data = data.removeprefix(codecs.BOM_UTF8)
    first = _ROW.search(data)
    if first is None:
        raise ValueError("has no row of an image and labels: rows must read like 'a.jpg,0,1'")
    width = len(first[1]) // 2
    start, end = _lines(data)
    good, row, column = _ones(data, start, end, width)
    bad = f"rows left out, which are not an image and {width} times 0 or 1"
    for line in np.flatnonzero(~good & (end > start)).tolist():
        problems.add(bad, f"{where} line {line + 1}")
    known = {} if known is None else known
    names = []
    lines = np.flatnonzero(good)
    for line, begin, stop in zip(lines.tolist(), start[lines].tolist(), (end[lines] - 2 * width).tolist(), strict=True):
        text = data[begin:stop]
        try:
            names.append(known.get(text) or known.setdefault(text, _name(text)))
        except ValueError as error:
            problems.add(bad, f"{where} line {line + 1}: {error}")
            good[line] = False
    if not names:
        raise ValueError("has no row that can be used: they must read like 'a.jpg,0,1'")
    kept = good[row]
    return _unite(names, (np.cumsum(good) - 1)[row[kept]], column[kept], width, where, problems)


def _lines(data: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Where each line starts and ends, its line break left out."""
    text = np.frombuffer(data, np.uint8)
    end = np.flatnonzero(text == ord("\n"))
    if not data.endswith(b"\n"):
        end = np.append(end, len(data))
    start = np.append(0, end[:-1] + 1)
    return start, end - ((end > start) & (text[end - 1] == ord("\r")))


def _ones(data: bytes, start: np.ndarray, end: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which lines end in `width` times a comma and 0 or 1, and the line and column of every 1."""
    text = np.frombuffer(data, np.uint8)
    good = end - start > 2 * width
    rows, columns = [], []
    step = _CELLS // width + 1
    for first in range(0, len(start), step):
        lines = first + np.flatnonzero(good[first : first + step])
        cells = text[(end[lines] - 2 * width)[:, None] + np.arange(2 * width)]
        one = cells[:, 1::2] == ord("1")
        good[lines] = ((cells[:, ::2] == ord(",")) & (one | (cells[:, 1::2] == ord("0")))).all(1)
        row, column = np.nonzero(one)
        rows.append(lines[row])
        columns.append(column)
    return good, np.concatenate(rows), np.concatenate(columns)


def _name(text: bytes) -> str:
    if b"," in text:
        raise ValueError("too many fields")
    return safe_path(text.decode("utf-8", "surrogateescape").strip())


def _unite(names: list[str], row: np.ndarray, column: np.ndarray, width: int, where: str, problems: Problems) -> _Table:
    """Each image once, with the labels of all its rows."""
    place: dict[str, int] = {}
    rows = _rows(names, place)
    labels = Labels.of_keys(rows[row] * width + column, len(place), width)
    if len(place) < len(names):
        each = Labels.of_keys(row * width + column, len(names), width)
        first = np.unique(rows, return_index=True)[1]
        for again in np.setdiff1d(np.arange(len(names)), first):
            same = np.array_equal(each[again], each[first[rows[again]]])
            kind = "rows that repeat an earlier one" if same else "rows that give other labels; they are united"
            problems.add(kind, f"{names[again]} in {where} of {len(names):,} rows")
    return _Table(list(place), labels)


def _rows(names: Sequence[str], place: dict[str, int]) -> np.ndarray:
    """The row of each name; `place` takes those that are new."""
    return np.array([place.setdefault(name, len(place)) for name in names], np.int64)


def _keys(labels: Labels, rows: np.ndarray, classes: int, first: int = 0) -> np.ndarray:
    """row * classes + column of every label: the images are `rows`, and the first column is `first`."""
    return rows[labels.row()] * classes + labels.column + first


def _sizes(path: Path, train: list[_Table], test: list[_Table]) -> list[int]:
    """How many classes each task brings: its training file says so, and the test files must agree."""
    sizes = [table.labels.classes for table in train]
    for task, table in enumerate(test):
        if table.labels.classes != sum(sizes[: task + 1]):
            raise UserError(
                f"{path}: task{task}/test.csv has {table.labels.classes} labels a row where the training files so far "
                f"have {sum(sizes[: task + 1])}: a test file carries the labels of all classes so far"
            )
    return sizes


def _training(sizes: list[int], tables: list[_Table], problems: Problems) -> _Side:
    place: dict[str, int] = {}
    keys, rows = [], []
    for task, table in enumerate(tables):
        new = len(place)
        rows.append(_rows(table.names, place))
        keys.append(_keys(table.labels, rows[task], sum(sizes), sum(sizes[:task])))
        for again in np.flatnonzero(rows[task] < new):
            name = table.names[again]
            problems.add("training images that an earlier task has too", f"{name} in task{task}/train.csv")
    return _Side(list(place), Labels.of_keys(np.concatenate(keys), len(place), sum(sizes)), tuple(rows))


def _tests(sizes: list[int], tables: list[_Table], problems: Problems) -> _Side:
    """Each test image belongs to the first file that has it, and its labels are those of the last."""
    classes, place = sum(sizes), dict[str, int]()
    keys, rows, before = np.array([], np.int64), [], np.array([], np.int64)
    for task, table in enumerate(tables):
        new = len(place)
        now = _rows(table.names, place)
        rows.append(now[now >= new])
        names, here = list(place), np.zeros(len(place), bool)
        here[now] = True
        for row in before[~here[before]]:
            problems.add("test images that a later test file lacks", f"{names[row]} in task{task}/test.csv")
        later = _keys(table.labels, now, classes)
        both = np.zeros(len(place), bool)
        both[before] = here[before]
        old = both[later // classes] & (later % classes < sum(sizes[:task]))
        changed = np.setxor1d(keys[both[keys // classes]], later[old]) // classes
        for row in np.unique(changed):
            kind = "test images whose labels differ in a later test file; the later ones count"
            problems.add(kind, f"{names[row]} in task{task}/test.csv")
        keys, before = np.append(keys[~here[keys // classes]], later), now
    return _Side(list(place), Labels.of_keys(keys, len(place), classes), tuple(rows))


def _classes(
    path: Path, named: tuple[str, ...] | None, sizes: list[int], names: list[str], problems: Problems
) -> tuple[tuple[str, ...], str]:
    """The classes as `classes.txt` names them, else as the paper does, else by number; and the data set they are of."""
    for dataset, pattern in (("coco", _COCO_NAME), ("nus-wide", _NUMBER)):
        tasks = paper.TASKS[dataset]
        classes = tuple(name for task in tasks for name in task)
        if sizes == [len(task) for task in tasks] and named in (None, classes) and all(map(pattern.fullmatch, names)):
            return classes, dataset
    if named is None:
        kind = "classes have no name: put a classes.txt (a name a line, in the order of the columns) beside task0"
        problems.add(kind, count=sum(sizes))
        return tuple(f"class {number + 1}" for number in range(sum(sizes))), ""
    if len(named) != sum(sizes):
        raise UserError(f"{path}: classes.txt names {len(named)} classes where the files have {sum(sizes)} columns")
    return named, ""


def _quirks(classes: tuple[str, ...], shown: _Side, tested: _Side, problems: Problems) -> None:
    for side, kind in ((shown, "training images"), (tested, "test images")):
        for row in np.flatnonzero(side.labels.per_image() == 0):
            problems.add(f"{kind} without any label", side.names[row])
    trained = set(shown.names)
    for name in tested.names:
        if name in trained:
            problems.add("images that are in both training and test", name)
    for column in np.flatnonzero(shown.labels.counts() == 0):
        problems.add("classes without a training image", classes[column])


def _file_names(names: Sequence[str]) -> list[str]:
    """Where nothing says which photograph a number stands for, it is looked for under that number."""
    return [f"{name}.jpg" if _NUMBER.fullmatch(name) else name for name in names]


def _coco(root: Path, classes: tuple[str, ...], shown: _Side, tested: _Side, problems: Problems) -> _Own:
    found = coco.labels_by_name(root, classes)
    if found is None:
        return _Own()
    full = [found.get(name, found.get(coco.number(name))) for name in shown.names]
    for name, labels in zip(shown.names, full, strict=True):
        if labels is None:
            problems.add("training images that COCO's annotations lack; no labels are completed", name)
    if None in full:
        return _Own()
    return _Own(Labels.of_lists((labels or () for labels in full), len(classes)))


def numbered(
    root: Path, classes: tuple[str, ...], train: Split, test: Split, problems: Problems
) -> tuple[Split, Split]:
    """The splits of a manifest of Split-WIDE with their photographs: it names images by number, as the files do."""
    if not all(_NUMBER.fullmatch(name) for split in (train, test) for name in split.names):
        return train, test
    own = _nus_wide(root, classes, train, test, problems)
    files = own.files or (_file_names(train.names), _file_names(test.names))
    first, second = (FileImages(root, Names(some)) for some in files)
    return dataclasses.replace(train, images=first), dataclasses.replace(test, images=second)


def _nus_wide(
    root: Path, classes: tuple[str, ...], shown: _Side | Split, tested: _Side | Split, problems: Problems
) -> _Own:
    """Numbers are places in NUS-WIDE's list of images; its labels tell whether they count from 0 or 1."""
    listed = nus_wide.image_list(root)
    if listed is None:
        return _Own()
    train, test = (np.array([int(name) for name in side.names]) for side in (shown, tested))
    low, high = min(train.min(), test.min()), max(train.max(), test.max())
    bases = [base for base in (0, 1) if base <= low and high < len(listed) + base]
    if not bases:
        problems.add("NUS-WIDE list that is too short for the numbers of the split", f"{len(listed):,} images")
        return _Own()
    base, labels, rules = bases[0], None, {}
    truth = nus_wide.all_labels(root, classes)
    if truth is None:
        problems.add("NUS-WIDE list without labels to check it by; places are counted from 0", str(root))
    else:
        tables = {base: likeness(tested.labels, truth.take(test - base)) for base in bases}
        base = max(bases, key=lambda base: tables[base].max(axis=1).mean())
        best = float(tables[base].max(axis=1).mean())
        if best < ALIKE:
            problems.add("NUS-WIDE list that is not the one the split numbers", f"labels agree to {best:.1%}")
            return _Own()
        misfits = _misfits(classes, tables[base], problems)
        rules = {"agreement": round(float(tables[base].trace()) / len(classes), 4), "misfits": misfits}
        labels = None if misfits else truth.take(train - base)
    files = [listed[place] for place in (train - base).tolist()], [listed[place] for place in (test - base).tolist()]
    return _Own(labels, files, {"numbers_from": base, **rules})


def likeness(ours: Labels, theirs: Labels) -> np.ndarray:
    """For each two classes, of ours and of theirs, the images that show both among those that show either.

    >>> likeness(Labels.of_lists([[0], [0, 1]], 2), Labels.of_lists([[1], [0, 1]], 2)).tolist()
    [[0.5, 1.0], [1.0, 0.5]]
    """
    both = np.zeros((ours.classes, theirs.classes))
    step = _CELLS // ours.classes + 1
    for first in range(0, len(ours), step):
        rows = np.arange(first, min(first + step, len(ours)))
        both += ours.take(rows).dense().T.astype(np.float32) @ theirs.take(rows).dense().astype(np.float32)
    return both / np.maximum(ours.counts()[:, None] + theirs.counts()[None, :] - both, 1)


def _misfits(classes: tuple[str, ...], alike: np.ndarray, problems: Problems) -> list[str]:
    """The classes that fit another concept better than the one they are named after."""
    found = []
    for column, best in enumerate(alike.argmax(axis=1)):
        own, most = alike[column, column], alike[column, best]
        if most > own:
            found.append(f"{classes[column]} ({own:.1%} alike) is more like {classes[best]} ({most:.1%})")
            problems.add("classes that fit another concept of NUS-WIDE better; no labels are completed", found[-1])
        elif own < 1:
            problems.add("classes whose labels are not quite NUS-WIDE's", f"{classes[column]} ({own:.1%} alike)")
    return found


def _completed(tasks: tuple[Task, ...], shown: _Side, full: Labels, problems: Problems) -> Labels:
    """Complete labels, except that for the classes of an image's own task the files of the split have the last word."""
    classes = full.classes
    task_of = task_of_class(tasks)
    own = np.concatenate([rows * len(tasks) + task for task, rows in enumerate(shown.rows)])
    row = full.row()
    keys, seen = row * classes + full.column, np.isin(row * len(tasks) + task_of[full.column], own)
    visible = _keys(shown.labels, np.arange(len(shown.names)), classes)
    for image in np.unique(np.setxor1d(keys[seen], visible) // classes):
        problems.add("training images that the data set labels otherwise; the split's own count", shown.names[image])
    return Labels.of_keys(np.append(keys[~seen], visible), len(full), classes)
