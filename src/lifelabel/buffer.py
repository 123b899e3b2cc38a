"""Images that a replay method keeps: encoded, within a budget, each with the labels that were visible when it came.

Adding, removing and drawing take a time that does not depend on how many images have passed. Random numbers are
torch's own, which a checkpoint restores.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lifelabel.backbones import send
from lifelabel.learner import Setting
from lifelabel.methods.base import Batch, Host
from lifelabel.options import option
from lifelabel.processes import cores

QUALITY = 95
"""Of the JPEGs, at full colour resolution."""


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


@dataclass(frozen=True)
class Item:
    """One kept image: a JPEG, and what was known of it: its label columns `first` … `first + len(labels) - 1`."""

    jpeg: bytes
    first: int
    labels: np.ndarray
    known: np.ndarray
    logits: np.ndarray | None = None
    """Logits of the classes 0 … len - 1, as the network gave them when the image was captured."""

    @property
    def bytes(self) -> int:
        stored = 0 if self.logits is None else self.logits.nbytes
        return len(self.jpeg) + self.labels.nbytes + self.known.nbytes + stored

    @property
    def positives(self) -> np.ndarray:
        """The columns of the classes it is known to show."""
        return self.first + np.flatnonzero(self.labels)


class Buffer:
    """Kept images in no order: a place is filled from the end when its image leaves, so that none is empty.

    Which image comes and which goes is the method's choice (`add`, `remove`); the buffer keeps the sums.
    """

    def __init__(self, options: BufferOptions, setting: Setting):
        self.options, self.setting = options, setting
        self.items: list[Item] = []
        self.bytes = 0
        self.pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.items)

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
        pixels = torch.from_numpy(np.stack(self._decode(items)))
        if self.setting.augment != "none":
            turn = torch.rand(len(items)) < 0.5
            pixels[turn] = pixels[turn].flip(2)
        labels, known = np.zeros((2, len(items), classes), bool)
        for row, item in enumerate(items):
            columns = slice(item.first, item.first + len(item.labels))
            labels[row, columns], known[row, columns] = item.labels, item.known
        device = self.setting.device
        y, k = (send(torch.from_numpy(array), device) for array in (labels, known))
        logits = stored = None
        if any(item.logits is not None for item in items):
            values, there = np.zeros((len(items), classes), np.float32), np.zeros((len(items), classes), bool)
            for row, item in enumerate(items):
                if item.logits is not None:
                    values[row, : len(item.logits)], there[row, : len(item.logits)] = item.logits, True
            logits, stored = (send(torch.from_numpy(array), device) for array in (values, there))
        return Replayed(self.setting.backbone.to_input(pixels), y.float(), k, logits, stored)

    def _decode(self, items: Sequence[Item]) -> list[np.ndarray]:
        if len(items) * len(items[0].jpeg) < 100_000:  # done before threads have started
            return [_decode(item.jpeg) for item in items]
        if self.pool is None:
            self.pool = ThreadPoolExecutor(min(8, cores()))
        return list(self.pool.map(_decode, (item.jpeg for item in items)))

    def state_dict(self) -> dict[str, Any]:
        """All images in a few tensors."""
        empty = np.zeros(0, np.float32)
        columns: dict[str, list[np.ndarray]] = {
            "jpeg": [np.frombuffer(item.jpeg, np.uint8) for item in self.items],
            "labels": [item.labels for item in self.items],
            "known": [item.known for item in self.items],
            "logits": [empty if item.logits is None else item.logits for item in self.items],
        }
        state: dict[str, Any] = {"first": torch.tensor([item.first for item in self.items], dtype=torch.int64)}
        for name, parts in columns.items():
            state[name] = torch.from_numpy(np.concatenate(parts)) if parts else torch.zeros(0)
            state[f"{name}_end"] = torch.tensor(np.cumsum([len(part) for part in parts]), dtype=torch.int64)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def parts(name: str) -> list[np.ndarray]:
            return np.split(state[name].numpy(), state[f"{name}_end"].numpy()[:-1]) if len(state["first"]) else []

        self.items, self.bytes = [], 0
        columns = [parts(name) for name in ("jpeg", "labels", "known", "logits")]
        for first, jpeg, labels, known, logits in zip(state["first"].tolist(), *columns, strict=True):
            self.add(Item(jpeg.tobytes(), first, labels, known, logits if len(logits) else None))


class Reservoir(Buffer):
    """Reservoir sampling: of all images that were offered, each is kept with the same probability.

    Where the budget in bytes is the tighter one, it holds as many images as fit, and those that must make room for a
    larger one are drawn at random.
    """

    def __init__(self, options: BufferOptions, setting: Setting):
        super().__init__(options, setting)
        self.offered = 0
        self.full_of_bytes = False

    def offer(self, batch: Batch, first: int, logits: np.ndarray | None = None) -> None:
        """The images of a batch, whose classes have the columns from `first` on, each once."""
        assert batch.host is not None
        for row in range(len(batch.host.labels)):
            self.offered += 1
            place = int(torch.randint(self.offered, ()))
            full = len(self) == self.options.buffer_images or self.full_of_bytes
            if full and place >= len(self):
                continue
            item = capture(batch.host, row, first, None if logits is None else logits[row])
            if full:
                self.remove(place)
            while self.items and not self.fits(item):
                self.full_of_bytes = True
                self.remove(int(torch.randint(len(self), ())))
            if self.fits(item):
                self.add(item)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "offered": self.offered, "full_of_bytes": self.full_of_bytes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.offered, self.full_of_bytes = state["offered"], state["full_of_bytes"]


def capture(host: Host, row: int, first: int, logits: np.ndarray | None = None) -> Item:
    """One image of a batch, with the labels that are visible now."""
    known = host.known[row].copy()
    return Item(encode(host.pixels[row].numpy()), first, host.labels[row] & known, known, logits)


def encode(pixels: np.ndarray) -> bytes:
    """One image (H x W x 3, uint8) as a JPEG."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=QUALITY, subsampling=0)
    return out.getvalue()


def _decode(jpeg: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
        return np.asarray(image.convert("RGB"))
