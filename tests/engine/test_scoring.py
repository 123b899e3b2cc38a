"""Scores of the test images, from a method that computes simple ones."""

import numpy as np
import pytest
import torch

from lifelabel.engine.evaluator import compute_features, compute_scores
from lifelabel.nn.backbones import build


class Scripted:
    """Gives each image its brightness as the logit of every class."""

    def __init__(self):
        self.setting = type("Setting", (), {"backbone": build("tiny"), "device": torch.device("cpu")})

    def features(self, images):
        return images[:, 0, 0, :1]

    def logits(self, features, num_classes=None):
        return features.repeat(1, 3)[:, :num_classes]


def test_the_last_batch_is_scored_without_cudnn_if_it_is_smaller(monkeypatch):
    class Recording(Scripted):
        def features(self, images):
            calls.append((len(images), torch.backends.cudnn.enabled))
            return super().features(images)

    monkeypatch.setattr(torch.backends.cudnn, "enabled", True)
    calls = []
    compute_features(Recording(), [torch.zeros(count, 8, 8, 3, dtype=torch.uint8) for count in (4, 4, 3)], lambda: None)
    assert calls == [(4, True), (4, True), (3, False)] and torch.backends.cudnn.enabled


def test_scores_keep_the_order_of_the_images():
    batches = [torch.full((2, 8, 8, 3), value, dtype=torch.uint8) for value in (10, 200, 90)]
    features = compute_features(Scripted(), batches, lambda: None)
    logits = compute_scores(Scripted(), features)
    assert logits.shape == (6, 3) and np.argsort(logits[:, 0], kind="stable").tolist() == [0, 1, 4, 5, 2, 3]
    assert np.array_equal(compute_scores(Scripted(), features, 1), logits[:, :1])


def test_features_are_computed_once_and_a_stop_is_checked_before_every_batch():
    class Stop(Exception):
        pass

    def check_stop():
        checks.append(len(calls))
        if len(checks) == 3:
            raise Stop

    class Recording(Scripted):
        def features(self, images):
            calls.append(len(images))
            return super().features(images)

    calls, checks = [], []
    batches = [torch.zeros(2, 8, 8, 3, dtype=torch.uint8)] * 4
    with pytest.raises(Stop):
        compute_features(Recording(), batches, check_stop)
    assert calls == [2, 2] and checks == [0, 1, 2]
    assert compute_features(Scripted(), [], lambda: None) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_an_error(value):
    with pytest.raises(FloatingPointError, match="the scores of the test images are not finite"):
        compute_scores(Scripted(), [torch.zeros(2, 1), torch.full((1, 1), value)])
