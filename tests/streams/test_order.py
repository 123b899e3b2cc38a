"""The order of the training images of a task."""

import numpy as np
import pytest

from lifelabel.images.photographs import FileImages
from lifelabel.images.shards import ShardImages
from lifelabel.images.source import Names
from lifelabel.streams.order import _WINDOW, training_order

SHARDS, SIZE = 50, 1000


@pytest.fixture
def images():
    """Fifty shards of a thousand images each, in random rows, and ten files."""
    source = ShardImages.__new__(ShardImages)
    place = np.random.default_rng(0).permutation(SHARDS * SIZE)
    source.shards = tuple(range(SHARDS))
    source.shard = np.append(place // SIZE, np.full(10, -1)).astype(np.int32)
    source.offset = np.append(place % SIZE, np.zeros(10))
    return source


def test_the_random_order_is_the_permutation_of_seed_and_task(images):
    rows = np.arange(0, SHARDS * SIZE, 7)
    expected = np.random.default_rng([3, 1]).permutation(len(rows))
    for source in (images, FileImages(None, Names(["a"]))):
        assert np.array_equal(training_order(rows, source, 3, 1), expected)
    assert np.array_equal(training_order(rows, FileImages(None, Names(["a"])), 3, 1, "shards"), expected)


def test_the_order_by_shards_has_each_image_once_and_few_shards_at_a_time(images):
    rows = np.random.default_rng(1).permutation(len(images.shard))[: SHARDS * SIZE]
    order = training_order(rows, images, 3, 1, "shards")
    assert np.array_equal(np.sort(order), np.arange(len(rows)))
    assert np.array_equal(order, training_order(rows, images, 3, 1, "shards"))
    shard = images.shard[rows[order]]
    places = [np.flatnonzero(shard == each) for each in range(SHARDS)]
    assert max(np.ptp(place) for place in places) < 1.5 * _WINDOW
    assert all(len(set(shard[start : start + 1000].tolist())) > 4 for start in range(0, len(rows), 1000))
    firsts = np.argsort([place.mean() for place in places])
    assert not np.array_equal(firsts, np.arange(SHARDS))
    for seed, task in ((4, 1), (3, 2)):
        assert not np.array_equal(order, training_order(rows, images, seed, task, "shards"))
