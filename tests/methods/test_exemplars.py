"""The exemplar buffer against lists of images for each class, and by hand."""

import collections
import math

import numpy as np
import pytest
import torch
from support.methods import NORMALIZE, noisy_host

from lifelabel.methods import HostBatch
from lifelabel.methods.buffer import BufferOptions, encode
from lifelabel.methods.exemplars import ExemplarBuffer


class Checked(ExemplarBuffer):
    """Fails if the budgets do not hold, also for a moment."""

    def add(self, item):
        super().add(item)
        assert len(self) <= self.options.buffer_images
        assert self.bytes <= (self.options.buffer_bytes or math.inf)


def make(images, limit=None):
    return Checked(BufferOptions(buffer_images=images, buffer_bytes=limit), NORMALIZE)


def host(labels, pixels=None):
    labels = np.asarray(labels, bool)
    pixels = np.zeros((len(labels), 4, 4, 3), np.uint8) if pixels is None else pixels
    return HostBatch(torch.from_numpy(pixels), labels, np.ones_like(labels))


class SlowBuffer:
    """A list of [key, JPEG, bytes] for each class. Images of earlier tasks have a negative key."""

    def __init__(self, images, limit):
        self.images, self.limit, self.lists = images, limit or math.inf, collections.defaultdict(list)

    def all(self):
        return [image for images in self.lists.values() for image in images]

    def fits(self, more):
        images = [*self.all(), *more]
        return len(images) <= self.images and sum(size for *_, size in images) <= self.limit

    def begin_task(self, classes):
        stored = self.all()
        capacity = self.images
        if stored:
            capacity = min(capacity, self.limit * len(stored) // sum(size for *_, size in stored))
        for images in self.lists.values():
            images.sort(key=lambda image: image[0])
            del images[max(1, int(capacity // classes)) :]
        self.offered, self.refused = collections.Counter(), {}

    def offer(self, jpegs, labels):
        keys = torch.rand(len(jpegs), dtype=torch.float64).tolist()
        for jpeg, classes, key in zip(jpegs, labels, keys, strict=True):
            if classes:
                served = min(classes, key=lambda c: (len(self.lists[c]), self.offered[c], c))
                self.offered[served] += 1
                self.store(served, [key, jpeg, len(jpeg) + 2 * self.columns])

    def store(self, served, new):
        if new[0] >= self.refused.get(served, 1) or new[2] > self.limit:
            return
        waiting = [new]
        while not self.fits(waiting):
            sizes = {c: len(images) + len(waiting) * (c == served) for c, images in self.lists.items()}
            largest = sorted(c for c, size in sizes.items() if size == max(sizes.values()))
            choice = largest[int(torch.randint(len(largest), ())) if len(largest) > 1 else 0]
            members = [*self.lists[choice], *(waiting if choice == served else [])]
            last = max(members, key=lambda image: image[0])
            self.refused[choice] = last[0]
            if last is new:
                return
            self.lists[choice].remove(last)
        self.lists[served] += waiting

    def end_task(self):
        for images in self.lists.values():
            if any(image[0] >= 0 for image in images):
                images.sort(key=lambda image: image[1])
                for rank, image in enumerate(images):
                    image[0] = rank - len(images)


def stream(rng):
    """Batches of three tasks of four, three and two classes, of different frequencies.

    In the last task all labels are visible, also those of old classes.
    """
    for task, (offset, classes) in enumerate([(0, 4), (4, 3), (0, 9)]):
        for _ in range(5):
            yield task, offset, noisy_host(rng, 0.5 / np.arange(1, classes + 1), 7)


@pytest.mark.parametrize(("images", "limit"), [(12, None), (1000, 6000), (10, 5000), (5, None), (3, 1300)])
def test_the_stored_images_of_a_stream_are_those_of_the_slow_version(images, limit):
    """The same images for the same classes after every batch, with fewer images than classes too."""
    fast, slow, current, removed = make(images, limit), SlowBuffer(images, limit), -1, 0
    for step, (task, offset, batch) in enumerate(stream(np.random.default_rng(7))):
        if task > current:
            for ordered in fast.changed():  # in the order of the bytes of the JPEGs
                fast.set_order(np.array(sorted(ordered, key=lambda p: fast.items[p].jpeg)))
            slow.end_task()
            current, slow.columns = task, batch.labels.shape[1]
            fast.begin_task((4, 7, 9)[task])
            slow.begin_task((4, 7, 9)[task])
        before = len(fast)
        torch.manual_seed(step)
        fast.offer(batch, offset)
        torch.manual_seed(step)
        jpegs = [encode(pixels) for pixels in batch.pixels.numpy()]
        slow.offer(jpegs, [(offset + np.flatnonzero(row)).tolist() for row in batch.labels])
        for served in range(9):
            expected = sorted((key, jpeg) for key, jpeg, _ in slow.lists[served])
            assert [(fast.keys[p], fast.items[p].jpeg) for p in fast.members(served)] == expected
        assert fast.counts.tolist() == np.bincount(fast.serves, minlength=len(fast.counts)).tolist()
        removed += before + sum(row.any() for row in batch.labels) - len(fast)
    assert removed > 20 and len(fast) > 0


def test_an_image_serves_the_class_with_the_fewest_images():
    buffer = make(10)
    buffer.begin_task(3)
    # classes 0 and 1, then 2; the next one of 0 and 2 serves the first of equals, and the last one the other
    buffer.offer(host([[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 1], [1, 0, 1]]), 0)
    assert buffer.serves.tolist() == [0, 1, 2, 0, 2] and buffer.counts.tolist() == [2, 1, 2]


def test_the_stored_images_of_each_class_are_a_uniform_sample():
    """A frequent class with 30 images and a rare one with 3, which are all stored, in a buffer of 10."""
    torch.manual_seed(0)
    trials, counts, both = 120, np.zeros(33), 0
    labels = np.stack([np.arange(33) % 11 > 0, np.arange(33) % 11 == 0], 1)
    pixels = np.arange(33, dtype=np.uint8)[:, None, None, None].repeat(8, 1).repeat(8, 2).repeat(3, 3) * 7
    codes = {encode(image): row for row, image in enumerate(pixels)}
    for _ in range(trials):
        buffer = make(10)
        buffer.begin_task(2)
        for rows in np.array_split(np.arange(33), 5):
            buffer.offer(host(labels[rows], pixels=pixels[rows]), 0)
        stored = [codes[item.jpeg] for item in buffer.items]
        assert len(set(stored)) == 10
        counts[stored] += 1
        both += {1, 2} <= set(stored)
    assert (counts[labels[:, 1]] == trials).all()
    p = 7 / 30
    deviations = (counts[labels[:, 0]] - trials * p) / np.sqrt(trials * p * (1 - p))
    assert np.abs(deviations).max() < 4 and np.sum(deviations**2) < 30 + 4 * np.sqrt(60)
    assert abs(both - trials * p * 6 / 29) < 4 * np.sqrt(trials * p * 6 / 29)


def filled(images, classes, count):
    """A buffer after a task in which every class got `count` images, in the order of their positions."""
    buffer = make(images)
    buffer.begin_task(classes)
    buffer.offer(host(np.eye(classes, dtype=bool).repeat(count, 0)), 0)
    for members in buffer.changed():
        buffer.set_order(np.sort(members))
    return buffer


def test_a_new_task_reduces_each_class_to_its_share_and_keeps_the_first_in_order():
    buffer = filled(12, 2, 6)
    first = [buffer.items[p] for served in (0, 1) for p in buffer.members(served)[:3]]
    buffer.begin_task(4)
    assert buffer.counts.tolist() == [3, 3, 0, 0]
    assert {id(item) for item in buffer.items} == {id(item) for item in first}
    buffer.offer(host(np.eye(4, dtype=bool)[[2] * 9 + [3] * 2]), 0)
    assert buffer.counts.tolist() == [3, 3, 4, 2]  # no room is left empty
    buffer.offer(host(np.eye(4, dtype=bool)[[3] * 4]), 0)
    assert buffer.counts.tolist() == [3, 3, 3, 3]
    assert {id(item) for item in buffer.items} >= {id(item) for item in first}


def test_more_classes_than_images():
    """Every class has one image at most, and new classes take the places of some old ones."""
    buffer = filled(6, 6, 1)
    buffer.begin_task(9)
    assert buffer.counts.tolist() == [1] * 6 + [0] * 3
    for _ in range(3):
        buffer.offer(host(np.eye(3, dtype=bool)), 6)
    assert len(buffer) == 6 and buffer.counts.max() == 1 and buffer.counts[6:].sum() > 0


def test_results_are_computed_in_batches_from_images_that_are_not_mirrored():
    buffer = filled(10, 2, 4)
    sizes = []

    def first_pixel(images, positions):
        sizes.append(len(images))
        return images[:, 0, 0, 0] + torch.from_numpy(positions)

    rows = buffer.compute(first_pixel, np.array([7, 1, 3, 0, 2]), 2)
    assert sizes == [2, 2, 1] and rows.dtype == torch.float64
    pixel = buffer.images([0])[0, 0, 0, 0].item()
    np.testing.assert_allclose(rows.numpy() - pixel, [7, 1, 3, 0, 2], atol=1e-6)
