"""One set of scores under several conventions: files of scores, and the families of publications."""

import json
import math

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.metrics.conventions import FAMILIES, compare, read_scores, spread
from lifelabel.metrics.functions import METRICS

LABELS = np.array([[1, 0], [0, 0], [1, 0], [0, 0]])
PROBABILITIES = np.array([[0.9, 0.1], [0.6, 0.2], [0.55, 0.9], [0.1, 0.3]])
"""Class 1 is empty, and images 1 and 3 have no label."""


def read(folder, **arrays):
    np.savez(folder / "s.npz", **arrays)
    return read_scores(folder / "s.npz")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64"), ("int8", "float64"), ("bool", "float64")],
)
def test_scores_keep_their_precision(dtype, expected, tmp_path):
    """A float64 file is not rounded: scores that differ in float64 only would become ties."""
    found = read(tmp_path, scores=np.zeros((2, 3), dtype), labels=np.ones((2, 3), np.uint8))
    assert found.values.dtype == expected and found.labels.dtype == bool and found.labels.all()


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("scores", [0.0, 1.0], "probabilities"),
        ("scores", [-0.001, 1.0], "logits"),
        ("scores", [0.0, 1.001], "logits"),
        ("logits", [0.25, 0.75], "logits"),
        ("probabilities", [0.25, 0.75], "probabilities"),
    ],
)
def test_scores_outside_0_to_1_are_logits(name, values, kind, tmp_path):
    found = read(tmp_path, **{name: np.array([values]), "labels": np.array([[0, 1]])})
    assert found.kind == kind
    probabilities = found.scored().probabilities.tolist()[0]
    expected = values if kind == "probabilities" else [1 / (1 + math.exp(-value)) for value in values]
    assert probabilities == pytest.approx(expected, abs=1e-12)


def test_infinite_logits_are_accepted_and_nan_is_refused(tmp_path):
    found = read(tmp_path, logits=np.array([[-np.inf], [np.inf]]), labels=np.array([[0], [1]]))
    assert found.scored().probabilities.tolist() == [[0], [1]] and compare(found)["families"][0]["all"]["mAP"] == 1
    with pytest.raises(UserError, match=r"logits holds 2 NaN, the first for image 1, class 0$"):
        read(tmp_path, logits=np.array([[1, 1], [np.nan, np.nan]]), labels=np.zeros((2, 2)))


def test_families_by_hand(tmp_path):
    """Of class 0 the images 0, 1 and 2 are above 0.5, of which 0 and 2 have it; their ranks are 1 and 3.

    Class 1 has a wrong image above every threshold, and it is image 2, which has a label.
    """
    found = compare(read(tmp_path, probabilities=PROBABILITIES, labels=LABELS))
    assert {key: found[key] for key in ("images", "labelled_images", "classes", "empty_classes", "scores")} == {
        "images": 4, "labelled_images": 2, "classes": 2, "empty_classes": 1, "scores": "probabilities",
    }  # fmt: skip
    ap = (1 + 2 / 3) / 2
    at_half = 2 * 2 / (3 + 2)  # F1 of class 0
    at_0_8 = 2 * 1 / (1 + 2)
    expected = {
        "AGCN, ML-GCN, PRS": (ap, at_half, 2 * 2 / (4 + 2)),
        "KRT, CSC, MULTI-LANE, ASL": (ap / 2, at_0_8 / 2, 2 * 1 / (2 + 2)),
        "L3A": (ap / 2, at_half / 2, 2 * 2 / (4 + 2)),
        "torchmetrics ≥ 1.4": (ap / 2, at_half / 2, 2 * 2 / (4 + 2)),
        "torchmetrics < 1.4": (ap, at_half / 2, 2 * 2 / (4 + 2)),
    }
    for family in found["families"]:
        assert tuple(family["all"].values()) == pytest.approx(expected[family["who"]]), family["who"]
    labelled = {family["who"]: family["labelled"] for family in found["families"]}
    assert labelled["AGCN, ML-GCN, PRS"] == pytest.approx({"mAP": 1, "CF1": 1, "OF1": 2 * 2 / (3 + 2)})
    assert spread(found, "mAP") == pytest.approx((ap / 2, 1))
    assert spread(found, "OF1") == pytest.approx((1 / 2, 4 / 5))
    assert found["conventions"]["all"].keys() == METRICS.keys()


def test_without_any_label_there_is_no_figure_to_compare(tmp_path):
    found = compare(read(tmp_path, probabilities=PROBABILITIES, labels=np.zeros_like(LABELS)))
    assert (found["labelled_images"], found["empty_classes"]) == (0, 2)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    first = found["families"][0]
    assert first["all"]["mAP"] is None and first["labelled"]["mAP"] is None
    empty = {"families": [{part: {"mAP": None} for part in ("all", "labelled")}]}
    assert spread(empty, "mAP") is None


def test_the_metrics_of_a_family_have_its_conventions():
    for family in FAMILIES:
        mean_ap, cf1, of1 = family.figures
        assert set(family.figures) <= METRICS.keys()
        assert mean_ap == ("mAP_empty_zero" if family.empty == "0" else "mAP")
        assert cf1.startswith("cf1_harmonic@" if family.cf1 == "harmonic mean" else "cf1_mean@")
        assert cf1.partition("@")[2] == of1.partition("@")[2] == family.threshold


def test_the_folder_of_a_run_is_its_file(tmp_path):
    with pytest.raises(UserError) as caught:
        read_scores(tmp_path)
    assert str(caught.value) == f"{tmp_path} holds no scores.npz: train with --save-scores, or give an .npz file"
    np.savez(tmp_path / "scores.npz", logits=np.zeros((1, 1)), labels=np.ones((1, 1)))
    assert read_scores(tmp_path).labels.tolist() == [[True]]


def test_names_of_arrays_in_a_message_are_printable_and_short(tmp_path):
    with pytest.raises(UserError) as caught:
        read(tmp_path, **{"\x1b[2J" + "x" * 500: np.zeros(1)})
    message = str(caught.value)
    assert "\x1b" not in message and "it holds \ufffd[2Jxxx" in message
    assert len(message) < len(str(tmp_path)) + 250
