"""The label firewall: complete labels live in a process of their own.

The keeper builds the stream. The process that trains asks it for one task at a time and gets that task's images and
that task's labels; to be scored it hands over its scores, and gets figures. The labels of other tasks, and all test
labels, are in no object of the process in which a method runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import multiprocessing
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lifelabel import evaluate, processes, streams
from lifelabel.errors import HiddenLabel, UserError
from lifelabel.streams.base import SealedImages, Split, Stream, Task, TrainView
from lifelabel.streams.files import FileImages
from lifelabel.streams.parts import Part, part_of


@dataclass(frozen=True)
class Outline:
    """What everyone may know of a stream: names, numbers and pictures, no label of any image."""

    name: str
    tasks: tuple[Task, ...]
    train: SealedImages
    test: SealedImages
    sizes: tuple[int, ...]
    """Training images of each task, as far as there are files."""
    joint_size: int
    test_rows: np.ndarray
    """The test images that are scored."""
    complete: bool
    """Whether the training images' labels outside their task are known at all."""
    has_truth: bool
    """Whether the true matrix is known."""
    fingerprint: str
    files: str
    """SHA-256 of which images have a file."""
    missing: tuple[int, int]
    """Training and test images of the stream that have no file."""
    dataset: str
    image_size: int | None
    problems: tuple[str, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for task in self.tasks for name in task.classes)

    @staticmethod
    def of(stream: Stream) -> Outline:
        train, test = stream.train, stream.test
        shown = [train.used(), test.used()]
        there = [split.images.present[rows] for split, rows in zip((train, test), shown, strict=True)]
        files = hashlib.sha256(b"".join(np.packbits(mask).tobytes() for mask in there)).hexdigest()
        return Outline(
            stream.name, stream.tasks, train.images.sealed(), test.images.sealed(),
            tuple(int(train.images.present[rows].sum()) for rows in train.rows), int(there[0].sum()),
            shown[1][there[1]], train.complete, stream.truth is not None, stream.fingerprint, files,
            (int((~there[0]).sum()), int((~there[1]).sum())),
            stream.dataset, stream.image_size, tuple(stream.problems.lines()),
        )  # fmt: skip


class Keeper:
    """The other end of the keeper's process; `close` ends it.

    Tasks open one after the other: the labels of a task are given out while it is open, which is until it has been
    judged, once. All at once they go only to a method that was announced as `joint`, the upper bound.
    """

    def __init__(self, stream: str, options: Mapping[str, Any], joint: bool = False, part: Part | None = None):
        context: Any = multiprocessing.get_context(processes.START)
        self.pipe, theirs = context.Pipe()
        build = functools.partial(_build, stream, options, part or Part())
        self.process = context.Process(target=_keep, args=(theirs, self.pipe, build, joint), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.outline: Outline = self._answer()
        except BaseException:
            self.close()
            raise

    def begin(self, task: int) -> None:
        """The run begins, or goes on, with this task: said once."""
        self._ask("begin", task)

    def view(self, index: int) -> TrainView:
        """What task `index` shows."""
        return self._ask("view", index)

    def joint_view(self) -> TrainView:
        """The upper bound's view: all tasks at once."""
        return self._ask("joint")

    def earlier(self, index: int, rows: np.ndarray, scores: np.ndarray) -> None:
        """Hand in scores of an earlier task's cumulative test set after the last task (see `evaluate.earlier`); what
        they are worth comes with the judgement of the last task."""
        self._ask("earlier", index, rows, scores)

    def judge(
        self, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None, sizes: Sequence[int]
    ) -> dict[str, Any]:
        """The figures after `done` tasks, from scores of the test images `rows` (see `evaluate.judge`); then the next
        task opens."""
        return self._ask("judge", done, rows, scores, matrix, sizes)

    def truth(self) -> np.ndarray | None:
        """The true matrix, for the run folder; asked for when training is over."""
        return self._ask("truth")

    def test_labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The labels of test images (images x classes) and the task from which on each is scored, for the run folder;
        asked for when training is over."""
        return self._ask("test_labels", rows)

    def close(self) -> None:
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _ask(self, *question: Any) -> Any:
        with contextlib.suppress(BrokenPipeError):  # the answer says what happened
            self.pipe.send(question)
        return self._answer()

    def _answer(self) -> Any:
        try:
            kind, value = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            raise UserError(
                f"the process that holds the labels is gone (exit code {self.process.exitcode}): was it killed, or "
                "was there too little memory?"
            ) from None
        if kind == "mistake":
            raise UserError(value)
        if kind == "hidden":
            raise HiddenLabel(value)
        if kind == "failure":
            raise RuntimeError(f"in the process that holds the labels:\n{value}")
        return value


def _build(stream: str, options: Mapping[str, Any], part: Part) -> Stream:
    return by_name(part_of(streams.build(stream, options), part))


def _keep(pipe: Connection, other: Connection, build: Callable[[], Stream], joint: bool) -> None:
    """The keeper's life: build the stream, answer until the other side closes."""
    processes.settle_in()
    other.close()  # this process's copy of the other side's end: the pipe would otherwise never close
    try:
        desk = Desk(build(), joint)
        pipe.send(("answer", Outline.of(desk.stream)))
        while True:
            question, *rest = pipe.recv()
            try:
                pipe.send(("answer", getattr(desk, question)(*rest)))
            except HiddenLabel as error:
                pipe.send(("hidden", str(error)))
    except EOFError:
        return
    except UserError as error:
        pipe.send(("mistake", str(error)))
    except Exception:
        pipe.send(("failure", traceback.format_exc()))


class Desk:
    """Answers the questions of one run, and knows which labels may leave."""

    def __init__(self, stream: Stream, joint: bool):
        self.stream, self.is_joint = stream, joint
        self.open: int | None = None
        """The task whose labels may be seen."""
        self.handed_in: dict[int, dict[str, float | None]] = {}
        """Figures of earlier test sets, told when the last task is judged."""

    def begin(self, task: int) -> None:
        if self.open is not None:
            raise HiddenLabel("a run begins once: which labels are hidden does not change any more")
        self.open = task

    def view(self, index: int) -> TrainView:
        if self.is_joint or index != self.open:
            names = ", ".join(self.stream.tasks[index].classes)
            now = "no task" if self.open is None else f"task {self.open + 1}"
            raise HiddenLabel(f"the labels of task {index + 1} ({names}) are hidden: {now} is open")
        return self.stream.train_view(index)

    def joint(self) -> TrainView:
        if not self.is_joint:
            raise HiddenLabel("the labels of all tasks together are hidden: they are for a method that is joint alone")
        return self.stream.joint_view()

    def judge(self, done: int, rows: np.ndarray, *scored: Any) -> dict[str, Any]:
        if self.open is None or done != (len(self.stream.tasks) if self.is_joint else self.open + 1):
            raise HiddenLabel(f"task {done} cannot be judged now: each task is judged once, when it ends")
        record = evaluate.judge(self.stream, done, rows, *scored)
        if done == len(self.stream.tasks):
            record["cumulative"] = [*(self.handed_in[task.index] for task in self.stream.tasks[:-1]), record["seen"]]
        self.open = done
        return record

    def earlier(self, index: int, rows: np.ndarray, scores: np.ndarray) -> None:
        last = len(self.stream.tasks) - 1
        if self.open is None or not (self.is_joint or self.open == last):
            raise HiddenLabel("earlier test sets are scored again after the last task")
        if index >= last or index in self.handed_in:
            raise HiddenLabel(f"the scores of task {index + 1} cannot be handed in now: each earlier task's are, once")
        self.handed_in[index] = evaluate.earlier(self.stream, index, rows, scores)

    def truth(self) -> np.ndarray | None:
        if self.open != len(self.stream.tasks):
            raise HiddenLabel("the true matrix is hidden until the last task has been judged")
        return self.stream.truth

    def test_labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.open != len(self.stream.tasks):
            raise HiddenLabel("test labels are hidden until the last task has been judged")
        return self.stream.test.labels.take(rows).dense(), evaluate.task_of_image(self.stream)[rows]


def by_name(stream: Stream) -> Stream:
    """The same stream with its photographs in the order of their names: sources list them task by task, and the order
    alone would tell which images show a class of a later task."""
    return dataclasses.replace(stream, train=_by_name(stream.train), test=_by_name(stream.test))


def _by_name(split: Split) -> Split:
    if not isinstance(split.images, FileImages):
        return split
    order = np.array(sorted(range(len(split)), key=split.names.__getitem__), np.int64)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    rows = tuple(place[of_task] for of_task in split.rows)
    images, names = split.images.take(order), split.names.take(order)
    return dataclasses.replace(split, images=images, names=names, labels=split.labels.take(order), rows=rows)
