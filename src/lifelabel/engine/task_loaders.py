"""A stream as PyTorch data loaders, task by task, for a training loop of your own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from lifelabel import streams
from lifelabel.engine.judging import task_of_image
from lifelabel.errors import UserError, unknown
from lifelabel.images.loader import DEFAULT_IMAGE_SIZE
from lifelabel.images.source import ImageSource
from lifelabel.images.transforms import AUGMENTATIONS, load_batch
from lifelabel.registry import resolve_name
from lifelabel.streams.order import training_order
from lifelabel.streams.stream import Stream, Task, TrainView
from lifelabel.streams.subsets import sort_by_name
from lifelabel.utils.processes import init_child, start_method, starting

_Batch = tuple[Tensor, Tensor, Tensor]


class TaskData(NamedTuple):
    """One task: its classes, its training images, and the cumulative test set.

    Both loaders yield `pixels` (B x H x W x 3, uint8), `labels` and `known` (B x K, float and bool). The labels of
    training images are those of the task (with the stream's option `labels="known"`, those of all classes so far), the
    labels of test images those of all classes so far.
    """

    task: Task
    train: DataLoader
    test: DataLoader


def task_loaders(
    stream: str | Stream, batch_size: int = 8, *, image_size: int | None = None, augment: str = "flip", seed: int = 0,
    workers: int = 0, **options: Any,
) -> Iterator[TaskData]:  # fmt: skip
    """The tasks of a stream, one after the other.

    `options` are those of the stream. `seed` is the seed of a run: training images have the order and the augmentation
    of a run with this seed. For another seed of the stream itself, build the stream first (`lifelabel.streams.build`).

    Images that cannot be read are left out, and so is a batch if none of its images can be read. The labels of the
    whole stream are in this process: nothing hides the labels of other tasks from your code.

    >>> first = next(task_loaders("scenes", train_images=40, test_images=20, tasks=2))
    >>> pixels, labels, known = next(iter(first.train))
    >>> pixels.shape, labels.shape, bool(known.all())
    (torch.Size([8, 64, 64, 3]), torch.Size([8, 10]), True)
    """
    if augment not in AUGMENTATIONS:
        raise unknown("augmentation", augment, AUGMENTATIONS)
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, not {batch_size}")
    if isinstance(stream, str):
        stream = streams.build(resolve_name(stream), options)
    elif options:
        raise UserError(f"a stream that is built takes no options, such as {next(iter(options))}: build it with them")
    stream = sort_by_name(stream)  # as in a run: the order of a task's images depends on it
    train, test = stream.train, stream.test
    size = image_size or stream.image_size or DEFAULT_IMAGE_SIZE
    first_task = np.where(test.images.present, task_of_image(stream), len(stream.tasks))
    for task in stream.tasks:
        view = stream.train_view(task.index)
        order = training_order(view.rows, train.images, seed, task.index)
        train_batches = _Batches(train.images, view.take(order), batch_size, size, augment, (seed, task.index))
        rows, seen = np.flatnonzero(first_task <= task.index), range(task.end)
        not_known = None if test.unknown is None else test.unknown.take(rows).select_classes(seen)
        labels = test.labels.take(rows).select_classes(seen)
        scored = TrainView(task, rows, labels, stream.classes[: task.end], not_known)
        yield TaskData(
            task, _Loader(train_batches, workers), _Loader(_Batches(test.images, scored, batch_size, size), workers)
        )


class _Batches(Dataset):
    """The readable images of each batch of a view, with their labels."""

    def __init__(
        self, images: ImageSource, view: TrainView, batch_size: int, size: int, augment: str = "none",
        seed: tuple[int, ...] | None = None,
    ):  # fmt: skip
        self.images, self.view = images, view
        self.batch_size, self.size, self.augment, self.seed = batch_size, size, augment, seed

    def __len__(self) -> int:
        return math.ceil(len(self.view) / self.batch_size)

    def __getitem__(self, number: int) -> _Batch:
        start = number * self.batch_size
        index = np.arange(start, min(start + self.batch_size, len(self.view)))
        pixels, good, _ = load_batch(self.images, self.view.rows[index], self.size, self.augment, self.seed)
        labels = torch.from_numpy(self.view.labels.take(index[good]).dense())
        known = self.view.known(index[good])
        mask = torch.ones_like(labels) if known is None else torch.from_numpy(known)
        return torch.from_numpy(pixels), labels.float(), mask


class _Loader(DataLoader):
    """Batches in order, without empty ones."""

    def __init__(self, batches: _Batches, workers: int):
        options: dict[str, Any] = {"worker_init_fn": init_child} if workers else {}
        generator = torch.Generator()  # the global generator must not advance
        super().__init__(batches, batch_size=None, num_workers=workers, generator=generator, **options)

    def __iter__(self) -> Iterator[_Batch]:  # type: ignore[override]
        return (batch for batch in self._batches() if len(batch[0]))

    def _batches(self) -> Iterator[_Batch]:
        if not self.num_workers:
            return super().__iter__()
        method = self.multiprocessing_context = start_method(self.dataset)
        with starting(method, __name__):
            return super().__iter__()
