"""PRS against the rules of the paper, computed slowly: sets of labels, loops, exact fractions if rho is 0.

What PRS and OCDM share (masks, budgets, resuming) is tested here for both.
"""

import collections
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.methods.buffer import Reservoir, encode
from lifelabel.methods.prs import Partitions, _PartitioningReservoir

NONE = "none"
TASKS = [("sky", "sea", "sun", "moon"), ("boat", "fish", "net")]


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


def random_image(rng, classes, empty=0.15):
    """Few labels, so that there are ties; some images have no label."""
    labels = np.flatnonzero(rng.random(classes) < rng.choice([0.15, 0.5]))
    return frozenset() if rng.random() < empty else frozenset(labels.tolist())


def names(partitions):
    return frozenset(NONE if number == 0 else int(number) - 1 for number in partitions)


def number(label):
    return 0 if label == NONE else label + 1


def random_memory(rng, rho, classes, images):
    """The same images in both, after some have been removed."""
    fast, slow = Partitions(rho), Slow(rho)
    fast.grow(classes)
    for _ in range(images + 8):
        partitions = Partitions.from_classes(np.array(sorted(random_image(rng, classes)), np.int64))
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


def test_a_class_is_sampled_in_proportion_to_its_excess():
    fast = Partitions(0.0)
    fast.grow(4)
    for label, count in enumerate([20, 11, 8, 1]):  # each share is 10: an excess of 10 and of 1
        for _ in range(count):
            fast.see(np.array([label + 1]))
            fast.add(np.array([label + 1]))
    torch.manual_seed(0)
    samples = collections.Counter(fast.sample_excess() for _ in range(4000))
    assert set(samples) == {1, 2}
    p = 1 / 11
    assert abs(samples[2] - 4000 * p) < 5 * math.sqrt(4000 * p * (1 - p))


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


def test_the_probability_of_each_label_is_capped_before_weighting():
    """Counts 3 and 4 with shares of 1/2 in a buffer of 7: 3.5 / 3 is capped at 1, and 3.5 / 4 counts in full."""
    fast = Partitions(0.0)
    fast.grow(2)
    fast.seen[:] = 0, 3, 4
    weight = 1 / (1 + math.exp(-1))
    expected = weight + (1 - weight) * 3.5 / 4
    assert fast.store_probability(np.array([1, 2]), 7) == pytest.approx(expected, abs=1e-12)
    assert weight * 3.5 / 3 + (1 - weight) * 3.5 / 4 > 1  # a cap of the sum would give 1


def setting(method="prs", **options):
    config = Config.make({"method": method, "method_options": options})
    return make_setting(config, lambda labels: torch.zeros(len(labels), 1), torch.device("cpu")), config.method_options


def host(rng, task, images, size=8, known=1.0):
    """Images with a random amount of noise, so that their JPEGs have many sizes."""
    classes = len(TASKS[task])
    noise = rng.integers(0, 256, (images, size, size, 3)) * rng.random((images, 1, 1, 1))
    labels = np.array(
        [[c in image for c in range(classes)] for image in (random_image(rng, classes) for _ in range(images))]
    )
    mask = rng.random((images, classes)) < known
    return HostBatch(torch.from_numpy(noise.astype(np.uint8)), labels & mask, mask)


def batch(host):
    pixels = host.pixels.permute(0, 3, 1, 2).float() / 255
    labels, known = torch.from_numpy(host.labels).float(), torch.from_numpy(host.known)
    return Batch(pixels, labels, known, tuple(map(str, range(labels.shape[1]))), host)


def hosts(rng, **more):
    """Two tasks: the offset of the classes, and a batch."""
    return [(0, host(rng, 0, 7, **more)) for _ in range(8)] + [(4, host(rng, 1, 7, **more)) for _ in range(8)]


class SlowBuffer(Slow):
    """PRS image by image, with the random numbers of torch in the order in which PRS uses them."""

    def __init__(self, rho, images, limit):
        super().__init__(rho)
        self.images, self.limit, self.jpegs, self.full = images, limit or math.inf, [], False

    def offer(self, jpeg, image, extra, classes):
        self.seen.append(image)
        self.full = self.full or len(self.memory) == self.images
        if self.full and torch.rand((), dtype=torch.float64).item() >= self.store_probability(image, len(self.memory)):
            return
        size = len(jpeg) + extra
        if size > self.limit:
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


@pytest.mark.parametrize(("rho", "images", "limit"), [(0.0, 10, None), (0.2, 12, 6000), (-0.2, 1000, 5000)])
def test_the_stored_images_of_a_stream_are_those_of_the_slow_version(rho, images, limit):
    """Two tasks, unknown labels, both budgets: the same images at the same positions after every batch."""
    rng = np.random.default_rng(3)
    made, options = setting(rho=rho, buffer_images=images, buffer_bytes=limit)
    fast = _PartitioningReservoir(options, made.backbone.normalize)
    slow = SlowBuffer(rho, images, limit)
    for seed, (offset, host) in enumerate(hosts(rng, known=0.8), 1):
        torch.manual_seed(seed)
        fast.offer(host, offset)
        torch.manual_seed(seed)
        for pixels, labels in zip(host.pixels.numpy(), host.labels, strict=True):
            image = frozenset((offset + np.flatnonzero(labels)).tolist()) or frozenset([NONE])
            slow.offer(encode(pixels), image, 2 * len(labels), offset + len(labels))
        assert [item.jpeg for item in fast.items] == [jpeg for jpeg, _ in slow.jpegs]
        assert fast.bytes == slow.bytes() <= (limit or math.inf) and len(fast) <= images
    assert slow.full


def test_an_image_larger_than_the_budget_removes_no_other_image():
    rng = np.random.default_rng(0)
    for name in ("prs", "ocdm"):
        method = make(name, buffer_images=1000, buffer_bytes=4000)
        method.begin_task(TASKS[0])
        method.store(batch(host(rng, 0, 6)))
        large = host(rng, 0, 1, size=64)
        assert len(method.buffer) > 3 and len(encode(large.pixels[0].numpy())) > 4000
        before = [item.jpeg for item in method.buffer.items]
        for _ in range(20):
            method.store(batch(large))
        assert [item.jpeg for item in method.buffer.items] == before


def make(name, **options):
    torch.manual_seed(0)
    return METHODS[name](*setting(name, **options))


def distance_to_shares(buffer, seen, rho):
    """Half the sum of |l_i / L - p_i|, from the stored images."""
    stored = sum(np.bincount(item.positives, minlength=len(seen)) for item in buffer.items)
    return np.abs(stored / stored.sum() - seen**rho / (seen**rho).sum()).sum() / 2


@pytest.mark.parametrize("name", ["prs", "ocdm"])
@pytest.mark.parametrize("rho", [-0.2, 0.0, 0.2])
def test_after_a_long_imbalanced_stream_the_buffer_has_the_shares(name, rho):
    rng = np.random.default_rng(5)
    method = make(name, buffer_images=100, rho=rho)
    method.begin_task(list("abcdefghij"))
    reservoir = Reservoir(method.options, method.setting.backbone.normalize)
    frequency = 0.6 / np.arange(1, 11) ** 1.5
    seen = np.zeros(10)
    for _ in range(100):
        labels = rng.random((20, 10)) < frequency
        given = batch(HostBatch(torch.zeros(20, 4, 4, 3, dtype=torch.uint8), labels, np.ones_like(labels)))
        method.store(given)
        reservoir.offer(given.host, 0)
        seen += labels.sum(0)
    assert len(method.buffer) == len(reservoir) == 100
    assert distance_to_shares(method.buffer, seen, rho) < 0.4 * distance_to_shares(reservoir, seen, rho)


def observed(method, task, batches, seed):
    method.begin_task(TASKS[task])
    for given in range(batches):
        method.observe(batch(host(np.random.default_rng([seed, task, given]), task, 6, size=32, known=0.8)))


@pytest.mark.parametrize("name", ["prs", "ocdm"])
def test_replayed_labels_are_those_that_were_visible(name):
    method = make(name, buffer_images=20, buffer_bytes=40_000)
    visible = {}
    for task, offset in ((0, 0), (1, 4)):
        observed(method, task, 6, seed=1)
        for given in range(6):
            given_host = host(np.random.default_rng([1, task, given]), task, 6, size=32, known=0.8)
            for pixels, labels, known in zip(
                given_host.pixels.numpy(), given_host.labels, given_host.known, strict=True
            ):
                columns = offset + np.arange(len(labels))
                visible[encode(pixels)] = [
                    dict(zip(columns.tolist(), row.tolist(), strict=True)) for row in (labels, known)
                ]
    assert {item.offset for item in method.buffer.items} == {0, 4}
    replayed = method.buffer.replay(range(len(method.buffer)), 7)
    for row, item in enumerate(method.buffer.items):
        labels, known = visible[item.jpeg]
        assert replayed.labels[row].tolist() == [float(labels.get(c, False)) for c in range(7)]
        assert replayed.known[row].tolist() == [known.get(c, False) for c in range(7)]
