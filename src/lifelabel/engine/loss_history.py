"""The losses of every step, copied from the device and written to history.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifelabel.errors import NotFinite
from lifelabel.runs.lines import JsonLines
from lifelabel.utils.transfer import HostCopy

_INTERVAL = 10
"""The losses of this many steps are copied to the host together."""


@dataclass(frozen=True)
class PendingStep:
    """A step whose losses are still on the device."""

    task: int
    step: int
    images: int
    """Images of the step."""
    total_images: int
    """Images of all steps so far."""
    losses: dict[str, Tensor]
    number: int | None = None
    """The pass over the images of the task, from 1; None if there is only one."""


class LossHistory:
    """Writes one line per step, without waiting for the device.

    The losses of a group of steps are copied to the host, and written when the next group is complete. Then the copy
    has arrived. A loss that is not finite raises `NotFinite`. `on_steps` is called with the task index, the number of
    images and the last losses of each group, and `on_line` with each line.
    """

    def __init__(
        self, file: JsonLines, on_steps: Callable[[int, int, dict[str, float]], None],
        on_line: Callable[[dict[str, Any]], None] | None = None,
    ):  # fmt: skip
        self.file, self.on_steps, self.on_line = file, on_steps, on_line
        self._waiting: list[PendingStep] = []
        self._copied: list[PendingStep] = []
        self._copy: HostCopy | None = None

    def add(self, step: PendingStep) -> None:
        self._waiting.append(step)
        if len(self._waiting) == _INTERVAL:
            self._exchange()

    def flush(self) -> None:
        """Write the losses of all steps."""
        self._exchange()
        self._exchange()

    def _exchange(self) -> None:
        """Start to copy the losses of the waiting steps, and write those that were copied before."""
        steps, copy = self._copied, self._copy
        self._copied, self._waiting, self._copy = self._waiting, [], None
        waiting = [loss for step in self._copied for loss in step.losses.values()]
        if waiting:  # a method, or a part of its steps, may have no loss
            self._copy = HostCopy(torch.stack(waiting))
        values = iter(copy.wait().tolist() if copy else ())
        for step in steps:
            losses = {name: next(values) for name in step.losses}
            for name, value in losses.items():
                if not math.isfinite(value):
                    raise NotFinite(f"the loss '{name}' is {value}", step.step)
            line: dict[str, Any] = {"task": step.task + 1, "step": step.step, "images": step.total_images}
            line |= {} if step.number is None else {"pass": step.number}
            line["losses"] = losses
            self.file.write(line)
            if self.on_line:
                self.on_line(line)
        if steps:
            self.on_steps(steps[-1].task, sum(step.images for step in steps), losses)
