"""L3A against one ridge regression over all images at once, with labels and weights counted image by image."""

import copy
import math

import numpy as np
import pytest
import torch
from support import methods
from support.methods import TASKS

from lifelabel.errors import UserError
from lifelabel.methods import Batch
from lifelabel.nn import losses

IMAGES = 12
"""Of each task."""
UNITS = 20
THRESHOLD = 0.25
WIDTH = 256 + UNITS + 1


def make(**more):
    options = {"projection": UNITS, "ridge": 2.0, "pseudo_threshold": THRESHOLD, "warm_up": 0, **more}
    return methods.make("l3a", **options)


def batches(task, sizes=(5, 7)):
    """The images of a task in batches of these sizes; some have no label, some entries are unknown."""
    torch.manual_seed(100 + task)
    shape = sum(sizes), len(TASKS[task])
    images, labels = torch.randn(shape[0], 3, 32, 32), torch.rand(shape) < 0.4
    known = torch.rand(shape) < 0.8
    parts = (part.split(sizes) for part in (images, (labels & known).float(), known))
    return [Batch(*rows, TASKS[task]) for rows in zip(*parts, strict=True)]


def learn(method, tasks=(0, 1, 2), sizes=(5, 7)):
    for t in tasks:
        method.begin_task(TASKS[t])
        for batch in batches(t, sizes):
            method.observe(batch)
        method.end_task()
    return method


def slow_weight(labels, begin):
    """The weight of the last image of `labels`, from the rates of classes among the images since their task began."""
    last, rarity, count = labels[-1], [], []
    for c in range(len(last)):
        since = labels[begin[c] :]
        count.append(sum(y[c] for y in since))
        rarity.append(math.sqrt((len(since) + 1) / (count[-1] + 1)))
    positives = [rarity[c] for c in range(len(last)) if last[c]]
    if not positives:
        return 1.0
    all_labels = [rarity[c] for c in range(len(last)) for _ in range(int(count[c]))]
    return np.mean(positives) / np.mean(all_labels)


def slow_ridge(tasks, threshold, weighting, ridge, compensation=0.0):
    """W after each task, from all rows of Z so far at once; `tasks` holds (z, visible labels) for every image."""
    zs, ys, omegas, begin, solved, residuals = [], [], [], [], [], []
    w = np.zeros((WIDTH, 0))
    for images in tasks:
        begin += [len(zs)] * len(images[0][1])
        for z, visible in images:
            values = z @ w
            pseudo = [float(threshold is not None and value > threshold) for value in values]
            zs.append(z)
            ys.append(np.array(pseudo + list(visible)))
            omegas.append(slow_weight(ys, begin) if weighting == "inverse" else 1.0)
        z_all, omega = np.array(zs), np.diag(omegas)
        y_all = np.array([np.pad(y, (0, len(begin) - len(y))) for y in ys])  # a negative for all later classes
        gram = z_all.T @ omega @ z_all + ridge * np.eye(WIDTH)
        w = np.linalg.solve(gram, z_all.T @ omega @ y_all)
        if compensation:  # each class has residuals in its own task, and 0 elsewhere
            old = len(begin) - len(images[0][1])
            for z, visible in images:
                residuals.append(np.concatenate([np.zeros(old), visible - z @ w[:, old:]]))
            r_all = np.array([np.pad(r, (0, len(begin) - len(r))) for r in residuals])
            w = w + compensation * np.linalg.solve(gram, z_all.T @ omega @ r_all)
        solved.append((w, y_all))
    return solved


@pytest.mark.parametrize("sizes", [(12,), (5, 7), (1,) * 12], ids=["whole", "halves", "singly"])
@pytest.mark.parametrize(
    ("weighting", "threshold", "compensation"),
    [("inverse", THRESHOLD, 0.0), ("none", THRESHOLD, 0.0), ("inverse", None, 0.0), ("inverse", THRESHOLD, 1.5)],
)
def test_the_sums_over_tasks_equal_one_ridge_regression_on_all_images(sizes, weighting, threshold, compensation):
    method = make(weighting=weighting, pseudo_threshold=threshold, compensation=compensation)
    rows, got = [], []
    for t, classes in enumerate(TASKS):
        method.begin_task(classes)
        rows.append([])
        for batch in batches(t, sizes):
            z = method.expand(method.features(batch.images)).numpy()
            rows[t] += zip(z, batch.labels.double().numpy(), strict=True)
            method.observe(batch)
        method.end_task()
        got.append(method.weights.numpy())
    solved = slow_ridge(rows, threshold, weighting, ridge=2.0, compensation=compensation)
    for weights, (w, _) in zip(got, solved, strict=True):
        np.testing.assert_allclose(weights, w, atol=1e-8 * abs(w).max())
    w, y = solved[-1]
    pseudo = y[IMAGES : 2 * IMAGES, :2], y[2 * IMAGES :, :5]
    assert all((0 < part.mean() < 1) == (threshold is not None) for part in pseudo)  # there are some pseudo labels
    images = batches(1)[0].images
    expected = (method.expand(method.features(images)).numpy() @ w - method.options.decision) * 4
    np.testing.assert_allclose(method.scores(images).numpy(), expected, atol=1e-5)


def test_z_is_the_standardised_features_a_random_layer_of_them_and_a_one():
    method = make()
    images = batches(0)[0].images
    backbone = copy.deepcopy(method.backbone).eval()
    with torch.no_grad():
        f = backbone(images).double().numpy()
    f = (f - f.mean(1, keepdims=True)) / f.std(1, keepdims=True)
    hidden = np.maximum(f @ method.projection.double().numpy(), 0)
    assert method.projection.std().item() == pytest.approx(1 / 16, rel=0.05)
    np.testing.assert_allclose(
        method.expand(method.features(images)), np.hstack([f, hidden, np.ones((len(f), 1))]), atol=1e-4
    )
    plain = make(projection=0)
    np.testing.assert_allclose(plain.expand(plain.features(images))[:, :-1].std(1, correction=0), 1, atol=1e-4)
    assert plain.expand(plain.features(images)).shape[1] == 257


def test_during_a_task_new_classes_have_the_value_zero_and_old_ones_do_not_change():
    method = learn(make(), range(1))
    images = batches(1)[0].images
    before = method.scores(images)
    method.begin_task(TASKS[1])
    for batch in batches(1):
        loss = method.observe(batch)["cls"]
        scores = method.scores(images)
        assert scores.shape == (len(images), 5) and scores.dtype == torch.float32
        assert torch.equal(scores[:, :2], before)
        assert torch.equal(scores[:, 2:], torch.full((len(images), 3), -4 * method.options.decision))
        constant = torch.full(batch.labels.shape, -4 * method.options.decision)
        assert loss.item() == pytest.approx(losses.classification(constant, batch.labels, known=batch.known).item())


def test_a_ridge_that_vanishes_in_rounding_is_refused():
    with pytest.raises(UserError, match=r"method\.ridge=1e-300 is too small"):
        learn(make(ridge=1e-300), range(1))


def test_known_labels_take_the_place_of_pseudo_labels():
    method = methods.learn_first_task(methods.small("l3a"), steps=4)
    given = methods.with_old(methods.batch(method, 1, 0), (True, False), (True, True))
    values = torch.full((len(given.images), 5), 0.9, dtype=torch.float64)  # pseudo labels are 1
    assert method.augment_labels(given, values)[:, :2].tolist() == [[1.0, 0.0]] * len(given.images)
