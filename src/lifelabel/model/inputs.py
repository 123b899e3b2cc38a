"""The images that a model takes: files, bytes, Pillow images, arrays and tensors, each as a Pillow image in RGB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image
from torch import Tensor

from lifelabel.images.decode import decode_image, file_bytes, open_image, upright_rgb
from lifelabel.images.source import BadImage

ImageLike = str | Path | bytes | bytearray | BinaryIO | Image.Image | np.ndarray | Tensor
_OVERSHOOT = 0.01
"""Floats may leave 0 to 1 by this much, as those of an image that was resized by a cubic filter do."""


class Images:
    """Some images of any kind, as an `ImageSource`. Files are opened when they are read."""

    drawn_from_labels = False

    def __init__(self, items: Sequence[ImageLike]):
        self.items = items
        self.present: np.ndarray = np.ones(len(items), bool)

    def __len__(self) -> int:
        return len(self.items)

    def name(self, row: int) -> str:
        """The path of a file; the number of another image."""
        item = self.items[row]
        return str(item) if isinstance(item, str | Path) else f"number {row}"

    def handle(self) -> Images:
        return self

    def open(self) -> Images:
        return self

    def read(self, row: int, min_side: int = 0) -> Image.Image:
        item = self.items[row]
        if isinstance(item, str | Path):
            return open_image(item, min_side)
        if isinstance(item, Image.Image):
            return upright_rgb(item)
        if isinstance(item, np.ndarray | Tensor) or not (isinstance(item, bytes | bytearray) or hasattr(item, "read")):
            return Image.fromarray(_pixels(item))
        return decode_image(file_bytes(item), min_side)


def is_single(images: object) -> bool:
    """Whether `images` is one image, and not many."""
    if isinstance(images, np.ndarray | Tensor):
        return images.ndim < 4
    return isinstance(images, str | Path | bytes | bytearray | Image.Image) or hasattr(images, "read")


def batches_of(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """The items in lists of `size`. Each list is read when it is requested."""
    left = iter(items)
    while batch := list(islice(left, size)):
        yield batch


def _pixels(image: object) -> np.ndarray:
    """An array or tensor as H x W x 3 bytes. Raises `BadImage` with the reason."""
    if isinstance(image, Tensor):
        image = image.detach()
        if image.ndim == 3 and image.shape[0] in (1, 3):
            image = image.permute(1, 2, 0)
        try:
            array = (image if not image.is_floating_point() else image.float()).cpu().numpy()
        except (RuntimeError, TypeError) as error:  # sparse or quantized tensors
            raise BadImage(f"a tensor that cannot be converted to numpy ({error})") from None
    elif isinstance(image, np.ndarray):
        array = image
    else:
        raise BadImage(f"a {type(image).__name__}: give a path, a Pillow image, an array, a tensor, or bytes")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3) or not array.size:
        shapes = "3 x H x W or H x W x 3" if isinstance(image, Tensor) else "H x W x 3 or H x W"
        raise BadImage(f"of shape {' x '.join(map(str, image.shape))}: give {shapes}")
    return np.ascontiguousarray(np.broadcast_to(_bytes(array), (*array.shape[:2], 3)))


def _bytes(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        raise BadImage(f"of type {array.dtype}: give uint8, or floats from 0 to 1")
    low, high = float(array.min()), float(array.max())
    if not (low >= -_OVERSHOOT and high <= 1 + _OVERSHOOT):  # NaN too
        raise BadImage(f"with values from {low:g} to {high:g}: give floats from 0 to 1, not normalized, or uint8")
    return (array.clip(0, 1) * 255).round().astype(np.uint8)
