"""An exemplar buffer: every stored image serves one class, and every class has an equal share of the budget.

When a task begins, the exemplars of each class are reduced to its share. The rest of the budget is for images of the
new task, the candidates: a reservoir for each class. When the task ends, the method puts the images of these classes in
order, which decides what is kept at the next reduction. docs/buffers.md describes the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.methods.buffer import Buffer, BufferOptions, Item, make_item
from lifelabel.methods.er import Replay
from lifelabel.methods.method import HostBatch
from lifelabel.nn.normalize import Normalize


class ExemplarBuffer(Buffer):
    """A buffer with a list of images for each class.

    A class loses the image with the largest key first. Candidates have random keys from 0 to 1. The keys of images in
    order are negative, so candidates are removed before them.
    """

    def __init__(self, options: BufferOptions, normalize: Normalize, *, mirror: bool = True):
        super().__init__(options, normalize, mirror=mirror)
        self.serves = np.zeros(0, np.int64)
        """The class that each stored image serves."""
        self.keys = np.zeros(0)
        """The key of each stored image."""
        self.counts, self.offered = np.zeros((2, 0), np.int64)
        """For each class, the stored images that serve it, and the images of the task that were offered for it."""
        self.max_keys = np.zeros(0)
        """For each class, the key of the image that was removed last. Only images with a smaller key are stored."""

    def begin_task(self, classes: int) -> None:
        """Begin a task, with `classes` classes in all. Reduces the list of every class to its share of the budget."""
        self.counts = np.append(self.counts, np.zeros(classes - len(self.counts), np.int64))
        self.offered, self.max_keys = np.zeros(classes, np.int64), np.ones(classes)
        share = max(1, self._capacity() // classes)
        surplus: set[int] = set()
        for each in np.flatnonzero(self.counts > share).tolist():
            ordered = self.members(each)
            surplus.update(set(ordered.tolist()) - set(self.choose(ordered, share).tolist()))
        for position in sorted(surplus, reverse=True):  # from the end, so that positions stay valid
            self.remove(position)

    def choose(self, ordered: np.ndarray, count: int) -> np.ndarray:
        """Which images of one class are kept, of their positions in order: the first `count`."""
        return ordered[:count]

    def _capacity(self) -> int:
        """The number of images that the budgets allow, if images have the mean size of those that are stored."""
        images, limit = self.options.buffer_images, self.options.buffer_bytes
        return images if limit is None or not self.bytes else min(images, limit * len(self) // self.bytes)

    def offer(self, batch: HostBatch, offset: int, logits: Tensor | None = None) -> None:
        """Store some of the images of a batch.

        An image serves that one of its classes which has the fewest stored images; of equals, the one with the fewest
        offered images, then the first. An image without a visible positive label is not stored.
        """
        visible = batch.labels & batch.known
        for row, key in enumerate(torch.rand(len(visible), dtype=torch.float64).tolist()):
            classes = offset + np.flatnonzero(visible[row])
            if not len(classes):
                continue
            served = int(classes[np.lexsort((self.offered[classes], self.counts[classes]))[0]])
            self.offered[served] += 1
            if key < self.max_keys[served]:
                self._store(make_item(batch, row, offset), served, key)

    def _store(self, item: Item, served: int, key: float) -> None:
        """Remove images of the class with the most images until the new one fits, and add it.

        The new image is counted, and may be the one that is removed.
        """
        limit = self.options.buffer_bytes
        if limit is not None and item.bytes > limit:  # it would not fit in an empty buffer
            return
        self.counts[served] += 1
        while not self.fits(item):
            largest = self._largest_class()
            stored = np.flatnonzero(self.serves == largest)
            last = int(stored[np.argmax(self.keys[stored])]) if len(stored) else None
            if last is None or (largest == served and self.keys[last] < key):
                self.counts[served] -= 1
                self.max_keys[served] = key
                return
            self.max_keys[largest] = self.keys[last]
            self.remove(last)
        self.add(item)
        self.serves, self.keys = np.append(self.serves, served), np.append(self.keys, key)

    def _largest_class(self) -> int:
        """The class with the most images; one of equals at random."""
        largest = np.flatnonzero(self.counts == self.counts.max())
        return int(largest[int(torch.randint(len(largest), ())) if len(largest) > 1 else 0])

    def remove(self, position: int) -> Item:
        self.counts[self.serves[position]] -= 1
        for array in (self.serves, self.keys):
            array[position] = array[-1]
        self.serves, self.keys = self.serves[:-1], self.keys[:-1]
        return super().remove(position)

    def members(self, served: int) -> np.ndarray:
        """The positions of the images that serve a class, by their keys: those in order, then candidates."""
        positions = np.flatnonzero(self.serves == served)
        return positions[np.argsort(self.keys[positions], kind="stable")]

    def changed(self) -> list[np.ndarray]:
        """The `members` of each class that has candidates, whose images have to be put in order."""
        return [self.members(served) for served in np.unique(self.serves[self.keys >= 0]).tolist()]

    def set_order(self, ordered: np.ndarray) -> None:
        """Put the images of a class in order, given all their positions. There are no candidates among them then."""
        self.keys[ordered] = np.arange(len(ordered)) - len(ordered)

    def total_bytes(self) -> int:
        arrays = self.serves, self.keys, self.counts, self.offered, self.max_keys
        return self.bytes + sum(array.nbytes for array in arrays)

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name) for name in ("serves", "keys", "offered", "max_keys")}
        return {**super().state_dict(), **{name: torch.from_numpy(array.copy()) for name, array in arrays.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name in ("serves", "keys", "offered", "max_keys"):
            setattr(self, name, state[name].numpy().copy())
        self.counts = np.bincount(self.serves, minlength=len(self.offered))


class ExemplarReplay(Replay):
    """The replay of a method with an `ExemplarBuffer`. It comes before the other bases."""

    buffer_class: ClassVar[type[Buffer]] = ExemplarBuffer
    buffer: ExemplarBuffer

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.buffer.begin_task(sum(self.sizes))

    def herd(self, features_of: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Put the images of each class that has candidates in the order of herding, by the features of images.

        Returns the features of all stored images; None if there are none.
        """
        if not len(self.buffer):
            return None
        positions = np.arange(len(self.buffer))
        features = self.buffer.compute(lambda images, _: features_of(images), positions, self.setting.batch_size)
        for members in self.buffer.changed():
            self.buffer.set_order(members[herding(features[members])])
        return features


def herding(features: Tensor) -> np.ndarray:
    """The order in which iCaRL chooses the images of a class (n x dim; Alg. 4 of its paper), so that the mean of the
    first ones is close to the mean of all.

    >>> herding(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])).tolist()
    [1, 0, 2]
    """
    phi = F.normalize(features.double(), dim=1)
    mean, squares, total = phi.mean(0), phi.square().sum(1), torch.zeros_like(phi[0])
    chosen = torch.empty(len(phi), dtype=torch.int64)
    left = torch.ones(len(phi), dtype=torch.bool)
    for k in range(len(phi)):
        # k² ‖μ − (φ + Σ) / k‖² = ‖r‖² − 2 r·φ + ‖φ‖²,  r = k μ − Σ
        distance = squares - 2 * phi @ ((k + 1) * mean - total)
        chosen[k] = distance.where(left, torch.inf).argmin()
        left[chosen[k]] = False
        total += phi[chosen[k]]
    return chosen.numpy()
