"""Batches of pixels, decoded ahead of the step by worker processes.

The content of a batch depends on its rows and the seed only. So the number of workers changes nothing, and a resumed
run requests the batches that are left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lifelabel.errors import UserError
from lifelabel.images import transforms
from lifelabel.images.source import ImageSource
from lifelabel.images.transforms import Job, JobReader
from lifelabel.images.workers import AHEAD, SharedArrays, Workers
from lifelabel.parallel.torchrun import processes_here
from lifelabel.utils.memory import total_memory
from lifelabel.utils.processes import num_cores

__all__ = [
    "CACHE_BYTES", "DEFAULT_IMAGE_SIZE", "SCORING_BYTES", "Job", "Loaded", "Loader", "TestImages", "default_workers",
]  # fmt: skip

DEFAULT_IMAGE_SIZE = 224
"""Side in pixels of a photograph, if no option sets it."""
_MIN_WORKERS, _WORKERS_PER_CORE = 16, 8
"""So many worker processes are allowed on every machine, and for each core."""
_NETWORK_BYTES = 32
"""The fewest bytes that a network needs for each value of a pixel: float32, eight times."""
SCORING_BYTES = {"cpu": 4 << 20, "cuda": 32 << 20, "mps": 32 << 20}
"""Pixels in a batch that is only scored, by the type of the device."""
CACHE_BYTES = 1 << 30
"""Test images are scored after every task. Up to this size, decoded images are kept in memory, or their features."""


@dataclass(frozen=True)
class Loaded:
    """The pixels of the readable images of a job (B x H x W x 3, uint8), and the reasons for the others.

    The memory of `pixels` is reused when the next batch has been requested.
    """

    pixels: Tensor
    good: np.ndarray
    bad: list[tuple[int, str]]
    """Row and reason of each image that was skipped."""
    hashes: np.ndarray | None = None
    """The hash of each readable image, if it is wanted."""


class Loader:
    """Loads jobs of up to `batch` images in order.

    `workers` processes run until `close`; with 0, images are decoded in this process. Workers decode into memory that
    is shared from the start. So batches are not copied between processes, and no new pages are allocated.
    """

    def __init__(
        self,
        sources: dict[str, ImageSource],
        size: int,
        workers: int,
        batch: int = 1,
        scoring_bytes: int = SCORING_BYTES["cpu"],
    ):
        if any(source.drawn_from_labels for source in sources.values()):
            workers = max(workers, 1)  # images that are drawn from labels must not be drawn in this process
        self.scoring_batch = max(1, min(256, scoring_bytes // (3 * size**2)))
        _check_workers(workers)
        # batches being decoded, batches waiting, the batch that is in use, and the next one
        buffers = workers * AHEAD + 2 if workers else 0
        _check_memory(size, batch, buffers)
        shared = None
        if workers and hasattr(os, "memfd_create"):
            shared = SharedArrays(buffers, (max(batch, self.scoring_batch), size, size, 3))
        self.reader = JobReader(sources, size, shared)
        self.on_wait: Callable[[], None] = lambda: None
        """Called several times per second while the next batch is awaited."""
        self.workers: Workers | None = None
        if workers:
            given, module = (sources, size, shared), transforms.__name__
            self.workers = Workers(workers, JobReader, *given, needed=(sources,), preload=module)

    def batches(self, jobs: Iterable[Job], on_wait: Callable[[], None] | None = None) -> Iterator[Loaded]:
        """The batches of one pass. `on_wait` replaces that of the loader."""
        numbered = enumerate(jobs)
        read = self.workers.map(numbered, on_wait or self.on_wait) if self.workers else map(self.reader, numbered)
        for number, (pixels, good, bad, hashes) in enumerate(read):
            in_memory = self.reader.buffer(number) if pixels is None else pixels
            assert in_memory is not None
            yield Loaded(torch.from_numpy(in_memory[: len(good)]), good, bad, hashes)

    def scoring_jobs(self, split: str, rows: np.ndarray) -> Iterator[Job]:
        """The rows divided into batches for scoring."""
        for start in range(0, len(rows), self.scoring_batch):
            yield Job(split, rows[start : start + self.scoring_batch])

    def close(self) -> None:
        """End the workers."""
        if self.workers:
            self.workers.close()


class TestImages:
    """The pixels of the test images, or of another `split`, batch by batch: cached if they fit, else read again for
    every evaluation.

    `rows` are the readable images, known after the first pass. `bad` has the row of each other image and the reason.
    """

    __test__ = False  # pytest collects classes of this name

    def __init__(self, loader: Loader, rows: np.ndarray, split: str = "test"):
        self.loader, self.all_rows, self.rows, self.split = loader, rows, rows, split
        self.bad: list[tuple[int, str]] = []
        self.cacheable = 3 * loader.reader.size**2 * len(rows) <= CACHE_BYTES
        self.cached: list[Tensor] = []

    def __iter__(self) -> Iterator[Tensor]:
        if self.cached:
            yield from self.cached
            return
        jobs = list(self.loader.scoring_jobs(self.split, self.all_rows))
        good, bad, cached = [self.all_rows[:0]], [], []
        for job, loaded in zip(jobs, self.loader.batches(jobs), strict=True):
            bad += loaded.bad
            good.append(job.rows[loaded.good])
            if self.cacheable:
                cached.append(loaded.pixels.clone())
            yield loaded.pixels
        self.rows, self.bad, self.cached = np.concatenate(good), bad, cached


def _check_workers(workers: int) -> None:
    most = max(_MIN_WORKERS, _WORKERS_PER_CORE * num_cores())
    if workers > most:
        raise UserError(f"workers must be at most {most} on this machine, which has {num_cores()} cores, not {workers}")


def _check_memory(size: int, batch: int, buffers: int) -> None:
    """Refuse a batch that cannot fit: the decoded batches, and what the network computes from one."""
    needed = 3 * size**2 * batch * (buffers + _NETWORK_BYTES)
    memory = total_memory()
    if needed > memory:
        raise UserError(
            f"batches of {batch:,} images of {size} × {size} pixels need at least {needed / 1e9:,.0f} GB, and this "
            f"machine has {memory / 1e9:,.0f} GB: give a smaller batch_size or image_size, or fewer workers"
        )


def default_workers(device: torch.device) -> int:
    """On a GPU the number of cores for each process of the run, up to 16; on the CPU 0: training uses all cores."""
    if device.type != "cuda":
        return 0
    return max(1, min(16, num_cores() // processes_here()))
