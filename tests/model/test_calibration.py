"""Calibrated probabilities and thresholds, on made-up logits whose true probabilities are known."""

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.metrics.functions import average_precision, calibration_figures
from lifelabel.model import calibration as c
from lifelabel.model.calibration import Calibration, Rule, cross_validate, fit_probabilities, fit_thresholds


def sigmoid(x):
    return (1 + np.tanh(x / 2)) / 2


def make(images, classes=12, seed=0, slope=0.4, shift=-1.0, spread=0.2, base=(-5.0, -1.0)):
    """Raw logits, labels, and the calibration that is right for them.

    A network that is far too sure (slope 0.4), and predicts too much (shift -1), of each class in its own way.
    """
    rng = np.random.default_rng(seed)
    values = np.random.default_rng(99)  # the same for every seed: the same network
    right = Calibration(
        slope * np.exp(spread * values.normal(size=classes)), shift + 2 * spread * values.normal(size=classes)
    )
    true = values.uniform(*base, classes) + 2 * rng.normal(size=(images, classes))
    return ((true - right.shift) / right.slope).astype(np.float32), rng.random(true.shape) < sigmoid(true), right


# Probabilities


@pytest.mark.parametrize("images", [400, 4000])
def test_a_known_miscalibration_is_removed(images):
    """On new images the calibration errors fall to less than a fifth (400 images) or a tenth (4,000 images)."""
    factor = 5 if images == 400 else 10
    logits, labels, _ = make(images)
    found = fit_probabilities(logits, labels)
    new, truth, right = make(20_000, seed=1)
    given = sigmoid(new.astype(float)), found.probabilities(new), right.probabilities(new)
    before, after, best = (calibration_figures(probabilities, truth) for probabilities in given)
    assert after["ECE"] < before["ECE"] / factor and after["ECE_class"] < before["ECE_class"] / factor
    assert after["log_loss"] < best["log_loss"] + 0.01 * 400 / images


def test_calibrated_probabilities_stay_as_they_are():
    rng = np.random.default_rng(0)
    logits = rng.normal(-1, 2, (20_000, 6))
    found = fit_probabilities(logits, rng.random(logits.shape) < sigmoid(logits))
    assert found.slope == pytest.approx(np.ones(6), abs=0.06) and found.shift == pytest.approx(np.zeros(6), abs=0.08)


@pytest.mark.parametrize("scale", [1e-3, 1, 300])
def test_the_order_of_images_and_ap_do_not_change(scale):
    """Also for a class that ranks images the wrong way round, for tiny and for huge logits."""
    logits, labels, _ = make(300)
    logits[:, 0] *= -1
    logits = (scale * logits).astype(np.float32)
    found = fit_probabilities(logits, labels)
    assert (found.slope > 0).all() and np.isfinite(found.slope).all() and np.isfinite(found.shift).all()
    after = found.logits(logits)
    assert np.array_equal(np.argsort(after, 0, kind="stable"), np.argsort(logits, 0, kind="stable"))
    assert average_precision(after, labels).tolist() == average_precision(logits, labels).tolist()
    after, before = (
        calibration_figures(p, labels) for p in (found.probabilities(logits), sigmoid(logits.astype(float)))
    )
    assert after["log_loss"] < before["log_loss"]


def test_a_class_with_few_positives_borrows_from_the_others():
    """Its slope is near the common one, and new images get better probabilities than from its own images alone."""
    logits, labels, _ = make(1000, classes=30, base=(-3, -1))
    positives = np.flatnonzero(labels[:, 0])
    rows = np.setdiff1d(np.arange(1000), positives[3:])
    few = np.zeros_like(labels, bool)
    few[:, 1:], few[rows, 0] = True, True
    together = fit_probabilities(logits, labels, few)
    alone = fit_probabilities(logits[rows][:, :1], labels[rows][:, :1])
    common = np.log(together.slope[1:]).mean()
    assert abs(np.log(together.slope[0]) - common) < abs(np.log(alone.slope[0]) - common)
    assert abs(np.log(together.slope[0]) - common) < 0.3


def test_a_class_without_positives_has_the_common_slope():
    """And so has a class without negatives. A class of which nothing is known has the common shift too."""
    logits, labels, _ = make(500, classes=10)
    labels[:, 3], labels[:, 4] = False, True
    known = np.ones_like(labels)
    known[:, 5] = False
    found = fit_probabilities(logits, labels, known)
    assert found.slope[3] == pytest.approx(found.slope[5], rel=1e-3) == pytest.approx(found.slope[4], rel=1e-3)
    others = np.delete(np.arange(10), [3, 4, 5])
    assert found.slope[others].min() < found.slope[3] < found.slope[others].max()
    assert found.shift[others].min() < found.shift[5] < found.shift[others].max()
    assert found.shift[3] < found.shift[5] < found.shift[4]


def test_without_any_positive_little_changes():
    logits = np.random.default_rng(0).normal(size=(50, 3))
    found = fit_probabilities(logits, np.zeros((50, 3), bool))
    assert found.slope.tolist() == [1, 1, 1] and (found.shift < 0).all() and (found.shift > -10).all()


def test_separable_classes_stay_finite():
    logits = np.linspace(-1, 1, 40)[:, None].repeat(2, 1)
    found = fit_probabilities(logits, logits > 0)
    assert (found.slope > 1).all() and (found.slope < 200).all() and np.abs(found.shift).max() < 10


def test_unknown_labels_have_no_effect():
    logits, labels, _ = make(400, classes=4)
    known = np.random.default_rng(1).random(labels.shape) < 0.6
    wild = np.where(known, logits, 1e4), np.where(known, labels, ~labels)
    first, second = fit_probabilities(logits, labels, known), fit_probabilities(*wild, known)
    assert np.array_equal(first.slope, second.slope) and np.array_equal(first.shift, second.shift)
    for by in ("f1", "precision", "cost"):
        found = [
            fit_thresholds(data[0], data[1], known, Rule(by, 0.4, (1, 3)), False)[0]
            for data in ((logits, labels), wild)
        ]
        assert np.array_equal(*found), by


def test_parts_of_the_classes_give_the_same(monkeypatch):
    logits, labels, _ = make(200, classes=7)
    logits = logits.astype(np.float64)
    whole = fit_probabilities(logits, labels), fit_thresholds(logits, labels, None, Rule(), True)[0]
    monkeypatch.setattr(c, "_CHUNK", 450)
    parts = fit_probabilities(logits, labels), fit_thresholds(logits, labels, None, Rule(), True)[0]
    assert parts[0].slope == pytest.approx(whole[0].slope, rel=1e-6) and np.array_equal(parts[1], whole[1])


def test_the_loss_has_the_stated_gradient():
    """By differences. The most probable values are where it is zero."""
    logits, labels, _ = make(100, classes=3)
    known, both = np.random.default_rng(0).random(labels.shape) < 0.8, np.ones(3, bool)
    given = np.array([0.2, -0.3]), np.array([0.3, 0.5]), both, logits.T.astype(np.float64), labels.T, known.T
    values = np.random.default_rng(1).normal(size=(3, 2))
    _, gradient, _ = c._losses(values, *given)
    for k in range(2):
        step = 1e-6 * np.eye(2)[k]
        difference = (c._losses(values + step, *given)[0] - c._losses(values - step, *given)[0]) / 2e-6
        assert gradient[:, k] == pytest.approx(difference, rel=1e-4, abs=1e-4)
    best, _ = c._fit_classes(values, *given)
    assert np.abs(c._losses(best, *given)[1]).max() < 1e-4


# Thresholds


def small(seed, images=25, classes=3):
    rng = np.random.default_rng(seed)
    logits = rng.normal(-0.5, 1.5, (images, classes)).round(1)  # with ties
    return logits, rng.random(logits.shape) < sigmoid(logits)


def at(p, y, threshold):
    """Correct, predicted and all positives of a class."""
    predicted = p >= threshold
    return int((predicted & y).sum()), int(predicted.sum()), int(y.sum())


def f1(correct, predicted, positives):
    return 2 * correct / (predicted + positives) if predicted + positives else 0.0


def wilson(correct, n):
    """The lower end of the interval of one standard error."""
    if not n:
        return 0.0
    share = correct / n
    return (share + 1 / (2 * n) - np.sqrt(share * (1 - share) / n + 1 / (4 * n**2))) / (1 + 1 / n)


@pytest.mark.parametrize("seed", range(8))
def test_the_best_f1_is_that_of_all_thresholds(seed, monkeypatch):
    for name in ("FEW_POSITIVES", "_EXPECTED_POSITIVES"):
        monkeypatch.setattr(c, name, 1e-9)  # only the counts of the class
    logits, labels = small(seed)
    p = sigmoid(logits)
    found, _ = fit_thresholds(logits, labels, None, Rule("f1"), True)
    for k in range(3):
        values = {t: f1(*at(p[:, k], labels[:, k], t)) for t in np.unique(p[:, k])}
        assert f1(*at(p[:, k], labels[:, k], found[k])) == pytest.approx(max(values.values()))
        assert np.abs(p[:, k] - found[k]).min() > 1e-3  # between two scores


@pytest.mark.parametrize("seed", range(8))
def test_the_lowest_cost_is_that_of_all_thresholds(seed, monkeypatch):
    monkeypatch.setattr(c, "FEW_POSITIVES", 1e-9)
    logits, labels = small(seed)
    p, rule = sigmoid(logits), Rule("cost", costs=(1, 3))

    def cost(k, t):
        correct, predicted, positives = at(p[:, k], labels[:, k], t)
        return (predicted - correct) + 3 * (positives - correct)

    found, _ = fit_thresholds(logits, labels, None, rule, False)
    for k in range(3):
        assert cost(k, found[k]) == min(cost(k, t) for t in [*p[:, k], 1.1])
    assert fit_thresholds(logits, labels, None, rule, True)[0].tolist() == [0.25] * 3  # of calibrated probabilities


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("precision", [0.3, 0.5, 0.7, 0.95])
def test_the_lowest_threshold_that_reaches_the_precision(seed, precision):
    logits, labels = small(seed)
    p = sigmoid(logits)
    found, unreached = fit_thresholds(logits, labels, None, Rule("precision", precision), True)
    for k in range(3):
        counted = {t: at(p[:, k], labels[:, k], t) for t in np.unique(p[:, k])}
        enough = [t for t, (correct, n, _) in counted.items() if wilson(correct, n) >= precision - 1e-12]
        assert (k in unreached) == (not enough)
        correct, n, _ = at(p[:, k], labels[:, k], found[k])
        if enough:
            assert (correct, n) == counted[min(enough)][:2]
            assert correct / n >= precision
        else:
            assert correct == n  # no mistake on these images


def test_the_thresholds_of_classes_with_few_positives_are_near_the_common_one():
    """With their own images alone, they are far apart."""
    logits, labels, right = make(150, classes=60, base=(-5, -4), spread=0.0)
    x = right.logits(logits)
    labels[:, 0] = False
    pool = c._pool(x, labels, np.ones_like(labels))
    common = sigmoid(c._highest(pool, c._f1))
    positives = labels.sum(0)
    few = (positives > 0) & (positives < 10)
    alone = sigmoid(np.array([c._highest(c._cuts(x[:, k], labels[:, k]), c._f1) for k in np.flatnonzero(few)]))
    for is_calibrated in (True, False):
        found, _ = fit_thresholds(x, labels, None, Rule("f1"), is_calibrated)
        assert few.sum() > 20 and np.abs(found[few] - common).mean() < 0.6 * np.abs(alone - common).mean()
        assert found[0] == pytest.approx(common)  # without positives


def test_the_counts_of_all_classes_are_those_of_a_loop():
    logits, labels = small(0, images=60)
    known = np.random.default_rng(0).random(labels.shape) < 0.7
    pool = c._pool(logits, labels, known)
    for k in range(0, len(pool.cut), 97):
        predicted = known & (logits >= pool.cut[k])
        assert (pool.predicted[k], pool.correct[k]) == (predicted.sum(), (predicted & labels).sum())
    assert pool.positives == (labels & known).sum()


def test_no_thresholds_and_no_positives():
    logits, labels = small(0)
    assert fit_thresholds(logits, labels, None, Rule("none"), True)[0] is None
    with pytest.raises(UserError, match="no image has a label of the model"):
        fit_thresholds(logits, np.zeros_like(labels), None, Rule("f1"), True)
    found, unreached = fit_thresholds(logits, np.zeros_like(labels), None, Rule("precision"), True)
    assert (found > sigmoid(logits).max(0)).all() and (found < 1).all() and unreached.tolist() == [0, 1, 2]


# Cross-validation


def test_cross_validation_is_not_better_than_new_images():
    """Figures of images that the fit has seen are too good. Those of cross-validation are not."""
    logits, labels, _ = make(300, classes=10)
    known, rule = np.ones_like(labels), Rule("f1")
    honest = cross_validate(logits, labels, known, rule, True)
    found = fit_probabilities(logits, labels)
    thresholds, _ = fit_thresholds(found.logits(logits), labels, None, rule, True)

    def at_thresholds(logits, labels):
        p = found.probabilities(logits)
        return c.figures(p, labels, np.ones_like(labels), p >= thresholds)

    seen, new = at_thresholds(logits, labels), at_thresholds(*make(20_000, classes=10, seed=1)[:2])
    assert seen["CF1"] > new["CF1"] and seen["log_loss"] < new["log_loss"]
    assert honest["CF1"] < seen["CF1"] and honest["log_loss"] > seen["log_loss"]
    assert honest["CF1"] == pytest.approx(new["CF1"], abs=0.06)
    assert honest == cross_validate(logits, labels, known, rule, True)  # the parts are always the same


def test_one_image_is_too_few():
    with pytest.raises(UserError, match="at least 2"):
        cross_validate(np.zeros((1, 2)), *np.ones((2, 1, 2), bool), Rule(), True)


def test_figures_leave_out_unknown_labels():
    p, labels = np.array([[0.9, 0.2], [0.8, 0.6]]), np.array([[True, False], [False, True]])
    known = np.array([[True, True], [False, True]])
    found = c.figures(p, labels, known, p >= 0.5)
    assert found["OP"] == found["OR"] == 1 and found["Brier"] == pytest.approx((0.01 + 0.04 + 0.16) / 3)
