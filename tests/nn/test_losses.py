"""The losses against Eq. 2, 3 and 9 of AGCN and the entropy of CSC, computed with loops and logarithms."""

import math

import numpy as np
import pytest
import torch

from lifelabel.nn import losses

REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum"])


def reduced(terms, reduction):
    """Sums or means over columns, and the mean over images."""
    return (terms.sum(1) if reduction == "sum" else terms.mean(1)).mean()


def cross_entropy(targets, logits, reduction):
    t, p = targets.double().numpy(), logits.detach().double().sigmoid().numpy()
    return reduced(-t * np.log(p) - (1 - t) * np.log(1 - p), reduction)


@REDUCTIONS
def test_cross_entropies(reduction):
    torch.manual_seed(0)
    logits, hard, soft = torch.randn(5, 4), torch.randint(0, 2, (5, 4)).float(), torch.rand(5, 4)
    for loss, target in ((losses.classification, hard), (losses.distillation, soft)):
        expected = cross_entropy(target, logits, reduction)
        assert loss(logits, target, reduction).item() == pytest.approx(expected, rel=1e-5)


@REDUCTIONS
def test_unknown_labels_do_not_change_the_loss(reduction):
    torch.manual_seed(0)
    logits, labels = torch.randn(5, 4, requires_grad=True), torch.randint(0, 2, (5, 4)).float()
    known = torch.tensor([[True, True, False, False]]).repeat(5, 1)
    loss = losses.classification(logits, labels, reduction, known)
    assert loss.item() == pytest.approx(cross_entropy(labels[:, :2], logits[:, :2], reduction), rel=1e-5)
    loss.backward()
    assert not logits.grad[~known].any() and logits.grad[known].all()
    all_known = losses.classification(logits, labels, reduction, torch.ones_like(known))
    assert all_known.item() == pytest.approx(losses.classification(logits, labels, reduction).item(), rel=1e-6)
    assert losses.classification(logits, labels, reduction, torch.zeros_like(known)).item() == 0


@REDUCTIONS
def test_relationship(reduction):
    g, h = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    each = [losses.relationship(g[i], h[i], reduction) for i in range(2)]
    for loss, a, b in zip(each, g.double().numpy(), h.double().numpy(), strict=True):
        slow = ((a - b) ** 2).sum() / (12 if reduction == "mean" else 1)
        assert loss.item() == pytest.approx(slow, rel=1e-5)
    # nodes of images: the mean over images
    torch.testing.assert_close(losses.relationship(g, h, reduction), sum(each) / 2)


@REDUCTIONS
def test_entropy(reduction):
    logits = torch.randn(5, 4)
    p = logits.double().sigmoid().numpy()
    assert losses.entropy(logits, reduction).item() == pytest.approx(reduced(-p * np.log(p), reduction), rel=1e-5)
    extreme = torch.tensor([[200.0, -200.0]], requires_grad=True)
    losses.entropy(extreme).backward()
    assert losses.entropy(extreme).item() == pytest.approx(0, abs=1e-30) and extreme.grad.isfinite().all()


def test_extreme_logits_stay_finite():
    logits = torch.tensor([[1e4, -1e4]])
    assert losses.classification(logits, torch.tensor([[0.0, 1.0]])).item() == pytest.approx(1e4)


def slow_asymmetric(logit, label, gamma_negative, gamma_positive, clip):
    """The loss of one entry, and its gradient with the weight held constant."""
    p = 1 / (1 + math.exp(-logit))
    if label:
        weight = (1 - p) ** gamma_positive
        return -weight * math.log(p), -weight * (1 - p)
    q = max(p - clip, 0)
    weight = q**gamma_negative
    return -weight * math.log(1 - q), weight * p * (1 - p) / (1 - q) if q else 0.0


@REDUCTIONS
@pytest.mark.parametrize("numbers", [(4.0, 0.0, 0.05), (2.0, 1.0, 0.0)])
def test_the_asymmetric_loss_and_its_gradient(reduction, numbers):
    torch.manual_seed(0)
    logits, labels = 4 * torch.randn(5, 4, dtype=torch.float64), torch.randint(0, 2, (5, 4))
    logits[0] = -4.0  # a probability below the clip
    logits.requires_grad_()
    known = torch.rand(5, 4) < 0.7
    given = dict(zip(("gamma_negative", "gamma_positive", "clip"), numbers, strict=True))
    loss = losses.asymmetric(logits, labels, reduction, known, **given)
    loss.backward()
    total, gradient = 0.0, torch.zeros(5, 4)
    share = 1 / (5 if reduction == "sum" else known.sum().item())
    for i, k in known.nonzero().tolist():
        value, slope = slow_asymmetric(logits[i, k].item(), labels[i, k].item(), *numbers)
        total, gradient[i, k] = total + share * value, share * slope
    assert loss.item() == pytest.approx(total, rel=1e-4)
    torch.testing.assert_close(logits.grad.float(), gradient, rtol=1e-4, atol=1e-6)


def test_the_asymmetric_loss_of_extreme_logits_is_finite():
    logits = torch.tensor([[1e4, -1e4, 1e4, -1e4]], requires_grad=True)
    loss = losses.asymmetric(logits, torch.tensor([[0.0, 1.0, 1.0, 0.0]]), "sum")
    loss.backward()
    assert loss.item() == pytest.approx(1e4, rel=1e-2) and logits.grad.isfinite().all()
    assert losses.asymmetric(logits, torch.zeros(1, 4), clip=0.0).isfinite()


def test_the_distance_of_tokens_is_that_of_all_old_ones_concatenated():
    old, new = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    a, b = (each.double().numpy().reshape(2, 12) for each in (old, new))
    cosine = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    assert losses.token_distance(old, new).item() == pytest.approx((1 - cosine).mean(), rel=1e-5)
