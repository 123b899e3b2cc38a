"""The label firewall: complete labels live in a process of their own.

The keeper builds the stream. The process that trains asks it for one task at a time and gets that task's images and
that task's labels; to be scored it hands over its scores, and gets figures. The labels of other tasks, and all test
labels, are in no object of the process in which a method runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lifelabel import evaluate, processes, streams
from lifelabel.errors import HiddenLabel, UserError
from lifelabel.streams.base import ImageSource, Stream, Task, TrainView


@dataclass(frozen=True)
class Outline:
    """What everyone may know of a stream: names, numbers and pictures, no label of any image."""

    name: str
    tasks: tuple[Task, ...]
    train: ImageSource
    test: ImageSource
    sizes: tuple[int, ...]
    """Training images of each task, as far as there are files."""
    joint_size: int
    test_rows: np.ndarray
    """The test images that are scored."""
    complete: bool
    """Whether the training images' labels outside their task are known at all."""
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
        shown = [np.unique(np.concatenate(split.rows)) for split in (train, test)]
        there = [split.images.present[rows] for split, rows in zip((train, test), shown, strict=True)]
        files = hashlib.sha256(b"".join(np.packbits(mask).tobytes() for mask in there)).hexdigest()
        return Outline(
            stream.name, stream.tasks, train.images, test.images,
            tuple(int(train.images.present[rows].sum()) for rows in train.rows), int(there[0].sum()),
            shown[1][there[1]], train.complete, stream.fingerprint, files,
            (int((~there[0]).sum()), int((~there[1]).sum())),
            stream.dataset, stream.image_size, tuple(stream.problems.lines()),
        )  # fmt: skip


class Keeper:
    """The other end of the keeper's process; `close` ends it.

    Tasks open one after the other: the labels of a task are given out once the task before it has been judged, and
    then no more. All at once they go only to a method that was announced as `joint`, the upper bound.
    """

    def __init__(self, stream: str, options: Mapping[str, Any], joint: bool = False):
        context: Any = multiprocessing.get_context(processes.START)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_keep, args=(theirs, self.pipe, stream, options, joint), daemon=True)
        self.process.start()
        theirs.close()
        try:
            self.outline: Outline = self._answer()
        except BaseException:
            self.close()
            raise

    def view(self, index: int) -> TrainView:
        """What task `index` shows."""
        return self._ask("view", index)

    def joint_view(self) -> TrainView:
        """The upper bound's view: all tasks at once."""
        return self._ask("joint")

    def judge(
        self, done: int, rows: np.ndarray, scores: Sequence[np.ndarray], matrix: np.ndarray | None, sizes: Sequence[int]
    ) -> dict[str, Any]:
        """The figures after `done` tasks, from scores of the test images `rows` (see `evaluate.judge`)."""
        return self._ask("judge", done, rows, scores, matrix, sizes)

    def truth(self) -> np.ndarray | None:
        """The true matrix, for the run folder; asked for when training is over."""
        return self._ask("truth")

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


def _keep(pipe: Connection, other: Connection, stream: str, options: Mapping[str, Any], joint: bool) -> None:
    """The keeper's life: build the stream, answer until the other side closes."""
    processes.settle_in()
    other.close()  # this process's copy of the other side's end: the pipe would otherwise never close
    try:
        desk = Desk(streams.build(stream, options), joint)
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
        """The task whose labels may be seen; none yet: a run may go on from any."""

    def view(self, index: int) -> TrainView:
        if self.open is None:
            self.open = index
        if self.is_joint or index != self.open:
            names = ", ".join(self.stream.tasks[index].classes)
            raise HiddenLabel(f"the labels of task {index + 1} ({names}) are hidden: task {self.open + 1} is open")
        return self.stream.train_view(index)

    def joint(self) -> TrainView:
        if not self.is_joint:
            raise HiddenLabel("the labels of all tasks together are hidden: they are for a method that is joint alone")
        return self.stream.joint_view()

    def judge(self, done: int, *scored: Any) -> dict[str, Any]:
        record = evaluate.judge(self.stream, done, *scored)
        self.open = done
        return record

    def truth(self) -> np.ndarray | None:
        if self.open != len(self.stream.tasks):
            raise HiddenLabel("the true matrix is hidden until the last task has been judged")
        return self.stream.truth
