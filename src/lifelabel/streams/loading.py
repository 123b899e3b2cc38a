"""Batches of pixels, decoded ahead of the step by worker processes.

The content of a batch depends on its rows and the seed only. So the number of workers changes nothing, and a resumed
run requests the batches that are left.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lifelabel.errors import UserError
from lifelabel.streams.base import ImageHandle, ImageSource
from lifelabel.streams.transforms import load_batch
from lifelabel.utils.processes import START_METHOD, init_child, num_cores, total_memory
from lifelabel.utils.torchrun import processes_here

__all__ = [
    "CACHE_BYTES",
    "DEFAULT_IMAGE_SIZE",
    "SCORING_BYTES",
    "Job",
    "Loaded",
    "Loader",
    "TestImages",
    "default_workers",
]

DEFAULT_IMAGE_SIZE = 224
"""Side in pixels of a photograph, if no option sets it."""
_MIN_WORKERS, _WORKERS_PER_CORE = 16, 8
"""So many worker processes are allowed on every machine, and for each core."""
_NETWORK_BYTES = 32
"""The fewest bytes that a network needs for each value of a pixel: float32, eight times."""
_PREFETCH = 2
"""Batches that each worker prepares ahead."""
SCORING_BYTES = {"cpu": 4 << 20, "cuda": 32 << 20, "mps": 32 << 20}
"""Pixels in a batch that is only scored, by the type of the device."""
CACHE_BYTES = 1 << 30
"""Test images are scored after every task. Up to this size, they stay decoded in memory, or their features do."""


@dataclass(frozen=True)
class Job:
    """One batch to load: rows of a split, or of a source of its own. With `seed`, the images are augmented."""

    split: str
    rows: np.ndarray
    augment: str = "none"
    seed: tuple[int, ...] | None = None
    source: ImageSource | None = None
    """The images of this job alone, in place of those of `split`. It is sent to a worker with the job."""


@dataclass(frozen=True)
class Loaded:
    """The pixels of the readable images of a job (B x H x W x 3, uint8), and the reasons for the others.

    The memory of `pixels` is reused when the next batch has been requested.
    """

    pixels: Tensor
    good: np.ndarray
    bad: list[tuple[int, str]]
    """Row and reason of each image that was skipped."""


class Loader:
    """Loads jobs of up to `batch` images in order.

    `workers` processes run until `close`; with 0, images are decoded in this process. Workers decode into memory that
    is shared from the start. So batches are not copied between processes, and no new pages are allocated.
    """

    def __init__(
        self,
        sources: dict[str, ImageHandle],
        size: int,
        workers: int,
        batch: int = 1,
        prefetch: int = _PREFETCH,
        scoring_bytes: int = SCORING_BYTES["cpu"],
    ):
        if any(source.drawn_from_labels for source in sources.values()):
            workers = max(workers, 1)  # images that are drawn from labels must not be drawn in this process
        self.scoring_batch = max(1, min(256, scoring_bytes // (3 * size**2)))
        _check_workers(workers)
        buffers = 0
        options: dict[str, Any] = {}
        if workers:
            options = {
                "prefetch_factor": prefetch, "persistent_workers": True, "multiprocessing_context": START_METHOD
            }  # fmt: skip
            # batches being decoded, batches waiting, the batch that is in use, and the next one
            buffers = workers * prefetch + 2 if START_METHOD == "fork" else 0
        _check_memory(size, batch, buffers)
        self.reader = _Reader(sources, size, buffers, max(batch, self.scoring_batch))
        self.jobs = _Jobs()
        self.loader: DataLoader = DataLoader(
            self.reader, batch_size=None, sampler=self.jobs, num_workers=workers, collate_fn=_identity,
            worker_init_fn=init_child, generator=torch.Generator(),  # the global generator must not advance
            **options,
        )  # fmt: skip

    def batches(self, jobs: Iterable[Job]) -> Iterator[Loaded]:
        self.jobs.jobs = jobs
        for number, (pixels, good, bad) in enumerate(self.loader):
            if pixels is None:
                pixels = torch.from_numpy(self.reader.buffer(number)[: len(good)])
            yield Loaded(pixels, good, bad)

    def scoring_jobs(self, split: str, rows: np.ndarray) -> Iterator[Job]:
        """The rows divided into batches for scoring."""
        for start in range(0, len(rows), self.scoring_batch):
            yield Job(split, rows[start : start + self.scoring_batch])

    def close(self) -> None:
        """End the workers."""
        self.loader._iterator = None


class TestImages:
    """The pixels of the test images, batch by batch: cached if they fit, else read again for every evaluation.

    `rows` are the readable images, known after the first pass. `bad` has the row of each other image and the reason.
    """

    __test__ = False  # pytest collects classes of this name

    def __init__(self, loader: Loader, rows: np.ndarray):
        self.loader, self.all_rows, self.rows = loader, rows, rows
        self.bad: list[tuple[int, str]] = []
        self.cacheable = 3 * loader.reader.size**2 * len(rows) <= CACHE_BYTES
        self.cached: list[Tensor] = []

    def __iter__(self) -> Iterator[Tensor]:
        if self.cached:
            yield from self.cached
            return
        jobs = list(self.loader.scoring_jobs("test", self.all_rows))
        good, bad, cached = [self.all_rows[:0]], [], []
        for job, loaded in zip(jobs, self.loader.batches(jobs), strict=True):
            bad += loaded.bad
            good.append(job.rows[loaded.good])
            if self.cacheable:
                cached.append(loaded.pixels.clone())
            yield loaded.pixels
        self.rows, self.bad, self.cached = np.concatenate(good), bad, cached


class _Jobs(Sampler):
    """The jobs of one pass, numbered."""

    def __init__(self) -> None:
        self.jobs: Iterable[Job] = ()

    def __iter__(self) -> Iterator[tuple[int, Job]]:
        return iter(enumerate(self.jobs))


class _Reader(Dataset):
    """Decodes a job. With shared memory the pixels are written there, and None is returned in their place."""

    def __init__(self, sources: dict[str, ImageHandle], size: int, buffers: int, batch: int):
        self.sources, self.size = sources, size
        self.opened: dict[str, ImageSource] = {}
        shape = (batch, size, size, 3)
        memory = [mmap.mmap(-1, int(np.prod(shape))) for _ in range(buffers)]
        self.buffers = [np.frombuffer(part, np.uint8).reshape(shape) for part in memory]

    def buffer(self, number: int) -> np.ndarray:
        """The buffer of job `number` of a pass. Batches arrive in order, so buffers are used in turn."""
        return self.buffers[number % len(self.buffers)]

    def __getitem__(self, item: tuple[int, Job]) -> tuple[Tensor | None, np.ndarray, list[tuple[int, str]]]:
        number, job = item
        out = self.buffer(number) if self.buffers else None
        if job.source is None and job.split not in self.opened:
            self.opened[job.split] = self.sources[job.split].open()
        source = job.source or self.opened[job.split]
        pixels, good, bad = load_batch(source, job.rows, self.size, job.augment, job.seed, out)
        return None if self.buffers else torch.from_numpy(pixels), good, bad


def _identity(batch: Any) -> Any:
    return batch


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
