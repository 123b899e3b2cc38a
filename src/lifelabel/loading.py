"""Batches of pixels, decoded ahead of the step that needs them, in worker processes where there are any.

What a batch holds follows from its rows and the seed alone, so the number of workers changes nothing, and a run that
goes on simply asks for the batches that are left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from lifelabel.images import load
from lifelabel.processes import START, settle_in
from lifelabel.streams.base import ImageSource

PREFETCH = 4
"""Batches each worker is ahead."""
SCORING_BYTES = 8 << 20
"""Pixels in a batch that is only scored: small enough for many to wait in shared memory."""

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
    """The pixels of those images of a job that could be read (B x H x W x 3, uint8), and why the others could not."""

    pixels: Tensor
    good: np.ndarray
    bad: list[tuple[int, str]]
    """Row and reason of each image that was skipped."""


class Loader:
    """Loads jobs in order. `workers` processes live until `close`; with none, images are decoded when asked for."""

    def __init__(self, sources: dict[str, ImageSource], size: int, workers: int, device: torch.device):
        if any(source.knows_labels for source in sources.values()):
            workers = max(workers, 1)  # what draws pictures from labels stays out of this process
        self.size, self.jobs = size, _Jobs()
        ahead: dict[str, Any] = {}
        if workers:
            ahead = {"prefetch_factor": PREFETCH, "persistent_workers": True, "multiprocessing_context": START}
        self.loader: DataLoader = DataLoader(
            _Reader(sources, size), batch_size=None, sampler=self.jobs, num_workers=workers,
            pin_memory=device.type == "cuda", worker_init_fn=settle_in,
            generator=torch.Generator(),  # its own: torch's would otherwise move on with every pass
            **ahead,
        )  # fmt: skip

    def batches(self, jobs: Iterable[Job]) -> Iterator[Loaded]:
        self.jobs.jobs = jobs
        for pixels, good, bad in self.loader:
            yield Loaded(pixels, good.numpy(), [(row, reason) for row, reason in bad])

    def scoring_jobs(self, split: str, rows: np.ndarray) -> Iterator[Job]:
        """The rows cut into batches for scoring."""
        step = max(1, min(256, SCORING_BYTES // (3 * self.size**2)))
        for first in range(0, len(rows), step):
            yield Job(split, rows[first : first + step])

    def close(self) -> None:
        """End the workers."""
        self.loader._iterator = None


class ScoredImages:
    """The pixels of the test images, batch by batch: kept where they fit, read anew for every evaluation where not.

    `rows` are those that could be read, known after the first time through; `bad` is told of the others.
    """

    def __init__(self, loader: Loader, rows: np.ndarray, bad: Callable[[int, str], None]):
        self.loader, self.all, self.rows, self.bad = loader, rows, rows, bad
        self.fit = 3 * loader.size**2 * len(rows) <= KEPT_BYTES
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
                kept.append(loaded.pixels)
            yield loaded.pixels
        self.rows, self.kept = np.concatenate(good), kept


class _Jobs(Sampler):
    """What the workers are to do next."""

    def __init__(self) -> None:
        self.jobs: Iterable[Job] = ()

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs)


class _Reader(Dataset):
    def __init__(self, sources: dict[str, ImageSource], size: int):
        self.sources, self.size = sources, size

    def __getitem__(self, job: Job) -> tuple[Tensor, Tensor, list[tuple[int, str]]]:
        pixels, good, bad = load(self.sources[job.split], job.rows, self.size, job.augment, job.seed)
        return torch.from_numpy(pixels), torch.from_numpy(good), bad


def default_workers(device: torch.device) -> int:
    """On a GPU as many as there are cores, up to 16; on the CPU none: the cores are at work already."""
    if device.type != "cuda":
        return 0
    return min(16, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
