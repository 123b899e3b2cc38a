"""PRS: partitioning reservoir sampling. Replay from a buffer in which every class has a share
(Kim, Jeong, Kim, ECCV 2020).

    p_i = n_i^ρ / Σ_j n_j^ρ                               the share of class i, which n_i images have shown so far
    s = Σ_i w_i · p_i |M| / n_i,  w = softmax(−n)         the chance of an image to come in; i over its labels
    δ_i = l_i − p_i Σ_j l_j                               how far class i, which l_i kept images show, exceeds its share

docs/methods/prs.md tells who leaves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.buffer import Buffer, Item, capture
from lifelabel.learner import Setting
from lifelabel.methods.base import Batch
from lifelabel.methods.er import ER, EROptions
from lifelabel.options import option

ROUNDING = 1e-9
"""Counts and distances of counts that differ by less are equal."""


@dataclass(frozen=True)
class ShareOptions(EROptions):
    rho: float = option(
        0.0, "a class that n images have shown gets a share of the buffer as n^rho; 0: all the same", low=-1, high=1
    )


class Partitions:
    """How often each class was seen, and which of the images in memory show it.

    Partition 0 is of the images that show no class, partition i + 1 of those that show class i. Memory and time follow
    the classes and the labels in memory.
    """

    def __init__(self, rho: float):
        self.rho = rho
        self.seen = np.zeros(1, np.int64)  # n
        self.kept = np.zeros(1, np.int64)  # l
        self.images = 0
        # for every image in memory and every partition it is in: its place, the partition
        self.places, self.partitions = np.zeros((2, 0), np.int32)

    @staticmethod
    def of(columns: np.ndarray) -> np.ndarray:
        """The partitions of an image that shows these classes."""
        return columns + 1 if len(columns) else np.zeros(1, np.int64)

    def grow(self, classes: int) -> None:
        """Know of this many classes in all."""
        new = np.zeros(classes + 1 - len(self.seen), np.int64)
        self.seen, self.kept = np.append(self.seen, new), np.append(self.kept, new)

    def see(self, shown: np.ndarray) -> None:
        """Count an image that passes."""
        self.seen[shown] += 1

    def add(self, shown: np.ndarray) -> None:
        """An image comes into memory, at the last place."""
        self.places = np.append(self.places, np.full(len(shown), self.images, np.int32))
        self.partitions = np.append(self.partitions, shown.astype(np.int32))
        self.kept[shown] += 1
        self.images += 1

    def remove(self, place: int) -> None:
        """An image leaves, and the last one moves to its place, as in a `Buffer`."""
        leaves = self.places == place
        self.kept[self.partitions[leaves]] -= 1
        self.places, self.partitions = self.places[~leaves], self.partitions[~leaves]
        self.images -= 1
        self.places[self.places == self.images] = place

    def shares(self) -> np.ndarray:
        """p; 0 for what no image has shown yet."""
        shares = np.zeros(len(self.seen))
        there = self.seen > 0
        shares[there] = self.seen[there] ** self.rho
        return shares / shares.sum()

    def excess(self) -> np.ndarray:
        """δ, with 0 where a class has its share but for rounding."""
        excess = self.kept - self.shares() * self.kept.sum()
        return np.where(np.abs(excess) < ROUNDING, 0.0, excess)

    def chance(self, shown: np.ndarray, size: int) -> float:
        """s: the chance of an image, already counted, to come into a memory of `size` images."""
        n = self.seen[shown]
        weights = np.exp(n.min() - n)  # of a softmax; exp(-n) itself would be 0 for counts in the thousands
        return min(1.0, float(weights @ (self.shares()[shown] * size / n) / weights.sum()))

    def draw(self) -> int | None:
        """A partition, the likelier the further it exceeds its share; None where each has its share exactly."""
        over = np.maximum(self.excess(), 0)
        return int(torch.multinomial(torch.from_numpy(over), 1)) if over.any() else None

    def victim(self, drawn: int | None) -> int:
        """Who leaves, of the images in a partition (None: of all).

        Those with the fewest labels of classes that do not exceed their share; of these the one without whom the sum
        of δ² is least; of these the first.
        """
        p, delta = self.shares(), self.excess()
        places = np.arange(self.images) if drawn is None else np.sort(self.places[self.partitions == drawn])
        wanted = self.sums(delta <= 0)[places]
        places = places[wanted == wanted.min()]
        # without an image of c labels δ_i is δ_i + c p_i, less 1 for its own labels: what the sum of squares gains
        c, of_delta, of_p = (self.sums(value)[places] for value in (np.ones_like(p), delta, p))
        gain = c * (2 * delta @ p + c * (p @ p)) - 2 * (of_delta + c * of_p) + c
        return int(places[first_of_least(gain, ROUNDING)])

    def sums(self, value: np.ndarray) -> np.ndarray:
        """For each image in memory, the sum of a value over the partitions it is in."""
        return np.bincount(self.places, value[self.partitions], self.images)

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in (self.seen, self.kept, self.places, self.partitions))


def first_of_least(values: np.ndarray, rounding: float) -> int:
    """The place of the least value, the first of several that are equal but for rounding."""
    return int(np.argmax(values <= values.min() + rounding))


class PartitionedBuffer(Buffer):
    """A buffer that counts the classes of the images that pass and of those it keeps."""

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        self.partitions = Partitions(options.rho)

    def shown(self, batch: Batch, first: int) -> list[np.ndarray]:
        """The partitions of each image of a batch, whose classes have the columns from `first` on."""
        assert batch.host is not None
        visible = batch.host.labels & batch.host.known
        self.partitions.grow(first + visible.shape[1])
        return [Partitions.of(first + np.flatnonzero(row)) for row in visible]

    def add(self, item: Item) -> None:
        super().add(item)
        self.partitions.add(Partitions.of(item.positives))

    def remove(self, place: int) -> Item:
        self.partitions.remove(place)
        return super().remove(place)

    def kept_bytes(self) -> int:
        return self.bytes + self.partitions.bytes

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": torch.from_numpy(self.partitions.seen.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.partitions = Partitions(self.partitions.rho)
        self.partitions.grow(len(state["seen"]) - 1)
        self.partitions.seen = state["seen"].numpy().copy()
        super().load_state_dict(state)


class PartitioningReservoir(PartitionedBuffer):
    """An image comes in by its rarest label; one of a class that exceeds its share leaves."""

    def __init__(self, options: Any, setting: Setting):
        super().__init__(options, setting)
        self.full = False
        """Whether an image had to leave yet."""

    def offer(self, batch: Batch, first: int, logits: Tensor | None = None) -> None:
        """The images of a batch, whose classes have the columns from `first` on, one after the other."""
        assert batch.host is not None
        for row, shown in enumerate(self.shown(batch, first)):
            self.partitions.see(shown)
            if self.let_in(shown):
                self.keep(capture(batch.host, row, first))

    def let_in(self, shown: np.ndarray) -> bool:
        if not self.full and len(self) < self.options.buffer_images:
            return True
        return float(torch.rand((), dtype=torch.float64)) < self.partitions.chance(shown, len(self))

    def keep(self, item: Item) -> None:
        """Add an image after as many have left as it needs."""
        limit = self.options.buffer_bytes
        if limit is not None and item.bytes > limit:  # all others would leave, and it would not fit even so
            return
        while not self.fits(item):
            self.full = True
            self.remove(self.partitions.victim(self.partitions.draw()))
        self.add(item)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "full": self.full}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.full = state["full"]


class PRS(ER):
    summary = "replay from a buffer with a share for each class: rare labels come in, crowded classes leave"
    Options = ShareOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"rho": (-0.2, 0.0, 0.2), "replay_weight": (0.5, 1.0)}
    keeps: ClassVar[type[Buffer]] = PartitioningReservoir
