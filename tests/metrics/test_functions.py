"""Every metric against scikit-learn, a slow and obvious loop, or a sum done by hand."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, f1_score

from lifelabel.metrics import functions as metrics
from lifelabel.metrics.over_tasks import BUILT_IN, forgetting, relative_forgetting

NAN = math.nan


def data(images=300, classes=7, seed=0, decimals=None, dtype=np.float64):
    """Probabilities that correlate with labels. Every class has positives and negatives."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((images, classes)) < rng.uniform(0.05, 0.5, classes)).astype(np.int64)
    labels[0], labels[1] = 1, 0
    p = 1 / (1 + np.exp(-(rng.normal(size=labels.shape) + 2 * labels - 1)))
    return (p if decimals is None else p.round(decimals)).astype(dtype), labels


def with_empty(seed=3):
    """Class 2 has no positives but is predicted, class 4 is never predicted, class 5 is neither."""
    p, labels = data(120, 6, seed)
    labels[:, [2, 5]] = 0
    p[:, [4, 5]] *= 0.1
    assert (p[:, 2] >= 0.8).any() and not (p[:, 4] >= 0.5).any()
    return p, labels


def sklearn_ap(scores, labels):
    return np.array([average_precision_score(labels[:, c], scores[:, c]) for c in range(labels.shape[1])])


def slow_counts(p, labels, threshold):
    predicted, truth = p >= threshold, labels == 1
    return [each.sum(0).tolist() for each in (predicted & truth, predicted, truth)]


def slow_a5(p, labels, threshold):
    by_class = list(zip(*slow_counts(p, labels, threshold), strict=True))
    cp = np.mean([c / n if n else 0 for c, n, g in by_class if g])
    cr = np.mean([c / g for c, n, g in by_class if g])
    correct, predicted, truth = map(sum, zip(*by_class, strict=True))
    op, or_ = correct / predicted, correct / truth
    return {"CP": cp, "CR": cr, "CF1": 2 * cp * cr / (cp + cr), "OP": op, "OR": or_, "OF1": 2 * op * or_ / (op + or_)}


# Average precision


@pytest.mark.parametrize("decimals", [None, 2, 1, 0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", [0, 1])
def test_average_precision_agrees_with_sklearn(decimals, dtype, seed):
    p, labels = data(seed=seed, decimals=decimals, dtype=dtype)
    ap = metrics.average_precision(p, labels)
    assert ap.dtype == torch.float64 and ap.shape == (7,)
    np.testing.assert_allclose(ap.numpy(), sklearn_ap(p, labels), rtol=0, atol=1e-9)


def test_average_precision_when_all_scores_are_equal_is_the_prevalence():
    _, labels = data()
    ap = metrics.average_precision(np.full(labels.shape, 0.3), labels).numpy()
    np.testing.assert_allclose(ap, labels.mean(0), rtol=0, atol=1e-12)


def test_average_precision_of_one_positive_all_positives_and_none():
    p, _ = data(5, 3)
    p[:, 0] = [0.1, 0.9, 0.8, 0.5, 0.3]
    labels = np.zeros((5, 3), dtype=np.int64)
    labels[3, 0] = 1  # the third from the top
    labels[:, 1] = 1
    ap = metrics.average_precision(p, labels).tolist()
    assert ap[:2] == pytest.approx([1 / 3, 1.0], abs=1e-12) and math.isnan(ap[2])


def test_average_precision_does_not_depend_on_the_order_of_tied_images():
    p, labels = data(decimals=1)
    turned = metrics.average_precision(p[::-1], labels[::-1])
    torch.testing.assert_close(turned, metrics.average_precision(p, labels), rtol=0, atol=1e-12)


def test_average_precision_takes_logits_half_precision_and_infinities():
    p, labels = data()
    logits = torch.tensor(np.log(p / (1 - p)))
    reference = sklearn_ap(p, labels)
    np.testing.assert_allclose(metrics.average_precision(logits, labels).numpy(), reference, rtol=0, atol=1e-9)
    half = logits.bfloat16()
    np.testing.assert_allclose(
        metrics.average_precision(half, labels).numpy(), sklearn_ap(half.double().numpy(), labels), rtol=0, atol=1e-9
    )
    clipped = logits.clamp(-1, 1)
    infinite = clipped.masked_fill(clipped == 1, math.inf).masked_fill(clipped == -1, -math.inf)
    np.testing.assert_allclose(
        metrics.average_precision(infinite, labels).numpy(), sklearn_ap(clipped.numpy(), labels), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edge", [[], [1e30], [-1e30, 1e30], [3e38, -3e38], [1e-42], [math.inf], [-math.inf, math.inf]])
def test_the_version_for_the_cpu_equals_the_version_for_other_devices(edge, dtype):
    generator = torch.Generator().manual_seed(0)
    for spread in (1e-44, 1e-3, 1.0, 20.0):
        scores = (spread * torch.randn(3, 500, generator=generator, dtype=torch.float64)).to(dtype)
        scores[:, : len(edge)] = torch.tensor(edge, dtype=dtype)
        hits = torch.rand(3, 500, generator=generator) < 0.1
        hits[0, : len(edge)] = True
        slow = metrics._ap_on_device(scores, hits)
        torch.testing.assert_close(metrics.average_precision(scores.T, hits.T), slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 300, 900, 1000, 1 << 23])
def test_chunks_of_classes_do_not_change_the_result(monkeypatch, chunk):
    """Integer scores are ranked in chunks on the CPU too."""
    p, labels = data(decimals=2)
    labels[:, 3] = 0
    expected = metrics.average_precision(p, labels)
    monkeypatch.setattr(metrics, "_CHUNK", chunk)
    found = metrics.average_precision((100 * p).round().astype(np.int64), labels)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("shape", [(4, 3), (0, 3), (4, 0)])
@pytest.mark.parametrize("empty", ["ignore", "zero"])
def test_mean_average_precision_of_nothing_is_nan(shape, empty):
    assert math.isnan(metrics.mean_average_precision(np.zeros(shape), np.zeros(shape), empty=empty))


# Invalid input


def test_invalid_input_is_refused():
    p, labels = data()
    broken = p.copy()
    broken[5, 2] = NAN
    with pytest.raises(ValueError, match="1 NaN"):
        metrics.average_precision(broken, labels)
    with pytest.raises(ValueError, match="1 NaN"):
        metrics.headline(broken, labels)
    with pytest.raises(ValueError, match="0 or 1"):
        metrics.average_precision(p, np.where(labels == 0, -1, 1))
    with pytest.raises(ValueError, match="images, classes"):
        metrics.average_precision(p, labels[:, :-1])
    with pytest.raises(ValueError, match="images, classes"):
        metrics.average_precision(p[:, 0], labels[:, 0])
    with pytest.raises(ValueError, match="sigmoid"):
        metrics.precision_recall_f1(np.log(p / (1 - p)), labels)
    with pytest.raises(ValueError, match="'drop'"):
        metrics.mean_average_precision(p, labels, empty="drop")


# Precision, recall and F1


@pytest.mark.parametrize("threshold", [0.5, 0.525, 0.8])
@pytest.mark.parametrize("make", [data, with_empty])
def test_counts_and_a5_agree_with_sums_over_classes(make, threshold):
    p, labels = make()
    n = metrics.counts(p, labels, threshold)
    assert [n.correct.tolist(), n.predicted.tolist(), n.truth.tolist()] == slow_counts(p, labels, threshold)
    assert metrics.precision_recall_f1(p, labels, threshold) == pytest.approx(slow_a5(p, labels, threshold), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_probability_at_the_threshold_is_predicted(dtype):
    p = torch.tensor([0.0, -0.1, 0.1], dtype=dtype).sigmoid().unsqueeze(1)
    assert metrics.counts(p, np.ones((3, 1))).predicted.tolist() == [2]


def test_the_threshold_is_not_rounded_to_half_precision():
    p = torch.tensor([[0.5234375], [0.52734375]], dtype=torch.bfloat16)  # neighbours: 0.525 rounds to the first
    assert metrics.counts(p, np.ones((2, 1)), 0.525).predicted.tolist() == [1]


def test_the_cases_that_the_paper_does_not_define():
    # class 0: one right, one wrong; class 1: never predicted; class 2: no positives, predicted twice
    p = np.array([[0.9, 0.1, 0.9], [0.9, 0.1, 0.9]])
    labels = np.array([[1, 1, 0], [0, 0, 0]])
    expected = {"CP": 0.25, "CR": 0.5, "CF1": 1 / 3, "OP": 0.25, "OR": 0.5, "OF1": 1 / 3}
    assert metrics.precision_recall_f1(p, labels) == pytest.approx(expected, abs=1e-12)
    assert set(metrics.precision_recall_f1(np.zeros((2, 3)), labels).values()) == {0.0}
    nothing = metrics.precision_recall_f1(p, np.zeros((2, 3)))
    assert nothing.pop("OP") == 0 and all(math.isnan(value) for value in nothing.values())


# Conventions


def test_each_metric_follows_the_convention_in_its_name():
    p, labels = with_empty()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ap = sklearn_ap(p, labels)
    a5 = slow_a5(p, labels, 0.5)
    expected = {"mAP": ap.sum() / 4, "mAP_empty_zero": ap.mean(), "cf1_harmonic@0.5": a5["CF1"]}
    expected |= {name: a5[name] for name in ("CP", "CR", "OP", "OR")}
    for t in (0.5, 0.525, 0.8):
        expected[f"cf1_mean@{t}"] = f1_score(labels, p >= t, average="macro", zero_division=0)
        expected[f"of1@{t}"] = f1_score(labels, p >= t, average="micro")
        assert metrics.mean_f1(p, labels, t) == pytest.approx(expected[f"cf1_mean@{t}"], abs=1e-12)
    assert len({round(value, 6) for value in expected.values()}) == len(expected) == 13, "no two alike on this data"
    figures = metrics.all_metrics(p, labels)
    assert metrics.mean_average_precision(p, labels) == figures["mAP"]
    assert metrics.mean_average_precision(p, labels, empty="zero") == figures["mAP_empty_zero"]
    assert figures == pytest.approx(expected, abs=1e-9)
    assert list(figures) == list(metrics.METRICS)
    for name, metric in metrics.METRICS.items():
        assert metric(p, labels) == figures[name]
        assert metric.reported_by and metric.help and "\n" not in metric.help


def test_all_metrics_compute_ap_once_and_counts_once_per_threshold(monkeypatch):
    calls = []
    for name in ("_ap", "_counts"):
        inner = getattr(metrics, name)
        monkeypatch.setattr(metrics, name, lambda *a, name=name, inner=inner: calls.append((name, *a[2:])) or inner(*a))
    metrics.all_metrics(*data())
    assert sorted(calls) == [("_ap",), ("_counts", 0.5), ("_counts", 0.525), ("_counts", 0.8)]


def test_headline_is_map_and_a5_at_one_half():
    p, labels = with_empty()
    expected = {"mAP": metrics.mean_average_precision(p, labels), **slow_a5(p, labels, 0.5)}
    assert metrics.headline(p, labels) == pytest.approx(expected, abs=1e-12)
    assert list(metrics.headline(p, labels)) == ["mAP", "CP", "CR", "CF1", "OP", "OR", "OF1"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_and_torch_inputs_give_the_same_results(dtype):
    p, labels = data(dtype=dtype)
    reference = metrics.all_metrics(p, labels)
    p.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.all_metrics(p, labels.astype(bool)) == reference
    tensor = torch.tensor(p, requires_grad=True)
    for y in (torch.tensor(labels), torch.tensor(labels).float(), labels.astype(np.uint8)):
        assert metrics.all_metrics(tensor, y) == reference
    assert metrics.all_metrics(np.asfortranarray(p), labels) == reference


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [1, 300, 900, 1000, 1 << 23])
def test_results_of_cuda_tensors_are_on_the_gpu_and_the_same(monkeypatch, chunk):
    monkeypatch.setattr(metrics, "_CHUNK", chunk)
    p, labels = data(decimals=2)
    labels[:, 3] = 0
    ap = metrics.average_precision(torch.tensor(p).cuda(), labels)
    assert ap.is_cuda
    torch.testing.assert_close(ap.cpu(), metrics.average_precision(p, labels), rtol=0, atol=1e-12, equal_nan=True)
    on_device = metrics.all_metrics(torch.tensor(p).cuda(), torch.tensor(labels).cuda())
    assert on_device == pytest.approx(metrics.all_metrics(p, labels), abs=1e-12)


# Forgetting


def test_the_names_of_the_built_in_metrics():
    assert tuple(metrics.METRICS.registered()) == BUILT_IN


def test_forgetting_is_relative_to_the_best_earlier_result():
    a = [[0.6, NAN, NAN, NAN], [0.8, 0.5, NAN, NAN], [0.7, 0.4, 0.9, NAN], [0.3, 0.2, 0.6, 0.9]]
    assert forgetting(a) == pytest.approx((0.5 + 0.3 + 0.3) / 3, abs=1e-12)
    assert forgetting(np.array(a)) == forgetting(torch.tensor(a, dtype=torch.float64))
    assert forgetting(np.array(a)) == forgetting(a)


def test_forgetting_reads_the_last_result_as_final_only_and_nothing_above_the_diagonal():
    assert forgetting([[0.5, NAN], [0.9, 0.8]]) == pytest.approx(-0.4, abs=1e-12)
    assert forgetting([[0.5, 0.9, 0.9], [0.4, 0.6, 0.9], [0.3, 0.5, 0.7]]) == pytest.approx(0.15, abs=1e-12)


def test_forgetting_leaves_out_tasks_without_a_result():
    a = [[NAN, NAN, NAN], [NAN, 0.6, NAN], [NAN, 0.5, 0.7]]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert forgetting(a) == pytest.approx(0.1, abs=1e-12)
        assert forgetting([[NAN, NAN, NAN], [0.9, 0.6, NAN], [0.5, 0.6, 0.7]]) == pytest.approx(0.2, abs=1e-12)
        assert math.isnan(forgetting([[NAN, NAN], [0.5, 0.5]]))
        assert math.isnan(forgetting([[0.5]]))
    with pytest.raises(ValueError, match="square"):
        forgetting([[0.5, NAN]])


def test_relative_forgetting_by_hand():
    assert relative_forgetting([0.8, 0.4, 0.5], [0.4, 0.5, 0.1]) == pytest.approx((0.5 - 0.25) / 2, abs=1e-12)
    assert relative_forgetting(torch.tensor([0.5, 0.5]), np.array([0.75, 0.5])) == pytest.approx(-0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left_out = relative_forgetting([0.0, NAN, 0.5, 0.8, 0.9], [0.3, 0.2, 0.25, NAN, 0.9])
        assert left_out == pytest.approx(0.5, abs=1e-12)
        assert math.isnan(relative_forgetting([0.7], [0.7]))
        assert math.isnan(relative_forgetting([0.0, 0.7], [0.1, 0.7]))
    with pytest.raises(ValueError, match="one length"):
        relative_forgetting([0.7, 0.6], [0.7])
