"""The folder `details` of a run: what a report shows besides the metrics.

`task-N.npz` is written after task N: the AP of each class, the number of pairs by probability, and the probabilities of
some test images, the examples. The last one has the precision over recall of each class too. `examples.npz` is written
after the last task: the names and labels of the examples, and small pictures of some of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
from PIL import Image
from torch import Tensor

from lifelabel.images.loader import Loader
from lifelabel.runs.details import MAX_EXAMPLES

_MIN_EXAMPLES = 24
_MAX_SCORES = 400_000
"""Probabilities of examples in one file: with many classes there are fewer examples."""
_SIDE, _QUALITY = 160, 70


def example_positions(images: int, classes: int) -> np.ndarray:
    """The positions of the examples among the test images: spread evenly, the same for all methods on a stream.

    >>> example_positions(5, 20).tolist(), len(example_positions(10_000, 80)), len(example_positions(10_000, 10_000))
    ([0, 1, 2, 3, 4], 256, 40)
    """
    count = max(_MIN_EXAMPLES, min(MAX_EXAMPLES, _MAX_SCORES // classes))
    return np.unique(np.linspace(0, images - 1, min(count, images)).round().astype(np.int64))


def choose_examples(probabilities: np.ndarray, labels: np.ndarray, known: np.ndarray, count: int) -> np.ndarray:
    """The rows of `count` images, the most confident mistakes first.

    In turn these are the image with the most probable wrong label, that with the least probable label that it has, and
    that whose labels are all the most probable.
    """
    wrong = np.where(known & ~labels, probabilities, 0).max(1, initial=0)
    missed = np.where(known & labels, 1 - probabilities, 0).max(1, initial=0)
    mistake = np.maximum(wrong, missed)
    orders = [np.argsort(-values, kind="stable").tolist() for values in (wrong, missed, -mistake)]
    chosen = list(dict.fromkeys(row for turn in zip(*orders, strict=True) for row in turn))[:count]
    return np.array(sorted(chosen, key=lambda row: -mistake[row]), np.int64)


def load_pictures(loader: Loader, rows: np.ndarray) -> dict[int, bytes]:
    """Small pictures of the test images `rows`, by row. A file that has been removed has none."""
    jobs = list(loader.scoring_jobs("test", rows))
    return {
        int(row): picture(pixels)
        for job, loaded in zip(jobs, loader.batches(jobs), strict=True)
        for row, pixels in zip(job.rows[loaded.good], loaded.pixels, strict=True)
    }


def picture(pixels: Tensor) -> bytes:
    """A small JPEG of the pixels of an image, as the model sees it."""
    image = Image.fromarray(pixels.numpy())
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()


def pictures_to_arrays(pictures: Iterable[bytes]) -> dict[str, np.ndarray]:
    """Pictures as arrays: their bytes one after the other, and where each ends."""
    files = list(pictures)
    ends = np.cumsum([len(file) for file in files], dtype=np.int64)
    return {"pictures": np.frombuffer(b"".join(files), np.uint8), "picture_ends": ends}
