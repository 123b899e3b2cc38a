"""Reading the images of a batch. Worker processes import this module, which imports no torch."""

from __future__ import annotations

import numpy as np

from lifelabel.images.source import ImageHandle, ImageSource
from lifelabel.images.transforms import load_batch
from lifelabel.images.workers import SharedArrays

__all__ = ["Read", "Request", "RequestReader"]

Request = tuple[int, str, np.ndarray, str, tuple[int, ...] | None, ImageSource | None, bool]
"""The number of a batch in its pass, and the fields of a `lifelabel.images.loader.Job`."""
Read = tuple[np.ndarray | None, np.ndarray, list[tuple[int, str]], np.ndarray | None]
"""The result of `load_batch`, and hashes of pixels if they are wanted. Without pixels, they are in shared memory."""


class RequestReader:
    """Reads requests. With shared memory the pixels are written there, and None is returned in their place."""

    def __init__(self, sources: dict[str, ImageHandle], size: int, shared: SharedArrays | None):
        self.sources, self.size, self.shared = sources, size, shared
        self.opened: dict[str, ImageSource] = {}

    def buffer(self, number: int) -> np.ndarray | None:
        """The shared memory of batch `number` of a pass. Batches arrive in order, so the arrays are used in turn."""
        return None if self.shared is None else self.shared.arrays[number % self.shared.count]

    def __call__(self, request: Request) -> Read:
        number, split, rows, augment, seed, source, hashed = request
        if source is None and split not in self.opened:
            self.opened[split] = self.sources[split].open()
        source = source or self.opened[split]
        hashes = np.zeros(len(rows), np.uint64) if hashed else None
        pixels, good, bad = load_batch(source, rows, self.size, augment, seed, self.buffer(number), hashes)
        return None if self.shared else pixels, good, bad, None if hashes is None else hashes[: len(good)]
