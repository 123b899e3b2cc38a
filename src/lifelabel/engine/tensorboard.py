"""TensorBoard: with `--log tensorboard`, the losses and metrics of a run are written as event files too."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.config.config import Config
from lifelabel.errors import UserError
from lifelabel.metrics.over_tasks import HEADLINE, forgetting
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.lines import read_lines
from lifelabel.runs.records import TaskRecord, summarise
from lifelabel.streams.stream import Task
from lifelabel.utils.text import printable

_FLUSH_SECONDS = 10
_SIDE = 480
"""The side of the picture of a small matrix, in pixels."""
_MAX_CLASSES = 1000
"""A matrix of more classes has no picture."""
_PALETTE = np.array(
    [
        (68, 1, 84), (72, 40, 120), (62, 73, 137), (49, 104, 142), (38, 130, 142), (31, 158, 137), (53, 183, 121),
        (110, 206, 88), (181, 222, 43), (253, 231, 37),
    ]
)  # fmt: skip
"""Red, green and blue of the colours of 0 … 1, from dark blue to yellow, at equal distances."""


def check_tensorboard() -> None:
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise UserError(
            "--log tensorboard needs the package tensorboard: pip install 'lifelabel[tensorboard]'"
        ) from None


class EventLog:
    """The event file of a run. The step of every point is the number of images learned so far.

    When a run resumes, its event file is deleted and written again from history.jsonl and the records of the
    checkpoint. So no point is there twice, in any reader, and a log that is switched on later is complete. If the log
    cannot be written, for example because the disk is full, it ends with a note, and the run continues.
    """

    def __init__(self, folder: RunFolder, config: Config, tasks: Sequence[Task], note: Callable[[str], None]):
        from torch.utils.tensorboard import SummaryWriter

        self.path, self.tasks, self.note = folder / names.TENSORBOARD, tasks, note
        self.step = 0
        self.writer: SummaryWriter | None = None
        with self._writing():
            for path in self.path.glob(names.EVENT_FILES):
                path.unlink()
            # step 0: a TensorBoard that is open discards the points of a deleted file
            self.writer = SummaryWriter(
                str(self.path), purge_step=0, max_queue=1000, flush_secs=_FLUSH_SECONDS,
                filename_suffix=names.EVENT_FILES.rpartition("*")[2],
            )  # fmt: skip
            # lines that begin with four spaces are shown as they are, in Markdown
            self.writer.add_text("configuration", "".join(f"    {line}\n" for line in config.to_yaml().splitlines()))

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.writer = None
            self.note(f"cannot write {self.path}: {error.strerror or error}; the log for TensorBoard ends here")

    def replay(self, history: Path, records: Sequence[TaskRecord], matrix: np.ndarray | None) -> None:
        """Write the points of a run that resumes."""
        waiting = deque(range(1, len(records) + 1))
        for line in _history(history):
            while waiting and records[waiting[0] - 1]["task"] < line["task"]:
                self.evaluated(records[: waiting.popleft()], matrix)
            self.losses(line)
        for number in waiting:
            self.evaluated(records[:number], matrix)

    def losses(self, line: Mapping[str, Any]) -> None:
        """Write the losses in a line of history.jsonl."""
        self.step = line["images"]
        self._scalars("loss", line["losses"])

    def evaluated(self, records: Sequence[TaskRecord], matrix: np.ndarray | None) -> None:
        """Write the metrics after a task, from all records up to it.

        `matrix` is the correlation matrix after this task or a later one: entries of old classes do not change.
        """
        record = records[-1]
        done = record["task"]
        self._scalars("seen", {name: record["seen"][name] for name in HEADLINE})
        for name in HEADLINE:
            width = len(str(len(self.tasks)))
            by_task = {f"task {j:0{width}}": score[name] for j, score in enumerate(record["by_task"], 1)}
            self._scalars(f"{name} by task", by_task)
        if len(records) > 1:
            scores = summarise(records, self.tasks)["by_task"]
            so_far = {name: [row[:done] for row in scores[name]] for name in HEADLINE}
            self._scalars("forgetting", {name: forgetting(so_far[name]) for name in HEADLINE})
        self._scalars("error of the matrix", record.get("acm_error", {}))
        end = self.tasks[done - 1].end
        if self.writer and matrix is not None and end <= _MAX_CLASSES:
            with self._writing():
                picture = draw_matrix(matrix[:end, :end], [len(task.classes) for task in self.tasks[:done]])
                self.writer.add_image("matrix", picture, self.step, dataformats="HWC")
        if self.writer:
            with self._writing():
                self.writer.flush()

    def _scalars(self, group: str, values: Mapping[str, float | None]) -> None:
        for name, value in values.items():
            if self.writer and value is not None and np.isfinite(value):
                with self._writing():
                    self.writer.add_scalar(f"{group}/{printable(name)}", value, self.step)

    def close(self) -> None:
        if self.writer:
            with self._writing():
                self.writer.close()


def draw_matrix(matrix: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """A picture of P(row | column), height x width x 3: dark is 0, yellow is 1, and the diagonal is white.

    A grey line separates the tasks, which have `sizes` classes.

    >>> draw_matrix(np.array([[1.0, 0.2], [0.4, 1.0]]), [1, 1]).shape
    (480, 480, 3)
    """
    values = np.where(np.isfinite(matrix), np.clip(matrix, 0, 1), 0)
    stops = np.linspace(0, 1, len(_PALETTE))
    colours = np.stack([np.interp(values, stops, channel) for channel in _PALETTE.T], -1).round().astype(np.uint8)
    colours[np.eye(len(matrix), dtype=bool) | ~np.isfinite(matrix)] = 255
    scale = max(1, _SIDE // len(matrix))
    picture = colours.repeat(scale, 0).repeat(scale, 1)
    for border in np.cumsum(sizes)[:-1].tolist() if scale > 3 else ():
        picture[border * scale - 1] = picture[:, border * scale - 1] = 160
    return picture


def _history(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of history.jsonl. A damaged one is a `UserError`."""
    try:
        for number, line in read_lines(path):
            try:
                values = (line["task"], line["images"], *line["losses"].values())
                damaged = not all(isinstance(value, int | float | None) for value in values)
            except (AttributeError, KeyError, TypeError):
                damaged = True
            if damaged:
                raise UserError(f"{path}, line {number}, is damaged")
            yield line
    except UserError as error:
        advice = f"give log: none in {path.parent / names.CONFIG} to continue without the log for TensorBoard"
        raise UserError(f"{error}: {advice}") from None
