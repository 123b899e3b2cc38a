"""What the graph multiplies with, each against a slow, obvious computation."""

import numpy as np
import torch

from lifelabel.graph import adjacency


def probabilities(size, seed=0):
    matrix = torch.from_numpy(np.random.default_rng(seed).random((size, size)))
    matrix.fill_diagonal_(1)
    return matrix


def slow_binarised(matrix, sizes):
    """The authors' rule with loops: threshold, scale columns, identity, degree; block by block."""
    total = sum(sizes)
    out = np.zeros((total, total))
    start = 0
    for task, size in enumerate(sizes):
        end = start + size
        level, share, power = (0.0, 0.28, -0.8) if task == 0 else (0.4, 0.25, -0.5)
        b = np.zeros((size, size))
        for j in range(size):
            over = [
                1.0 if (0.0 if i == j else float(matrix[start + i, start + j])) >= level else 0.0 for i in range(size)
            ]
            for i in range(size):
                b[i, j] = over[i] * share / (sum(over) + 1e-6) + (1.0 if i == j else 0.0)
        degree = b.sum(1) ** power
        for i in range(size):
            for j in range(size):
                out[start + i, start + j] = degree[i] * b[j, i] * degree[j]
        for rows, columns in ((range(start), range(start, end)), (range(start, end), range(start))):
            for j in columns:
                over = [1.0 if float(matrix[i, j]) >= 0.3 else 0.0 for i in rows]
                for i, one in zip(rows, over, strict=True):
                    out[i, j] = one * 0.25 / (sum(over) + 1e-6)
        start = end
    return out


def test_binarised_equals_the_slow_rule():
    matrix, sizes = probabilities(9), [3, 2, 4]
    np.testing.assert_allclose(adjacency.binarised(matrix, sizes).numpy(), slow_binarised(matrix, sizes), atol=1e-12)


def test_binarised_leaves_the_blocks_of_earlier_tasks_as_they_were():
    matrix, sizes = probabilities(9, seed=1), [3, 2, 4]
    grown = adjacency.binarised(matrix, sizes)
    torch.testing.assert_close(grown[:5, :5], adjacency.binarised(matrix[:5, :5], sizes[:2]))


def test_mixed_equals_the_slow_rule():
    matrix = probabilities(6, seed=2)
    matrix[4] = 0  # a class without any relation
    matrix[4, 4] = 1
    slow = np.zeros((6, 6))
    for i in range(6):
        others = sum(float(matrix[i, j]) for j in range(6) if j != i)
        for j in range(6):
            slow[i, j] = 0.7 if i == j else (0.3 * float(matrix[i, j]) / others if others else 0.0)
    np.testing.assert_allclose(adjacency.mixed(matrix, [6], share=0.3).numpy(), slow, atol=1e-12)


def test_mixed_leaves_the_matrix_alone():
    matrix = probabilities(4)
    before = matrix.clone()
    adjacency.mixed(matrix, [4], share=0.3)
    assert torch.equal(matrix, before)


def test_raw_and_identity():
    matrix = probabilities(5)
    assert adjacency.raw(matrix, [5]) is matrix
    assert torch.equal(adjacency.identity(matrix, [5]), torch.eye(5, dtype=torch.float64))
