"""OCDM against a slow version that computes the divergence after every possible removal from lists of labels."""

import collections
import math

import numpy as np
import pytest
from support.methods import NORMALIZE, noisy_host

from lifelabel.methods import METHODS, ocdm
from lifelabel.methods.buffer import encode
from lifelabel.methods.ocdm import _Candidates
from lifelabel.methods.prs import Partitions, ShareOptions

NONE = -1


def slow_divergence(images, p):
    """KL(p || q) of a list of label lists; q is smoothed."""
    stored = collections.Counter(label for image in images for label in image)
    total = sum(stored[label] + 1e-6 for label in p)
    return sum(share * math.log(share / ((stored[label] + 1e-6) / total)) for label, share in p.items())


def slow_shares(seen, rho):
    n = collections.Counter(label for image in seen for label in image)
    return {label: count**rho / sum(other**rho for other in n.values()) for label, count in n.items()}


def slow_removal(images, p):
    """The first image without which the others are closest to p."""
    without = [slow_divergence(images[:k] + images[k + 1 :], p) for k in range(len(images))]
    return next(k for k, divergence in enumerate(without) if divergence <= min(without) + 1e-12)


def random_image(rng, classes):
    """Few labels, so that there are ties; some images have no label."""
    labels = np.flatnonzero(rng.random(classes) < rng.choice([0.0, 0.2, 0.5]))
    return labels.tolist() or [NONE]


@pytest.mark.parametrize("rho", [0.0, 0.2, -0.2])
def test_images_are_removed_in_the_order_of_the_slow_version(rho):
    """Down to the last image, from memories and batches of many sizes; also with a single class."""
    rng = np.random.default_rng(11)
    for case in range(60):
        classes = 1 if case < 5 else int(rng.integers(2, 7))
        stream = [random_image(rng, classes) for _ in range(int(rng.integers(2, 20)))]
        begin, in_memory = rng.integers(0, len(stream) // 2 + 1, 2).tolist()
        memory = Partitions(rho)
        memory.grow(classes)
        for k, image in enumerate(stream):
            memory.see(np.array(image) + 1)
            if begin <= k < begin + in_memory:
                memory.add(np.array(image) + 1)
        rest = stream[begin:]
        fast = _Candidates(memory, [np.array(image) + 1 for image in rest[in_memory:]])
        left, p = list(range(len(rest))), slow_shares(stream, rho)
        while left:
            expected = left.pop(slow_removal([rest[k] for k in left], p))
            assert fast.best_to_remove() == expected
            fast.remove(expected)


def test_the_first_of_equal_images_is_removed_despite_rounding():
    """Two images whose classes have 8, 11, 12 and 12, 11, 8 images: in floating point a + b + c is not c + b + a."""
    memory = Partitions(0.0)
    memory.grow(7)
    singles = [[label] for label, count in enumerate([8, 11, 12, 12, 11, 8, 2]) for _ in range(count - 1)]
    for image in [[0, 1, 2], [3, 4, 5], *singles]:
        memory.see(np.array(image) + 1)
        memory.add(np.array(image) + 1)
    assert _Candidates(memory, []).best_to_remove() == 0


def make(**options):
    return METHODS["ocdm"].buffer_class(ShareOptions(**options), NORMALIZE)


class SlowBuffer:
    """Memory and batch as one list of (JPEG, bytes, labels). Images are removed until it fits the budgets."""

    def __init__(self, rho, images, limit):
        self.rho, self.images, self.limit, self.memory, self.seen = rho, images, limit or math.inf, [], []

    def offer(self, items):
        self.seen += [labels for *_, labels in items]
        p, union, old = slow_shares(self.seen, self.rho), self.memory + items, len(self.memory)
        left = list(range(len(union)))

        def remove():
            left.pop(slow_removal([union[k][2] for k in left], p))

        while len(left) > self.images:
            remove()
        left[:] = [k for k in left if union[k][1] <= self.limit]
        while sum(union[k][1] for k in left) > self.limit:
            remove()
        for position in reversed([k for k in range(old) if k not in left]):
            self.memory[position] = self.memory[-1]
            self.memory.pop()
        self.memory += [union[k] for k in left if k >= old]


@pytest.mark.parametrize(
    ("rho", "images", "limit"), [(0.0, 10, None), (0.2, 12, 6000), (-0.2, 1000, 5000), (0.0, 3, 700)]
)
def test_the_stored_images_of_a_stream_are_those_of_the_slow_version(rho, images, limit):
    """The same images at the same positions after every batch, in both budgets; also a batch larger than the memory."""
    rng = np.random.default_rng(3)
    fast, slow = make(rho=rho, buffer_images=images, buffer_bytes=limit), SlowBuffer(rho, images, limit)
    for offset, classes in [(0, 4)] * 8 + [(4, 3)] * 8:
        host = noisy_host(rng, [0.3] * classes, 7)
        fast.offer(host, offset)
        jpegs = [encode(pixels) for pixels in host.pixels.numpy()]
        labels = [(offset + np.flatnonzero(row)).tolist() or [NONE] for row in host.labels]
        slow.offer([(j, len(j) + 2 * classes, y) for j, y in zip(jpegs, labels, strict=True)])
        assert [item.jpeg for item in fast.items] == [jpeg for jpeg, *_ in slow.memory]
        assert fast.bytes == sum(size for _, size, _ in slow.memory) <= (limit or math.inf)
        assert len(fast) <= images
    assert len(slow.memory) < len(slow.seen)


def test_only_stored_images_are_encoded(monkeypatch):
    encoded = []
    make_item = ocdm.make_item
    monkeypatch.setattr(ocdm, "make_item", lambda *given: encoded.append(make_item(*given)) or encoded[-1])
    buffer, rng, counts = make(buffer_images=10), np.random.default_rng(0), []
    for _ in range(8):
        before = {id(item) for item in buffer.items}
        encoded.clear()
        buffer.offer(noisy_host(rng, [0.3] * 4, 7), 0)
        assert {id(item) for item in encoded} == {id(item) for item in buffer.items} - before
        counts.append(len(encoded))
    assert counts[0] == 7 and min(counts) < 7
