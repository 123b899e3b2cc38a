"""The published label files of the authors, Split-COCO and Split-WIDE, and any split in their format.

A split has the files `task{t}/train.csv` and `task{t}/test.csv`, in a folder or in the zip as downloaded. They have no
header. A row is a name and one 0 or 1 per class. A training file has the labels of its own task. Test file t has the
test images of all tasks up to t, with the labels of all classes up to t. See docs/streams/published.md.
"""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import re
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.photographs import FileImages, safe_path
from lifelabel.images.shards import find_images, folder_of
from lifelabel.images.source import Names, Problems
from lifelabel.streams import coco, nus_wide, paper
from lifelabel.streams.labels import Labels
from lifelabel.streams.protocols import make_proxy
from lifelabel.streams.stream import Split, Stream, Task, classes_to_tasks, task_of_class, true_matrix
from lifelabel.streams.table import class_name
from lifelabel.utils.files import check_regular, read_limited
from lifelabel.utils.text import counted, shorten

_MAX_BYTES = 200_000_000
_MAX_RATIO = 200
"""The largest ratio of a file's size to its size in the zip. Names and zeros are about ten times smaller in a zip."""
_MAX_DEPTH = 2
"""The largest number of folders between the given path and the task folders."""
_MIN_AGREEMENT = 0.5
"""NUS-WIDE's list is used only if its labels agree with the labels of the split at least to this share."""

_MEMBER = re.compile(r"(?:(.+)/)?task(0|[1-9]\d{0,3})/(train|test)\.csv")
_ROW = re.compile(r"^[^,\r\n]+((?:,[01])+)\r?$", re.MULTILINE)
_FLAGS = re.compile(r"(?:,[01])+")
_COCO_NAME = re.compile(r"(.*/)?(COCO_(train|val)2014_)?[0-9]{12}\.jpg")
_NUMBER = re.compile(r"[0-9]{1,9}")
_CELLS = 1 << 22
"""The number of labels that are compared at a time."""


def read(path: Path, root: Path | None) -> Stream:
    """The split in the folder or zip `path`. Its photographs are files under `root`, or in its shards.

    If the label files of COCO or NUS-WIDE are under `root`, they complete the labels of the training images.
    """
    problems = Problems()
    with contextlib.closing(_Files(path)) as files:
        train, test = ([files.table(t, kind, problems) for t in range(files.tasks)] for kind in ("train", "test"))
        class_names = files.classes()
    sizes = _task_sizes(path, train, test)
    training, testing = _merge_training(sizes, train, problems), _merge_test(sizes, test, problems)
    classes, dataset = _classes(path, class_names, sizes, training.names + testing.names, problems)
    tasks = classes_to_tasks(classes, sizes)
    _report(classes, training, testing, problems)
    extra = _Extra()
    if root is not None and dataset:
        extra = (_from_coco if dataset == "coco" else _from_nus_wide)(
            folder_of(root), classes, training, testing, problems
        )
    labels = training.labels if extra.labels is None else _complete(tasks, training, extra.labels, problems)
    train_images, test_images = _find_images(root, training.names, testing.names, extra)
    stream = Stream(
        {"coco": "split-coco", "nus-wide": "split-wide"}.get(dataset, "published"),
        tasks,
        Split(train_images, Names(training.names), labels, training.rows, extra.labels is not None),
        Split(test_images, Names(testing.names), testing.labels, testing.rows),
        truth=None if extra.labels is None else true_matrix(labels),
        rules={"source": "published split", "file": path.resolve().name, **extra.rules},
        dataset=dataset,
        problems=problems,
    )
    return dataclasses.replace(stream, proxy=coco_proxy(stream, root))


def coco_proxy(stream: Stream, root: Path | None) -> Callable[[], Stream] | None:
    """Builds the proxy stream of a split of COCO, if the annotations of COCO are under `root`."""
    if root is None or stream.dataset != "coco" or not coco.annotation_files(folder_of(root)):
        return None
    return lambda: make_proxy(
        stream, dataclasses.replace(coco.read_named(folder_of(root), stream.train.names), root=root)
    )


def find_numbered_images(
    root: Path, classes: tuple[str, ...], train: Split, test: Split, problems: Problems
) -> tuple[Split, Split]:
    """The splits of a manifest, with the names of the photographs in place of their numbers.

    Split-WIDE names images by number, and so does its manifest. Splits with other names are returned unchanged.
    """
    if not all(_NUMBER.fullmatch(name) for split in (train, test) for name in split.names):
        return train, test
    extra = _from_nus_wide(folder_of(root), classes, train, test, problems)
    train_images, test_images = _find_images(root, train.names, test.names, extra)
    return dataclasses.replace(train, images=train_images), dataclasses.replace(test, images=test_images)


class _Table(NamedTuple):
    """One file: the labels of each image, and the number of its columns of labels."""

    labels: dict[str, frozenset[int]]
    width: int


class _Merged(NamedTuple):
    """All training or all test files: the images, their labels over all classes, and the rows of each task."""

    names: list[str]
    labels: Labels
    rows: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class _Extra:
    """Complete labels of the training images, file names (training, test) and rules, from the files of the data set."""

    labels: Labels | None = None
    files: tuple[list[str], list[str]] | None = None
    rules: dict[str, Any] = field(default_factory=dict)


# Files


class _Files:
    """The files of a split, in a folder or in a zip. Other files are ignored."""

    def __init__(self, path: Path):
        self.path = path
        if path.is_dir():
            self.zip, names = None, _names_below(path)
        elif path.exists():
            check_regular(path)
            try:
                self.zip = zipfile.ZipFile(path)
            except (zipfile.BadZipFile, OSError, NotImplementedError, ValueError) as error:
                raise UserError(f"{path} is not a complete zip, download it again: {error}") from None
            names = self.zip.namelist()
        else:
            raise UserError(f"there is no {path}: give the folder or the zip that contains task0, task1, …")
        self.folder, self.tasks = _find(path, names)
        self.names = frozenset(names)
        self.known: dict[str, str] = {}

    def table(self, task: int, kind: str, problems: Problems) -> _Table:
        name = f"task{task}/{kind}.csv"
        try:
            return _parse(self.contents(name), name, problems, self.known)
        except ValueError as error:
            raise UserError(f"{self.path}: {name} {error}") from None

    def classes(self) -> tuple[str, ...] | None:
        """The class names in `classes.txt` next to the task folders, one per line; None if there is no such file."""
        if self.folder + "classes.txt" not in self.names:
            return None
        where = f"{self.path}: classes.txt"
        try:
            lines = self.contents("classes.txt").decode("utf-8-sig").splitlines()
            classes = tuple(class_name(line) for line in lines if line.strip())
        except UnicodeDecodeError:
            raise UserError(f"{where} is not UTF-8 text: save it as UTF-8") from None
        except ValueError as error:
            raise UserError(f"{where} has {error}") from None
        if len(set(classes)) < len(classes):
            raise UserError(f"{where} names a class twice")
        return classes

    def close(self) -> None:
        if self.zip is not None:
            self.zip.close()

    def contents(self, name: str) -> bytes:
        """The bytes of a file. `name` is relative to the parent of the task folders."""
        name, where = self.folder + name, f"{self.path}: {name}"
        try:
            if self.zip is None:
                return read_limited(self.path / name, _MAX_BYTES)
            info = self.zip.getinfo(name)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise UserError(f"{where} has an unusual compression: unpack the zip and give the folder")
            if info.file_size > _MAX_RATIO * max(info.compress_size, 1 << 10):
                raise UserError(
                    f"{where} is compressed more than {_MAX_RATIO} times: unpack the zip and give the folder"
                )
            if info.file_size > _MAX_BYTES:
                raise UserError(f"{where} has more than {_MAX_BYTES:,} bytes: this cannot be the right file")
            return self.zip.read(name)
        except OSError as error:
            raise UserError(f"{where} cannot be read: {error.strerror or error}") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
            raise UserError(f"{where} cannot be unpacked, download the zip again: {error}") from None


def _names_below(path: Path) -> list[str]:
    """The files of a split under a folder, at the first depth that has any."""
    for depth in range(_MAX_DEPTH + 1):
        found = list(path.glob("*/" * depth + "task*/t*.csv"))
        if found:
            found += path.glob("*/" * depth + "classes.txt")
            return [file.relative_to(path).as_posix() for file in found]
    return []


def _find(path: Path, names: Sequence[str]) -> tuple[str, int]:
    """The parent of the task folders (empty, or with a slash at its end), and the number of tasks."""
    found: dict[str, set[tuple[int, str]]] = {}
    for match in filter(None, map(_MEMBER.fullmatch, names)):
        parents = match[1].split("/") if match[1] else []
        if len(parents) <= _MAX_DEPTH and all(part and not part.startswith((".", "__MACOSX")) for part in parents):
            found.setdefault("".join(f"{part}/" for part in parents), set()).add((int(match[2]), match[3]))
    if not found:
        raise UserError(
            f"{path} holds no task0/train.csv: give the folder or the zip that contains task0, task1, … (your own "
            "photographs need a table, FILE.csv)"
        )
    if len(found) > 1:
        raise UserError(f"{path} contains several splits, {shorten(', '.join(sorted(found)))}: give the folder of one")
    ((folder, members),) = found.items()
    tasks = len({task for task, _ in members})
    for task in range(tasks):
        for kind in ("train", "test"):
            if (task, kind) not in members:
                raise UserError(f"{path} has no {folder}task{task}/{kind}.csv: add the file")
    return folder, tasks


def _parse(data: bytes, where: str, problems: Problems, known: dict[str, str]) -> _Table:
    """The images and labels of one file. `known` caches checked names, because test files repeat them.

    >>> _parse(b"a.jpg,0,1\\r\\nb.jpg,1,1", "task0/train.csv", Problems(), {})
    _Table(labels={'a.jpg': frozenset({1}), 'b.jpg': frozenset({0, 1})}, width=2)
    """
    text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
    first_row = _ROW.search(text)
    if first_row is None:
        raise ValueError("has no row with an image and labels: a row must look like 'a.jpg,0,1'")
    width = len(first_row[1]) // 2
    invalid = f"rows left out because they are not an image and {width} times 0 or 1"
    columns_of: dict[str, frozenset[int]] = {}
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        name, flags = line[: -2 * width], line[-2 * width :]
        if not name or not _FLAGS.fullmatch(flags):
            if line:
                problems.add(invalid, f"{where} line {number}")
            continue
        try:
            name = known.get(name) or known.setdefault(name, _checked_name(name))
        except ValueError as error:
            problems.add(invalid, f"{where} line {number}: {error}")
            continue
        if flags not in columns_of:
            columns_of[flags] = frozenset(column for column in range(width) if flags[2 * column + 1] == "1")
        rows.append((name, columns_of[flags]))
    if not rows:
        raise ValueError("has no row that can be used: a row must look like 'a.jpg,0,1'")
    return _Table(_unite(rows, where, problems), width)


def _checked_name(text: str) -> str:
    if "," in text:
        raise ValueError("too many fields")
    return safe_path(text.strip())


def _unite(rows: list[tuple[str, frozenset[int]]], where: str, problems: Problems) -> dict[str, frozenset[int]]:
    """The labels of all rows of each image."""
    first = dict(reversed(rows))
    labels: dict[str, frozenset[int]] = {}
    for name, columns in rows:
        if name not in labels:
            labels[name] = columns
            continue
        differs = "rows that give an image other labels; the labels are united"
        kind = "rows that repeat an earlier one" if columns == first[name] else differs
        problems.add(kind, f"{name} in {where} of {counted(len(rows), 'rows')}")
        labels[name] |= columns
    return labels


# From files to a stream


def _task_sizes(path: Path, train: list[_Table], test: list[_Table]) -> list[int]:
    """The number of classes of each task, by the training files. The test files must agree."""
    sizes = [table.width for table in train]
    for task, table in enumerate(test):
        expected = sum(sizes[: task + 1])
        if table.width != expected:
            raise UserError(
                f"{path}: task{task}/test.csv has {table.width} labels per row, but the training files up to "
                f"task {task} have {expected}: a test file must have the labels of all classes up to its task"
            )
    return sizes


def _merge_training(sizes: list[int], tables: list[_Table], problems: Problems) -> _Merged:
    labels: dict[str, set[int]] = {}
    for task, table in enumerate(tables):
        repeated = [f"{name} in task{task}/train.csv" for name in table.labels if name in labels]
        problems.add_all("training images that an earlier task has too", repeated)
        offset = sum(sizes[:task])
        for name, columns in table.labels.items():
            labels.setdefault(name, set()).update(offset + column for column in columns)
    row_of = {name: row for row, name in enumerate(labels)}
    rows = tuple(np.array([row_of[name] for name in table.labels], np.int64) for table in tables)
    return _Merged(list(labels), Labels.from_lists(labels.values(), sum(sizes)), rows)


def _merge_test(sizes: list[int], tables: list[_Table], problems: Problems) -> _Merged:
    """Each test image belongs to the first file that has it, and has the labels of the last file that has it."""
    labels: dict[str, frozenset[int]] = {}
    before: dict[str, frozenset[int]] = {}
    rows = []
    for task, (now, _) in enumerate(tables):
        gone = [f"{name} in task{task}/test.csv" for name in before if name not in now]
        problems.add_all("test images that a later test file does not have", gone)
        old = sum(sizes[:task])
        both = [name for name in labels if name in before and name in now]
        changed = [name for name in both if before[name] != {column for column in now[name] if column < old}]
        kind = "test images whose labels differ in a later test file; the later labels are used"
        problems.add_all(kind, [f"{name} in task{task}/test.csv" for name in changed])
        seen = len(labels)
        labels |= now
        rows.append(np.arange(seen, len(labels)))
        before = now
    return _Merged(list(labels), Labels.from_lists(labels.values(), sum(sizes)), tuple(rows))


def _classes(
    path: Path, class_names: tuple[str, ...] | None, sizes: list[int], images: list[str], problems: Problems
) -> tuple[tuple[str, ...], str]:
    """The class names, and the data set they belong to: from `classes.txt`, else from the paper, else by number."""
    for dataset, pattern in (("coco", _COCO_NAME), ("nus-wide", _NUMBER)):
        tasks = paper.TASKS[dataset]
        classes = tuple(name for task in tasks for name in task)
        same_sizes = sizes == [len(task) for task in tasks]
        if same_sizes and class_names in (None, classes) and all(map(pattern.fullmatch, images)):
            return classes, dataset
    if class_names is None:
        kind = "classes have no name: put a classes.txt (one name per line, in the order of the columns) next to task0"
        problems.add(kind, count=sum(sizes))
        return tuple(f"class {number + 1}" for number in range(sum(sizes))), ""
    if len(class_names) != sum(sizes):
        raise UserError(
            f"{path}: classes.txt names {counted(len(class_names), 'classes')}, but the files have {sum(sizes)} "
            "columns: write one name per column"
        )
    return class_names, ""


def _report(classes: tuple[str, ...], training: _Merged, testing: _Merged, problems: Problems) -> None:
    """Report images without labels, images of both splits, and classes without a training image."""
    for merged, kind in ((training, "training images"), (testing, "test images")):
        problems.add_all(f"{kind} without any label", merged.names, merged.labels.per_image() == 0)
    trained = set(training.names)
    problems.add_all("images that are in both training and test", [n for n in testing.names if n in trained])
    problems.add_all("classes without a training image", classes, training.labels.counts() == 0)


# Labels and file names of the data set


def _find_images(root: Path | None, train: Sequence[str], test: Sequence[str], extra: _Extra) -> list[FileImages]:
    """The training and the test photographs. Without a list of NUS-WIDE, number 137 is the file 137.jpg."""
    named = ([f"{name}.jpg" if _NUMBER.fullmatch(name) else name for name in names] for names in (train, test))
    return [find_images(root, Names(names)) for names in extra.files or named]


def _from_coco(root: Path, classes: tuple[str, ...], training: _Merged, _: _Merged, problems: Problems) -> _Extra:
    found = coco.labels_by_name(root, classes)
    if found is None:
        return _Extra()
    labels_of = {name: found.get(name, found.get(coco.number(name))) for name in training.names}
    missing = [name for name, labels in labels_of.items() if labels is None]
    problems.add_all("training images that COCO's annotations do not have; no labels are completed", missing)
    if missing:
        return _Extra()
    return _Extra(Labels.from_lists((labels or () for labels in labels_of.values()), len(classes)))


def _from_nus_wide(
    root: Path, classes: tuple[str, ...], training: _Merged | Split, testing: _Merged | Split, problems: Problems
) -> _Extra:
    """Numbers are positions in NUS-WIDE's list of images. Its labels decide whether they count from 0 or from 1."""
    listed = nus_wide.image_list(root)
    if listed is None:
        return _Extra()
    train, test = (np.array([int(name) for name in split.names]) for split in (training, testing))
    low, high = min(train.min(), test.min()), max(train.max(), test.max())
    bases = [base for base in (0, 1) if base <= low and high < len(listed) + base]
    if not bases:
        problems.add("NUS-WIDE list that is too short for the numbers of the split", counted(len(listed), "images"))
        return _Extra()
    base, labels, rules = bases[0], None, {}
    truth = nus_wide.all_labels(root, classes)
    if truth is None:
        problems.add("NUS-WIDE list without labels to check it; numbers are counted from 0", str(root))
    else:
        agreements = {base: _agreement(testing.labels, truth.take(test - base)) for base in bases}
        base = max(bases, key=lambda base: agreements[base].max(axis=1).mean())
        best = float(agreements[base].max(axis=1).mean())
        if best < _MIN_AGREEMENT:
            problems.add("NUS-WIDE list that does not fit the numbers of the split", f"labels agree to {best:.1%}")
            return _Extra()
        misfits = _misfits(classes, agreements[base], problems)
        rules = {"agreement": round(float(agreements[base].trace()) / len(classes), 4), "misfits": misfits}
        labels = None if misfits else truth.take(train - base)
    files = [listed[row] for row in (train - base).tolist()], [listed[row] for row in (test - base).tolist()]
    return _Extra(labels, files, {"numbers_from": base, **rules})


def _agreement(a: Labels, b: Labels) -> np.ndarray:
    """For each class of `a` and each class of `b`: images with both over images with either (the Jaccard index).

    >>> _agreement(Labels.from_lists([[0], [0, 1]], 2), Labels.from_lists([[1], [0, 1]], 2)).tolist()
    [[0.5, 1.0], [1.0, 0.5]]
    """
    both = np.zeros((a.classes, b.classes))
    step = _CELLS // a.classes + 1
    for start in range(0, len(a), step):
        rows = np.arange(start, min(start + step, len(a)))
        both += a.take(rows).dense().T.astype(np.float32) @ b.take(rows).dense().astype(np.float32)
    return both / np.maximum(a.counts()[:, None] + b.counts()[None, :] - both, 1)


def _misfits(classes: tuple[str, ...], agreement: np.ndarray, problems: Problems) -> list[str]:
    """The classes that agree better with another concept than with the concept of the same name."""
    found = []
    for column, best in enumerate(agreement.argmax(axis=1)):
        own, highest = agreement[column, column], agreement[column, best]
        if highest > own:
            found.append(f"{classes[column]} ({own:.1%} alike) is more like {classes[best]} ({highest:.1%})")
            problems.add(
                "classes that agree better with another concept of NUS-WIDE; no labels are completed", found[-1]
            )
        elif own < 1:
            problems.add("classes whose labels differ a little from NUS-WIDE's", f"{classes[column]} ({own:.1%} alike)")
    return found


def _complete(tasks: tuple[Task, ...], training: _Merged, full: Labels, problems: Problems) -> Labels:
    """Complete labels. For the classes of an image's own tasks, the labels in the files of the split are used."""
    own = np.concatenate([rows * len(tasks) + task for task, rows in enumerate(training.rows)])
    in_own_task = np.isin(full.row() * len(tasks) + task_of_class(tasks)[full.column], own)
    keys, visible = full.keys(), training.labels.keys()
    for image in np.unique(np.setxor1d(keys[in_own_task], visible) // full.classes):
        kind = "training images that the data set labels differently; the labels of the split are used"
        problems.add(kind, training.names[image])
    return Labels.from_keys(np.append(keys[~in_own_task], visible), len(full), full.classes)
