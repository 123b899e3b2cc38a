"""Images to arrays of pixels: resizing, seeded augmentation, batches.

Worker processes import this module, which imports no torch.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from lifelabel.images.hashes import hash_pixels
from lifelabel.images.source import BadImage, ImageSource
from lifelabel.images.workers import SharedArrays

AUGMENTATIONS = {
    "none": "the image as it is",
    "flip": "mirrored left to right for half of the images (the authors' code: resize, then flip)",
    "crop-flip": "a random part of 50 to 100 % of the area, resized back, then flipped (the paper, A.4)",
}

_MIN_AREA, _MAX_ASPECT = 0.5, 4 / 3


def min_side_for(size: int, augment: str) -> int:
    """The side in pixels that an image needs so that its smallest crop is not enlarged to `size`."""
    return math.ceil(size / math.sqrt(_MIN_AREA / _MAX_ASPECT)) if augment == "crop-flip" else size


def _transform(image: Image.Image, size: int, augment: str, rng: np.random.Generator | None) -> np.ndarray:
    """The whole image, or a random crop, as `size` x `size` x 3 bytes. Without `rng` nothing is random.

    Random numbers are drawn in this order: the flip, then area, aspect and position of the crop. An image that has the
    right size already is not resampled.
    """
    flip = rng is not None and augment != "none" and rng.random() < 0.5
    box = _crop(image.width, image.height, rng) if rng is not None and augment == "crop-flip" else None
    if box:
        top, left, height, width = box
        image = image.crop((left, top, left + width, top + height))
    if image.size != (size, size):
        # torchvision calls the same function, but takes two seconds to import in every worker process
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else image
    return np.frombuffer(image.tobytes(), np.uint8).reshape(size, size, 3)


def _crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A random box (top, left, height, width) of 50 to 100 % of the area.

    Its aspect ratio is 3:4 to 4:3 relative to the aspect ratio of the image, because every image is resized to a square
    in the end. So a panorama does not lose a larger share of its area than a square image.
    """
    area, aspect, x, y = rng.random(4)
    area, aspect = _MIN_AREA + (1 - _MIN_AREA) * area, _MAX_ASPECT ** (2 * aspect - 1)
    w = min(width, math.ceil(width * math.sqrt(area * aspect)))
    h = min(height, math.ceil(height * math.sqrt(area / aspect)))
    return int(y * (height - h + 1)), int(x * (width - w + 1)), h, w


def load_batch(
    source: ImageSource,
    rows: np.ndarray,
    size: int,
    augment: str,
    seed: tuple[int, ...] | None,
    out: np.ndarray | None = None,
    hashes: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, str]]]:
    """Images as one uint8 array B x `size` x `size` x 3, their positions in `rows`, and (row, reason) of bad images.

    The random numbers of an image depend on `seed` and its row only (or on the key of the row, if the source has a
    method `key`), so its pixels depend neither on its batch nor on the process that loads it. Without a seed nothing is
    augmented. With `out` (which may be larger) the images are written there, and in `hashes` the hashes of their pixels
    before they are resized and augmented.
    """
    augment = "none" if seed is None else augment
    key_of: Callable[[int], int] = getattr(source, "key", int)
    min_side = min_side_for(size, augment)
    batch = np.empty((len(rows), size, size, 3), np.uint8) if out is None else out
    good: list[int] = []
    bad: list[tuple[int, str]] = []
    for position, row in enumerate(rows.tolist()):
        try:
            image = source.read(row, min_side)
        except BadImage as error:
            bad.append((row, str(error)))
            continue
        rng = None if seed is None or augment == "none" else _GENERATORS.at(seed, key_of(row))
        if hashes is not None:
            hashes[len(good)] = hash_pixels(image)
        batch[len(good)] = _transform(image, size, augment, rng)
        good.append(position)
    return batch[: len(good)], np.array(good, np.int64), bad


@dataclass(frozen=True)
class Job:
    """One batch to load: rows of a split, or of `source`. With `seed`, the images are augmented."""

    split: str
    rows: np.ndarray
    augment: str = "none"
    seed: tuple[int, ...] | None = None
    source: ImageSource | None = None
    """The images of this job alone, in place of those of `split`. It is sent to a worker with the job."""
    hashed: bool = False
    """Whether the hashes of the pixels are wanted."""


Batch = tuple[np.ndarray | None, np.ndarray, list[tuple[int, str]], np.ndarray | None]
"""The result of `load_batch`, and hashes of pixels if they are wanted. Without pixels, they are in shared memory."""


class JobReader:
    """Loads numbered jobs. With shared memory the pixels are written there, and None is returned in their place."""

    def __init__(self, sources: dict[str, ImageSource], size: int, shared: SharedArrays | None):
        self.sources, self.size, self.shared = sources, size, shared

    def buffer(self, number: int) -> np.ndarray | None:
        """The shared memory of batch `number` of a pass. Batches arrive in order, so the arrays are used in turn."""
        return None if self.shared is None else self.shared.arrays[number % self.shared.count]

    def __call__(self, numbered: tuple[int, Job]) -> Batch:
        number, job = numbered
        source = self.sources[job.split] if job.source is None else job.source
        hashes = np.zeros(len(job.rows), np.uint64) if job.hashed else None
        pixels, good, bad = load_batch(source, job.rows, self.size, job.augment, job.seed, self.buffer(number), hashes)
        return None if self.shared else pixels, good, bad, None if hashes is None else hashes[: len(good)]


class _Generators(threading.local):
    """The random generator of each image: one Philox generator per thread, set to (seed, key).

    Setting the state of a generator is much faster than making a new one.
    """

    def __init__(self) -> None:
        self.bits = np.random.Philox(0)
        self.rng = np.random.Generator(self.bits)
        self.state = self.bits.state

    def at(self, seed: tuple[int, ...], key: int) -> np.random.Generator:
        """The generator at the first random number of a key. Each key has 2^66 numbers."""
        self.state["state"]["key"] = _philox_key(seed)
        self.state["state"]["counter"][1] = key
        self.bits.state = self.state
        return self.rng


@functools.lru_cache(maxsize=16)
def _philox_key(seed: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(2, np.uint64)


_GENERATORS = _Generators()
