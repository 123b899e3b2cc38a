"""AGCN++: every step against a slow computation, and the matrix of AGCN."""

import dataclasses

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64MapNetwork,
    assert_step,
    batch,
    cross_entropy,
    entries_of_batch,
    make,
    soft_entries,
)

from lifelabel.methods import METHODS
from lifelabel.nn.graph import embed

LAMBDAS = (0.3, 0.6, 20.0)


def small(name="agcn++", **options):
    made = make(name, hidden=8, **{"lambdas": LAMBDAS, **options})
    torch.manual_seed(0)
    words = lambda labels: torch.from_numpy(embed(labels, dim=12)[0])  # noqa: E731
    return METHODS[name](dataclasses.replace(made.setting, embed=words), made.options)


class Float64(Float64MapNetwork):
    def logits_and_nodes(self, images):
        return self.head.logits_and_nodes(self.maps(images))


def slow_matrix(frozen, labels, known, soft):
    """Eq. 4-7 from all images of a task so far, one at a time. Unknown labels are left out of the counts."""
    old, new = len(frozen), labels.shape[1]
    matrix = np.eye(old + new)
    matrix[:old, :old] = frozen
    images = range(len(labels))
    for j in range(new):
        n_j = sum(labels[k, j] for k in images)
        for i in range(new):
            counted = sum(labels[k, j] for k in images if known[k, i])
            if i != j:
                matrix[old + i, old + j] = sum(labels[k, i] * labels[k, j] for k in images) / counted if counted else 0
        for i in range(old):
            joint = sum(soft[k, i] * labels[k, j] for k in images)
            matrix[i, old + j] = joint / n_j if n_j else 0
            matrix[old + j, i] = joint / sum(soft[k, i] for k in images if known[k, j])
    return matrix


def slow_adjacency(matrix, share):
    out = np.eye(len(matrix)) * (1 - share)
    for i, j in np.ndindex(*matrix.shape):
        others = sum(matrix[i, k] for k in range(len(matrix)) if k != i)
        if i != j and others:
            out[i, j] = share * matrix[i, j] / others
    return out


def slow_distance(nodes, expert_nodes, reduction):
    total = 0.0
    for i, c, k in np.ndindex(*expert_nodes.shape):
        total = total + (nodes[i, c, k] - expert_nodes[i, c, k]) ** 2
    return total / (len(nodes) if reduction == "sum" else expert_nodes.numel())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_step_equals_the_slow_computation(reduction):
    """Matrix, adjacency, losses and gradients, in the first and the second task."""
    method = small(reduction=reduction, width=8, mix=0.3, new_old="bayes", prevalence=None)
    expert, frozen, old = None, np.zeros((0, 0)), 0
    for task in range(2):
        method.begin_task(TASKS[task])
        seen = []
        for step in range(2):
            given, network = batch(method, task, step), Float64(method)
            targets, expert_nodes = torch.zeros(4, 0), None
            if expert:
                with torch.no_grad():
                    z, expert_nodes = expert.logits_and_nodes(given.images)
                targets = z.sigmoid()
            seen.append((given.labels.numpy(), given.known.numpy(), targets.numpy()))
            matrix = slow_matrix(frozen, *(np.concatenate(parts) for parts in zip(*seen, strict=True)))
            network.head.adjacency.copy_(torch.from_numpy(slow_adjacency(matrix, 0.3)))
            logits, nodes = network.logits_and_nodes(given.images)
            parts = {"cls": cross_entropy(logits, entries_of_batch(given, old), reduction)}
            loss = parts["cls"]
            if expert:
                parts["dst"] = cross_entropy(logits, soft_entries(targets), reduction)
                parts["gph"] = slow_distance(nodes, expert_nodes, reduction)
                loss = sum(weight * part for weight, part in zip(LAMBDAS, parts.values(), strict=True))
            assert_step(method, given, network, parts, loss, rel=1e-3)
            np.testing.assert_allclose(method.matrix(), matrix, atol=1e-6)
            np.testing.assert_allclose(method.head.adjacency.numpy(), slow_adjacency(matrix, 0.3), atol=1e-6)
        method.end_task()
        expert, frozen, old = Float64(method, frozen=True), matrix, len(TASKS[0])


@pytest.mark.parametrize("options", [{}, {"new_old": "halved", "prevalence": None, "soft_labels": "softmax"}])
def test_the_matrix_is_that_of_agcn_for_the_same_soft_labels(options, monkeypatch):
    ours, agcn = small(**options), small("agcn", **options)
    drawn = [torch.randn(4, 2, generator=torch.Generator().manual_seed(step)) for step in range(2)]
    for task, classes in enumerate(TASKS[:2]):
        for method in (ours, agcn):
            method.begin_task(classes)
        for step in range(2):
            if task:
                nodes = ours._of_expert(batch(ours, task, step).images)[1]
                monkeypatch.setattr(ours, "_of_expert", lambda images, z=drawn[step], g=nodes: (z, g))
                monkeypatch.setattr(agcn.expert, "logits", lambda images, z=drawn[step]: z)
            for method in (ours, agcn):
                method.observe(batch(method, task, step))
            monkeypatch.undo()
        for method in (ours, agcn):
            method.end_task()
    np.testing.assert_array_equal(ours.matrix(), agcn.matrix())
    torch.testing.assert_close(ours.adjacency.dense(), agcn.adjacency.dense())
    assert np.abs(ours.matrix()[:2, 2:]).max() > 0.05
