"""EWC against its definition: likelihoods of every possible labelling, one image at a time, loops over weights."""

import copy
import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from support import methods
from torch import nn

from lifelabel.methods import METHODS, Batch
from lifelabel.nn.backbones import Backbone

TASKS = [("sky", "sea", "sun"), ("boat", "fish")]


def small_backbone():
    layers = nn.Conv2d(3, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, 2), nn.ReLU()
    nn.init.uniform_(layers[1].running_mean, -0.5, 0.5)
    nn.init.uniform_(layers[1].running_var, 0.5, 2)
    return Backbone(nn.Sequential(*layers), 5, "avg")


def make(name="ewc", **options):
    made = methods.make(name, batch_norm="frozen", lr=0.05, backbone_lr=0.02, later_backbone_lr=0.02, **options)
    torch.manual_seed(0)
    return METHODS[name](dataclasses.replace(made.setting, backbone=small_backbone()), made.options)


def batches(task, count=3, images=3):
    torch.manual_seed(100 + task)
    shape = images, len(TASKS[task])
    return [
        Batch(torch.randn(images, 3, 12, 12), (torch.rand(shape) < 0.5).float(), torch.rand(shape) < 0.8, TASKS[task])
        for _ in range(count)
    ]


def learn(method, task):
    torch.manual_seed(task)
    method.begin_task(TASKS[task])
    for batch in batches(task):
        method.observe(batch)


def weights(method):
    """All weights, in the order in which they were added."""
    rows = zip(method.head.weights, method.head.biases, strict=True)
    return [*method.learner.backbone.parameters(), *itertools.chain(*rows)]


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def log_likelihood(logits, labels, known):
    """The log-likelihood of the known labels, one at a time."""
    total = logits.sum() * 0
    for i, j in itertools.product(*map(range, logits.shape)):
        if known[i, j]:
            p = 1 / (1 + torch.exp(-logits[i, j]))
            total = total + (p.log() if labels[i, j] else (1 - p).log())
    return total


def gradient(value, method):
    return flat(torch.autograd.grad(value, weights(method), retain_graph=True))


def test_the_fisher_values_are_those_of_the_bernoulli_likelihood():
    method = make()
    method.begin_task(TASKS[0])
    with torch.no_grad():
        method.head.weights[0].mul_(4)  # so that probabilities are not all near one half
    images, known = torch.randn(2, 3, 12, 12), torch.tensor([[True, False, True], [True, True, True]])

    by_image = torch.zeros(len(flat(weights(method))))  # p (1 - p) (dz / dtheta)^2, one image and class at a time
    for image, known_row in zip(images, known, strict=True):
        for z in method.scores(image[None])[0][known_row]:
            p = z.sigmoid().item()
            by_image += p * (1 - p) * gradient(z, method).square()

    logits = method.scores(images)
    by_labelling = torch.zeros_like(by_image)  # E (d log P / dtheta)^2 over all possible labels of both images
    for values in itertools.product((0.0, 1.0), repeat=5):
        labels = torch.zeros(2, 3)
        labels[known] = torch.tensor(values)
        log_p = log_likelihood(logits, labels, known)
        by_labelling += log_p.exp().item() * gradient(log_p, method).square()
    torch.testing.assert_close(by_labelling, by_image, rtol=1e-3, atol=1e-6)

    samples = []
    for _ in range(600):
        method.squares.zero_()
        method.estimate_fisher(logits, known)
        samples.append(method.squares.clone())
    mean, error = torch.stack(samples).mean(0), torch.stack(samples).std(0) / math.sqrt(len(samples))
    assert ((mean - by_image).abs() <= 5 * error + 1e-5).all()
    assert error.sum() < 0.06 * by_image.sum()  # the comparison is sharp


def test_the_fisher_values_are_estimated_before_each_step_and_summed_over_tasks():
    method = make(decay=0.25, fisher_every=2)
    before = torch.zeros(0)
    for task in range(2):
        method.begin_task(TASKS[task])
        squares = torch.zeros(len(flat(weights(method))))
        for step, batch in enumerate(batches(task)):
            if step in (0, 2):
                torch.manual_seed(step)
                logits = method.scores(batch.images)[:, -len(TASKS[task]) :]
                sampled = torch.bernoulli(logits.sigmoid())
                squares += gradient(log_likelihood(logits, sampled, batch.known), method).square()
            torch.manual_seed(step)
            method.observe(batch)
        method.end_task()
        expected = squares / 6  # two steps of three images
        expected[: len(before)] += 0.25 * before
        torch.testing.assert_close(method.fisher, expected, rtol=1e-3, atol=1e-7)
        assert torch.equal(method.anchor, flat(weights(method)))
        before = expected


def test_the_penalty_and_its_gradient_equal_a_loop():
    method = make(strength=1000.0)
    learn(method, 0)
    assert [loss.item() for loss in (method.observe(batches(0)[0])["ewc"], method.penalty())] == [0, 0]
    method.end_task()
    learn(method, 1)
    batch, twin = batches(1)[0], copy.deepcopy(method)
    theta, anchor, fisher = (v.double().numpy() for v in (flat(weights(method)), method.anchor, method.fisher))
    penalty, penalty_gradient = 0.0, np.zeros(len(theta))
    for k in range(len(anchor)):
        penalty += fisher[k] * (theta[k] - anchor[k]) ** 2 / 2
        penalty_gradient[k] = fisher[k] * (theta[k] - anchor[k])
    logits = twin.scores(batch.images)[:, 3:]
    cls = -log_likelihood(logits, batch.labels, batch.known) / batch.known.sum()
    cls_gradient = gradient(cls, twin).double().numpy()

    got = method.observe(batch)
    assert np.abs(1000 * penalty_gradient).max() > 0.1 * np.abs(cls_gradient).max()
    assert got["ewc"].item() == pytest.approx(penalty, rel=1e-4)
    assert got["cls"].item() == pytest.approx(cls.item(), rel=1e-4)
    given = flat([weight.grad for weight in weights(method)])
    np.testing.assert_allclose(given, cls_gradient + 1000 * penalty_gradient, rtol=1e-3, atol=1e-6)
    assert torch.equal(method.head.weights[0], twin.head.weights[0])  # only the penalty could change the old rows


def test_without_strength_it_is_fine_tuning_to_the_bit():
    ewc, plain = make(strength=0.0), make("fine-tuning")
    for task in range(2):
        for method in (ewc, plain):
            learn(method, task)
            method.end_task()
    for a, b in zip(weights(ewc), weights(plain), strict=True):
        assert torch.equal(a, b)
