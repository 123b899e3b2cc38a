"""Which images and which classes each score is over, against a method whose scores are made up."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from lifelabel.backbones import build
from lifelabel.evaluate import acm_error, evaluate, summarise
from lifelabel.streams.base import Split, Stream, split_classes


class Scripted:
    """Scores looked up by image; those of the first classes alone are other scores than the columns of all."""

    def __init__(self, scores):
        self.table, self.sizes = scores, [2, 2]
        self.seen = 4
        self.setting = type("S", (), {"backbone": build("tiny"), "device": torch.device("cpu")})

    def rows(self, images):
        return (((images[:, 0, 0, 0] * 0.25) + 0.5) * 255).round().long()

    def scores(self, images):
        return self.table[-1][self.rows(images)][:, : self.seen]

    def scores_of_first(self, images, counts):
        return [self.table[i][self.rows(images)][:, :count] for i, count in enumerate(counts)]

    def matrix(self):
        return None


def make():
    rng = np.random.default_rng(0)
    labels = rng.random((60, 4)) < 0.4
    pixels = np.zeros((60, 8, 8, 3), np.uint8)
    pixels[:, 0, 0, 0] = np.arange(60)
    split = Split(lambda rows: pixels[rows], labels, rng.integers(0, 2, 60))
    tables = [torch.from_numpy(rng.normal(size=(60, 4))) for _ in range(2)]
    return Stream("made up", split_classes(("a", "b", "c", "d"), 2), split, split), Scripted(tables)


def mean_ap(labels, scores):
    return np.mean([average_precision_score(labels[:, c], scores[:, c]) for c in range(labels.shape[1])])


def test_final_scores():
    stream, method = make()
    test, first, last = stream.test, *(t.numpy() for t in method.table)
    record = evaluate(method, stream, done=2)
    assert record["seen"]["mAP"] == pytest.approx(mean_ap(test.labels, last), abs=1e-9)
    for j, task in enumerate(stream.tasks):
        expected = mean_ap(test.labels[:, task.columns], last[:, task.columns])
        assert record["by_task"][j]["mAP"] == pytest.approx(expected, abs=1e-9)
    of_first = test.task <= 0
    expected = mean_ap(test.labels[of_first, :2], first[of_first, :2])
    assert record["cumulative"][0]["mAP"] == pytest.approx(expected, abs=1e-9)
    assert record["cumulative"][1]["mAP"] == pytest.approx(record["seen"]["mAP"], abs=1e-12)
    assert record["ap"]["c"] == pytest.approx(average_precision_score(test.labels[:, 2], last[:, 2]), abs=1e-9)


def test_scores_after_the_first_task_use_its_classes_and_its_images():
    stream, method = make()
    method.seen = 2
    record = evaluate(method, stream, done=1)
    rows, last = stream.test.task == 0, method.table[-1].numpy()
    assert record["seen"]["mAP"] == pytest.approx(mean_ap(stream.test.labels[rows, :2], last[rows, :2]), abs=1e-9)
    assert record["by_task"][0]["mAP"] == pytest.approx(mean_ap(stream.test.labels[:, :2], last[:, :2]), abs=1e-9)
    assert "cumulative" not in record


def test_summary_has_both_kinds_of_forgetting_and_of_final_score():
    stream, method = make()
    method.seen = 2
    first = evaluate(method, stream, done=1)
    method.seen = 4
    last = evaluate(method, stream, done=2)
    final = summarise([first, last], stream)["final"]
    assert final["forgetting"]["mAP"] == pytest.approx(first["by_task"][0]["mAP"] - last["by_task"][0]["mAP"])
    own, after = first["seen"]["CF1"], last["cumulative"][0]["CF1"]
    assert final["relative_forgetting"]["CF1"] == pytest.approx((own - after) / own)
    assert final["cumulative_mean"]["OF1"] == pytest.approx(np.mean([c["OF1"] for c in last["cumulative"]]))
    assert final["mAP"] == last["seen"]["mAP"]


def test_a_class_without_positives_is_null_not_nan():
    stream, method = make()
    stream.test.labels[:, 3] = False
    record = evaluate(method, stream, done=2)
    assert record["ap"]["d"] is None
    assert record["seen"]["mAP"] is not None
    stream.test.labels[:, 2] = False
    assert evaluate(method, stream, done=2)["by_task"][1]["mAP"] is None


def test_acm_error_by_block():
    truth = np.zeros((3, 3))
    matrix = np.array([[9.0, 0.1, 0.2], [0.3, 9.0, 0.4], [0.5, 0.7, 9.0]])
    error = acm_error(matrix, truth, [2, 1])
    assert error == pytest.approx({"all": 2.2 / 6, "intra": 0.2, "old_new": 0.3, "new_old": 0.6})
