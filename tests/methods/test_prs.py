"""PRS against the rules of the paper, computed slowly: sets of labels, loops, exact fractions if rho is 0."""

import collections
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from support.methods import NORMALIZE, noisy_host

from lifelabel.methods import METHODS, HostBatch
from lifelabel.methods.buffer import encode
from lifelabel.methods.prs import Partitions, ShareOptions

NONE = "none"


class Slow:
    """Images are sets of classes; memory is a list of them. All counts are computed again each time."""

    def __init__(self, rho):
        self.rho, self.seen, self.memory = rho, [], []

    def shares(self):
        n = collections.Counter(label for image in self.seen for label in image)
        powers = {label: Fraction(1) if self.rho == 0 else count**self.rho for label, count in n.items()}
        return {label: power / sum(powers.values()) for label, power in powers.items()}

    def excess(self, memory):
        stored = collections.Counter(label for image in memory for label in image)
        delta = {label: stored[label] - p * sum(stored.values()) for label, p in self.shares().items()}
        return delta if self.rho == 0 else {label: 0 if abs(d) < 1e-9 else d for label, d in delta.items()}

    def store_probability(self, image, size):
        """The weighted mean over the labels of an image. The probability of each label is at most 1."""
        n = {label: sum(label in other for other in self.seen) for label in image}
        weights = {label: Fraction(math.exp(min(n.values()) - n[label])) for label in image}
        probabilities = {label: min(1, Fraction(self.shares()[label]) * size / n[label]) for label in image}
        return float(sum(weights[label] * probabilities[label] for label in image) / sum(weights.values()))

    def excess_probabilities(self):
        excess = {label: max(d, 0) for label, d in self.excess(self.memory).items()}
        return {label: float(d / sum(excess.values())) for label, d in excess.items() if d > 0}

    def to_remove(self, sampled):
        delta = self.excess(self.memory)
        members = [k for k, image in enumerate(self.memory) if sampled is None or sampled in image]
        needed = {k: sum(delta[label] <= 0 for label in self.memory[k]) for k in members}
        fewest = [k for k in members if needed[k] == min(needed.values())]
        without = {k: self.memory[:k] + self.memory[k + 1 :] for k in fewest}
        squares = {k: sum(d**2 for d in self.excess(rest).values()) for k, rest in without.items()}
        tie = 0 if self.rho == 0 else 1e-9
        return next(k for k in fewest if squares[k] <= min(squares.values()) + tie)

    def remove(self, position):
        self.memory[position] = self.memory[-1]
        self.memory.pop()


def names(partitions):
    return frozenset(NONE if number == 0 else int(number) - 1 for number in partitions)


def number(label):
    return 0 if label == NONE else label + 1


def random_memory(rng, rho, classes, images):
    """The same images in both, after some have been removed."""
    fast, slow = Partitions(rho), Slow(rho)
    fast.grow(classes)
    for _ in range(images + 8):
        # few labels, so that there are ties; some images have no label
        partitions = Partitions.from_classes(np.flatnonzero(rng.random(classes) < rng.choice([0.0, 0.15, 0.5])))
        fast.see(partitions)
        fast.add(partitions)
        slow.seen.append(names(partitions))
        slow.memory.append(names(partitions))
    for _ in range(8):
        position = int(rng.integers(len(slow.memory)))
        fast.remove(position)
        slow.remove(position)
    return fast, slow


@pytest.mark.parametrize("rho", [0.0, 0.2, -0.2, 1.0])
def test_shares_probabilities_and_removed_images_are_those_of_the_slow_version(rho):
    rng = np.random.default_rng(7)
    for case in range(120):
        classes = 1 if case < 5 else int(rng.integers(2, 7))
        fast, slow = random_memory(rng, rho, classes, int(rng.integers(1, 14)))
        shares = {number(label): float(p) for label, p in slow.shares().items()}
        assert fast.shares() == pytest.approx([shares.get(i, 0) for i in range(classes + 1)], abs=1e-12)
        for image in set(slow.seen):
            partitions, size = np.array(sorted(map(number, image))), int(rng.integers(1, 9))
            got = fast.store_probability(partitions, size)
            assert got == pytest.approx(slow.store_probability(image, size), abs=1e-12)
        weights = np.maximum(fast.excess(), 0)
        expected = slow.excess_probabilities()
        got = {label: weights[number(label)] / weights.sum() for label in slow.shares() if weights[number(label)]}
        assert got == pytest.approx(expected, abs=1e-12)
        for sampled in [None, *expected]:
            assert fast.to_remove(None if sampled is None else number(sampled)) == slow.to_remove(sampled)


def test_no_class_is_sampled_if_each_has_its_share():
    """49 classes: in floating point, 49 times a share of 1/49 is not exactly 1."""
    fast = Partitions(0.0)
    fast.grow(49)
    for partition in range(1, 50):
        fast.see(np.array([partition]))
        fast.add(np.array([partition]))
    assert fast.sample_excess() is None and fast.to_remove(None) == 0


def test_with_counts_in_the_millions_the_rarest_label_decides():
    fast = Partitions(0.0)
    fast.grow(2)
    fast.seen[:] = 0, 5_000_000, 4_000_000
    assert fast.store_probability(np.array([1, 2]), 2000) == pytest.approx(1000 / 4_000_000)
    fast.seen[2] = 1
    assert fast.store_probability(np.array([1, 2]), 2000) == 1


class SlowBuffer(Slow):
    """PRS image by image, with the random numbers of torch in the order in which PRS uses them."""

    def __init__(self, rho, images, limit):
        super().__init__(rho)
        self.images, self.limit, self.jpegs = images, limit or math.inf, []
        self.full = self.too_large = False

    def offer(self, jpeg, image, extra, classes):
        self.seen.append(image)
        self.full = self.full or len(self.memory) == self.images
        if self.full and torch.rand((), dtype=torch.float64).item() >= self.store_probability(image, len(self.memory)):
            return
        size = len(jpeg) + extra
        if size > self.limit:
            self.too_large = True
            return
        while len(self.memory) == self.images or self.bytes() + size > self.limit:
            self.full = True
            excess = self.excess_probabilities()
            labels = [NONE, *range(classes)]
            weights = torch.tensor([excess.get(label, 0) for label in labels], dtype=torch.float64)
            position = self.to_remove(labels[torch.multinomial(weights, 1).item()] if excess else None)
            self.remove(position)
            self.jpegs[position] = self.jpegs[-1]
            self.jpegs.pop()
        self.memory.append(image)
        self.jpegs.append((jpeg, size))

    def bytes(self):
        return sum(size for _, size in self.jpegs)


@pytest.mark.parametrize(
    ("rho", "images", "limit"), [(0.0, 10, None), (0.2, 12, 6000), (-0.2, 1000, 5000), (0.0, 1000, 700)]
)
def test_the_stored_images_of_a_stream_are_those_of_the_slow_version(rho, images, limit):
    """The same images at the same positions after every batch, in both budgets. The smallest one is below some images.

    In two tasks, some of whose labels are unknown.
    """
    rng = np.random.default_rng(3)
    fast, slow = make("prs", rho=rho, buffer_images=images, buffer_bytes=limit), SlowBuffer(rho, images, limit)
    for seed, (offset, classes) in enumerate([(0, 4)] * 8 + [(4, 3)] * 8):
        host = noisy_host(rng, [0.3] * classes, 7)
        torch.manual_seed(seed)
        fast.offer(host, offset)
        torch.manual_seed(seed)
        for pixels, labels in zip(host.pixels.numpy(), host.labels, strict=True):
            image = frozenset((offset + np.flatnonzero(labels)).tolist()) or frozenset([NONE])
            slow.offer(encode(pixels), image, 2 * classes, offset + classes)
        assert [item.jpeg for item in fast.items] == [jpeg for jpeg, _ in slow.jpegs]
        assert fast.bytes == slow.bytes() <= (limit or math.inf) and len(fast) <= images
    assert slow.full and slow.too_large == (limit == 700)


def make(name, **options):
    return METHODS[name].buffer_class(ShareOptions(**options), NORMALIZE)


def distance_to_shares(buffer, seen, rho):
    """Half the sum of |l_i / L - p_i|, from the stored images."""
    stored = sum(np.bincount(item.positives, minlength=len(seen)) for item in buffer.items)
    return np.abs(stored / stored.sum() - seen**rho / (seen**rho).sum()).sum() / 2


@pytest.mark.parametrize("name", ["prs", "ocdm"])
@pytest.mark.parametrize("rho", [-0.2, 0.0, 0.2])
def test_after_a_long_imbalanced_stream_the_buffer_has_the_shares(name, rho):
    rng = np.random.default_rng(5)
    torch.manual_seed(0)
    shared, reservoir = (make(each, buffer_images=100, rho=rho) for each in (name, "er"))
    frequency = 0.6 / np.arange(1, 11) ** 1.5
    seen = np.zeros(10)
    for _ in range(100):
        labels = rng.random((20, 10)) < frequency
        host = HostBatch(torch.zeros(20, 4, 4, 3, dtype=torch.uint8), labels, np.ones_like(labels))
        for buffer in (shared, reservoir):
            buffer.offer(host, 0)
        seen += labels.sum(0)
    assert len(shared) == len(reservoir) == 100
    assert distance_to_shares(shared, seen, rho) < 0.4 * distance_to_shares(reservoir, seen, rho)
