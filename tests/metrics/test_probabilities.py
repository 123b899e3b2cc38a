"""Metrics of probabilities (calibration error, Brier score, log loss), thresholds per class, and unknown labels."""

import math

import numpy as np
import pytest
import torch

from lifelabel.metrics.functions import (
    Scored,
    calibration_figures,
    class_calibration_errors,
    counts,
    precision_recall_f1,
)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    p = rng.random((200, 4)).astype(np.float32)
    p[:3] = [[0, 1, 0, 1]] * 3
    return p, rng.random((200, 4)) < p**2, rng.random((200, 4)) < 0.7


def pairs(p, y, known):
    """(probability, label) of each known pair, by class."""
    return [
        [(float(a), bool(b)) for a, b, k in zip(p[:, c], y[:, c], known[:, c], strict=True) if k]
        for c in range(p.shape[1])
    ]


def error(found, bins=15):
    """The calibration error, with a loop over the bins."""
    total = 0.0
    for k in range(bins):
        inside = [(p, y) for p, y in found if min(int(p * bins), bins - 1) == k]
        total += abs(sum(p for p, _ in inside) - sum(y for _, y in inside))
    return total / len(found)


def test_figures_of_probabilities_are_those_of_a_loop(data):
    p, y, _ = data
    for known in (data[2], np.ones_like(y)):
        by_class = pairs(p, y, known)
        everything = [pair for found in by_class for pair in found]
        errors = [error(found) for found in by_class]
        expected = {
            "ECE": error(everything),
            "ECE_class": np.mean(errors),
            "Brier": np.mean([(p - y) ** 2 for p, y in everything]),
            "log_loss": np.mean([-math.log(max(1e-15, p if y else 1 - p)) for p, y in everything]),
        }
        assert class_calibration_errors(p, y, known).tolist() == pytest.approx(errors)
        assert calibration_figures(p, y, known) == pytest.approx(expected)
    assert calibration_figures(p, y) == calibration_figures(p, y, np.ones_like(y))


def test_without_known_labels_there_is_no_value():
    p, y, known = np.full((2, 1), 0.5), np.zeros((2, 1)), np.zeros((2, 1), bool)
    assert all(map(math.isnan, calibration_figures(p, y, known).values()))
    assert class_calibration_errors(p, y, known).isnan().all()


@pytest.mark.parametrize("function", [calibration_figures, class_calibration_errors])
def test_logits_are_refused(function):
    with pytest.raises(ValueError, match="take the sigmoid of logits"):
        function(np.array([[3.0]]), np.array([[1]]))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_each_class_can_have_its_own_threshold(make):
    p, y = np.array([[0.9, 0.2], [0.4, 0.1]], np.float32), np.array([[1, 1], [1, 0]])
    number = counts(p, y, make([0.5, 0.3]))
    assert (number.correct.tolist(), number.predicted.tolist()) == ([1, 0], [1, 0])
    number = counts(p, y, make([0.3, 0.15]))
    assert (number.correct.tolist(), number.predicted.tolist()) == ([2, 1], [2, 1])
    assert precision_recall_f1(p, y, make([0.3, 0.15]))["CF1"] == 1


def test_the_lowest_score_leaves_an_unknown_label_out(data):
    """AP, and precision and recall at any threshold, are those of the known labels alone."""
    p, y, known = data
    logits = np.log(p.clip(1e-6, 1 - 1e-6) / (1 - p.clip(1e-6, 1 - 1e-6)))
    scored = Scored.from_logits(np.where(known, logits, -np.inf), y & known)
    for c in range(4):
        rows = known[:, c]
        alone = Scored.from_logits(logits[rows][:, [c]], y[rows][:, [c]])
        assert scored.ap[c].item() == pytest.approx(alone.ap.item(), abs=1e-14)
        for threshold in (1e-6, 0.2, 0.5, 0.9, 1.0):
            both = scored.counts(threshold), alone.counts(threshold)
            for name in ("correct", "predicted", "truth"):
                assert getattr(both[0], name)[c] == getattr(both[1], name)[0]
