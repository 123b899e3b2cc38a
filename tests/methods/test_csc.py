"""CSC: its losses and gradients against a slow computation, its growing head, resume, and what the entropy changes."""

import copy

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


def small(**options):
    return make("csc", width=8, **options)


class Float64(Float64MapNetwork):
    def logits(self, images):
        return self.head(self.maps(images))


def slow_distillation(logits, targets, reduction):
    total = 0.0
    for i, j in np.ndindex(*targets.shape):
        p = torch.sigmoid(logits[i, j])
        total = total - targets[i, j] * torch.log(p) - (1 - targets[i, j]) * torch.log(1 - p)
    return total / (len(logits) if reduction == "sum" else targets.numel())


def slow_entropy(logits, reduction):
    total = 0.0
    for i, j in np.ndindex(*logits.shape):
        p = torch.sigmoid(logits[i, j])
        total = total - p * torch.log(p)
    return total / (len(logits) if reduction == "sum" else logits.numel())


@pytest.mark.parametrize(("reduction", "entropy"), [("mean", "seen"), ("sum", "old")])
def test_losses_and_gradients_equal_the_slow_computation(reduction, entropy):
    """In the first task, and in the second one, where all parameters of the grown head have a gradient."""
    method = small(reduction=reduction, entropy=entropy, alpha=0.3, beta=0.7)
    expert, old = None, 0
    for task in range(2):
        method.begin_task(TASKS[task])
        given, student = batch(method, task, 0), Float64(method, train=True)
        logits = student.logits(given.images)
        expected = {"cls": cross_entropy(logits, entries_of_batch(given, old), reduction)}
        loss = expected["cls"]
        if expert:
            targets = expert.logits(given.images).detach().sigmoid()
            expected["dst"] = slow_distillation(logits[:, :old], targets, reduction)
            loss = 0.3 * expected["cls"] + 0.7 * expected["dst"]
        columns = logits if entropy == "seen" else logits[:, :old]
        if columns.numel():
            expected["entropy"] = slow_entropy(columns, reduction)
            loss = loss - 0.7 * expected["entropy"]
        got = method.observe(given)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            assert got[name].item() == pytest.approx(value.item(), rel=1e-4), (task, name)
        gradient = flat(torch.autograd.grad(loss, student.parameters))
        assert_gradient(weights_of(method), gradient)
        method.end_task()
        expert, old = Float64(method, train=False), len(TASKS[0])


def test_grown_layers_are_optimised_and_trained_in_train_mode():
    method = learned(small())
    method.begin_task(TASKS[1])
    before = copy.deepcopy(method.head.state_dict())
    statistics = copy.deepcopy(dict(method.learner.backbone.named_buffers()))
    method.observe(batch(method, 1, 0))
    for name, value in method.head.state_dict().items():
        assert len(value) == len(before[name])
        assert (
            (value != before[name]).all() if name == "adjacency" else (value != before[name]).any(1 - value.ndim).all()
        )
    running = {name: value for name, value in method.learner.backbone.named_buffers() if name.endswith("running_mean")}
    assert running and all(not torch.equal(value, statistics[name]) for name, value in running.items())


def test_entropy_lowers_confidence():
    """All labels are positive: without the entropy the predictions approach 1."""
    means = []
    for beta in (0.0, 2.0):
        method = small(beta=beta)
        method.begin_task(TASKS[0])
        given = batch(method, 0, 0, labels=np.ones((4, 2), bool), hidden=0)
        for _ in range(15):
            method.observe(given)
        with torch.no_grad():
            means.append(method.scores(given.images).sigmoid().mean().item())
    assert means[0] > 0.9 and means[1] < 0.7


def test_the_expert_is_fixed_and_is_the_footprint():
    method = learned(small())
    images = batch(method, 0, 9).images
    with torch.no_grad():
        before = method.scores(images)
    assert method.footprint().bytes == method.expert.nbytes > 0 and method.footprint().images == 0
    method.begin_task(TASKS[1])
    method.observe(batch(method, 1, 0))
    torch.testing.assert_close(method.expert.logits(images), before)
    with torch.no_grad():
        assert (method.scores(images)[:, :2] - before).abs().max() > 1e-3


@pytest.mark.parametrize("maps", ["softmax", "sigmoid"])
def test_scores_are_those_of_the_network_and_earlier_classes_are_the_first_columns(maps):
    method = learned(small(maps=maps), tasks=2)
    images = batch(method, 0, 9, count=1).images
    with torch.no_grad():
        scores = method.scores(images)
        torch.testing.assert_close(method.network().eval()(images), scores, rtol=0, atol=1e-5)
    assert scores.shape == (1, 5)
    assert torch.equal(method.logits(method.features(images), 2), scores[:, :2])
