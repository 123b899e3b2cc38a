"""PRS: partitioning reservoir sampling (Kim, Jeong, Kim, ECCV 2020). Every class has a share of the replay buffer.

    p_i = n_i^ρ / Σ_j n_j^ρ                                share of class i; n_i images with class i have been seen
    s = Σ_i w_i · min(1, p_i |M| / n_i),  w = softmax(−n)  probability to store an image; i runs over its labels
    δ_i = l_i − p_i Σ_j l_j                                excess of class i; l_i images with class i are stored

docs/methods/prs.md describes which image is removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.methods.buffer import Buffer, BufferOptions, Item, make_item
from lifelabel.methods.er import ER, ClassificationReplayOptions
from lifelabel.methods.method import HostBatch
from lifelabel.nn.normalize import Normalize
from lifelabel.options import option

_TOLERANCE = 1e-9
"""Counts and distances that differ by less are equal."""


@dataclass(frozen=True)
class ShareOptions(ClassificationReplayOptions):
    rho: float = option(
        0.0, "a class with n images gets a share of the buffer proportional to n^rho; 0: equal shares", low=-1, high=1
    )


class Partitions:
    """Counts of each class among the images seen and stored.

    Partition 0 has the images without a label, partition i + 1 those with class i. Memory and time depend on the
    number of classes and of stored labels.
    """

    def __init__(self, rho: float):
        self.rho = rho
        self.seen = np.zeros(1, np.int64)  # n
        self.stored = np.zeros(1, np.int64)  # l
        self.images = 0
        # one entry for each stored image and each of its partitions: the position of the image, and the partition
        self.positions, self.partitions = np.zeros((2, 0), np.int32)

    @staticmethod
    def from_classes(classes: np.ndarray) -> np.ndarray:
        """The partitions of an image with these classes."""
        return classes + 1 if len(classes) else np.zeros(1, np.int64)

    def grow(self, classes: int) -> None:
        """Extend the counts to `classes` classes."""
        new = np.zeros(classes + 1 - len(self.seen), np.int64)
        self.seen, self.stored = np.append(self.seen, new), np.append(self.stored, new)

    def see(self, partitions: np.ndarray) -> None:
        """Count an image that was seen."""
        self.seen[partitions] += 1

    def add(self, partitions: np.ndarray) -> None:
        """Count an image that is stored at the end."""
        self.positions = np.append(self.positions, np.full(len(partitions), self.images, np.int32))
        self.partitions = np.append(self.partitions, partitions.astype(np.int32))
        self.stored[partitions] += 1
        self.images += 1

    def remove(self, position: int) -> None:
        """Remove an image. The last image moves to its position, as in a `Buffer`."""
        removed = self.positions == position
        self.stored[self.partitions[removed]] -= 1
        self.positions, self.partitions = self.positions[~removed], self.partitions[~removed]
        self.images -= 1
        self.positions[self.positions == self.images] = position

    def shares(self) -> np.ndarray:
        """p; 0 for a class that has not been seen."""
        shares = np.zeros(len(self.seen))
        present = self.seen > 0
        shares[present] = self.seen[present] ** self.rho
        return shares / shares.sum()

    def excess(self) -> np.ndarray:
        """δ, with rounding errors set to 0."""
        excess = self.stored - self.shares() * self.stored.sum()
        return np.where(np.abs(excess) < _TOLERANCE, 0.0, excess)

    def store_probability(self, partitions: np.ndarray, size: int) -> float:
        """s: the probability to store an image that has been counted, in a buffer of `size` images."""
        n = self.seen[partitions]
        weights = np.exp(n.min() - n)  # the softmax is shifted: exp(-n) is 0 for counts in the thousands
        probabilities = np.minimum(1.0, self.shares()[partitions] * size / n)
        return float(weights @ probabilities / weights.sum())

    def sample_excess(self) -> int | None:
        """A partition, sampled in proportion to its excess; None if no partition exceeds its share."""
        excess = np.maximum(self.excess(), 0)
        return int(torch.multinomial(torch.from_numpy(excess), 1)) if excess.any() else None

    def to_remove(self, partition: int | None) -> int:
        """The position of the image to remove from a partition (None: from all images).

        Candidates are the images with the fewest labels of classes that do not exceed their share. Of these, it is the
        image without which the sum of δ² is smallest, and the first one of equals.
        """
        p, delta = self.shares(), self.excess()
        members = np.arange(self.images) if partition is None else np.sort(self.positions[self.partitions == partition])
        needed = self.sums(delta <= 0)[members]
        candidates = members[needed == needed.min()]
        # change of Σ δ²: without an image of c labels δ_i becomes δ_i + c p_i, and 1 less for its own labels
        c, sum_delta, sum_p = (self.sums(value)[candidates] for value in (np.ones_like(p), delta, p))
        change = c * (2 * delta @ p + c * (p @ p)) - 2 * (sum_delta + c * sum_p) + c
        return int(candidates[first_minimum(change, _TOLERANCE)])

    def sums(self, value: np.ndarray) -> np.ndarray:
        """For each stored image, the sum of a value over its partitions."""
        return np.bincount(self.positions, value[self.partitions], self.images)

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in (self.seen, self.stored, self.positions, self.partitions))


def first_minimum(values: np.ndarray, tolerance: float) -> int:
    """The index of the minimum; the first one of values that are equal within the tolerance."""
    return int(np.argmax(values <= values.min() + tolerance))


class PartitionedBuffer(Buffer):
    """A buffer that counts the classes of the images seen and stored."""

    options: Any

    def __init__(self, options: BufferOptions, normalize: Normalize, *, mirror: bool = True):
        super().__init__(options, normalize, mirror=mirror)
        self.partitions = Partitions(self.options.rho)

    def partitions_of(self, batch: HostBatch, offset: int) -> list[np.ndarray]:
        """The partitions of each image of a batch with the label columns from `offset` on."""
        visible = batch.labels & batch.known
        self.partitions.grow(offset + visible.shape[1])
        return [Partitions.from_classes(offset + np.flatnonzero(row)) for row in visible]

    def add(self, item: Item) -> None:
        super().add(item)
        self.partitions.add(Partitions.from_classes(item.positives))

    def remove(self, position: int) -> Item:
        self.partitions.remove(position)
        return super().remove(position)

    def total_bytes(self) -> int:
        return self.bytes + self.partitions.bytes

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "seen": torch.from_numpy(self.partitions.seen.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.partitions = Partitions(self.partitions.rho)
        self.partitions.grow(len(state["seen"]) - 1)
        self.partitions.seen = state["seen"].numpy().copy()
        super().load_state_dict(state)


class _PartitioningReservoir(PartitionedBuffer):
    """Images with rare labels are stored; images of classes that exceed their share are removed."""

    full = False
    """Whether an image has been removed yet."""

    def offer(self, batch: HostBatch, offset: int, logits: Tensor | None = None) -> None:
        for row, partitions in enumerate(self.partitions_of(batch, offset)):
            self.partitions.see(partitions)
            if self._accepts(partitions):
                self._store(make_item(batch, row, offset))

    def _accepts(self, partitions: np.ndarray) -> bool:
        if not self.full and len(self) < self.options.buffer_images:
            return True
        return float(torch.rand((), dtype=torch.float64)) < self.partitions.store_probability(partitions, len(self))

    def _store(self, item: Item) -> None:
        """Remove images until the new one fits, then add it."""
        limit = self.options.buffer_bytes
        if limit is not None and item.bytes > limit:  # it would not fit in an empty buffer
            return
        while not self.fits(item):
            self.full = True
            self.remove(self.partitions.to_remove(self.partitions.sample_excess()))
        self.add(item)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "full": self.full}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.full = state["full"]


class PRS(ER):
    summary = "replay from a buffer with a share for each class: stores rare labels, removes frequent ones"
    position = 80
    Options = ShareOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"rho": (-0.2, 0.0, 0.2), "replay_weight": (0.5, 1.0)}
    buffer_class: ClassVar[type[Buffer]] = _PartitioningReservoir
