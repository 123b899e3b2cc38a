"""The losses of every step, copied from the device and written to history.jsonl."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lifelabel.errors import NotFinite
from lifelabel.runs.lines import JsonLines
from lifelabel.utils.transfer import HostCopy

_INTERVAL = 10
"""The losses of this many steps are copied to the host together."""
_Step = tuple[dict[str, Any], int, dict[str, Tensor]]
"""The line of a step without its losses, its number of images, and its losses, which are still on the device."""


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
        self._waiting: list[_Step] = []
        self._copied: list[_Step] = []
        self._copy: HostCopy | None = None

    def add(self, line: dict[str, Any], images: int, losses: dict[str, Tensor]) -> None:
        self._waiting.append((line, images, losses))
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
        waiting = [loss for _, _, losses in self._copied for loss in losses.values()]
        if waiting:  # a method, or a part of its steps, may have no loss
            self._copy = HostCopy(torch.stack(waiting))
        values = iter(copy.wait().tolist() if copy else ())
        for line, _, on_device in steps:
            losses = line["losses"] = {name: next(values) for name in on_device}
            for name, value in losses.items():
                if not math.isfinite(value):
                    raise NotFinite(f"the loss '{name}' is {value}", line["step"])
            self.file.write(line)
            if self.on_line:
                self.on_line(line)
        if steps:
            self.on_steps(line["task"] - 1, sum(images for _, images, _ in steps), losses)
