"""Every kind of adjacency against a slow computation with loops."""

import itertools
import math

import numpy as np
import pytest
import torch

from lifelabel.nn.graph import Adjacency


def probabilities(size, seed=0):
    matrix = torch.from_numpy(np.random.default_rng(seed).random((size, size)))
    matrix.fill_diagonal_(1)
    return matrix


def columns_to(total, related):
    return total * related / (related.sum(0) + 1e-6)


def slow_binarised(matrix, sizes):
    """The authors' rule, block by block: threshold, scale columns, identity, degree."""
    matrix, out = matrix.numpy(), np.zeros(matrix.shape)
    for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
        old, new = slice(start), slice(start, end)
        level, share, power = (0.4, 0.25, -0.5) if start else (0.0, 0.28, -0.8)
        size = end - start
        b = columns_to(share, np.where(np.eye(size), 0, matrix[new, new]) >= level) + np.eye(size)
        degree = np.diag(b.sum(1) ** power)
        out[new, new] = degree @ b.T @ degree
        out[old, new] = columns_to(0.25, matrix[old, new] >= 0.3)
        out[new, old] = columns_to(0.25, matrix[new, old] >= 0.3)
    return out


def slow_mixed(matrix, share):
    out = np.eye(len(matrix)) * (1 - share)
    for i, row in enumerate(matrix.tolist()):
        others = sum(row) - row[i]
        for j, value in enumerate(row):
            out[i, j] += share * value / others if i != j and others else 0
    return out


def close(got, expected):
    np.testing.assert_allclose(got.dense().numpy(), expected, atol=1e-6)


def test_binarised_equals_the_slow_rule():
    matrix, sizes = probabilities(9), [3, 2, 4]
    close(Adjacency("binarised", matrix, sizes), slow_binarised(matrix, sizes))


def test_binarised_does_not_change_the_blocks_of_earlier_tasks():
    matrix, sizes = probabilities(9, seed=1), [3, 2, 4]
    grown = Adjacency("binarised", matrix, sizes).dense()
    torch.testing.assert_close(grown[:5, :5], Adjacency("binarised", matrix[:5, :5], sizes[:2]).dense())


def test_mixed_equals_the_slow_rule():
    matrix = probabilities(6, seed=2)
    matrix[4] = 0  # a class without relations
    matrix[4, 4] = 1
    close(Adjacency("mixed", matrix, [2, 4], share=0.3), slow_mixed(matrix, 0.3))


def test_raw_and_identity():
    matrix = probabilities(5)
    close(Adjacency("raw", matrix, [2, 3]), matrix)
    close(Adjacency("identity", matrix, [2, 3]), np.eye(5))


@pytest.mark.parametrize("kind", ["raw", "mixed", "binarised", "identity"])
def test_without_across_classes_of_different_tasks_have_no_relation(kind):
    matrix, sizes = probabilities(5), [2, 3]
    blocks = matrix.clone()
    blocks[:2, 2:] = blocks[2:, :2] = 0
    close(Adjacency(kind, matrix, sizes, share=0.3, across=False), Adjacency(kind, blocks, sizes, share=0.3).dense())


@pytest.mark.parametrize("kind", ["raw", "mixed", "binarised", "identity"])
def test_refresh_updates_the_blocks_of_the_current_task(kind):
    matrix, later = probabilities(9), probabilities(9, seed=1)
    later[:5, :5] = matrix[:5, :5]  # frozen
    adjacency = Adjacency(kind, matrix, [3, 2, 4], share=0.3)
    before = matrix.clone()
    adjacency.refresh(later)
    close(adjacency, Adjacency(kind, later, [3, 2, 4], share=0.3).dense())
    assert torch.equal(matrix, before)


@pytest.mark.parametrize("kind", ["raw", "mixed", "binarised", "identity"])
def test_a_product_and_its_gradient_equal_those_of_the_dense_matrix(kind):
    adjacency, nodes = Adjacency(kind, probabilities(9), [3, 6], share=0.3), torch.randn(9, 4, requires_grad=True)
    torch.testing.assert_close(adjacency @ nodes, adjacency.dense() @ nodes)
    of_images = torch.randn(2, 9, 4)
    torch.testing.assert_close(adjacency @ of_images, adjacency.dense() @ of_images)
    (got,) = torch.autograd.grad((adjacency @ nodes).square().sum(), nodes)
    (expected,) = torch.autograd.grad((adjacency.dense() @ nodes).square().sum(), nodes)
    torch.testing.assert_close(got, expected)


def test_bfloat16_rounds_the_relations_and_not_the_identity_part():
    matrix, nodes = probabilities(50), torch.randn(50, 8)
    exact, rough = (Adjacency("mixed", matrix, [20, 30], share=0.05, dtype=d) for d in (torch.float32, torch.bfloat16))
    assert (exact @ nodes - rough @ nodes).abs().max() < 0.05 * 2**-7 * nodes.abs().max()


def slow_reweighted(matrix, sizes, tau, p):
    """Eq. 7 and 8 of ML-GCN with loops, task by task. The paper's P_ij is P(C_j | C_i), our entry [j, i]."""
    out = np.zeros((sum(sizes), sum(sizes)))
    for start, end in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
        a = {}
        for i in range(start, end):
            neighbours = [j for j in range(start, end) if j != i and float(matrix[j, i]) >= tau]
            a |= {(i, j): p / len(neighbours) if j in neighbours else 0.0 for j in range(start, end)}
            a[i, i] = 1 - p
        degree = {i: sum(a[i, j] for j in range(start, end)) for i in range(start, end)}
        for i, j in a:
            both = degree[i] * degree[j]
            out[i, j] = a[i, j] / math.sqrt(both) if both else 0.0
    return out


@pytest.mark.parametrize(("tau", "p"), [(0.4, 0.2), (0.0, 0.5), (0.9, 1.0), (0.3, 0.0)])
def test_reweighted_equals_the_slow_rule(tau, p):
    matrix, sizes = probabilities(9, seed=3), [3, 1, 5]
    matrix[:, 6] = 0  # a class without neighbours: with p = 1 its degree is 0
    matrix[6, 6] = 1
    made = Adjacency("reweighted", matrix, sizes, share=p, threshold=tau, across=False)
    close(made, slow_reweighted(matrix, sizes, tau, p))
    torch.testing.assert_close(
        made.dense()[:4, :4],
        Adjacency("reweighted", matrix[:4, :4], sizes[:2], share=p, threshold=tau, across=False).dense(),
    )


def test_a_reweighted_node_is_mixed_with_the_classes_that_its_own_class_implies():
    """10 images show a table, and 4 of them a fork; no fork is without a table. A fork implies a table."""
    table_and_fork = torch.tensor([[1.0, 1.0], [0.4, 1.0]])  # entry [i, j] = P(C_i | C_j)
    made = Adjacency("reweighted", table_and_fork, [2], share=0.2, threshold=0.5, across=False).dense()
    expected = [[1.0, 0.0], [0.2 / math.sqrt(0.8), 0.8]]  # the degree of the table is 0.8, that of the fork 1
    np.testing.assert_allclose(made.numpy(), expected, atol=1e-6)


def test_reweighted_has_no_blocks_between_tasks():
    with pytest.raises(ValueError, match="between tasks"):
        Adjacency("reweighted", probabilities(3), [1, 2], share=0.2)
