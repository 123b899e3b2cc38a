"""Parts of a stream: its tasks or classes in another order, its first tasks, held-out training images, its proxy.

First tasks and held-out images are for the search for options. They use no test image, no later task and no hidden
label: a held-out image has the visible labels of its own tasks, and every other class counts as absent. A proxy stream
has no class of the stream, so its held-out images have their complete labels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.photographs import FileImages
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import GIVEN_TASKS, Split, Stream, Task, classes_to_tasks, owners
from lifelabel.utils.text import counted


@dataclass(frozen=True)
class Part:
    """The part of a stream that a run uses. The default is the complete stream in its own order."""

    task_order: int = 0
    """0 for the order of the stream, k for the k-th random order."""
    first_tasks: int | None = None
    """The number of tasks to use; None for all."""
    hold_out: float = 0.0
    """The share of training images that are scored in place of the test images."""
    proxy: bool = False
    """Whether the proxy stream is used in place of the stream."""
    proxy_images: int | None = None
    """The largest number of images of the proxy stream; None for all."""
    class_order: int = 0
    """0 for the order of the stream, k for the k-th random order of all classes, in tasks of the same sizes."""

    @staticmethod
    def from_options(options: Any) -> Part:
        """The part that the options of a run describe, by their names."""
        return Part(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Part)})


def part_of(stream: Stream, part: Part) -> Stream:
    """The stream or its proxy with its classes, then its tasks in the given order, its first tasks, images held out."""
    if part.proxy:
        if part.class_order:
            raise UserError("class_order has no effect on a proxy stream, whose tasks are disjoint: remove it")
        stream = _proxy(stream, part)
    elif part.proxy_images is not None:
        raise UserError(f"proxy_images {part.proxy_images} has no effect without proxy: give --proxy too, or remove it")
    if part.class_order:
        stream = _reorder_classes(stream, part.class_order)
    if part.task_order:
        stream = _reorder_tasks(stream, part.task_order)
    if part.first_tasks is not None:
        stream = _first_tasks(stream, part.first_tasks)
    return _hold_out(stream, part.hold_out, complete=part.proxy) if part.hold_out else stream


def _proxy(stream: Stream, part: Part) -> Stream:
    """The proxy stream, with at most `proxy_images` of its images: those with the smallest hashes of their names."""
    if not part.hold_out:
        raise UserError("a proxy stream has no test images: give --hold-out, the share of its images that is scored")
    if stream.proxy is None:
        raise UserError(
            f"stream {stream.name} has no labels of other classes for a proxy stream: leave out --proxy and search on "
            "the first tasks (--first-tasks)"
        )
    proxy = stream.proxy()
    rules: dict[str, Any] = {**stream.rules, "proxy": True}
    train, limit = proxy.train, part.proxy_images
    if limit is not None and limit < len(train.used()):
        # another hash than that of held-out images: those would be chosen first
        chosen = sorted(train.used().tolist(), key=lambda row: (_hash(f"proxy {train.names[row]}"), row))[:limit]
        train = dataclasses.replace(train, rows=tuple(rows[np.isin(rows, chosen)] for rows in train.rows))
        rules["proxy_images"] = limit
    return dataclasses.replace(proxy, train=train, rules=rules, labels=stream.labels)


def _select_tasks(stream: Stream, chosen: Sequence[int], **rule: int) -> Stream:
    """The given tasks in that order, each with its classes and images."""
    old = [stream.tasks[index] for index in chosen]
    columns = np.concatenate([np.arange(task.offset, task.end) for task in old])
    classes = tuple(name for task in old for name in task.classes)
    tasks = classes_to_tasks(classes, [len(task.classes) for task in old], [task.name for task in old])
    stream = _select_classes(stream, columns, tasks, **rule)
    train, test = (
        dataclasses.replace(split, rows=tuple(split.rows[index] for index in chosen))
        for split in (stream.train, stream.test)
    )
    if train.home is not None:
        new_index = np.full(len(stream.train.rows) + 1, len(chosen), train.home.dtype)
        new_index[list(chosen)] = np.arange(len(chosen))
        train = dataclasses.replace(train, home=new_index[train.home])
    kept = set(classes)
    groups = {name: tuple(each for each in of_group if each in kept) for name, of_group in stream.groups.items()}
    groups = {name: of_group for name, of_group in groups.items() if of_group}
    return dataclasses.replace(stream, train=train, test=test, groups=groups)


def _reorder_tasks(stream: Stream, order: int) -> Stream:
    """The same tasks in the `order`-th random order."""
    stream = _select_tasks(stream, _random_order(len(stream.tasks), order), task_order=order)
    if len(stream.train.used()) == sum(map(len, stream.train.rows)):
        return stream
    # In overlapping protocols a test image is scored from the first task that has one of its labels.
    return dataclasses.replace(stream, test=_move_to_labels(stream.test, stream.tasks, first_only=True))


def _reorder_classes(stream: Stream, order: int) -> Stream:
    """All classes in the `order`-th random order, in tasks of the same sizes, with their images by their labels.

    As the overlapping protocol does: a training image belongs to every task that has one of its labels, and a test
    image to the first one.
    """
    if not stream.overlapping:
        given = stream.rules.get("tasks") == GIVEN_TASKS
        reason = "states the task of each image" if given else "has each image in one task"
        raise UserError(
            f"class_order {order}: {stream.name} {reason}, so the classes of a task stay together; give task_order in "
            "its place (with compare: leave out --orders)"
            + ("" if given else ", or choose an overlapping protocol (stream.protocol=overlap)")
        )
    if not stream.train.complete or stream.learned:
        raise UserError(f"class_order {order} needs the labels of all classes of {stream.name}, which are not known")
    columns = np.array(_random_order(len(stream.classes), order, "class"))
    sizes = [len(task.classes) for task in stream.tasks]
    tasks = classes_to_tasks(tuple(stream.classes[column] for column in columns), sizes)
    stream = _select_classes(stream, columns, tasks, class_order=order)
    train, test = _move_to_labels(stream.train, tasks), _move_to_labels(stream.test, tasks, first_only=True)
    return dataclasses.replace(stream, train=train, test=test)


def _move_to_labels(split: Split, tasks: Sequence[Task], first_only: bool = False) -> Split:
    """Move each image to all tasks that own one of its labels, or to the first of them.

    An image without a label keeps its tasks.
    """
    labelled, is_used = split.labels.per_image() > 0, np.zeros(len(split), bool)
    is_used[split.used()] = True
    owned = owners(split.labels, tasks)
    row, task = owned.row(), owned.column
    moved = is_used[row]
    if first_only:
        moved &= np.diff(row, prepend=-1) > 0
    unlabelled = [rows[~labelled[rows]] for rows in split.rows]
    rows = tuple(np.union1d(unlabelled[each.index], row[moved & (task == each.index)]) for each in tasks)
    return dataclasses.replace(split, rows=rows)


def _random_order(things: int, number: int, what: str = "task") -> list[int]:
    """A random order of the tasks or classes, from number 1. All are different, and none is that of the stream.

    >>> _random_order(3, 1), _random_order(3, 2)
    ([2, 0, 1], [2, 1, 0])
    """
    if number >= math.factorial(min(things, 20)):
        plural = f"{things} {'classes' if what == 'class' else 'tasks'}"
        available = math.factorial(things) - 1
        raise UserError(f"{what}_order {number} does not exist: {plural} have {available} other orders; lower it")
    rng = np.random.default_rng(0)
    orders: list[list[int]] = []
    while len(orders) < number:
        order = rng.permutation(things).tolist()
        if order != sorted(order) and order not in orders:
            orders.append(order)
    return orders[-1]


def _first_tasks(stream: Stream, count: int) -> Stream:
    """The stream with its first `count` tasks: no class and no image of a later task."""
    if count > len(stream.tasks):
        raise UserError(
            f"stream {stream.name} has {counted(len(stream.tasks), 'tasks')}, not {count}: lower first_tasks"
        )
    return _select_tasks(stream, range(count), first_tasks=count)


def _select_classes(stream: Stream, columns: np.ndarray, tasks: tuple[Task, ...], **rule: int) -> Stream:
    """The same images with the given classes, which form the given tasks. The images of each task stay as they are."""

    def select(split: Split) -> Split:
        unknown = None if split.unknown is None else split.unknown.select_classes(columns)
        return dataclasses.replace(split, labels=split.labels.select_classes(columns), unknown=unknown)

    return dataclasses.replace(
        stream, tasks=tasks, train=select(stream.train), test=select(stream.test),
        val=None if stream.val is None else select(stream.val),
        truth=None if stream.truth is None else stream.truth[np.ix_(columns, columns)],
        rules={**stream.rules, **rule},
    )  # fmt: skip


def _hold_out(stream: Stream, share: float, complete: bool = False) -> Stream:
    """The same tasks, with a share of their training images held out and scored in place of the test images.

    Whether an image is held out depends only on its name. So an image of several tasks is held out of all of them, and
    has the visible labels of all of them, or its complete labels. There is no true matrix, because it is computed from
    hidden labels. An image that was moved out of its home task (see `blurry`) is not held out.
    """
    train = stream.train
    is_held = np.zeros(len(train), bool)
    for row in train.used().tolist():
        is_held[row] = _hash(train.names[row]) < share * 2**32
    if train.home is not None:
        for task, rows in zip(stream.tasks, train.rows, strict=True):
            is_held[rows] &= train.home[rows] == task.index
    held = tuple(rows[is_held[rows]] for rows in train.rows)
    rest = tuple(rows[~is_held[rows]] for rows in train.rows)
    for task, to_score, to_train in zip(stream.tasks, held, rest, strict=True):
        if not len(to_score) or not len(to_train):
            purpose, change = ("score", "more") if len(to_train) else ("learn", "less")
            raise UserError(f"hold_out {share} leaves no image of {task.text} to {purpose}: hold out {change}")
    labels = train.labels if complete else _visible_labels(stream, held)
    seen = np.zeros(len(train), bool)
    scored = []
    for rows in held:  # an image of several tasks is scored from the first one on
        scored.append(rows[~seen[rows]])
        seen[rows] = True
    test = Split(train.images, train.names, labels, tuple(scored), unknown=train.unknown)
    rules = {**stream.rules, "hold_out": share}
    train = dataclasses.replace(train, rows=rest)
    return dataclasses.replace(stream, train=train, test=test, truth=None, rules=rules)


def _hash(name: str) -> int:
    """A number below 2**32 that depends on the name only."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:4], "big")


def _visible_labels(stream: Stream, rows: Sequence[np.ndarray]) -> Labels:
    """The visible labels of the training rows of each task. Every other row has no label."""
    labels, keys = stream.train.labels, []
    for task, of_task in zip(stream.tasks, rows, strict=True):
        visible = stream.shown(task, of_task, labels.take(of_task))
        keys.append(of_task[visible.row()] * labels.classes + visible.column)
    return Labels.from_keys(np.concatenate(keys), len(labels), labels.classes)


def sort_by_name(stream: Stream) -> Stream:
    """The same stream with its photographs sorted by name.

    Sources list images task by task, so their order would reveal which images have a class of a later task.
    """
    val = None if stream.val is None else _sorted(stream.val)
    return dataclasses.replace(stream, train=_sorted(stream.train), test=_sorted(stream.test), val=val)


def _sorted(split: Split) -> Split:
    if not isinstance(split.images, FileImages):
        return split
    order = np.array(sorted(range(len(split)), key=split.names.__getitem__), np.int64)
    new_row = np.empty_like(order)
    new_row[order] = np.arange(len(order))
    rows = tuple(new_row[of_task] for of_task in split.rows)
    images, names, labels = split.images.take(order), split.names.take(order), split.labels.take(order)
    unknown = None if split.unknown is None else split.unknown.take(order)
    home = None if split.home is None else split.home[order]
    return dataclasses.replace(split, images=images, names=names, labels=labels, rows=rows, unknown=unknown, home=home)
