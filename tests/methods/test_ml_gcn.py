"""ML-GCN against loops over classes in float64, and its counts by hand."""

import copy
import math

import numpy as np
import pytest
import torch
from support.methods import TASKS, assert_gradient, batch, cross_entropy, entries_of_batch, flat, small

from lifelabel.methods import METHODS

COUNTS = [np.array([[10, 4], [4, 4]]), np.array([[5, 3, 0], [3, 8, 1], [0, 1, 9]]), np.array([[2, 0], [0, 0]])]


def make(name="ml-gcn-lifelong", **options):
    return small(name, batch_norm="running", **options)


def begin(method, task):
    method.begin_task(TASKS[task])
    method.count_labels(COUNTS[task])


def learned(method, tasks=1):
    for task in range(tasks):
        begin(method, task)
        for step in range(2):
            method.observe(batch(method, task, step))
        method.end_task()
    return method


def slow_nodes(words, blocks, w1, w2, tau, p):
    """Eq. 2-4 and 6-8 with loops. `blocks` are the counts of the tasks."""
    total = sum(map(len, blocks))
    adjacency = torch.zeros(total, total, dtype=torch.float64)
    start = 0
    for counts in blocks:
        size = len(counts)
        for i in range(size):
            others = [j for j in range(size) if j != i and counts[i, i] and counts[i, j] / counts[i, i] >= tau]
            for j in others:
                adjacency[start + i, start + j] = p / len(others)
            adjacency[start + i, start + i] = 1 - p
        start += size
    degree = adjacency.sum(1)
    for i in range(total):
        for j in range(total):
            adjacency[i, j] /= math.sqrt(degree[i] * degree[j])
    hidden = adjacency @ words @ w1
    return adjacency @ torch.where(hidden > 0, hidden, 0.2 * hidden) @ w2


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_step_is_that_of_the_slow_computation(reduction):
    method = learned(make(reduction=reduction, hidden=6, tau=0.3, p=0.3))
    begin(method, 1)
    given = batch(method, 1, 0)
    backbone = copy.deepcopy(method.learner.backbone).double().train()
    w1, w2 = (w.detach().double().requires_grad_() for w in (method.graph.w1, method.graph.w2))
    words = method.setting.embed(TASKS[0] + TASKS[1]).double()
    logits = backbone(given.images.double()) @ slow_nodes(words, COUNTS[:2], w1, w2, 0.3, 0.3).T
    loss = cross_entropy(logits, entries_of_batch(given, 2), reduction)
    expected = torch.autograd.grad(loss, [w1, w2, *backbone.parameters()])
    assert method.observe(given)["cls"].item() == pytest.approx(loss.item(), rel=1e-4)
    weights = [method.graph.w1, method.graph.w2, *method.learner.backbone.parameters()]
    assert_gradient(weights, flat(expected))


def test_the_matrix_has_the_probabilities_of_the_counts_and_nothing_between_tasks():
    method = learned(make(), tasks=3)
    expected = np.zeros((7, 7))
    expected[:2, :2] = [[1, 1], [0.4, 1]]  # entry [i, j] is P(C_i | C_j): every sea has a sky
    expected[2:5, 2:5] = [[1, 3 / 8, 0], [3 / 5, 1, 1 / 9], [0, 1 / 8, 1]]
    expected[5:, 5:] = np.eye(2)  # no image has the last class
    np.testing.assert_allclose(method.matrix(), expected)


def test_a_class_uses_the_words_of_the_classes_that_it_implies_and_of_no_other_task():
    """P(sky | sea) = 1 and P(sea | sky) = 0.4: with tau = 0.5 the word 'sky' matters for sea, and not conversely."""
    method = learned(make(tau=0.5, p=0.4), tasks=2)
    before = method.nodes()
    for changed, affected in ((0, {0, 1}), (1, {1}), (3, {2, 3})):  # P(boat | fish) = 3/8, P(fish | boat) = 3/5
        method.words[changed] += 1
        moved = (method.nodes() - before).abs().amax(1) > 1e-6
        assert {k for k in range(5) if moved[k]} == affected
        method.words[changed] -= 1


def test_counts_with_old_classes_are_not_used():
    """With `stream.labels=known` a task counts all classes so far."""
    plain, known = make(), make()
    begin(plain, 0)
    begin(known, 0)
    plain.begin_task(TASKS[1])
    known.begin_task(TASKS[1])
    plain.count_labels(COUNTS[1])
    more = np.full((5, 5), 7)
    more[2:, 2:] = COUNTS[1]
    known.count_labels(more)
    assert np.array_equal(plain.matrix(), known.matrix())


def test_the_upper_bound_is_the_same_with_one_task_of_all_classes():
    joint = make("ml-gcn")
    joint.begin_task(sum(TASKS, ()))
    counts = np.arange(49).reshape(7, 7)
    joint.count_labels(counts + counts.T)
    assert (joint.matrix() > 0).sum() > 2 * 2 + 3 * 3 + 2 * 2
    images = batch(joint, 0, 0).images
    torch.testing.assert_close(joint.logits(joint.features(images), 2), joint.scores(images)[:, :2])
    assert METHODS["ml-gcn"].joint and not METHODS["ml-gcn-lifelong"].joint
    assert METHODS["ml-gcn"].Options().hidden == 1024
