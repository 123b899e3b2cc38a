"""LwF against its losses and their gradients, computed slowly: loops, logarithms, no parts of the package."""

import copy
import math

import numpy as np
import pytest
import torch

from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.methods import Batch
from lifelabel.methods.lwf import LwF

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]
IMAGES = 5


def make(device="cpu", lambdas=(0.2, 0.6), **options):
    torch.manual_seed(0)
    config = Config.make({"method": "lwf", "method_options": {"lambdas": lambdas}, **options})
    setting = make_setting(config, lambda labels: torch.zeros(len(labels), 1), torch.device(device))
    return LwF(setting, config.method_options)


def batches(task, count=2):
    torch.manual_seed(100 + task)
    shape = IMAGES, len(TASKS[task])
    return [
        Batch(torch.randn(IMAGES, 3, 32, 32), (torch.rand(shape) < 0.5).float(), torch.rand(shape) < 0.7, TASKS[task])
        for _ in range(count)
    ]


def learn(method, task):
    method.begin_task(TASKS[task])
    for batch in batches(task):
        method.observe(batch)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def logits_of(backbone, head, images):
    """Features and logits, from copies of the weights."""
    with torch.no_grad():
        features = backbone(images).double().numpy()
    w, b = (np.concatenate([part.detach().double().numpy() for part in parts]) for parts in (head.weights, head.biases))
    return features, features @ w.T + b


def slow(logits, targets, weights):
    """The cross entropy with a weight per entry, and its gradient by the logits."""
    loss, gradient = 0.0, np.zeros_like(logits)
    for i, j in np.ndindex(*logits.shape):
        p = 1 / (1 + math.exp(-logits[i, j]))
        loss -= weights[i, j] * (targets[i, j] * math.log(p) + (1 - targets[i, j]) * math.log(1 - p))
        gradient[i, j] = weights[i, j] * (p - targets[i, j])
    return loss, gradient


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_and_gradients_equal_the_slow_computation(reduction):
    method = make(reduction=reduction)
    learn(method, 0)
    method.end_task()
    learn(method, 1)
    method.end_task()
    expert = copy.deepcopy((method.learner.backbone, method.head))
    expert[0].eval()
    method.begin_task(TASKS[2])
    old = 5
    for batch in batches(2):
        student = copy.deepcopy((method.learner.backbone, method.head))
        student[0].set_training(freeze_statistics=True)
        features, logits = logits_of(*student, batch.images)
        known = batch.known.double().numpy()
        weights = known / (IMAGES if reduction == "sum" else known.sum())
        cls, cls_gradient = slow(logits[:, old:], batch.labels.numpy(), weights)
        equal = np.full((IMAGES, old), 1 / IMAGES if reduction == "sum" else 1 / (IMAGES * old))
        dst, dst_gradient = slow(logits[:, :old], sigmoid(logits_of(*expert, batch.images)[1]), equal)

        got = method.observe(batch)
        assert got.keys() == {"cls", "dst"}
        assert got["cls"].item() == pytest.approx(cls, rel=1e-4)
        assert got["dst"].item() == pytest.approx(dst, rel=1e-4)
        expected = np.concatenate([0.6 * dst_gradient, 0.2 * cls_gradient], 1)
        given = torch.cat([part.grad for part in method.head.weights]).numpy()
        np.testing.assert_allclose(given, expected.T @ features, rtol=1e-3, atol=1e-5)


def test_the_first_task_has_only_the_classification_loss():
    method = make()
    method.begin_task(TASKS[0])
    batch = batches(0)[0]
    student = copy.deepcopy((method.learner.backbone, method.head))
    student[0].set_training(freeze_statistics=False)
    features, logits = logits_of(*student, batch.images)
    known = batch.known.double().numpy()
    cls, expected = slow(logits, batch.labels.numpy(), known / known.sum())
    got = method.observe(batch)
    assert got.keys() == {"cls"} and got["cls"].item() == pytest.approx(cls, rel=1e-4)
    np.testing.assert_allclose(method.head.weights[0].grad.numpy(), expected.T @ features, rtol=1e-3, atol=1e-5)
    assert method.footprint().bytes == 0


def test_the_expert_does_not_change_while_the_network_learns_and_is_the_footprint():
    method = make(later_backbone_lr=0.01)
    learn(method, 0)
    method.end_task()
    images = batches(0)[0].images
    with torch.no_grad():
        before = method.scores(images)
    learn(method, 1)
    torch.testing.assert_close(method.expert.logits(images), before)
    with torch.no_grad():
        assert (method.scores(images)[:, :2] - before).abs().max() > 1e-3
    method.end_task()
    saved = [*method.learner.backbone.state_dict().values(), *method.head.parameters()]
    assert method.footprint().bytes == sum(each.numel() * each.element_size() for each in saved)
    assert method.footprint().images == 0
