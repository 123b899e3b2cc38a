"""From a collection to a stream: which classes, in which order, cut into which tasks, and the task of every image.

See docs/streams/protocols.md for the two protocols and the numbered algorithm behind `allot`.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, short, unknown
from lifelabel.options import option
from lifelabel.streams import paper
from lifelabel.streams.balance import allot
from lifelabel.streams.base import (
    Labels,
    Names,
    Problems,
    Split,
    Stream,
    Task,
    cut_classes,
    split_classes,
    task_of_class,
    true_matrix,
)
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.files import FileImages

ORDERS = ("source", "paper", "alphabetical", "frequency", "shuffled")
MAX_ORDER_BYTES = 10_000_000


@dataclass(frozen=True)
class ProtocolOptions:
    protocol: str = option(
        "disjoint",
        "an image trains one task, or every task that owns one of its labels",
        choices=("disjoint", "overlap"),
    )
    order: str = option(
        "source",
        f"classes in the order {', '.join(ORDERS)}, or of a text file with a class a line, where blank lines cut tasks",
    )
    top: int | None = option(None, "keep only so many classes, those with most training images", low=1)
    tasks: int | None = option(
        None, "cut the classes into so many equal tasks; none: as order, step or a task column says, else 5 to 9", low=1
    )
    base: int | None = option(None, "classes of the first task (Bx-Cy), with stream.step; 0: as every other", low=0)
    step: int | None = option(None, "classes that every task adds (after the first, where stream.base is given)", low=1)
    seed: int = option(0, "shuffled order, and which of the images that fit several tasks goes where", low=0)


def sizes(count: int, tasks: int | None = None, base: int | None = None, step: int | None = None) -> list[int]:
    """How many classes each task has: equal `tasks`, or `base` and then `step` each; the last one takes the rest.

    >>> sizes(20, base=10, step=2), sizes(20, base=0, step=4), sizes(20, base=10, step=3), sizes(5, tasks=2)
    ([10, 2, 2, 2, 2, 2], [4, 4, 4, 4, 4], [10, 3, 3, 3, 1], [3, 2])
    """
    if tasks is not None:
        if base is not None or step is not None:
            other = f"stream.base={base}" if step is None else f"stream.step={step}"
            raise UserError(f"stream.tasks={tasks} contradicts {other}: give one, not both (NAME=none takes one out)")
        if tasks > count:
            raise UserError(f"{count} classes cannot be cut into {tasks} tasks: lower stream.tasks")
        return [len(task.classes) for task in split_classes(("",) * count, tasks)]
    if step is None:
        if base is not None:
            raise UserError(f"stream.base={base} needs stream.step: how many classes each later task adds")
        raise UserError(f"say how to cut {count} classes into tasks: stream.tasks=N, or stream.step=N classes a task")
    if base is not None and base > count:
        raise UserError(f"stream.base={base} is more than the {count} classes there are: lower it")
    first = [base] if base else []
    later = count - sum(first)
    return first + [min(step, later - done) for done in range(0, later, step)]


def make_stream(
    collection: Collection, options: ProtocolOptions, name: str, dataset: str = "", tasks_else: int | None = None
) -> Stream:
    """The stream that a protocol makes of a collection; `dataset` says whose classes these are.

    Where neither options nor collection say how classes are cut, there are `tasks_else` tasks (or as many as classes).
    """
    problems = copy.deepcopy(collection.problems)
    plan = _plan(collection, options, dataset, problems, tasks_else)
    classes = tuple(collection.classes[column] for columns in plan for column in columns)
    tasks = cut_classes(classes, [len(columns) for columns in plan])
    columns = [column for columns in plan for column in columns]
    splits = []
    for kind, pool in (("training", collection.train), ("test", collection.test)):
        labels = pool.labels.choose(columns)
        shown = _tasks_shown(labels, tasks)
        _report(problems, f"{kind} images without a label of the stream", pool.names, shown.per_image() == 0)
        rows, task = _allotted(kind, pool, shown, options, problems)
        splits.append(_split(collection.root, pool.names, labels, rows, task, len(tasks)))
    train, test = splits
    _check(train, test, tasks, collection.name, problems)
    complete = len(tasks) == 1 or not _given(collection) or _shows_hidden(train, tasks)
    train = dataclasses.replace(train, complete=complete)
    truth = true_matrix(train.labels) if complete else None
    rules = _rules(collection, options, len(tasks))
    return Stream(name, tasks, train, test, truth, rules, dataset, problems=problems)


def special_and_mixed(stream: Stream) -> list[tuple[int, int]]:
    """Training images of each task whose labels are all of that task, and those that show others too (A.2).

    Empty where complete labels are not known.
    """
    split, found = stream.train, []
    for task, rows in zip(stream.tasks, split.rows, strict=True):
        labels = split.labels.take(rows)
        special = np.count_nonzero(labels.per_image() == labels.within(task.columns).per_image())
        found.append((int(special), len(rows) - int(special)))
    return found if split.complete else []


# Classes and tasks


def _plan(
    collection: Collection, options: ProtocolOptions, dataset: str, problems: Problems, tasks_else: int | None
) -> list[list[int]]:
    """The columns of the collection that each task takes."""
    columns, cut = _ordered(collection, options, dataset, problems)
    if cut is not None:
        _agree(options, cut)
        return _present(cut, collection, problems)
    if options.top is not None:
        if options.top > len(columns):
            raise UserError(f"stream.top={options.top} is more than the {len(columns)} classes there are: lower it")
        kept = set(_most_frequent(collection, columns)[: options.top])
        columns = [column for column in columns if column in kept]
    if _given(collection):
        plan = _inferred(collection, columns, problems)
        _agree(options, [[collection.classes[column] for column in task] for task in plan], top=options.top)
        return plan
    asked = options.tasks, options.base, options.step
    if asked == (None, None, None) and tasks_else is not None:
        asked = min(tasks_else, len(columns)), None, None
    counts = sizes(len(columns), *asked)
    ends = np.cumsum(counts).tolist()
    plan = [columns[end - size : end] for end, size in zip(ends, counts, strict=True)]
    if options.step is not None and len(plan) > 1 and counts[-1] < options.step:
        rest = ", ".join(collection.classes[column] for column in plan[-1])
        problems.add(f"classes left for the last task, where stream.step={options.step}", rest, counts[-1])
    return plan


def _ordered(
    collection: Collection, options: ProtocolOptions, dataset: str, problems: Problems
) -> tuple[list[int], Sequence[Sequence[str]] | None]:
    """All columns in the order asked for; or, where that order also fixes tasks, the class names of each."""
    order, classes = options.order, collection.classes
    columns = list(range(len(classes)))
    if order == "source":
        return columns, None
    if order == "alphabetical":
        return sorted(columns, key=classes.__getitem__), None
    if order == "frequency":
        return _most_frequent(collection, columns), None
    if order == "shuffled":
        drawn = _draws(f"{options.seed} classes", classes)
        return sorted(columns, key=lambda column: (drawn[column], classes[column])), None
    if order == "paper":
        if dataset not in paper.TASKS:
            known = " and ".join(paper.TASKS)
            raise UserError(f"stream.order=paper is there for {known} alone: choose another order")
        _compare(collection, paper.TASKS[dataset], problems)
        return [], paper.TASKS[dataset]
    tasks = read_order(Path(order), classes)
    named = [name for task in tasks for name in task]
    left_out = sorted(set(classes) - set(named))
    _report(problems, f"classes left out by {Path(order).name}", left_out)
    if len(tasks) > 1:
        return [], tasks
    column_of = {name: column for column, name in enumerate(classes)}
    return [column_of[name] for name in named], None


def read_order(path: Path, classes: Sequence[str]) -> list[list[str]]:
    """The class names in a file, a line each; blank lines cut tasks."""
    try:
        if not path.is_file():
            raise UserError(f"stream.order='{short(str(path))}' is neither one of {', '.join(ORDERS)} nor a file")
        if path.stat().st_size > MAX_ORDER_BYTES:
            raise UserError(f"{path} is larger than {MAX_ORDER_BYTES:,} bytes: not a list of classes")
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: save it as UTF-8, a class a line") from None
    except OSError as error:
        raise UserError(f"cannot read the class order {path}: {error.strerror}") from None
    known, seen = set(classes), dict[str, int]()
    tasks: list[list[str]] = [[]]
    for number, line in enumerate(lines, start=1):
        name = line.strip()
        name = name if name in known else unicodedata.normalize("NFC", name)  # as a table's names are
        if not name:
            tasks.append([])
            continue
        if name not in known:
            raise unknown(f"class in {path}, line {number}:", name, classes)
        if name in seen:
            raise UserError(f"{path}, line {number}: '{short(name)}' is named twice, first in line {seen[name]}")
        seen[name] = number
        tasks[-1].append(name)
    if not seen:
        raise UserError(f"{path} names no class: give a class a line")
    return [task for task in tasks if task]


def _most_frequent(collection: Collection, columns: Sequence[int]) -> list[int]:
    """By the number of training images, the most first; equals in the order given."""
    counts = collection.train.labels.counts()
    return sorted(columns, key=lambda column: -counts[column])


def _compare(collection: Collection, tasks: Sequence[Sequence[str]], problems: Problems) -> None:
    """The paper took the most frequent classes: say where this collection disagrees."""
    named = [name for task in tasks for name in task]
    frequent = [collection.classes[k] for k in _most_frequent(collection, range(len(collection.classes)))[: len(named)]]
    most = f"the {len(named)} most frequent"
    known = set(collection.classes)
    rare = [name for name in named if name in known and name not in frequent]
    _report(problems, f"classes of the paper that are not among {most}", rare)
    _report(problems, f"classes among {most} that the paper does not have", [n for n in frequent if n not in named])


def _present(cut: Sequence[Sequence[str]], collection: Collection, problems: Problems) -> list[list[int]]:
    """The columns of named classes; those that the collection lacks are left out."""
    column_of = {name: column for column, name in enumerate(collection.classes)}
    lacking = [name for task in cut for name in task if name not in column_of]
    _report(problems, f"classes that {collection.name} lacks", lacking)
    plan = [[column_of[name] for name in task if name in column_of] for task in cut]
    if not all(plan):
        task = plan.index([])
        raise UserError(
            f"{collection.name} has no class of task {task + 1} ({_listed(cut[task])}): choose another order"
        )
    return plan


def _agree(options: ProtocolOptions, cut: Sequence[Sequence[str]], top: int | None = None) -> None:
    """Refuse options that contradict classes and tasks which are fixed already."""
    alike = {len(task) for task in cut}
    fixed = {
        "top": top if top is not None else sum(map(len, cut)),
        "tasks": len(cut),
        "base": 0 if len(alike) == 1 else None,
        "step": alike.pop() if len(alike) == 1 else None,
    }
    for field, value in fixed.items():
        asked = getattr(options, field)
        if asked not in (None, value):
            what = (
                "the task column" if options.order in ORDERS and options.order != "paper" else f"order {options.order}"
            )
            raise UserError(f"stream.{field}={asked} contradicts {what}, which fixes {len(cut)} tasks: leave it out")


def _given(collection: Collection) -> bool:
    """Whether the source itself says which task training images belong to."""
    return collection.train.task is not None and bool((collection.train.task >= 0).any())


def _inferred(collection: Collection, columns: Sequence[int], problems: Problems) -> list[list[int]]:
    """The tasks of classes where images say theirs: a class belongs to the one task whose images show it."""
    task, labels = collection.train.task, collection.train.labels
    assert task is not None
    tasks, entries = int(task.max()) + 1, task[labels.row()]
    shown = labels.column.astype(np.int64) * tasks + entries
    column, owner = np.divmod(np.unique(shown[entries >= 0]), tasks)
    several = np.bincount(column, minlength=labels.classes) > 1
    clash = [chosen for chosen in columns if several[chosen]]
    if clash:
        numbers = ", ".join(str(t + 1) for t in owner[column == clash[0]].tolist())
        more = f" (and {len(clash) - 1:,} more classes)" if len(clash) > 1 else ""
        raise UserError(
            f"images of tasks {short(numbers)} show '{short(collection.classes[clash[0]])}'{more}: say whose class "
            "it is in a text file with a class a line and a blank line between tasks (stream.order=FILE)"
        )
    owner_of = dict(zip(column.tolist(), owner.tolist(), strict=True))
    ownerless = [collection.classes[column] for column in columns if column not in owner_of]
    _report(problems, "classes left out, as no training image with a task shows them", ownerless)
    plan: list[list[int]] = [[] for _ in range(tasks)]
    for chosen in columns:
        if chosen in owner_of:
            plan[owner_of[chosen]].append(chosen)
    if not all(plan):
        raise UserError(
            f"no training image of task {plan.index([]) + 1} shows a class of the stream: leave the task out"
        )
    return plan


# Images


def _tasks_shown(labels: Labels, tasks: Sequence[Task]) -> Labels:
    """Images x tasks: which tasks own a label of each image."""
    owner = task_of_class(tasks)[labels.column]
    return Labels.of_keys(labels.row() * len(tasks) + owner, len(labels), len(tasks))


def _allotted(
    kind: str, pool: Pool, shown: Labels, options: ProtocolOptions, problems: Problems
) -> tuple[np.ndarray, np.ndarray]:
    """Which image belongs to which task, as pairs of image and task."""
    given = np.full(len(shown), -1) if pool.task is None else pool.task
    owned = shown.row(), shown.column.astype(np.int64)
    fixed = (given >= 0) & (shown.per_image() > 0)
    if kind == "training":
        # A test image keeps its task whatever it shows: cumulative lists name it where it is scored first.
        owns = np.zeros(len(shown), bool)
        owns[owned[0][owned[1] == given[owned[0]]]] = True
        _report(problems, "training images whose task owns none of their labels", pool.names, fixed & ~owns)
        fixed &= owns
    else:
        _report(problems, "test images of a task that the stream lacks", pool.names, fixed & (given >= shown.classes))
        fixed &= given < shown.classes
    rows, task = np.flatnonzero(fixed), given[fixed]
    free = np.flatnonzero((given < 0) & (shown.per_image() > 0))
    if options.protocol == "overlap" and kind == "training":
        mine = np.isin(owned[0], free)
        return np.concatenate([rows, owned[0][mine]]), np.concatenate([task, owned[1][mine]])
    if options.protocol == "overlap":
        placed = shown.column[shown.start[free]].astype(np.int64)
    else:
        draws = _draws(f"{options.seed} {kind}", (pool.names[row] for row in free.tolist()))
        placed = allot(shown.take(free), draws, np.bincount(task, minlength=shown.classes))
    return np.concatenate([rows, free]), np.concatenate([task, placed])


def _split(root: Path, names: Names, labels: Labels, rows: np.ndarray, task: np.ndarray, tasks: int) -> Split:
    """The images that belong to a task, by the first one and by name: the order in which a manifest names them."""
    first = np.full(len(names), tasks)
    np.minimum.at(first, rows, task)
    texts = list(names)
    by_name = np.array(sorted(np.flatnonzero(first < tasks).tolist(), key=texts.__getitem__), np.int64)
    kept = by_name[np.argsort(first[by_name], kind="stable")]
    place = np.empty(len(names), np.int64)
    place[kept] = np.arange(len(kept))
    chosen = Names(texts[row] for row in kept.tolist())
    by_task = tuple(np.sort(place[rows[task == index]]) for index in range(tasks))
    return Split(FileImages(root, chosen), chosen, labels.take(kept), by_task)


def _check(train: Split, test: Split, tasks: Sequence[Task], source: str, problems: Problems) -> None:
    """Refuse a task that nothing can be learnt from, or no test; report classes and tasks that lack images."""
    for task, rows in zip(tasks, train.rows, strict=True):
        if not len(rows):
            raise UserError(
                f"task {task.index + 1} ({_listed(task.classes)}) has no training image in {source}: "
                f"choose other classes or cut fewer tasks{problems.brief()}"
            )
        shown = train.labels.take(rows).counts()[task.columns]
        _report(problems, "classes that no training image of their task shows", task.classes, shown == 0)
    classes = [name for task in tasks for name in task.classes]
    if not len(test):
        what = f"no test image of {source} shows a class of the stream"
        raise UserError(f"{what}: choose other classes or another split{problems.brief()}")
    _report(problems, "classes without a test image", classes, test.labels.counts() == 0)
    _report(problems, "tasks without a test image", [str(t.index + 1) for t in tasks if not len(test.rows[t.index])])


def _shows_hidden(split: Split, tasks: Sequence[Task]) -> bool:
    """Whether any image shows a label outside its tasks: where tasks are given, a sign that labels are complete."""
    visible = sum(
        int(split.labels.take(rows).within(task.columns).start[-1])
        for task, rows in zip(tasks, split.rows, strict=True)
    )
    return visible < len(split.labels.column)


def _rules(collection: Collection, options: ProtocolOptions, tasks: int) -> dict[str, Any]:
    order = options.order if options.order in ORDERS else f"file {Path(options.order).name}"
    asked: dict[str, Any] = {name: getattr(options, name) for name in ("top", "tasks", "base", "step")}
    if _given(collection):
        asked["tasks"] = "given by the source"
    elif options.base is None and options.step is None:
        asked["tasks"] = tasks
    rules = {"source": collection.name, "protocol": options.protocol, "order": order, **asked, "seed": options.seed}
    return {name: value for name, value in rules.items() if value is not None}


def _draws(salt: str, names: Iterable[str]) -> np.ndarray:
    """A number for each name that nothing but the salt and the name decides, on every machine."""
    salted = hashlib.blake2b(salt.encode() + b"\n", digest_size=8)
    digests = bytearray()
    for name in names:
        one = salted.copy()
        one.update(name.encode("utf-8", "surrogateescape"))
        digests += one.digest()
    return np.frombuffer(bytes(digests), ">u8").astype(np.uint64)


def _report(problems: Problems, kind: str, names: Sequence[str], which: np.ndarray | None = None) -> None:
    """Add all names, or those that `which` marks, under one kind."""
    places = np.flatnonzero(which) if which is not None else np.arange(len(names))
    for place in places[: Problems.SHOWN].tolist():
        problems.add(kind, names[place])
    if len(places) > Problems.SHOWN:
        problems.add(kind, count=len(places) - Problems.SHOWN)


def _listed(names: Sequence[str]) -> str:
    return short(", ".join(names))
