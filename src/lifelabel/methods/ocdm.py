"""OCDM: the classes in memory are optimised. After each batch the images leave without which the memory is nearest to
its target (Liang, Li, 2022).

    p_i = n_i^ρ / Σ_j n_j^ρ                               the target of class i, which n_i images have shown so far
    KL(p ‖ q),  q_i = (l_i + ε) / Σ_j (l_j + ε)           how far the memory is from it; l_i of its images show class i
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lifelabel.buffer import Buffer, Item, capture
from lifelabel.methods.base import Batch
from lifelabel.methods.er import ER
from lifelabel.methods.prs import PartitionedBuffer, Partitions, ShareOptions, first_of_least

EPSILON = 1e-6
"""A class without an image is as if it had this much of one."""
ROUNDING = 1e-12
"""Divergences that differ by less are equal."""


class Candidates:
    """The images in memory and those of a batch, one after the other, of which some are deleted.

    Without image k, KL(p ‖ q) changes by Σ_{i shown by k} price_i + log(L' / L), where price_i is what one image less
    costs class i, p_i log((l_i + ε) / (l_i − 1 + ε)), and L = Σ_j (l_j + ε).
    """

    def __init__(self, memory: Partitions, batch: list[np.ndarray]):
        sizes = [len(shown) for shown in batch]
        self.images = memory.images + len(batch)
        self.places = np.concatenate([memory.places, np.repeat(np.arange(memory.images, self.images), sizes)])
        self.partitions = np.concatenate([memory.partitions, *batch])
        self.target = memory.shares()
        self.labels = np.bincount(self.places, minlength=self.images)  # of each image
        self.counts = np.bincount(self.partitions, minlength=len(self.target))  # l
        self.smoothing = EPSILON * np.count_nonzero(self.target)
        self.price = self.prices(np.arange(len(self.target)))
        self.gone = np.zeros(self.images, bool)

    def prices(self, partitions: np.ndarray) -> np.ndarray:
        now = self.counts[partitions]
        return self.target[partitions] * np.log((now + EPSILON) / (np.maximum(now - 1, 0) + EPSILON))

    def nearest(self) -> int:
        """The image without which the rest is nearest to the target, the first of several."""
        price = np.bincount(self.places, self.price[self.partitions], self.images)
        change = price + np.log1p(-self.labels / (self.counts.sum() + self.smoothing))
        change[self.gone] = np.inf
        return first_of_least(change, ROUNDING)

    def delete(self, place: int) -> None:
        shown = self.partitions[self.places == place]
        self.counts[shown] -= 1
        self.price[shown] = self.prices(shown)
        self.labels[place] = 0
        self.gone[place] = True


class OptimisedBuffer(PartitionedBuffer):
    """Each batch joins the memory; then those leave without whom the classes are nearest to the target."""

    def offer(self, batch: Batch, first: int, logits: Tensor | None = None) -> None:
        """The images of a batch, whose classes have the columns from `first` on."""
        assert batch.host is not None
        shown = self.shown(batch, first)
        for partitions in shown:
            self.partitions.see(partitions)
        candidates = Candidates(self.partitions, shown)
        for _ in range(candidates.images - self.options.buffer_images):
            candidates.delete(candidates.nearest())
        stay = np.flatnonzero(~candidates.gone[len(self) :]).tolist()
        come = {len(self) + row: capture(batch.host, row, first) for row in stay}  # encoded only now
        self.fit_bytes(candidates, come)
        for place in np.flatnonzero(candidates.gone[: len(self)])[::-1].tolist():  # from the end: no gone one moves
            self.remove(place)
        for place, item in come.items():
            if not candidates.gone[place]:
                self.add(item)

    def fit_bytes(self, candidates: Candidates, come: dict[int, Item]) -> None:
        """Delete on until the bytes fit; `come` are the images of the batch by their places among the candidates."""
        limit = self.options.buffer_bytes
        if limit is None:
            return
        for place, item in come.items():
            if item.bytes > limit:  # it cannot stay, and would drive all others out
                candidates.delete(place)
        left = [self.items[place].bytes for place in np.flatnonzero(candidates.gone[: len(self)])]
        total = self.bytes - sum(left) + sum(item.bytes for place, item in come.items() if not candidates.gone[place])
        while total > limit:
            place = candidates.nearest()
            candidates.delete(place)
            total -= (come[place] if place in come else self.items[place]).bytes


class OCDM(ER):
    summary = "replay from a buffer whose class counts are kept nearest to a target by greedy deletion"
    Options = ShareOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"rho": (-0.2, 0.0, 0.2), "replay_weight": (0.5, 1.0)}
    keeps: ClassVar[type[Buffer]] = OptimisedBuffer
