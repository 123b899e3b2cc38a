"""Metrics: over which images and classes each is computed, from invented scores."""

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, precision_recall_curve

from lifelabel.engine.judging import _acm_error, judge, judge_earlier
from lifelabel.images.source import Names
from lifelabel.runs.records import summarise
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import Split, Stream, classes_to_tasks, equal_tasks


def make(missing=()):
    """A stream of 60 test images, their labels and tasks, and logits of the first two and of all classes."""
    rng = np.random.default_rng(0)
    labels = rng.random((60, 4)) < 0.4
    labels[:, list(missing)] = False
    task = rng.integers(0, 2, 60)
    rows = tuple(np.flatnonzero(task == t) for t in range(2))
    split = Split(None, Names(map(str, range(60))), Labels.from_dense(labels), rows)
    scores = [rng.normal(size=(60, 4)).astype(np.float32)[:, :2], rng.normal(size=(60, 4)).astype(np.float32)]
    return Stream("invented", equal_tasks(("a", "b", "c", "d"), 2), split, split), labels, task, scores


def judged(stream, done, scores, rows=None):
    """A record as the engine makes it; `scores` are those of each cumulative set."""
    rows = np.arange(60) if rows is None else rows
    record, _ = judge(stream, done, rows, scores[-1], None)
    if done == 2:
        record["cumulative"] = [judge_earlier(stream, 0, rows, scores[0]), record["seen"]]
    return record


def mean_ap(labels, scores):
    return np.mean([average_precision_score(labels[:, c], scores[:, c]) for c in range(labels.shape[1])])


def test_final_scores():
    stream, labels, task_of, (first, last) = make()
    record = judged(stream, 2, [first, last])
    assert record["seen"]["mAP"] == pytest.approx(mean_ap(labels, last), abs=1e-9)
    for j, task in enumerate(stream.tasks):
        expected = mean_ap(labels[:, task.columns], last[:, task.columns])
        assert record["by_task"][j]["mAP"] == pytest.approx(expected, abs=1e-9)
    expected = mean_ap(labels[task_of == 0, :2], first[task_of == 0])
    assert record["cumulative"][0]["mAP"] == pytest.approx(expected, abs=1e-9)
    assert record["cumulative"][1]["mAP"] == pytest.approx(record["seen"]["mAP"], abs=1e-12)
    assert record["ap"]["c"] == pytest.approx(average_precision_score(labels[:, 2], last[:, 2]), abs=1e-9)


def test_scores_after_the_first_task_use_its_classes_and_its_images():
    stream, labels, task_of, (_, last) = make()
    record = judged(stream, 1, [last[:, :2]])
    first = task_of == 0
    assert record["seen"]["mAP"] == pytest.approx(mean_ap(labels[first, :2], last[first, :2]), abs=1e-9)
    assert record["by_task"][0]["mAP"] == pytest.approx(mean_ap(labels[:, :2], last[:, :2]), abs=1e-9)
    assert "cumulative" not in record


def test_images_that_could_not_be_read_are_not_scored():
    stream, labels, _, scores = make()
    rows = np.delete(np.arange(60), [3, 40])
    record = judged(stream, 2, [part[rows] for part in scores], rows)
    assert record["seen"]["mAP"] == pytest.approx(mean_ap(labels[rows], scores[1][rows]), abs=1e-9)


def test_summary_has_both_kinds_of_forgetting_and_of_final_score():
    stream, _, _, (early, late) = make()
    first, last = judged(stream, 1, [early]), judged(stream, 2, [early[::-1].copy(), late])
    final = summarise([first, last], stream.tasks)["final"]
    assert final["forgetting"]["mAP"] == pytest.approx(first["by_task"][0]["mAP"] - last["by_task"][0]["mAP"])
    own, after = first["seen"]["CF1"], last["cumulative"][0]["CF1"]
    assert final["relative_forgetting"]["CF1"] == pytest.approx((own - after) / own)
    assert final["cumulative_mean"]["OF1"] == pytest.approx(np.mean([c["OF1"] for c in last["cumulative"]]))
    assert final["mAP"] == last["seen"]["mAP"]


def test_a_class_without_positives_is_null_not_nan():
    stream, _, _, scores = make(missing=[3])
    record = judged(stream, 2, scores)
    assert record["ap"]["d"] is None
    assert record["seen"]["mAP"] is not None
    stream, _, _, scores = make(missing=[2, 3])
    assert judged(stream, 2, scores)["by_task"][1]["mAP"] is None


def test_acm_error_by_block():
    truth = np.zeros((3, 3))
    matrix = np.array([[9.0, 0.1, 0.2], [0.3, 9.0, 0.4], [0.5, 0.7, 9.0]])
    error = _acm_error(matrix, truth, classes_to_tasks(("a", "b", "c"), [2, 1]))
    assert error == pytest.approx({"all": 2.2 / 6, "intra": 0.2, "old_new": 0.3, "new_old": 0.6})


def test_details_after_a_task_are_of_its_classes_on_all_images():
    stream, labels, _, (first, _) = make()
    _, details = judge(stream, 1, np.arange(60), first, None)
    assert details.keys() == {"ap", "counts"}
    assert details["ap"][1] == pytest.approx(average_precision_score(labels[:, 1], first[:, 1]), abs=1e-9)
    p = 1 / (1 + np.exp(-first.astype(float)))
    assert details["counts"].shape == (1, 2, 100) and details["counts"].sum() == 120
    assert details["counts"][0, 1, 50:].sum() == (labels[:, :2] & (p >= 0.5)).sum()


def test_details_after_the_last_task_have_the_precision_over_recall_of_each_class():
    stream, labels, _, (_, last) = make()
    _, details = judge(stream, 2, np.arange(60), last, None)
    p = 1 / (1 + np.exp(-last.astype(float)))
    precision, recall, thresholds = precision_recall_curve(labels[:, 3], p[:, 3])
    for r in (1, 37, 100):
        at = max(k for k in range(len(thresholds)) if recall[k] >= r / 100 - 1e-12)
        assert details["precision"][3, r] == pytest.approx(precision[at], abs=1e-6)
        assert details["thresholds"][3, r] == pytest.approx(thresholds[at], abs=1e-6)


def test_details_leave_unknown_labels_out():
    stream, labels, _, (_, last) = make()
    unknown = np.zeros((60, 4), bool)
    unknown[:30, 0] = ~labels[:30, 0]
    test = dataclasses.replace(stream.test, unknown=Labels.from_dense(unknown))
    _, details = judge(dataclasses.replace(stream, test=test), 2, np.arange(60), last, None)
    assert details["counts"].sum((1, 2)).tolist() == [120 - unknown.sum(), 120]
    known = ~unknown[:, 0]
    assert details["ap"][0] == pytest.approx(average_precision_score(labels[known, 0], last[known, 0]), abs=1e-9)
