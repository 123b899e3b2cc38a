"""OCDM: optimising class distribution in memory (Liang, Li, 2022). After each batch, images are removed greedily so
that the class distribution of the buffer is close to a target.

    p_i = n_i^ρ / Σ_j n_j^ρ                      target share of class i; n_i images with class i have been seen
    KL(p ‖ q),  q_i = (l_i + ε) / Σ_j (l_j + ε)  distance to the target; l_i images with class i are stored
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lifelabel.methods.buffer import Buffer, Item, make_item
from lifelabel.methods.er import ER
from lifelabel.methods.method import HostBatch
from lifelabel.methods.prs import PartitionedBuffer, Partitions, ShareOptions, first_minimum

_EPSILON = 1e-6
"""Added to every count, so that a class without an image has a finite divergence."""
_TOLERANCE = 1e-12
"""Divergences that differ by less are equal."""


class _Candidates:
    """The stored images followed by the images of a batch. Some of them are removed.

    Without image k, KL(p ‖ q) changes by Σ_{i in k} cost_i + log(L' / L), where cost_i is the cost of one image less
    for class i, p_i log((l_i + ε) / (l_i − 1 + ε)), and L = Σ_j (l_j + ε).
    """

    def __init__(self, stored: Partitions, batch: list[np.ndarray]):
        sizes = [len(partitions) for partitions in batch]
        self.images = stored.images + len(batch)
        self.positions = np.concatenate([stored.positions, np.repeat(np.arange(stored.images, self.images), sizes)])
        self.partitions = np.concatenate([stored.partitions, *batch])
        self.target = stored.shares()
        self.labels = np.bincount(self.positions, minlength=self.images)  # of each image
        self.counts = np.bincount(self.partitions, minlength=len(self.target))  # l
        self.smoothing = _EPSILON * np.count_nonzero(self.target)
        self.cost = self.costs(np.arange(len(self.target)))
        self.removed = np.zeros(self.images, bool)

    def costs(self, partitions: np.ndarray) -> np.ndarray:
        now = self.counts[partitions]
        return self.target[partitions] * np.log((now + _EPSILON) / (np.maximum(now - 1, 0) + _EPSILON))

    def best_to_remove(self) -> int:
        """The image whose removal gives the smallest divergence; the first of equals."""
        cost = np.bincount(self.positions, self.cost[self.partitions], self.images)
        change = cost + np.log1p(-self.labels / (self.counts.sum() + self.smoothing))
        change[self.removed] = np.inf
        return first_minimum(change, _TOLERANCE)

    def remove(self, position: int) -> None:
        partitions = self.partitions[self.positions == position]
        self.counts[partitions] -= 1
        self.cost[partitions] = self.costs(partitions)
        self.labels[position] = 0
        self.removed[position] = True


class _OptimisedBuffer(PartitionedBuffer):
    """Adds every image of a batch, then removes images greedily until the buffer fits its budget."""

    def offer(self, batch: HostBatch, offset: int, logits: Tensor | None = None) -> None:
        partitions = self.partitions_of(batch, offset)
        for image_partitions in partitions:
            self.partitions.see(image_partitions)
        candidates = _Candidates(self.partitions, partitions)
        for _ in range(candidates.images - self.options.buffer_images):
            candidates.remove(candidates.best_to_remove())
        accepted = np.flatnonzero(~candidates.removed[len(self) :]).tolist()
        new = {len(self) + row: make_item(batch, row, offset) for row in accepted}  # only these are encoded
        self._fit_bytes(candidates, new)
        removed = np.flatnonzero(candidates.removed[: len(self)]).tolist()
        for position in reversed(removed):  # from the end, so that positions stay valid
            self.remove(position)
        for position, item in new.items():
            if not candidates.removed[position]:
                self.add(item)

    def _fit_bytes(self, candidates: _Candidates, new: dict[int, Item]) -> None:
        """Remove images until the bytes fit. `new` has the images of the batch by their positions in `candidates`."""
        limit = self.options.buffer_bytes
        if limit is None:
            return
        for position, item in new.items():
            if item.bytes > limit:  # it would displace all others
                candidates.remove(position)
        removed = [self.items[position].bytes for position in np.flatnonzero(candidates.removed[: len(self)])]
        added = [item.bytes for position, item in new.items() if not candidates.removed[position]]
        total = self.bytes - sum(removed) + sum(added)
        while total > limit:
            position = candidates.best_to_remove()
            candidates.remove(position)
            total -= (new[position] if position in new else self.items[position]).bytes


class OCDM(ER):
    summary = "replay from a buffer whose class distribution is kept close to a target by greedy removal"
    position = 100
    Options = ShareOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"rho": (-0.2, 0.0, 0.2), "replay_weight": (0.5, 1.0)}
    buffer_class: ClassVar[type[Buffer]] = _OptimisedBuffer
