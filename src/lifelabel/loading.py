"""Batches of pixels, decoded ahead of the step that needs them, in worker processes where there are any.

What a batch holds follows from its rows and the seed alone, so the number of workers changes nothing, and a run that
goes on simply asks for the batches that are left.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lifelabel.errors import UserError
from lifelabel.images import load
from lifelabel.processes import START, cores, settle_in
from lifelabel.streams.base import ImageSource, SealedImages

PREFETCH = 2
"""Batches each worker is ahead."""
SCORING_BYTES = {"cpu": 4 << 20, "cuda": 32 << 20}
"""Pixels in a batch that is only scored, by the kind of device."""
KEPT_BYTES = 1 << 30
"""Test images are kept decoded up to this size: they are scored after every task."""


@dataclass(frozen=True)
class Job:
    """One batch to load: rows of a split; with `seed`, augmented."""

    split: str
    rows: np.ndarray
    augment: str = "none"
    seed: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Loaded:
    """The pixels of those images of a job that could be read (B x H x W x 3, uint8), and why the others could not.

    The memory of `pixels` is used again once the next batch has been asked for.
    """

    pixels: Tensor
    good: np.ndarray
    bad: list[tuple[int, str]]
    """Row and reason of each image that was skipped."""


class Loader:
    """Loads jobs of up to `batch` images in order. `workers` processes live until `close`; with none, images are
    decoded when asked for.

    Workers decode into memory that all processes share from the start: a batch is never copied from one to another,
    and new pages, which are slow to get, are needed once.
    """

    def __init__(
        self,
        sources: dict[str, SealedImages],
        size: int,
        workers: int,
        batch: int = 1,
        prefetch: int = PREFETCH,
        scoring_bytes: int = SCORING_BYTES["cpu"],
    ):
        if any(source.knows_labels for source in sources.values()):
            workers = max(workers, 1)  # what draws pictures from labels stays out of this process
        self.scoring = max(1, min(256, scoring_bytes // (3 * size**2)))
        shared = 0
        ahead: dict[str, Any] = {}
        if workers:
            ahead = {"prefetch_factor": prefetch, "persistent_workers": True, "multiprocessing_context": START}
            # what is being decoded, what waits, the batch that was given out last, and the next
            shared = workers * prefetch + 2 if START == "fork" else 0
        self.reader = _Reader(sources, size, shared, max(batch, self.scoring))
        self.jobs = _Jobs()
        self.loader: DataLoader = DataLoader(
            self.reader, batch_size=None, sampler=self.jobs, num_workers=workers, collate_fn=_as_it_is,
            worker_init_fn=settle_in, generator=torch.Generator(),  # torch's own would move on with every pass
            **ahead,
        )  # fmt: skip

    def batches(self, jobs: Iterable[Job]) -> Iterator[Loaded]:
        self.jobs.jobs = jobs
        for number, (pixels, good, bad) in enumerate(self.loader):
            if pixels is None:
                pixels = torch.from_numpy(self.reader.place(number)[: len(good)])
            yield Loaded(pixels, good, bad)

    def scoring_jobs(self, split: str, rows: np.ndarray) -> Iterator[Job]:
        """The rows cut into batches for scoring."""
        for first in range(0, len(rows), self.scoring):
            yield Job(split, rows[first : first + self.scoring])

    def close(self) -> None:
        """End the workers."""
        self.loader._iterator = None


class ScoredImages:
    """The pixels of the test images, batch by batch: kept where they fit, read anew for every evaluation where not.

    `rows` are those that could be read, known after the first time through; `bad` is told of the others.
    """

    def __init__(self, loader: Loader, rows: np.ndarray, bad: Callable[[int, str], None]):
        self.loader, self.all, self.rows, self.bad = loader, rows, rows, bad
        self.fit = 3 * loader.reader.size**2 * len(rows) <= KEPT_BYTES
        self.kept: list[Tensor] = []

    def __iter__(self) -> Iterator[Tensor]:
        if self.kept:
            yield from self.kept
            return
        jobs = list(self.loader.scoring_jobs("test", self.all))
        good, kept = [], []
        for job, loaded in zip(jobs, self.loader.batches(jobs), strict=True):
            for row, reason in loaded.bad:
                self.bad(row, reason)
            good.append(job.rows[loaded.good])
            if self.fit:
                kept.append(loaded.pixels.clone())
            yield loaded.pixels
        self.rows, self.kept = np.concatenate(good), kept
        if not len(self.rows):
            raise UserError("no test image could be read: see skipped.jsonl in the run folder")


class _Jobs(Sampler):
    """What the workers are to do next, numbered."""

    def __init__(self) -> None:
        self.jobs: Iterable[Job] = ()

    def __iter__(self) -> Iterator[tuple[int, Job]]:
        return iter(enumerate(self.jobs))


class _Reader(Dataset):
    """Decodes a job: into shared memory where there is some, and then no pixels are returned."""

    def __init__(self, sources: dict[str, SealedImages], size: int, shared: int, batch: int):
        self.sources, self.size = sources, size
        self.opened: dict[str, ImageSource] = {}
        shape = (batch, size, size, 3)
        memory = [mmap.mmap(-1, int(np.prod(shape))) for _ in range(shared)]
        self.places = [np.frombuffer(part, np.uint8).reshape(shape) for part in memory]

    def place(self, number: int) -> np.ndarray:
        """Where job `number` of a pass is decoded to: batches come in order, so places are taken in turn."""
        return self.places[number % len(self.places)]

    def __getitem__(self, item: tuple[int, Job]) -> tuple[Tensor | None, np.ndarray, list[tuple[int, str]]]:
        number, job = item
        out = self.place(number) if self.places else None
        if job.split not in self.opened:
            self.opened[job.split] = self.sources[job.split].open()
        pixels, good, bad = load(self.opened[job.split], job.rows, self.size, job.augment, job.seed, out)
        return None if self.places else torch.from_numpy(pixels), good, bad


def _as_it_is(batch: Any) -> Any:
    return batch


def default_workers(device: torch.device) -> int:
    """On a GPU as many as there are cores, up to 16; on the CPU none: the cores are at work already."""
    if device.type != "cuda":
        return 0
    return min(16, cores())
