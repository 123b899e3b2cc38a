"""Images that a replay method keeps: encoded, within a budget, each with the labels that were visible when it came.

Adding, removing and drawing take a time that does not depend on how many images have passed. Random numbers are
torch's own, which a checkpoint restores.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lifelabel.backbones import send
from lifelabel.learner import Setting
from lifelabel.options import option
from lifelabel.processes import cores

if TYPE_CHECKING:  # methods import this module
    from lifelabel.methods.base import Batch, Host

QUALITY = 95
"""Of the JPEGs, at full colour resolution."""
FEW_BYTES = 100_000
"""JPEGs that are decoded before threads would have begun."""


@dataclass(frozen=True)
class BufferOptions:
    buffer_images: int = option(2000, "images kept at most", low=1, high=10_000_000)
    buffer_bytes: int | None = option(
        None, "bytes kept at most, images with their labels; none: as many as the images take", low=1
    )
    replay_batch: int | None = option(
        None, "kept images that are learned again with a batch; none: as many as it has", low=1, high=1_000_000
    )


@dataclass(frozen=True)
class Replayed:
    """Kept images, ready to be learned again.

    `labels` and `known` (B x seen classes) have a column for every class seen so far; `known` is true for what was
    visible when the image was captured. `logits` is what was stored with it (0 where nothing was), and `stored` says
    where.
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
    """One kept image: a JPEG, and what was known of it: its label columns `first` … `first + len(labels) - 1`."""

    jpeg: bytes
    first: int
    labels: np.ndarray
    known: np.ndarray
    logits: np.ndarray | None = None
    """Logits of the classes 0 … len - 1, as the network gave them when the image was captured."""
    lot: float = 0.0
    """What a reservoir drew for it: the greatest leaves first."""

    def __lt__(self, other: Item) -> bool:
        return self.lot > other.lot  # Python's heaps give the least

    @property
    def bytes(self) -> int:
        stored = 0 if self.logits is None else self.logits.nbytes
        return len(self.jpeg) + self.labels.nbytes + self.known.nbytes + stored

    @property
    def positives(self) -> np.ndarray:
        """The columns of the classes it is known to show."""
        return self.first + np.flatnonzero(self.labels)


class Buffer(ABC):
    """Kept images in no order: a place is filled from the end when its image leaves, so that none is empty.

    Which image comes and which goes is the choice of each kind of buffer (`offer`); this one keeps the sums.
    """

    def __init__(self, options: BufferOptions, setting: Setting):
        self.options, self.setting = options, setting
        self.items: list[Item] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.items)

    @abstractmethod
    def offer(self, batch: Batch, first: int, logits: Tensor | None = None) -> None:
        """The images of a batch pass, whose classes have the columns from `first` on; some may be kept."""

    def kept_bytes(self) -> int:
        """All that it takes: the images, and what it knows to choose among them."""
        return self.bytes

    def fits(self, item: Item) -> bool:
        """Whether `item` may be added within both budgets."""
        limit = self.options.buffer_bytes
        return len(self) < self.options.buffer_images and (limit is None or self.bytes + item.bytes <= limit)

    def add(self, item: Item) -> None:
        self.items.append(item)
        self.bytes += item.bytes

    def remove(self, place: int) -> Item:
        """Take an image out; the last one moves to its place."""
        item, last = self.items[place], self.items.pop()
        if place < len(self.items):
            self.items[place] = last
        self.bytes -= item.bytes
        return item

    def draw(self, count: int) -> list[int]:
        """Places of `count` different images, all equally likely (every image, where there are no more)."""
        if count >= len(self):
            return list(range(len(self)))
        if 3 * count >= len(self):
            return torch.randperm(len(self))[:count].tolist()
        chosen: dict[int, None] = {}  # few of many: repeats are rare, and the time does not grow with the buffer
        while len(chosen) < count:
            for place in torch.randint(len(self), (count - len(chosen),)).tolist():
                chosen[place] = None
        return list(chosen)

    def replay(self, places: Sequence[int], classes: int) -> Replayed:
        """The images at some places, decoded, mirrored anew where training images are, with what is known of them."""
        items = [self.items[place] for place in places]
        images = self._images(items)
        labels, known = np.zeros((2, len(items), classes), bool)
        for row, item in enumerate(items):
            columns = slice(item.first, item.first + len(item.labels))
            labels[row, columns], known[row, columns] = item.labels, item.known
        replayed = Replayed(images, self._send(labels).float(), self._send(known))
        if all(item.logits is None for item in items):
            return replayed
        logits, stored = np.zeros((len(items), classes), np.float32), np.zeros((len(items), classes), bool)
        for row, item in enumerate(items):
            if item.logits is not None:
                logits[row, : len(item.logits)], stored[row, : len(item.logits)] = item.logits, True
        return dataclasses.replace(replayed, logits=self._send(logits), stored=self._send(stored))

    def _images(self, items: Sequence[Item]) -> Tensor:
        jpegs = [item.jpeg for item in items]
        with Image.open(io.BytesIO(jpegs[0])) as image:
            width, height = image.size
        # where a GPU can fetch it while the host goes on
        pin = self.setting.device.type == "cuda"
        pixels = torch.empty((len(items), height, width, 3), dtype=torch.uint8, pin_memory=pin)
        few = sum(map(len, jpegs)) < FEW_BYTES
        for _ in (map if few else _threads().map)(decode, jpegs, pixels.numpy()):
            pass
        images = self.setting.backbone.to_input(pixels)
        if self.setting.augment == "none":
            return images
        mirror = send(torch.rand(len(items)) < 0.5, self.setting.device)
        return torch.where(mirror[:, None, None, None], images.flip(3), images)

    def _send(self, array: np.ndarray) -> Tensor:
        return send(torch.from_numpy(array), self.setting.device)

    def state_dict(self) -> dict[str, Any]:
        """All images in a few tensors."""
        none = np.zeros(0, np.float16)
        columns: dict[str, list[np.ndarray]] = {
            "jpeg": [np.frombuffer(item.jpeg, np.uint8) for item in self.items],
            "labels": [item.labels for item in self.items],
            "known": [item.known for item in self.items],
            "logits": [none if item.logits is None else item.logits for item in self.items],
        }
        state: dict[str, Any] = {
            "first": torch.tensor([item.first for item in self.items], dtype=torch.int64),
            "lot": torch.tensor([item.lot for item in self.items], dtype=torch.float64),
        }
        for name, parts in columns.items():
            state[name] = torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0)
            state[f"{name}_end"] = torch.tensor(np.cumsum([len(part) for part in parts]), dtype=torch.int64)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def parts(name: str) -> list[np.ndarray]:
            ends = state[f"{name}_end"].tolist()
            values = state[name].numpy()
            # copies: a part of the whole would keep all of it
            return [values[start:end].copy() for start, end in zip([0, *ends], ends, strict=False)]

        columns = [parts(name) for name in ("jpeg", "labels", "known", "logits")]
        numbers = state["first"].tolist(), state["lot"].tolist()
        self.items, self.bytes = [], 0
        for first, lot, jpeg, labels, known, logits in zip(*numbers, *columns, strict=True):
            self.add(Item(jpeg.tobytes(), first, labels, known, logits if len(logits) else None, lot))


class Reservoir(Buffer):
    """Reservoir sampling: of all images that were offered, each is kept with the same probability.

    Each image draws a lot, and those with the smallest lots are kept, as many as both budgets allow. `items` is a heap
    with the greatest lot first. Under the budget in images the kept ones are spread as by Vitter's algorithm R; under
    the one in bytes their number follows their sizes.
    """

    def __init__(self, options: BufferOptions, setting: Setting):
        super().__init__(options, setting)
        self.below = 1.0
        """Only smaller lots are let in: that of the image that left last."""

    def offer(self, batch: Batch, first: int, logits: Tensor | None = None) -> None:
        """The images of a batch, whose classes have the columns from `first` on, each once.

        With `logits` (B x seen classes, on the device) an image is kept with its row of them.
        """
        assert batch.host is not None
        lots = torch.rand(len(batch.host.labels), dtype=torch.float64).tolist()
        chosen = [row for row, lot in enumerate(lots) if lot < self.below]
        items = [dataclasses.replace(capture(batch.host, row, first), lot=lots[row]) for row in chosen]
        if logits is not None and chosen:  # last, as it waits for the device: no copy where nobody comes in
            rows = logits.detach()[chosen].half().cpu().numpy()
            items = [dataclasses.replace(item, logits=row.copy()) for item, row in zip(items, rows, strict=True)]
        for item in items:
            self._let_in(item)

    def _let_in(self, item: Item) -> None:
        limit = self.options.buffer_bytes
        if item.lot >= self.below or (limit is not None and item.bytes > limit):  # it would drive all others out
            return
        heapq.heappush(self.items, item)
        self.bytes += item.bytes
        while len(self) > self.options.buffer_images or (limit is not None and self.bytes > limit):
            gone = heapq.heappop(self.items)
            self.bytes -= gone.bytes
            self.below = gone.lot

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "below": self.below}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.below = state["below"]


def capture(host: Host, row: int, first: int) -> Item:
    """One image of a batch, with the labels that are visible now."""
    known = host.known[row].copy()
    return Item(encode(host.pixels[row].numpy()), first, host.labels[row] & known, known)


def encode(pixels: np.ndarray) -> bytes:
    """One image (H x W x 3, uint8) as a JPEG."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=QUALITY, subsampling=0)
    return out.getvalue()


def decode(jpeg: bytes, out: np.ndarray) -> None:
    """The pixels again, into `out`. torchvision is faster than Pillow, and gives the same pixels.

    Only numpy copies: in each of many threads torch would start threads of its own.
    """
    from torchvision.io import decode_jpeg  # a second to import, and few commands need it

    out[:] = decode_jpeg(torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)).numpy().transpose(1, 2, 0)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, cores()))


if hasattr(os, "register_at_fork"):  # a child has none of the threads, and would wait for them for ever
    os.register_at_fork(after_in_child=_threads.cache_clear)
