"""Sparse tables of labels, compared with dense arrays."""

import tracemalloc

import numpy as np
import pytest

from lifelabel.streams.labels import Labels


def test_sparse_labels_agree_with_dense_labels():
    dense = np.random.default_rng(1).random((50, 7)) < 0.3
    labels = Labels.from_dense(dense)
    assert labels == Labels.from_lists([np.flatnonzero(row)[::-1] for row in dense], 7)
    assert np.array_equal(labels.dense(), dense)
    assert np.array_equal(labels.dense(slice(2, 5)), dense[:, 2:5])
    assert np.array_equal(labels.counts(), dense.sum(0))
    assert np.array_equal(labels.per_image(), dense.sum(1))
    assert np.array_equal(labels.cooccurrence(), dense.T.astype(int) @ dense.astype(int))
    rows = np.array([49, 3, 3, 0])
    assert np.array_equal(labels.take(rows).dense(), dense[rows])
    assert np.array_equal(labels.select_classes([6, 0, 3]).dense(), dense[:, [6, 0, 3]])
    inside = labels.within(slice(1, 4)).dense()
    assert np.array_equal(inside[:, 1:4], dense[:, 1:4]) and not inside[:, [0, 4, 5, 6]].any()
    assert all(sorted(row) == list(row) for row in (labels.select_classes([6, 0, 3])[i].tolist() for i in range(50)))


def test_tables_without_images_and_images_without_labels():
    none = Labels.from_lists([], 3)
    assert len(none) == 0 and none.dense().shape == (0, 3) and none.cooccurrence().tolist() == [[0] * 3] * 3
    assert Labels.from_lists([[], []], 3).select_classes([1]).dense().tolist() == [[False], [False]]


@pytest.mark.parametrize("block", [1, 7, 40, 400, 1 << 22])
def test_pairs_agree_with_a_matrix_product(block):
    dense = np.random.default_rng(1).random((200, 9)) < 0.4
    dense[:, [0, 5, 8]] &= [False, False, True]  # classes without an image
    blocks = list(Labels.from_dense(dense).pairs(block))
    assert (len(blocks) == 1) == (block > 400)
    first, second, count = map(np.concatenate, zip(*blocks, strict=True))
    assert np.array_equal(first * 9 + second, np.sort(first * 9 + second)) and (count > 0).all()
    cooccurrence = np.triu(dense.T.astype(int) @ dense.astype(int), 1)
    counted = np.zeros_like(cooccurrence)
    counted[first, second] = count
    assert np.array_equal(counted, cooccurrence)


def test_pairs_of_images_with_all_classes_take_little_memory():
    """20 images of 2,000 classes have 40 million pairs, which would take 640 MB."""
    labels = Labels.from_dense(np.ones((20, 2000), bool))
    tracemalloc.start()
    total = sum(len(count) for _, _, count in labels.pairs(1 << 18) if (count == 20).all())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 2000 * 1999 // 2
    assert peak < 100e6


def test_keys_are_sorted_and_counted_once():
    dense = np.random.default_rng(2).random((20, 6)) < 0.3
    dense[[0, 7, 19]] = False  # also the first and the last image have no label
    keys = np.flatnonzero(dense)
    mixed = np.random.default_rng(3).permutation(np.concatenate([keys, keys[::2]]))
    labels = Labels.from_keys(mixed, 20, 6)
    assert labels == Labels.from_dense(dense) and np.array_equal(labels.keys(), keys)
    empty = Labels.from_keys(np.zeros(0, np.int64), 4, 3)
    assert empty == Labels.from_lists([[], [], [], []], 3) and len(empty) == 4


def test_tables_are_equal_if_classes_rows_and_labels_are_equal_and_cannot_be_changed():
    table = Labels.from_lists([[0], [1]], 2)
    assert table == Labels.from_lists([[0, 0], [1]], 2)  # a repeated label counts once
    others = [Labels.from_lists(*given) for given in (([[0], [1]], 3), ([[0, 1], []], 2), ([[1], [0]], 2), ([[0]], 2))]
    assert all(table != other for other in others)
    assert table != [[0], [1]]
    with pytest.raises(ValueError, match="read-only"):
        table.column[0] = 5
