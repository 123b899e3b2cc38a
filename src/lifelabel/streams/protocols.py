"""Protocols: they make a stream from a collection. docs/streams/protocols.md describes them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import unicodedata
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, unknown
from lifelabel.images.shards import find_images
from lifelabel.images.source import Names, Problems, name_draws
from lifelabel.options import option
from lifelabel.streams import paper
from lifelabel.streams.balance import assign_tasks
from lifelabel.streams.blurry import BLURRY_HELP
from lifelabel.streams.collection import Collection, Pool
from lifelabel.streams.labels import Labels, Unknown
from lifelabel.streams.stream import (
    GIVEN_TASKS,
    LABELS,
    LABELS_HELP,
    Split,
    Stream,
    Task,
    classes_to_tasks,
    equal_sizes,
    owners,
    proxy_sizes,
    task_of_class,
    true_matrix,
)
from lifelabel.utils.files import open_regular
from lifelabel.utils.text import counted, shorten, task_text

_NEGATIVES = (
    "training images without a label of their task, used as negative examples (stream.negatives=false leaves them out)"
)
_ORDERS = ("source", "paper", "alphabetical", "frequency", "shuffled")
_MAX_ORDER_BYTES = 10_000_000


@dataclass(frozen=True)
class ProtocolOptions:
    """The options of a protocol. Sources of photographs add their own."""

    protocol: str = option(
        "disjoint",
        "an image belongs to one task, or to every task that has one of its labels",
        choices=("disjoint", "overlap"),
    )
    order: str = option(
        "source",
        f"order of the classes: {', '.join(_ORDERS)}, or a text file with one class per line; "
        "blank lines separate tasks",
        path=_ORDERS,
    )
    top: int | None = option(None, "number of classes, those with the most training images; none: all", low=1)
    tasks: int | None = option(
        None,
        "number of tasks of equal size; none: given by order, step or a task column, else 5 to 9",
        low=1,
        flag="Data",
    )
    base: int | None = option(
        None, "number of classes of the first task (Bx-Cy), with stream.step; 0: as many as in the others", low=0
    )
    step: int | None = option(
        None, "number of classes of each task (after the first one if stream.base is given)", low=1
    )
    seed: int = option(0, "seed of the shuffled order, of the task of images that fit several, and of blurry", low=0)
    labels: str = option(LABELS[0], LABELS_HELP, choices=LABELS)
    blurry: float = option(0.0, BLURRY_HELP, low=0, high=0.9)


def make_stream(
    collection: Collection, options: ProtocolOptions, name: str, dataset: str = "", default_tasks: int | None = None,
    learned: Sequence[tuple[str, Sequence[str]]] = (), negatives: bool | None = None,
) -> Stream:  # fmt: skip
    """The stream that a protocol makes from a collection. `dataset` is the public data set of the classes.

    If neither the options nor the collection define tasks, there are `default_tasks` tasks, at most one per class.
    `learned` has the name (empty for none) and the classes of each task that a run has learned before. They are the
    first tasks of the stream, without training images, and the other classes of the collection form the tasks after
    them. `negatives` states whether training images without a label of their task are used; None: only if the stream
    has one task.
    """
    problems = copy.deepcopy(collection.problems)
    old = {each for _, classes in learned for each in classes}
    if learned and old.issuperset(collection.classes):
        raise UserError(f"{collection.name} has no new class: the model knows {_join(collection.classes)} already")
    plan = _plan(collection, options, dataset, problems, default_tasks, old)
    tasks, columns = _tasks(collection, plan, learned)
    class_task = task_of_class(tasks) if collection.listed else None
    splits: dict[str, Split] = {}
    for kind, source in (("training", collection.train), ("test", collection.test), ("validation", collection.val)):
        if source is None or (kind == "validation" and not len(source.names)):
            continue
        pool = _in_stream(source, columns, len(learned))
        unknown = unknown_labels(pool, columns < 0, class_task)
        if kind == "validation":
            placed = Labels.from_keys(np.arange(len(pool.names)), len(pool.names), 1)
        else:
            with_negatives = negatives if kind == "training" else None
            placed = _place_images(kind, pool, tasks, len(learned), options, with_negatives, problems)
            if unknown and unknown.tasks is not None:
                earlier = int(np.count_nonzero(unknown.tasks[0] < len(tasks) - 1))
                kind_of = f"{kind} images whose labels of later classes are unknown (none of them has one)"
                problems.add(kind_of, count=earlier)
        splits[kind] = _make_split(collection.root, pool, placed, unknown)
    train, test = splits["training"], splits["test"]
    _check_images(train, test, tasks, collection.name, problems, len(learned))
    complete = len(plan) == 1 or not _has_given_tasks(collection) or _has_hidden_labels(train, tasks)
    train = dataclasses.replace(train, complete=complete)
    truth = true_matrix(train.labels) if complete and train.unknown is None else None
    # if the source states labels of an image's own task only, those of earlier tasks are not known
    visible = options.labels if complete and len(tasks) > 1 else "task"
    stream = Stream(
        name, tasks, train, test, truth, _rules(collection, options, len(tasks)), dataset, problems=problems,
        labels=visible, learned=len(learned), val=splits.get("validation"),
    )  # fmt: skip
    if learned or _has_given_tasks(collection):  # then the labels of other classes may be unknown
        return stream
    return dataclasses.replace(stream, proxy=functools.partial(make_proxy, stream, collection))


def unknown_labels(pool: Pool, unnamed: np.ndarray, class_task: np.ndarray | None) -> Unknown | None:
    """The labels that the source does not state. None if it states all of them.

    These are those of `unnamed` classes. If the source lists names (then `class_task` has the task of each class) and
    states the task of every image, and no image has a name of a later task, labels of later tasks are unknown too: the
    classes did not exist yet when the image was labelled.
    """
    tasks, labels = None, pool.labels
    if class_task is not None and pool.task is not None and (pool.task >= 0).all():
        later = class_task[labels.column] > pool.task[labels.row()]
        if len(pool.task) and pool.task.min() < class_task.max() and not later.any():
            tasks = pool.task, class_task
    if pool.unknown is None and not unnamed.any() and tasks is None:
        return None
    return Unknown(pool.unknown or Labels.from_lists([()] * len(labels), labels.classes), unnamed, tasks)


def _in_stream(pool: Pool, columns: Sequence[int] | np.ndarray, learned: int = 0) -> Pool:
    """The same images with the classes of the stream, in tasks that come after `learned` others."""
    unknown = None if pool.unknown is None else pool.unknown.select_classes(columns)
    task = np.where(pool.given >= 0, pool.given + learned, -1)
    return Pool(pool.names, pool.labels.select_classes(columns), task, unknown)


def make_proxy(target: Stream, collection: Collection) -> Stream:
    """The proxy stream of `target`: classes of the collection that it does not use, on its training images.

    If there are more classes than `proxy_sizes`, the most frequent ones are used, in the order of the source, as in the
    paper's Split-COCO. Images without any of them, and images that are also test images, are left out.
    """
    allowed, used = set(target.train.names) - set(target.test.names), set(target.classes)
    rows = np.array([row for row, name in enumerate(collection.train.names) if name in allowed], np.int64)
    pool = collection.train.take(rows)
    counts = pool.labels.counts()
    others = [column for column, name in enumerate(collection.classes) if name not in used and counts[column]]
    sizes = proxy_sizes(target.name, [len(task.classes) for task in target.tasks], len(others))
    columns = sorted(sorted(others, key=lambda column: -counts[column])[: sum(sizes)])
    tasks = classes_to_tasks(tuple(collection.classes[column] for column in columns), sizes)
    pool = _in_stream(pool, columns)
    placed = _one_task(owners(pool.labels, tasks), pool.names, "proxy", np.zeros(len(tasks), np.int64))
    unknown = None if pool.unknown is None else Unknown.of_entries(pool.unknown)
    train = _make_split(collection.root, pool, placed, unknown)
    test, truth = train.without_images(), true_matrix(train.labels) if unknown is None else None
    return Stream(f"{target.name}-proxy", tasks, train, test, truth, dataset=target.dataset)


def special_and_mixed(stream: Stream) -> list[tuple[int, int]]:
    """For each task, the number of special and of mixed training images (A.2 of the paper).

    All labels of a special image belong to its task. A mixed image has labels of other tasks too. The list is empty if
    complete labels are not known.
    """
    split, counts = stream.train, []
    for task, rows in zip(stream.tasks, split.rows, strict=True):
        labels = split.labels.take(rows)
        special = np.count_nonzero(labels.per_image() == labels.within(task.columns).per_image())
        counts.append((int(special), len(rows) - int(special)))
    return counts if split.complete else []


# Classes and tasks


def _task_sizes(count: int, tasks: int | None = None, base: int | None = None, step: int | None = None) -> list[int]:
    """The number of classes of each task: `tasks` equal tasks, or `base` and then `step` per task.

    If `step` does not divide the classes, the last task has the rest.

    >>> _task_sizes(20, base=10, step=2), _task_sizes(20, base=0, step=4)
    ([10, 2, 2, 2, 2, 2], [4, 4, 4, 4, 4])
    >>> _task_sizes(20, base=10, step=3), _task_sizes(5, tasks=2)
    ([10, 3, 3, 3, 1], [3, 2])
    """
    if tasks is not None:
        if base is not None or step is not None:
            other = f"stream.base={base}" if step is None else f"stream.step={step}"
            raise UserError(f"stream.tasks={tasks} contradicts {other}: give only one of them (NAME=none removes one)")
        if tasks > count:
            raise UserError(f"{counted(count, 'classes')} cannot be divided into {tasks} tasks: lower stream.tasks")
        return equal_sizes(count, tasks)
    if step is None:
        if base is not None:
            raise UserError(f"stream.base={base} needs stream.step, the number of classes of each later task")
        raise UserError(
            f"{counted(count, 'classes are')} not divided into tasks: give stream.tasks=N, or stream.step=N classes "
            "per task"
        )
    if base is not None and base > count:
        raise UserError(f"stream.base={base} is more than the {counted(count, 'classes')} of the source: lower it")
    base_sizes = [base] if base else []
    later = count - sum(base_sizes)
    return base_sizes + [min(step, later - done) for done in range(0, later, step)]


def _tasks(
    collection: Collection, plan: Sequence[Sequence[int]], learned: Sequence[tuple[str, Sequence[str]]]
) -> tuple[tuple[Task, ...], np.ndarray]:
    """The tasks of the stream, and the column of each class in the collection; -1 for a class that it does not have."""
    column_of = collection.column_of
    new_names = collection.task_names if len(collection.task_names) == len(plan) else [""] * len(plan)
    by_task = [*learned, *zip(new_names, ([collection.classes[k] for k in of_task] for of_task in plan), strict=True)]
    classes = tuple(each for _, of_task in by_task for each in of_task)
    tasks = classes_to_tasks(classes, [len(of_task) for _, of_task in by_task], [name for name, _ in by_task])
    return tasks, np.array([column_of.get(each, -1) for each in classes], np.int64)


def _plan(
    collection: Collection, options: ProtocolOptions, dataset: str, problems: Problems, default_tasks: int | None,
    old: set[str],
) -> list[list[int]]:  # fmt: skip
    """The columns of the collection that belong to each task. The classes in `old` belong to none."""
    ordered = _order_classes(collection, options, dataset, problems, old)
    if len(ordered) > 1:
        if old:
            raise UserError(f"stream.order={options.order} defines tasks: extend a run with one that does not")
        _check_options(options, ordered)
        return _find_columns(ordered, collection, problems)
    columns = [collection.column_of[name] for name in ordered[0] if name not in old]
    if options.top is not None:
        if options.top > len(columns):
            raise UserError(
                f"stream.top={options.top} is more than the {counted(len(columns), 'classes')} of the source: lower it"
            )
        top = set(_most_frequent(collection, columns)[: options.top])
        columns = [column for column in columns if column in top]
    if _has_given_tasks(collection):
        plan = _infer_tasks(collection, columns, problems)
        _check_options(options, [[collection.classes[column] for column in task] for task in plan], top=options.top)
        return plan
    division = options.tasks, options.base, options.step
    if division == (None, None, None) and default_tasks is not None:
        division = min(default_tasks, len(columns)), None, None
    sizes = _task_sizes(len(columns), *division)
    ends = np.cumsum(sizes).tolist()
    plan = [columns[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    if options.step is not None and len(plan) > 1 and sizes[-1] < options.step:
        rest = ", ".join(collection.classes[column] for column in plan[-1])
        problems.add(f"classes in the last task, fewer than stream.step={options.step}", rest, sizes[-1])
    return plan


def _order_classes(
    collection: Collection, options: ProtocolOptions, dataset: str, problems: Problems, old: set[str]
) -> Sequence[Sequence[str]]:
    """The classes of each task, if the order defines tasks; else all classes in the order of the options."""
    order, classes = options.order, collection.classes
    if order == "paper":
        if dataset not in paper.TASKS:
            known = " and ".join(paper.TASKS)
            raise UserError(f"stream.order=paper exists only for {known}: choose another order")
        _compare_with_paper(collection, paper.TASKS[dataset], problems)
        return paper.TASKS[dataset]
    if order not in _ORDERS:
        tasks = _read_order(Path(order), old.union(classes))
        left_out = set(classes).difference(old, *tasks)
        problems.add_all(f"classes left out by {Path(order).name}", sorted(left_out))
        return tasks
    if order == "alphabetical":
        return [sorted(classes)]
    if order == "frequency":
        return [[classes[column] for column in _most_frequent(collection, range(len(classes)))]]
    if order == "shuffled":
        draws = dict(zip(classes, name_draws(f"{options.seed} classes", classes).tolist(), strict=True))
        return [sorted(classes, key=lambda name: (draws[name], name))]
    return [classes]


def _read_order(path: Path, classes: Set[str]) -> list[list[str]]:
    """The class names in a text file, one per line. Blank lines separate tasks."""
    try:
        if not path.exists():
            raise UserError(f"stream.order='{shorten(str(path))}' is neither one of {', '.join(_ORDERS)} nor a file")
        if path.stat().st_size > _MAX_ORDER_BYTES:
            raise UserError(f"{path} is larger than {_MAX_ORDER_BYTES:,} bytes: this cannot be a list of classes")
        with open_regular(path, "r", encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: save it as UTF-8, one class per line") from None
    except OSError as error:
        raise UserError(f"cannot read the class order {path}: {error.strerror}") from None
    seen: dict[str, int] = {}
    tasks: list[list[str]] = [[]]
    for number, line in enumerate(lines, start=1):
        name = line.strip()
        name = name if name in classes else unicodedata.normalize("NFC", name)  # the form of the names in a table
        if not name:
            tasks.append([])
            continue
        if name not in classes:
            raise unknown(f"class in {path}, line {number}:", name, classes)
        if name in seen:
            raise UserError(f"{path}, line {number}: '{shorten(name)}' is named twice, first in line {seen[name]}")
        seen[name] = number
        tasks[-1].append(name)
    if not seen:
        raise UserError(f"{path} contains no class: write one class per line")
    return [task for task in tasks if task]


def _most_frequent(collection: Collection, columns: Sequence[int]) -> list[int]:
    """The columns by their number of training images, largest first. Ties keep the given order."""
    counts = collection.train.labels.counts()
    return sorted(columns, key=lambda column: -counts[column])


def _compare_with_paper(collection: Collection, tasks: Sequence[Sequence[str]], problems: Problems) -> None:
    """Report the classes in which the most frequent ones of the collection differ from the paper's."""
    named = [name for task in tasks for name in task]
    frequent = [collection.classes[k] for k in _most_frequent(collection, range(len(collection.classes)))[: len(named)]]
    most = f"the {len(named)} most frequent"
    rare = [name for name in named if name in collection.column_of and name not in frequent]
    problems.add_all(f"classes of the paper that are not among {most}", rare)
    problems.add_all(f"classes among {most} that the paper does not have", [n for n in frequent if n not in named])


def _find_columns(tasks: Sequence[Sequence[str]], collection: Collection, problems: Problems) -> list[list[int]]:
    """The columns of named classes. Classes that the collection does not have are left out and reported."""
    column_of = collection.column_of
    missing = [name for task in tasks for name in task if name not in column_of]
    problems.add_all(f"classes that {collection.name} does not have", missing)
    plan = [[column_of[name] for name in task if name in column_of] for task in tasks]
    if not all(plan):
        empty = plan.index([])
        raise UserError(
            f"{collection.name} has no class of {task_text(empty + 1)} ({_join(tasks[empty])}): choose another order"
        )
    return plan


def _check_options(options: ProtocolOptions, tasks: Sequence[Sequence[str]], top: int | None = None) -> None:
    """Raise `UserError` if an option contradicts tasks that the order or the source defines."""
    task_sizes = {len(task) for task in tasks}
    equal_size = task_sizes.pop() if len(task_sizes) == 1 else None
    defined = {
        "top": top if top is not None else sum(map(len, tasks)),
        "tasks": len(tasks),
        "base": None if equal_size is None else 0,
        "step": equal_size,
    }
    for field, value in defined.items():
        given = getattr(options, field)
        if given not in (None, value):
            by_order = options.order == "paper" or options.order not in _ORDERS
            origin = f"order {options.order}" if by_order else "the task column"
            raise UserError(
                f"stream.{field}={given} contradicts {origin}, which defines {counted(len(tasks), 'tasks')}: remove it"
            )


def _has_given_tasks(collection: Collection) -> bool:
    """Whether the source states the task of training images."""
    return collection.train.task is not None and bool((collection.train.task >= 0).any())


def _infer_tasks(collection: Collection, columns: Sequence[int], problems: Problems) -> list[list[int]]:
    """The columns of each task if the source states the task of images: a class belongs to the first that has it."""
    task, labels = collection.train.task, collection.train.labels
    assert task is not None
    tasks, entries = int(task.max()) + 1, task[labels.row()]
    keys = labels.column.astype(np.int64) * tasks + entries
    column, owner = np.divmod(np.unique(keys[entries >= 0]), tasks)
    owner_of = dict(zip(column[::-1].tolist(), owner[::-1].tolist(), strict=True))  # the first owner is set last
    ownerless = [collection.classes[column] for column in columns if column not in owner_of]
    problems.add_all("classes left out because no training image with a task has them", ownerless)
    plan: list[list[int]] = [[] for _ in range(tasks)]
    for chosen in columns:
        if chosen in owner_of:
            plan[owner_of[chosen]].append(chosen)
    if not all(plan):
        empty, names = plan.index([]) + 1, collection.task_names
        order = f" (the tasks are, in this order: {_join(names)})" if names else ""
        raise UserError(
            f"{task_text(empty, names, of=tasks)} of {collection.name} has no new class{order}: a class belongs to the "
            "first task whose images have it; correct the order, join it with another task, or list the classes of "
            "each task in a text file, one class per line and a blank line between tasks (stream.order=FILE)"
        )
    return plan


# Images


def _place_images(
    kind: str, pool: Pool, tasks: Sequence[Task], learned: int, options: ProtocolOptions, negatives: bool | None,
    problems: Problems,
) -> Labels:  # fmt: skip
    """Images x tasks: the tasks that each training or test image belongs to. Images that are left out are reported.

    With overlapping tasks, a training image belongs to all tasks that own one of its labels, and a negative example to
    one. A training image whose task the source states belongs to no other task. Such a test image keeps its task,
    whatever its labels are: cumulative lists name it where it is scored first.
    """
    training, given = kind == "training", pool.given
    choices = owners(pool.labels, tasks)
    if training:
        choices = choices.within(slice(learned, len(tasks)))
    labelled = choices.per_image() > 0
    if negatives or (negatives is None and len(tasks) - learned == 1):
        with_negatives = _with_negatives(pool, choices, tasks[learned:])
        if negatives:
            problems.add_all(_NEGATIVES, pool.names, with_negatives.per_image() > choices.per_image())
        choices = with_negatives
    left_out = "left out (stream.negatives=true trains on them)" if negatives is False else "left out"
    placeable = choices.per_image() > 0
    problems.add_all(f"{kind} images without a label of the stream, {left_out}", pool.names, ~placeable)
    if not training:
        stated = np.flatnonzero(placeable & (given >= 0) & (given < len(tasks)))
        choices = choices.with_keys(stated * len(tasks) + given[stated])
    row = choices.row()
    choices = choices.keep((given[row] < 0) | (given[row] == choices.column))
    reason = f"training images whose task owns none of their labels, {left_out}"
    reason = reason if training else "test images of a task that the stream does not have"
    problems.add_all(reason, pool.names, placeable & (choices.per_image() == 0))
    row, overlapping = choices.row(), options.protocol == "overlap"
    if overlapping and not training:
        return choices.keep(np.diff(row, prepend=-1) > 0)
    in_all = labelled[row] & overlapping
    placed = choices.keep(in_all)
    others = _one_task(choices.keep(~in_all), pool.names, f"{options.seed} {kind}", placed.counts())
    return placed.with_keys(others.keys())


def _with_negatives(pool: Pool, choices: Labels, new_tasks: Sequence[Task]) -> Labels:
    """The same choices, with tasks of which an image is a negative example.

    It is the task that the source states for the image, if that has none of its labels. An image without a task and a
    label may go to each new task. If there are several, a label of a class of the task must be known.
    """
    count, first, given = choices.classes, new_tasks[0].index, pool.given
    stated = np.flatnonzero((given >= first) & (given < count))
    free = np.flatnonzero((given < 0) & (choices.per_image() == 0))
    keys = np.concatenate([stated * count + given[stated], np.add.outer(free * count, np.arange(first, count)).ravel()])
    if pool.unknown is not None and len(new_tasks) > 1:
        unknown = pool.unknown.select_classes(range(new_tasks[0].offset, pool.unknown.classes))
        of_task, number = np.unique(
            unknown.row() * count + first + task_of_class(new_tasks)[unknown.column], return_counts=True
        )
        sizes = np.array([len(task.classes) for task in new_tasks])
        keys = np.setdiff1d(keys, of_task[number == sizes[of_task % count - first]])
    return choices.with_keys(keys)


def _one_task(choices: Labels, names: Names, salt: str, load: np.ndarray) -> Labels:
    """The same table with one task for each image that has a choice, decided by its name and the salt."""
    rows = np.flatnonzero(choices.per_image())
    draws = name_draws(salt, (names[row] for row in rows.tolist()))
    task = assign_tasks(choices.take(rows), draws, load)
    return Labels.from_keys(rows * choices.classes + task, len(choices), choices.classes)


def _make_split(root: Path, pool: Pool, placed: Labels, unknown: Unknown | None) -> Split:
    """The images that belong to a task, sorted by first task and name: the order of the lines in a manifest."""
    texts, is_used = list(pool.names), placed.per_image() > 0
    used = np.array(sorted(np.flatnonzero(is_used).tolist(), key=texts.__getitem__), np.int64)
    used = used[np.argsort(placed.column[placed.start[used]], kind="stable")]
    placed = placed.take(used)
    row = placed.row()
    by_task = tuple(row[placed.column == task] for task in range(placed.classes))
    names = Names(texts[row] for row in used.tolist())
    unknown = None if unknown is None else unknown.take(used)
    left_out = pool.names.take(np.flatnonzero(~is_used))
    images, labels = find_images(root, names), pool.labels.take(used)
    return Split(images, names, labels, by_task, unknown=unknown, left_out=left_out)


def _check_images(
    train: Split, test: Split, tasks: Sequence[Task], source: str, problems: Problems, learned: int
) -> None:
    """Raise `UserError` for a new task whose images show no class of it, and for no test image. Report empty ones."""
    for task, rows in zip(tasks[learned:], train.rows[learned:], strict=True):
        counts = train.labels.take(rows).counts()[task.columns]
        if not counts.any():
            raise UserError(
                f"{task.text} ({_join(task.classes)}) has no training image of its classes in {source}: "
                f"choose other classes or fewer tasks{problems.brief()}"
            )
        problems.add_all("classes that no training image of their task shows", task.classes, counts == 0)
    if not len(test):
        reason = f"no test image of {source} shows a class of the stream"
        raise UserError(f"{reason}: choose other classes or another split{problems.brief()}")
    classes, first = [name for task in tasks for name in task.classes], tasks[learned].offset
    problems.add_all("classes without a test image", classes[first:], test.labels.counts()[first:] == 0)
    empty = [task.name or str(task.index + 1) for task in tasks[learned:] if not len(test.rows[task.index])]
    problems.add_all("tasks without a test image", empty)


def _has_hidden_labels(split: Split, tasks: Sequence[Task]) -> bool:
    """Whether an image has a label outside its tasks. If the source states tasks, its labels are then complete."""
    visible = sum(
        int(split.labels.take(rows).within(task.columns).start[-1])
        for task, rows in zip(tasks, split.rows, strict=True)
    )
    return visible < len(split.labels.column)


def _rules(collection: Collection, options: ProtocolOptions, tasks: int) -> dict[str, Any]:
    order = options.order if options.order in _ORDERS else f"file {Path(options.order).name}"
    division: dict[str, Any] = {name: getattr(options, name) for name in ("top", "tasks", "base", "step")}
    if _has_given_tasks(collection):
        division["tasks"] = GIVEN_TASKS
    elif options.base is None and options.step is None:
        division["tasks"] = tasks
    rules = {"source": collection.name, "protocol": options.protocol, "order": order, **division, "seed": options.seed}
    if options.labels != LABELS[0]:
        rules["labels"] = options.labels
    return {name: value for name, value in rules.items() if value is not None}


def _join(names: Sequence[str]) -> str:
    return shorten(", ".join(names))
