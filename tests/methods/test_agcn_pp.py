"""AGCN++: every step against a slow computation, the matrix of AGCN, resume, and its scores."""

import dataclasses

import numpy as np
import pytest
import torch
from support.methods import (
    TASKS,
    Float64MapNetwork,
    assert_gradient,
    batch,
    cross_entropy,
    entries_of_batch,
    flat,
    learned,
    make,
    weights_of,
)

from lifelabel.methods import METHODS
from lifelabel.nn.graph import embed

LAMBDAS = (0.3, 0.6, 20.0)


def embedding(device="cpu"):
    return lambda labels: torch.from_numpy(embed(labels, dim=12)[0]).to(device)


def small(name="agcn++", device="cpu", **options):
    made = make(name, device=device, hidden=8, **{"lambdas": LAMBDAS, **options})
    torch.manual_seed(0)
    return METHODS[name](dataclasses.replace(made.setting, embed=embedding(device)), made.options)


class Float64(Float64MapNetwork):
    def __call__(self, images):
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


def slow_losses(logits, nodes, given, targets, expert_nodes, old, reduction):
    cls = cross_entropy(logits, entries_of_batch(given, old), reduction)
    if not old:
        return {"cls": cls}
    dst, gph = 0.0, 0.0
    for i, c in np.ndindex(*targets.shape):
        p = torch.sigmoid(logits[i, c])
        dst = dst - targets[i, c] * torch.log(p) - (1 - targets[i, c]) * torch.log(1 - p)
        for k in range(nodes.shape[2]):
            gph = gph + (nodes[i, c, k] - expert_nodes[i, c, k]) ** 2
    images = len(logits)
    per = (images, images) if reduction == "sum" else (targets.numel(), targets.numel() * nodes.shape[2])
    return {"cls": cls, "dst": dst / per[0], "gph": gph / per[1]}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_every_step_equals_the_slow_computation(reduction):
    """Matrix, adjacency, losses and gradients, in the first and the second task."""
    method = small(reduction=reduction, width=8, mix=0.3, new_old="bayes", prevalence=None)
    expert, frozen, old = None, np.zeros((0, 0)), 0
    for task in range(2):
        method.begin_task(TASKS[task])
        seen = []
        for step in range(2):
            given, student = batch(method, task, step), Float64(method, train=True)
            targets, expert_nodes = np.zeros((4, 0)), None
            if expert:
                with torch.no_grad():
                    z, expert_nodes = expert(given.images)
                targets = z.sigmoid()
            seen.append((given.labels.numpy(), given.known.numpy(), np.asarray(targets)))
            matrix = slow_matrix(frozen, *(np.concatenate(parts) for parts in zip(*seen, strict=True)))
            student.head.adjacency.copy_(torch.from_numpy(slow_adjacency(matrix, 0.3)))
            expected = slow_losses(*student(given.images), given, targets, expert_nodes, old, reduction)
            weights = dict(zip(("cls", "dst", "gph"), LAMBDAS, strict=True)) if expert else {"cls": 1.0}
            gradient = flat(torch.autograd.grad(sum(weights[k] * expected[k] for k in expected), student.parameters))
            got = method.observe(given)
            np.testing.assert_allclose(method.matrix(), matrix, atol=1e-6)
            np.testing.assert_allclose(method.head.adjacency.numpy(), slow_adjacency(matrix, 0.3), atol=1e-6)
            assert got.keys() == expected.keys()
            for name, value in expected.items():
                assert got[name].item() == pytest.approx(value.item(), rel=1e-3, abs=1e-7), (task, step, name)
            assert_gradient(weights_of(method), gradient)
        method.end_task()
        expert, frozen, old = Float64(method, train=False), matrix, len(TASKS[0])


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


def test_every_image_has_its_own_nodes_and_the_expert_is_fixed():
    method = learned(small())
    images = batch(method, 0, 9).images
    with torch.no_grad():
        scores = method.scores(images)
        _, nodes = method.head.logits_and_nodes(method.learner.eval_maps(images))
    assert (nodes[0] - nodes[1]).abs().max() > 1e-3
    assert method.footprint().bytes == method.expert.nbytes + method.acm.nbytes
    method.begin_task(TASKS[1])
    method.observe(batch(method, 1, 0))
    torch.testing.assert_close(method._of_expert(images), (scores, nodes))
    with torch.no_grad():
        assert (method.scores(images)[:, :2] - scores).abs().max() > 1e-4


def test_scores_are_those_of_the_network_with_the_adjacency_of_the_last_step():
    method = learned(small(mix=0.3), tasks=2)
    images = batch(method, 0, 9, count=1).images
    assert torch.equal(method.network().classifier.adjacency, method.adjacency.dense())
    with torch.no_grad():
        scores = method.scores(images)
        torch.testing.assert_close(method.network().eval()(images), scores, rtol=0, atol=1e-5)
    assert scores.shape == (1, 5)
    assert torch.equal(method.logits(method.features(images), 2), scores[:, :2])
