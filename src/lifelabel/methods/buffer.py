"""Replay buffers: images stored as JPEG within a budget, each with the labels that were visible when it was stored.

The time to add, remove and sample images does not depend on the number of images seen. Random numbers are from torch,
whose state is part of a checkpoint.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lifelabel.methods.method import HostBatch
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.nn.normalize import Normalize
from lifelabel.options import option
from lifelabel.utils.processes import num_cores
from lifelabel.utils.transfer import to_device

_JPEG_QUALITY = 95
"""At full colour resolution."""
_SMALL_BATCH_BYTES = 100_000
"""A batch of JPEGs below this size is decoded without threads: starting them takes longer."""


@dataclass(frozen=True)
class BufferOptions:
    buffer_images: int = option(2000, "maximum number of stored images", low=1, high=10_000_000, equal=True)
    buffer_bytes: int | None = option(
        None, "maximum size of the stored images with their labels, in bytes; none: no limit", low=1, equal=True
    )
    replay_batch: int | None = option(
        None, "stored images replayed with each batch; none: as many as the batch has", low=1, high=1_000_000
    )


@dataclass(frozen=True)
class Replayed:
    """Stored images as a batch.

    `labels` and `known` (B x seen classes) have a column for every seen class. `known` is true for the labels that were
    visible when the image was stored. `logits` has the stored logits, and 0 where `stored` is false.
    """

    images: Tensor
    labels: Tensor
    known: Tensor
    logits: Tensor | None = None
    stored: Tensor | None = None

    def __getitem__(self, rows: slice) -> Replayed:
        logits, stored = (None if part is None else part[rows] for part in (self.logits, self.stored))
        return Replayed(self.images[rows], self.labels[rows], self.known[rows], logits, stored)


@dataclass(frozen=True, eq=False)
class Item:
    """One stored image: a JPEG, and the labels of the columns `offset` … `offset + len(labels) - 1`."""

    jpeg: bytes
    offset: int
    labels: np.ndarray
    known: np.ndarray
    logits: np.ndarray | None = None
    """Logits of the classes 0 … len - 1 when the image was stored."""
    key: float = 0.0
    """The random key of reservoir sampling. The image with the largest key is removed first."""

    def __lt__(self, other: Item) -> bool:
        return self.key > other.key  # heapq pops the smallest item

    @property
    def bytes(self) -> int:
        stored = 0 if self.logits is None else self.logits.nbytes
        return len(self.jpeg) + self.labels.nbytes + self.known.nbytes + stored

    @property
    def positives(self) -> np.ndarray:
        """The columns of its known positive labels."""
        return self.offset + np.flatnonzero(self.labels)


class Buffer(ABC):
    """Stored images in no particular order. When an image is removed, the last one moves to its position.

    Subclasses decide in `offer` which images are stored and removed. `normalize` converts pixels to network input.
    With `mirror`, each replayed image is mirrored with probability 1/2.
    """

    def __init__(self, options: BufferOptions, normalize: Normalize, *, mirror: bool = True):
        self.options, self.normalize, self.mirror = options, normalize, mirror
        self.items: list[Item] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    @abstractmethod
    def offer(self, batch: HostBatch, offset: int, logits: Tensor | None = None) -> None:
        """Store some of the images of a batch. The labels of the batch are those of the columns from `offset` on."""

    def total_bytes(self) -> int:
        """The size of the images and of everything that is stored to choose among them."""
        return self.bytes

    def fits(self, item: Item) -> bool:
        """Whether `item` can be added within both budgets."""
        limit = self.options.buffer_bytes
        return len(self) < self.options.buffer_images and (limit is None or self.bytes + item.bytes <= limit)

    def add(self, item: Item) -> None:
        self.items.append(item)
        self.bytes += item.bytes

    def remove(self, position: int) -> Item:
        """Remove an image. The last image moves to its position."""
        item, last = self.items[position], self.items.pop()
        if position < len(self.items):
            self.items[position] = last
        self.bytes -= item.bytes
        return item

    def sample(self, count: int) -> list[int]:
        """The positions of `count` different images, uniformly at random; of all images if there are not more."""
        if count >= len(self):
            return list(range(len(self)))
        if 3 * count >= len(self):
            return torch.randperm(len(self))[:count].tolist()
        chosen: dict[int, None] = {}  # rejection sampling: repeats are rare, and the time does not depend on the size
        while len(chosen) < count:
            for position in torch.randint(len(self), (count - len(chosen),)).tolist():
                chosen[position] = None
        return list(chosen)

    def replay(self, positions: Sequence[int], classes: int) -> Replayed:
        """The images at the given positions, decoded and mirrored, with their labels in `classes` columns."""
        items = [self.items[position] for position in positions]
        images = self._mirrored(self.images(positions))
        labels, known = np.zeros((2, len(items), classes), bool)
        for row, item in enumerate(items):
            columns = slice(item.offset, item.offset + len(item.labels))
            labels[row, columns], known[row, columns] = item.labels, item.known
        replayed = Replayed(images, self._to_device(labels).float(), self._to_device(known))
        if all(item.logits is None for item in items):
            return replayed
        logits, stored = np.zeros((len(items), classes), np.float32), np.zeros((len(items), classes), bool)
        for row, item in enumerate(items):
            if item.logits is not None:
                logits[row, : len(item.logits)], stored[row, : len(item.logits)] = item.logits, True
        return dataclasses.replace(replayed, logits=self._to_device(logits), stored=self._to_device(stored))

    def images(self, positions: Sequence[int]) -> Tensor:
        """The images at the given positions as network input, decoded and not mirrored."""
        jpegs = [self.items[position].jpeg for position in positions]
        with Image.open(io.BytesIO(jpegs[0])) as image:
            width, height = image.size
        pin = self.normalize.shift.device.type == "cuda"  # for an asynchronous copy
        pixels = torch.empty((len(jpegs), height, width, 3), dtype=torch.uint8, pin_memory=pin)
        small = sum(map(len, jpegs)) < _SMALL_BATCH_BYTES
        for _ in (map if small else _threads().map)(decode, jpegs, pixels.numpy()):
            pass
        return self.normalize(pixels)

    def _mirrored(self, images: Tensor) -> Tensor:
        if not self.mirror:
            return images
        mirrored = to_device(torch.rand(len(images)) < 0.5, images.device)
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)

    @torch.no_grad()
    def compute(self, function: Callable[[Tensor, np.ndarray], Tensor], positions: np.ndarray, size: int) -> Tensor:
        """`function(images, positions)` of stored images, which are not mirrored, in batches of `size`.

        The result has one row per image, in float64 on the host.
        """
        rows = []
        for start in range(0, len(positions), size):
            part = positions[start : start + size]
            with without_cudnn(len(part) < size):
                rows.append(function(self.images(part.tolist()), part).cpu().double())
        return torch.cat(rows)

    def _to_device(self, array: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(array), self.normalize.shift.device)

    def state_dict(self) -> dict[str, Any]:
        """All images in a few tensors, with the end of each image in them."""
        none = np.zeros(0, np.float16)
        columns: dict[str, list[np.ndarray]] = {
            "jpeg": [np.frombuffer(item.jpeg, np.uint8) for item in self.items],
            "labels": [item.labels for item in self.items],
            "known": [item.known for item in self.items],
            "logits": [none if item.logits is None else item.logits for item in self.items],
        }
        state: dict[str, Any] = {
            "offset": torch.tensor([item.offset for item in self.items], dtype=torch.int64),
            "key": torch.tensor([item.key for item in self.items], dtype=torch.float64),
        }
        for name, parts in columns.items():
            state[name] = torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0)
            state[f"{name}_end"] = torch.tensor(np.cumsum([len(part) for part in parts]), dtype=torch.int64)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def parts(name: str) -> list[np.ndarray]:
            ends = state[f"{name}_end"].tolist()
            values = state[name].numpy()
            # copies: a view would keep the whole array in memory
            return [values[start:end].copy() for start, end in zip([0, *ends], ends, strict=False)]

        columns = [parts(name) for name in ("jpeg", "labels", "known", "logits")]
        numbers = state["offset"].tolist(), state["key"].tolist()
        self.items, self.bytes = [], 0
        for offset, key, jpeg, labels, known, logits in zip(*numbers, *columns, strict=True):
            self.add(Item(jpeg.tobytes(), offset, labels, known, logits if len(logits) else None, key))


class Reservoir(Buffer):
    """Reservoir sampling: every offered image is stored with the same probability.

    Each image gets a random key, and the images with the smallest keys are stored, as many as both budgets allow.
    `items` is a heap with the largest key first. Under the budget in images this has the distribution of Vitter's
    algorithm R; under the budget in bytes the number of images depends on their sizes.
    """

    max_key = 1.0
    """The key of the image that was removed last. Only images with a smaller key are stored."""

    def offer(self, batch: HostBatch, offset: int, logits: Tensor | None = None) -> None:
        """Store some of the images of a batch.

        With `logits` (B x seen classes, on the device) each image is stored with its row of them.
        """
        keys = torch.rand(len(batch.labels), dtype=torch.float64).tolist()
        chosen = [row for row, key in enumerate(keys) if key < self.max_key]
        items = [dataclasses.replace(make_item(batch, row, offset), key=keys[row]) for row in chosen]
        if logits is not None and chosen:  # last, because it waits for the device; skipped if no image is stored
            rows = logits.detach()[chosen].half().cpu().numpy()
            items = [dataclasses.replace(item, logits=row.copy()) for item, row in zip(items, rows, strict=True)]
        for item in items:
            self._insert(item)

    def _insert(self, item: Item) -> None:
        limit = self.options.buffer_bytes
        if item.key >= self.max_key or (limit is not None and item.bytes > limit):  # it would displace all others
            return
        heapq.heappush(self.items, item)
        self.bytes += item.bytes
        self._fit()

    def extend_logits(self, logits: Tensor) -> None:
        """Append columns to the logits of all images (images x columns, on any device).

        Logits take bytes. Images are removed if the budget in bytes requires it.
        """
        rows = logits.detach().half().cpu().numpy()
        for position, (item, row) in enumerate(zip(self.items, rows, strict=True)):
            stored = row.copy() if item.logits is None else np.concatenate([item.logits, row])
            self.items[position] = dataclasses.replace(item, logits=stored)  # keys and positions stay: it is a heap
        self.bytes = sum(item.bytes for item in self.items)
        self._fit()

    def _fit(self) -> None:
        """Remove the images with the largest keys until both budgets hold."""
        limit = self.options.buffer_bytes
        while len(self) > self.options.buffer_images or (limit is not None and self.bytes > limit):
            removed = heapq.heappop(self.items)
            self.bytes -= removed.bytes
            self.max_key = removed.key

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "max_key": self.max_key}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.max_key = state["max_key"]


def make_item(batch: HostBatch, row: int, offset: int) -> Item:
    """One image of a batch, with its visible labels."""
    known = batch.known[row].copy()
    return Item(encode(batch.pixels[row].numpy()), offset, batch.labels[row] & known, known)


def encode(pixels: np.ndarray) -> bytes:
    """One image (H x W x 3, uint8) as a JPEG."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return out.getvalue()


def decode(jpeg: bytes, out: np.ndarray) -> None:
    """Decode a JPEG into `out`. torchvision is faster than Pillow and gives the same pixels.

    The copy is done by numpy: torch would start threads in each of many threads.
    """
    from torchvision.io import decode_jpeg  # the import takes a second, and few commands need it

    out[:] = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)).numpy().transpose(1, 2, 0)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, num_cores()))


if hasattr(os, "register_at_fork"):  # a forked process has no threads, and would wait for them forever
    os.register_at_fork(after_in_child=_threads.cache_clear)
