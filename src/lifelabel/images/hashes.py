"""Hashes of images: which images a model was trained on, and which files have the same pixels. This imports no torch.

The hash of an image is one of its pixels as they are decoded, before it is resized and augmented. A large JPEG may be
decoded at a reduced size (`side`), so only hashes that were made with the same `side` can be compared.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from PIL import Image

from lifelabel.errors import UserError
from lifelabel.images.source import BadImage, ImageSource, name_draws
from lifelabel.images.workers import WorkerDied, Workers
from lifelabel.utils.processes import num_cores

PAIR_BYTES = 16
"""The size of `TrainedImages.to_bytes` for each image."""
_PAIRS = np.dtype("<u8")
_CHUNK = 64
"""Images that a worker process opens at a time."""
_MAX_SERIAL_IMAGES = 256
"""Up to this many images, opening them takes less time than starting worker processes."""


def hash_pixels(image: Image.Image) -> int:
    """A 64-bit hash of the size and the pixels of an image. It is not 0."""
    data = np.asarray(image).data
    start = zlib.crc32(f"{image.width} {image.height}".encode())
    return zlib.crc32(data, start) << 32 | zlib.adler32(data) or 1  # a hash of hashlib takes several times as long


def hash_names(names: Iterable[str]) -> np.ndarray:
    """A 64-bit hash of each name."""
    return name_draws("image", names)


def hash_images(
    source: ImageSource, rows: np.ndarray, side: int, progress: Callable[[int, int], None] | None = None
) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """Open images. Returns the hash of each one, 0 if it cannot be used, and (row, reason) of each such image."""
    chunks = [rows[start : start + _CHUNK] for start in range(0, len(rows), _CHUNK)]
    workers = None
    if len(rows) > _MAX_SERIAL_IMAGES:
        workers = Workers(num_cores(), functools.partial, _hash_rows, source, side, needed=(source,), preload=__name__)
    hashes, done = [np.zeros(0, np.uint64)], 0
    bad: list[tuple[int, str]] = []
    try:
        work = functools.partial(_hash_rows, source, side)
        for found, unusable in workers.map(chunks) if workers else map(work, chunks):
            hashes.append(found)
            bad += unusable
            done += len(found)
            if progress is not None:
                progress(done, len(rows))
    except WorkerDied:
        raise UserError(
            f"a worker process that opened images ({source.name(0)}, …) was killed: check that there is enough memory"
        ) from None
    finally:
        if workers:
            workers.close()
    return np.concatenate(hashes), bad


def _hash_rows(source: ImageSource, side: int, rows: np.ndarray) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """The hashes of some images, in a worker process or in this one. The source is not sent to a worker every time."""
    hashes = np.zeros(len(rows), np.uint64)
    bad: list[tuple[int, str]] = []
    for position, row in enumerate(rows.tolist()):
        try:
            hashes[position] = hash_pixels(source.read(row, side))
        except BadImage as error:
            bad.append((row, str(error)))
    return hashes, bad


class TrainedImages:
    """The images that a model was trained on: a hash of the name and a hash of the pixels of each, as rows of `pairs`.

    The hash of the pixels is 0 for a training image that was not learned, because it could not be read or because the
    stream left it out.
    """

    def __init__(self, pairs: np.ndarray, side: int):
        self._parts, self.side = [pairs], side

    @staticmethod
    def of_names(names: np.ndarray, side: int) -> TrainedImages:
        """Training images that are not learned, from the hashes of their names."""
        return TrainedImages(_pair(names, np.zeros_like(names)), side)

    @property
    def pairs(self) -> np.ndarray:
        """The hashes, N x 2 (uint64). A pair may be there twice."""
        self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def add(self, names: Iterable[str], pixels: np.ndarray | int = 0) -> None:
        """Add images by their names and the hashes of their pixels."""
        self._parts.append(_pair(hash_names(names), pixels))

    def add_pairs(self, pairs: np.ndarray) -> None:
        self._parts.append(pairs)

    def find(
        self, source: ImageSource, rows: np.ndarray, progress: Callable[[int, int], None] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which of the images are training images, and which others only have the name of one.

        A training image has the same pixels as one of `pairs`. If the pixels of a pair are not known, the name is
        compared.
        """
        known = self.pairs
        names = hash_names(source.name(row) for row in rows.tolist())
        pixels, _ = hash_images(source, rows, self.side, progress)
        trained = (pixels > 0) & np.isin(pixels, known[:, 1])
        trained |= np.isin(names, known[known[:, 1] == 0, 0])
        return trained, np.isin(names, known[:, 0]) & ~trained

    def to_bytes(self) -> bytes:
        """The pairs in ascending order, each once, as little-endian numbers."""
        return np.unique(self.pairs, axis=0).astype(_PAIRS).tobytes()

    @staticmethod
    def from_bytes(data: bytes, side: int) -> TrainedImages:
        return TrainedImages(np.frombuffer(data, _PAIRS).astype(np.uint64).reshape(-1, 2), side)


def _pair(names: np.ndarray, pixels: Any) -> np.ndarray:
    return np.stack([names, np.broadcast_to(np.asarray(pixels, np.uint64), names.shape)], axis=1)
