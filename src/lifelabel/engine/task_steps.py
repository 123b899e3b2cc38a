"""The passes of a run over the images of one task: which images are in which step, and with which augmentation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from lifelabel.config.config import Config
from lifelabel.images.loader import Job
from lifelabel.images.source import ImageSource
from lifelabel.parallel.group import Group
from lifelabel.streams import TrainView
from lifelabel.streams.order import training_order


class TaskPasses:
    """The `epochs` passes over the images of a task. Each one has its own order and its own augmentation.

    The steps of a task are numbered through all passes, from 0. Everything depends on the configuration and the task
    only, so a run resumes at any step.
    """

    def __init__(self, config: Config, view: TrainView, images: ImageSource, task: int):
        self.config, self.view, self.task = config, view, task
        self.steps = math.ceil(len(view) / config.batch_size)
        """The number of steps of one pass."""
        self.total = self.steps * config.epochs
        # the loader reads ahead: at the end of a pass two orders are in use
        self._order: Callable[[int], np.ndarray] = functools.lru_cache(maxsize=2)(
            lambda number: training_order(view.rows, images, config.seed, task, config.image_order, number)
        )

    def number(self, step: int) -> int:
        """The pass of a step: 0 is the first one."""
        return step // self.steps

    def batch(self, step: int) -> np.ndarray:
        """The images of a step, as positions in the view."""
        number, place = divmod(step, self.steps)
        return self._order(number)[place * self.config.batch_size : (place + 1) * self.config.batch_size]

    def jobs(self, start: int, group: Group) -> Iterator[Job]:
        """The images of this process in the steps from `start` on, for the loader."""
        for step in range(start, self.total):
            batch, number = self.batch(step), self.number(step)
            seed = (self.config.seed, self.task, *([number] if number else []))
            rows = self.view.rows[batch[group.rows(len(batch))]]
            yield Job("train", rows, self.config.augment, seed, hashed=not number)
