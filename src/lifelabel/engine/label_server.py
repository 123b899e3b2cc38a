"""The label server: a separate process holds the complete labels.

The labels of other tasks and all test labels are in no object of the training process: it requests one task at a time,
and sends scores to get metrics. This module imports no method and no network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from lifelabel import streams
from lifelabel.engine import judging
from lifelabel.errors import HiddenLabel, Interrupted, UserError
from lifelabel.images.hashes import hash_names
from lifelabel.images.source import ImageSource
from lifelabel.metrics.functions import METRICS
from lifelabel.parallel.group import ALONE, Group
from lifelabel.registry import register_items
from lifelabel.runs.records import TaskRecord
from lifelabel.streams.stream import Stream, Task, TrainView, manifest_lines, task_names
from lifelabel.streams.subsets import Part, part_of, sort_by_name
from lifelabel.utils.processes import end_child, init_child, receive, start_child
from lifelabel.utils.text import task_text

_REQUESTS = frozenset({"begin", "view", "joint_view", "submit_earlier", "judge", "truth", "test_labels", "val_labels"})
"""The methods of `LabelGate` that the training process may call."""


@dataclass(frozen=True)
class StreamInfo:
    """What the training process may hold of a stream: names, numbers and images, no label of any image."""

    name: str
    tasks: tuple[Task, ...]
    train: ImageSource
    test: ImageSource
    sizes: tuple[int, ...]
    """Training images of each task that have a file."""
    joint_size: int
    test_rows: np.ndarray
    """The test images that are scored."""
    complete: bool
    """Whether the labels of training images are known for the classes of other tasks too."""
    has_truth: bool
    fingerprint: str
    files: str
    """SHA-256 of the mask of images that have a file, and of the validation images."""
    missing: tuple[int, int]
    """Training and test images of the stream that have no file."""
    dataset: str
    image_size: int | None
    problems: tuple[str, ...]
    learned: int
    """The number of first tasks that were learned before."""
    overlapping: bool
    """Whether a training image belongs to every task that has one of its labels."""
    left_out: np.ndarray
    """Hashes of the names of training images that have no file, or that the stream leaves out."""

    val: ImageSource | None = None
    val_rows: np.ndarray | None = None
    """The validation images that have a file."""

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(name for task in self.tasks for name in task.classes)

    @staticmethod
    def from_stream(stream: Stream) -> StreamInfo:
        train, test = stream.train, stream.test
        used = [train.used(), test.used()]
        present = [split.images.present[rows] for split, rows in zip((train, test), used, strict=True)]
        files = hashlib.sha256(b"".join(np.packbits(mask).tobytes() for mask in present))
        val, val_rows = None, None
        if stream.val is not None:
            val, val_rows = stream.val.images, np.flatnonzero(stream.val.images.present)
            files.update("\n".join(manifest_lines(stream.val.names, stream.val.labels)).encode(errors="surrogatepass"))
            files.update(np.packbits(stream.val.images.present).tobytes())
        left_out = [*train.left_out, *map(train.images.name, np.flatnonzero(~train.images.present).tolist())]
        return StreamInfo(
            stream.name, stream.tasks, train.images, test.images,
            tuple(int(train.images.present[rows].sum()) for rows in train.rows), int(present[0].sum()),
            used[1][present[1]], train.complete, stream.truth is not None, stream.fingerprint, files.hexdigest(),
            (int((~present[0]).sum()), int((~present[1]).sum())),
            stream.dataset, stream.image_size, tuple(stream.problems.lines()), stream.learned,
            stream.overlapping, hash_names(left_out), val, val_rows,
        )  # fmt: skip


class LabelServer:
    """The client of the label process. `close` ends the process.

    `LabelGate` decides what is answered. `on_wait` is called several times per second while an answer is awaited.

    In a group of processes only the first one has a label process. It shares the answers with the others.
    """

    def __init__(
        self, stream: str, options: Mapping[str, Any], joint: bool = False, part: Part | None = None,
        on_wait: Callable[[], None] = lambda: None, group: Group = ALONE,
    ):  # fmt: skip
        self.on_wait, self.group = on_wait, group
        self.info: StreamInfo = group.share(functools.partial(self._start, stream, options, joint, part or Part()))

    def _start(self, stream: str, options: Mapping[str, Any], joint: bool, part: Part) -> StreamInfo:
        build = functools.partial(_build, stream, options, part)
        own = streams.STREAMS.own_items(), METRICS.own_items()
        self.process, self.pipe = start_child(_serve, build, joint, own, needed=own, preload=__name__)
        try:
            return self._receive()
        except BaseException:
            self.close()
            raise

    def begin(self, task: int) -> None:
        """Start, or resume, the run with this task. Called once."""
        self._request("begin", task)

    def view(self, index: int) -> TrainView:
        return self._request("view", index)

    def joint_view(self) -> TrainView:
        """The training view of all tasks at once, for the upper bound."""
        return self._request("joint_view")

    def submit_earlier(self, index: int, rows: np.ndarray, scores: np.ndarray) -> None:
        """Submit scores of the cumulative test set of an earlier task, for the record of the last task."""
        self._request("submit_earlier", index, rows, scores)

    def judge(
        self, done: int, rows: np.ndarray, scores: np.ndarray, matrix: np.ndarray | None
    ) -> tuple[TaskRecord, dict[str, np.ndarray]]:
        """The metrics after `done` tasks and the details for reports: see `judging`. Then the next task opens."""
        return self._request("judge", done, rows, scores, matrix)

    def truth(self) -> np.ndarray | None:
        """The true matrix. It is available after the last task."""
        return self._request("truth")

    def test_labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The labels of test images, whether each is known, and their first tasks. Available after the last task."""
        return self._request("test_labels", rows)

    def val_labels(self, index: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The labels of validation images for the classes of task `index`, and whether each is known."""
        return self._request("val_labels", index, rows)

    def close(self) -> None:
        if self.group.first:
            end_child(self.process, self.pipe)

    def _request(self, *request: Any) -> Any:
        return self.group.share(functools.partial(self._ask, request))

    def _ask(self, request: tuple[Any, ...]) -> Any:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # _receive reports what happened
            self.pipe.send(request)
        return self._receive()

    def _receive(self) -> Any:
        try:
            kind, value = receive(self.pipe, self.on_wait)
        except EOFError:
            self.on_wait()  # a stop signal may have reached all processes
            self.process.join(5)
            raise Interrupted(
                f"the label process ended (exit code {self.process.exitcode})", "free memory if it was short"
            ) from None
        if kind == "user error":
            raise UserError(value)
        if kind == "hidden":
            raise HiddenLabel(value)
        if kind == "failure":
            raise RuntimeError(f"in the label process:\n{value}")
        return value


def _build(stream: str, options: Mapping[str, Any], part: Part) -> Stream:
    built = sort_by_name(part_of(streams.build(stream, options), part))
    return dataclasses.replace(built, proxy=None)  # it would keep the labels of all classes in memory


def _serve(pipe: Connection, build: Callable[[], Stream], joint: bool, own: tuple[dict[str, Any], ...]) -> None:
    """The main function of the label process: build the stream, answer requests until the client closes the pipe."""
    init_child()
    register_items((streams.STREAMS, METRICS), own)
    gate: LabelGate

    def start() -> StreamInfo:
        nonlocal gate
        gate = LabelGate(build(), joint)
        return StreamInfo.from_stream(gate.stream)

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the client has ended
        goes_on = _answer(pipe, start)
        while goes_on:
            request, *arguments = pipe.recv()
            goes_on = _answer(pipe, functools.partial(_call, gate, request, arguments))


def _call(gate: LabelGate, request: str, arguments: Sequence[Any]) -> Any:
    if request not in _REQUESTS:
        raise HiddenLabel(f"the label server has no request '{request}'")
    return getattr(gate, request)(*arguments)


def _answer(pipe: Connection, compute: Callable[[], Any]) -> bool:
    """Send the result of `compute`, or its error. Returns whether another request can follow."""
    try:
        message = ForkingPickler.dumps(("answer", compute()))  # what cannot be pickled is a failure too
    except HiddenLabel as error:
        kind, text = "hidden", str(error)
    except UserError as error:
        kind, text = "user error", str(error)
    except Exception:
        kind, text = "failure", traceback.format_exc()
    else:
        pipe.send_bytes(message)
        return True
    pipe.send((kind, text))
    return kind == "hidden"


class LabelGate:
    """Answers the requests of one run. It refuses those for labels that are hidden.

    Tasks open one after the other. The labels of a task are available while it is open: until it has been judged,
    once. The labels of all tasks together go only to a method that is `joint`, the upper bound.
    """

    def __init__(self, stream: Stream, joint: bool):
        self.stream, self.joint = stream, joint
        self.open_task: int | None = None
        """The task whose labels are available."""
        self.earlier: dict[int, dict[str, float | None]] = {}
        """Metrics of earlier test sets, returned with the record of the last task."""

    def begin(self, task: int) -> None:
        if self.open_task is not None:
            raise HiddenLabel("the run has begun already: the open task cannot be changed")
        self.open_task = task

    def view(self, index: int) -> TrainView:
        if self.joint or index != self.open_task:
            names = ", ".join(self.stream.tasks[index].classes)
            now = "no task" if self.open_task is None else task_text(self.open_task + 1, task_names(self.stream.tasks))
            raise HiddenLabel(f"the labels of {self.stream.tasks[index].text} ({names}) are hidden: {now} is open")
        return self.stream.train_view(index)

    def joint_view(self) -> TrainView:
        if not self.joint:
            raise HiddenLabel("the labels of all tasks together are hidden: only a joint method gets them")
        return self.stream.joint_view()

    def judge(self, done: int, rows: np.ndarray, *scored: Any) -> tuple[TaskRecord, dict[str, np.ndarray]]:
        if self.open_task is None or done != (len(self.stream.tasks) if self.joint else self.open_task + 1):
            raise HiddenLabel(f"task {done} cannot be judged now: each task is judged once, when it ends")
        record, details = judging.judge(self.stream, done, rows, *scored)
        if done == len(self.stream.tasks):
            record["cumulative"] = [*(self.earlier[task.index] for task in self.stream.tasks[:-1]), record["seen"]]
        self.open_task = done
        return record, details

    def submit_earlier(self, index: int, rows: np.ndarray, scores: np.ndarray) -> None:
        last = len(self.stream.tasks) - 1
        if self.open_task is None or not (self.joint or self.open_task == last):
            raise HiddenLabel("the scores of earlier test sets cannot be submitted before the last task")
        if index >= last or index in self.earlier:
            raise HiddenLabel(
                f"the scores of task {index + 1} cannot be submitted: only those of earlier tasks can, once per task"
            )
        self.earlier[index] = judging.judge_earlier(self.stream, index, rows, scores)

    def truth(self) -> np.ndarray | None:
        if self.open_task != len(self.stream.tasks):
            raise HiddenLabel("the true matrix is hidden until the last task has been judged")
        return self.stream.truth

    def test_labels(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if self.open_task != len(self.stream.tasks):
            raise HiddenLabel("test labels are hidden until the last task has been judged")
        test = self.stream.test
        labels = test.labels.take(rows).dense()
        known = np.ones_like(labels) if test.unknown is None else ~test.unknown.take(rows).dense()
        return labels, known, judging.task_of_image(self.stream)[rows]

    def val_labels(self, index: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.stream.val is None or index != self.open_task:
            raise HiddenLabel(f"the labels of validation images for task {index + 1} are hidden: it is not open")
        columns, split = self.stream.tasks[index].columns, self.stream.val
        labels = split.labels.take(rows).dense(columns)
        known = np.ones_like(labels) if split.unknown is None else ~split.unknown.take(rows).dense()[:, columns]
        return labels & known, known
