"""COCOseq and NUS-WIDEseq, the benchmarks of PRS (Kim, Jeong, Kim, ECCV 2020), from its published lists of image ids.

The lists name the images of each task. Labels and images are those of COCO or NUS-WIDE. See docs/streams/prs.md for the
files, and for what the lists leave open.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.shards import find_images, folder_of
from lifelabel.images.source import Names, Problems
from lifelabel.streams import coco, nus_wide
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.label_files import parse_json
from lifelabel.streams.labels import Labels
from lifelabel.streams.protocols import make_proxy
from lifelabel.streams.stream import LABELS, Split, Stream, Task, classes_to_tasks, true_matrix
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import shorten

TESTS = {"balanced": "test", "original": "teorg"}
"""The test sets of the release, and how the names of their lists begin."""
_MINOR_BELOW, _MAJOR_ABOVE = 200, 900
"""Numbers of training images of a class: below the first it is minor, above the second major."""
_MAX_BYTES = 64 << 20
"""The largest list of the release has less than 1 MB."""
_OTHER_FORMATS = (".pkl", ".pickle", ".npy", ".npz", ".pt", ".hdf5")


@dataclass(frozen=True)
class _Release:
    """The names of the files of one benchmark, and the order of its tasks in the experiments of the release."""

    stream: str
    folder: str
    suffix: str
    groups: str
    order: tuple[int, ...]


_RELEASES = {
    "coco": _Release("cocoseq", "COCOseq", "coco", "", (0, 3, 1, 2)),
    "nus-wide": _Release("nuswideseq", "NUSWIDEseq", "nuswide", "_nuswide", (3, 1, 0, 5, 4, 2)),
}


_RowsOfIds = tuple[Mapping[int, int], Mapping[int, int]]
"""The row of each id of a list in the training and in the test pool of a data set."""


def read(root: Path, folder: Path, dataset: str, test: str = "balanced", labels: str = LABELS[0]) -> Stream:
    """The stream of the lists in `folder`, with the labels and images of the data set "coco" or "nus-wide" in `root`.

    `test` chooses the test set: the balanced one, or the one with the original distribution of the data set.
    """
    release, problems = _RELEASES[dataset], Problems()
    lists = _Lists(folder, release)
    names, train, tested = lists.classes(), lists.by_task("train"), lists.by_task(TESTS[test])
    if len(train) != len(tested):
        raise UserError(f"{folder} has lists of {len(train)} training tasks and of {len(tested)} test tasks: add them")
    found, (train_row, test_row) = (_coco if dataset == "coco" else _nus_wide)(root)
    order = release.order if len(release.order) == len(train) else tuple(range(len(train)))
    pools = [
        _listed(found.train, train_row, [train[task] for task in order], "training", found.name, problems),
        _listed(found.test, test_row, [tested[task] for task in order], "test", found.name, problems),
    ]
    plan = _plan(pools[0], _columns(names, found, problems), found, order, problems)
    columns = [column for of_task in plan for column in of_task]
    tasks = classes_to_tasks(tuple(found.classes[column] for column in columns), [len(of_task) for of_task in plan])
    split, test_split = (_split(found.root, pool, columns, len(tasks)) for pool in pools)
    _report([split, test_split], tasks, problems)
    groups = lists.groups(tasks, split.labels.counts(), problems)
    rules: dict[str, Any] = {"source": "lists of PRS", "protocol": "disjoint", "files": list(order), "test": test}
    rules |= {"labels": labels} if labels != LABELS[0] else {}
    truth = true_matrix(split.labels)
    stream = Stream(
        release.stream, tasks, split, test_split, truth, rules, dataset, problems=problems, labels=labels, groups=groups
    )
    return dataclasses.replace(stream, proxy=functools.partial(make_proxy, stream, found))


# Lists


class _Lists:
    """The JSON files of the release: in one folder, in the folders of its data set, or in a clone of its repository."""

    def __init__(self, folder: Path, release: _Release):
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}: give the folder of the lists of PRS, stream.lists=DIR")
        self.folder, self.release = folder, release
        parts = ("", "ids", "resources", "code/resources", f"dataset/data_source/{release.folder}")
        self.folders = [folder / part for part in (*parts, f"{parts[-1]}/ids")]

    def find(self, name: str) -> Path | None:
        return next((path for each in self.folders if (path := each / name).is_file()), None)

    def load(self, name: str, fits: Callable[[Any], bool], what: str) -> Any:
        """The content of a file. Raises `UserError` if there is none, or if the content does not fit."""
        path = self.find(name)
        others = filter(None, (self.find(name.removesuffix(".json") + end) for end in _OTHER_FORMATS))
        if path is None and (other := next(others, None)):
            raise UserError(f"{other} is not read: lists must be JSON, a list of ids in {name}, as PRS publishes them")
        if path is None:
            raise UserError(
                f"{self.folder} has no {name}: give the folder of PRS's lists, dataset/data_source/"
                f"{self.release.folder} of its repository (cdjkim/PRS)"
            )
        value = parse_json(read_limited(path, _MAX_BYTES), path)
        if not fits(value):
            raise UserError(f"{path} must hold {what}, not {shorten(value)}")
        return value

    def by_task(self, kind: str) -> list[list[int]]:
        """The ids of each task, in the order of the numbers in the names of the files."""
        name = f"{kind}_task{{}}_id_{self.release.suffix}.json"
        found: list[list[int]] = []
        while self.find(name.format(len(found))) or not found:
            found.append(self.load(name.format(len(found)), _are_ids, "a list of image ids, [139, 285, …]"))
        return found

    def classes(self) -> list[str]:
        """The names of all classes, by their numbers."""
        found = self.load("multihot_map.json", _is_map, "the number of each class, {'airplane': 0, …}")
        return sorted(found, key=found.__getitem__)

    def groups(self, tasks: Sequence[Task], counts: np.ndarray, problems: Problems) -> dict[str, tuple[str, ...]]:
        """Major, moderate and minor classes: those of the release, else by their numbers of training images."""
        classes = [name for task in tasks for name in task.classes]
        files = {group: f"{group}_cats{self.release.groups}.json" for group in ("major", "moderate", "minor")}
        missing = [name for name in files.values() if not self.find(name)]
        if missing:
            limits = f"more than {_MAJOR_ABOVE}, at least {_MINOR_BELOW}, fewer"
            if len(missing) < len(files):
                problems.add(f"lists of groups missing; groups are by number of training images ({limits})", missing[0])
            group_of = np.where(counts > _MAJOR_ABOVE, "major", np.where(counts < _MINOR_BELOW, "minor", "moderate"))
            listed = {group: [n for n, g in zip(classes, group_of, strict=True) if g == group] for group in files}
        else:
            listed = {g: self.load(name, _are_names, "a list of class names") for g, name in files.items()}
        groups = {group: tuple(name for name in classes if name in {*names}) for group, names in listed.items()}
        grouped = Counter(name for names in groups.values() for name in names)
        problems.add_all("classes in several groups of the lists", [name for name in classes if grouped[name] > 1])
        problems.add_all("classes in no group of the lists", [name for name in classes if name not in grouped])
        return {group: names for group, names in groups.items() if names}


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 1 << 53 for each in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_map(value: Any) -> bool:
    numbers = list(value.values()) if isinstance(value, dict) else []
    return all(type(each) is int for each in numbers) and bool(numbers) and sorted(numbers) == [*range(len(numbers))]


# Data sets


def _coco(root: Path) -> tuple[Collection, _RowsOfIds]:
    """An id is the number of an image in either split of COCO."""
    found = coco.read(folder_of(root))
    both = _joined(found.train, found.test)
    row_of = {int(digits): row for row, name in enumerate(both.names) if (digits := coco.number(name)).isdecimal()}
    return dataclasses.replace(found, root=root, train=both, test=both), (row_of, row_of)


def _joined(one: Pool, other: Pool) -> Pool:
    start = np.concatenate([one.labels.start, one.labels.start[-1] + other.labels.start[1:]])
    column = np.concatenate([one.labels.column, other.labels.column])
    return Pool(Names([*one.names, *other.names]), Labels(start, column, one.labels.classes))


def _nus_wide(root: Path) -> tuple[Collection, _RowsOfIds]:
    """An id is a place in TrainImagelist.txt or TestImagelist.txt of NUS-WIDE, from 0."""
    found = nus_wide.read(folder_of(root))
    rows = []
    for names, pool in zip(nus_wide.official_lists(folder_of(root)), (found.train, found.test), strict=True):
        row_of = {name: row for row, name in enumerate(pool.names)}
        rows.append({place: row_of[name] for place, name in enumerate(names) if name in row_of})
    return dataclasses.replace(found, root=root), (rows[0], rows[1])


# From lists to a stream


def _listed(
    pool: Pool, row_of: Mapping[int, int], ids: Sequence[Sequence[int]], kind: str, dataset: str, problems: Problems
) -> Pool:
    """The listed images of a pool with their tasks, task by task. An image belongs to the first task that lists it."""
    task_of: dict[int, int] = {}
    for task, of_task in enumerate(ids):
        for each in of_task:
            row = row_of.get(each)
            if row is None:
                problems.add(f"ids of {kind} images that {dataset} does not have", str(each))
            elif row in task_of:
                problems.add(f"{kind} images that are listed twice; the first task has them", pool.names[row])
            else:
                task_of[row] = task
    rows = np.array(list(task_of), np.int64)
    return Pool(pool.names.take(rows), pool.labels.take(rows), np.array(list(task_of.values()), np.int64))


def _columns(names: Sequence[str], found: Collection, problems: Problems) -> list[int]:
    """The columns of the named classes. Those that the data set does not have are reported."""
    column_of = {name: column for column, name in enumerate(found.classes)}
    problems.add_all(f"classes that {found.name} does not have", [name for name in names if name not in column_of])
    return [column_of[name] for name in names if name in column_of]


def _plan(
    train: Pool, columns: Sequence[int], found: Collection, order: Sequence[int], problems: Problems
) -> list[list[int]]:
    """The columns of the classes of each task: a class belongs to the task whose training images show it most often."""
    labels, tasks = train.labels.select_classes(columns), len(order)
    assert train.task is not None
    entries = train.task[labels.row()]
    counts = np.bincount(entries * len(columns) + labels.column, minlength=tasks * len(columns)).reshape(tasks, -1)
    owner, shown = counts.argmax(0), counts.sum(0) > 0
    names = [found.classes[column] for column in columns]
    problems.add_all("classes left out because no training image shows them", names, ~shown)
    others = np.unique(labels.row()[owner[labels.column] != entries])
    problems.add_all("training images with a class of another task, which is hidden", train.names.take(others))
    plan = [[columns[k] for k in np.flatnonzero(shown & (owner == task)).tolist()] for task in range(tasks)]
    if not all(plan):
        raise UserError(
            f"task {order[plan.index([])]} of the lists has no class: no training image of it in {found.root} shows one"
            f"{problems.brief()}"
        )
    return plan


def _split(root: Path, pool: Pool, columns: Sequence[int], tasks: int) -> Split:
    assert pool.task is not None
    rows = tuple(np.flatnonzero(pool.task == task) for task in range(tasks))
    return Split(find_images(root, pool.names), pool.names, pool.labels.select_classes(columns), rows)


def _report(splits: Sequence[Split], tasks: Sequence[Task], problems: Problems) -> None:
    """Report images without a label, classes without a test image, and images of both splits."""
    train, test = splits
    for task, rows in zip(tasks, train.rows, strict=True):
        none = train.labels.take(rows).within(task.columns).per_image() == 0
        problems.add_all("training images without a label of their task", train.names.take(rows), none)
    problems.add_all("test images without a label of the stream", test.names, test.labels.per_image() == 0)
    classes = [name for task in tasks for name in task.classes]
    problems.add_all("classes without a test image", classes, test.labels.counts() == 0)
    trained = set(train.names)
    problems.add_all("images that are in both training and test", [name for name in test.names if name in trained])
    if not len(test):
        raise UserError(f"no test image of the lists is in the data set{problems.brief()}")
