"""The evaluation of a model: figures by hand, text, chart and contact sheet. Class names are untrusted."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from report.small_streams import Photographs
from report.untrusted import HOSTILE, PRINTABLE, render

from lifelabel.images.source import Problems
from lifelabel.metrics.functions import average_precision
from lifelabel.model.labelled_scores import LabelledScores
from lifelabel.report import evaluation as module
from lifelabel.report.evaluation import Evaluation
from lifelabel.report.vega import chart_text
from lifelabel.streams.labelled_set import LabelledPart, LabelledSet
from lifelabel.streams.labels import Labels, Unknown

CLASSES = ("cat", "dog", "cup", "fork")


@dataclasses.dataclass
class Info:
    classes: tuple[str, ...] = CLASSES
    task_of_class: tuple[int, ...] = (0, 0, 1, 1)
    task_names: tuple[str, ...] = ()
    thresholds: tuple[float, ...] | None = None
    calibration: dict | None = None


def evaluate(logits, labels, known=None, threshold=None, classes=CLASSES, common=None, broken=(), **info):
    """An evaluation of made-up logits. Image k is row k of the photographs."""
    logits, labels = np.array(logits, np.float32), np.array(labels, bool)
    known = np.ones_like(labels) if known is None else np.array(known, bool)
    count = len(labels)
    part = LabelledPart(
        Photographs(count, broken=broken), np.arange(count), Labels.from_dense(labels),
        Unknown.of_entries(Labels.from_dense(~known)), np.zeros(count, int),
    )  # fmt: skip
    images = LabelledSet("photos.csv", "test rows", classes, (part,), Problems())
    common = np.arange(len(classes)) if common is None else np.array(common)
    scores = LabelledScores(
        logits, labels & known, known, common, ["unicorn"], np.zeros(count, int), np.arange(count), [("x.png", "bad")]
    )
    tasks = tuple(0 for _ in classes) if classes != CLASSES else (0, 0, 1, 1)
    model = SimpleNamespace(classes=classes, info=Info(classes, tasks, **info))
    return Evaluation(model, images, scores, threshold)


@pytest.fixture
def made():
    rng = np.random.default_rng(0)
    labels = rng.random((80, 4)) < 0.3
    return (2 * rng.normal(size=(80, 4)) + 2 * labels - 1).astype(np.float32), labels


def complete(found):
    """With what the command adds."""
    model = {"label": "er", "path": "runs/a/model", "tensors_sha256": "0" * 64}
    return {"model": model, "environment": {"date": "2026-01-01"}, "notes": ["from the command"], **found}


def test_figures_at_each_threshold(made):
    logits, labels = made
    limits = (0.2, 0.4, 0.6, 0.8)
    found = evaluate(logits, labels, threshold=0.3, thresholds=limits).found
    p = 1 / (1 + np.exp(-logits.astype(float)))
    assert list(found["headline"]) == ["0.5", "model", "0.3"]
    for name, limit in (("0.5", 0.5), ("model", np.array(limits)), ("0.3", 0.3)):
        predicted = p >= limit
        precision, recall = ((predicted & labels).sum() / total for total in (predicted.sum(), labels.sum()))
        figures = found["headline"][name]
        assert (figures["OP"], figures["OR"]) == pytest.approx((precision, recall))
        assert figures["mAP"] == pytest.approx(average_precision(logits, labels).mean().item())
    assert found["metrics"]["families"][0]["all"]["mAP"] == pytest.approx(found["headline"]["0.5"]["mAP"])
    for k, row in enumerate(found["per_class"]):
        predicted = p[:, k] >= 0.3  # the given threshold wins over those of the model
        assert (row["name"], row["task"], row["threshold"]) == (CLASSES[k], (1, 1, 2, 2)[k], 0.3)
        assert (row["positives"], row["predicted"]) == (labels[:, k].sum(), predicted.sum())
        assert row["precision"] == pytest.approx((predicted & labels[:, k]).sum() / predicted.sum())
        assert row["recall"] == pytest.approx((predicted & labels[:, k]).sum() / labels[:, k].sum())
    assert evaluate(logits, labels, thresholds=limits).found["per_class"][3]["threshold"] == 0.8
    json.dumps(found, allow_nan=False)


def test_unknown_labels_are_left_out(made):
    logits, labels = made
    known = np.ones_like(labels)
    known[:30, 1] = False
    found = evaluate(logits, labels, known).found
    alone = evaluate(logits[30:], labels[30:]).found
    for key in ("AP", "positives", "precision", "recall", "ECE"):
        assert found["per_class"][1][key] == pytest.approx(alone["per_class"][1][key])
    assert found["set"]["unknown_labels"] == 30 and found["per_class"][1]["unknown"] == 30
    wild = np.where(known, logits, 50)
    assert evaluate(wild, labels, known).found == found


def test_only_common_classes_are_evaluated(made):
    found = evaluate(*made, common=[1, 3]).found
    assert [row["name"] for row in found["per_class"]] == ["dog", "fork"] and found["classes"]["evaluated"] == 2
    assert found["classes"]["not_evaluated"] == ["cat", "cup"] and found["classes"]["ignored"] == ["unicorn"]
    lines = module.notes(complete(found))
    assert lines[0] == "from the command"
    assert "1 class that only the set has, whose labels are ignored: unicorn" in lines
    assert "2 classes that only the model has, not evaluated: cat, cup" in lines
    assert "1 image that cannot be read, left out and listed in skipped.jsonl" in lines


def test_calibration_changes_probabilities_but_not_ap(made):
    logits, labels = made
    calibration = {"slope": [0.5] * 4, "shift": [-1, 0, 1, 2]}
    plain, found = evaluate(logits, labels).found, evaluate(logits, labels, calibration=calibration).found
    for before, after in zip(plain["per_class"], found["per_class"], strict=True):
        assert after["AP"] == pytest.approx(before["AP"], abs=1e-12)
    assert plain["calibration"] != found["calibration"]
    assert evaluate(logits, labels, calibration=calibration).arrays()["logits"][:, 3] == pytest.approx(
        0.5 * logits[:, 3].astype(float) + 2
    )


def test_without_positives_there_is_no_nan(tmp_path):
    evaluation = evaluate(-np.ones((3, 4)), np.zeros((3, 4)))
    found = complete(evaluation.found)
    assert "NaN" not in json.dumps(found, allow_nan=False) and "nan" not in module.markdown(found)
    assert found["headline"]["0.5"]["mAP"] is None and module.class_lines(found) == []
    module.draw_per_class(found, tmp_path)
    module.write_mistakes(evaluation, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_report_has_all_tables_and_the_best_and_the_worst_classes(made):
    found = complete(evaluate(*made, thresholds=(0.2,) * 4).found)
    text = module.markdown(found, ["per_class.png", "mistakes.png"])
    for part in ("80 test rows of photos.csv", "| at 0.5 |", "| at the thresholds of the model |", "| fork | 2 |"):
        assert part in text, part
    for part in ("calibration error (ECE) 0.", "Brier score 0.", "torchmetrics ≥ 1.4", "best classes by AP: "):
        assert part in text, part
    assert "![mistakes.png](mistakes.png)" in text and "from the command" in text
    ranked = sorted(found["per_class"], key=lambda row: -row["AP"])
    best, worst = module.class_lines(found)
    assert best == "best classes by AP: " + ", ".join(f"{row['name']} {100 * row['AP']:.2f}" for row in ranked[:2])
    assert worst.startswith(f"worst classes by AP: {ranked[-1]['name']} ")


def test_hostile_names_are_escaped(made, chart_texts, tmp_path):
    names = (HOSTILE, r"$\frac", "$$", "犬")
    evaluation = evaluate(*made, classes=names)
    evaluation.found["set"]["name"] = r"$\alpha" * 50
    found = complete(evaluation.found)
    tags, lines = render(module.markdown(found))
    assert not tags & {"img", "em", "s", "script"} and any(PRINTABLE[:30] in line for line in lines)
    module.draw_per_class(found, tmp_path)
    module.write_mistakes(evaluation, tmp_path)
    assert (tmp_path / "mistakes.png").exists()
    drawn = {text.rpartition(" (")[0] for text in chart_texts(tmp_path / "per_class.svg")}
    assert {"$$", "犬", r"$\frac", chart_text(HOSTILE, 28)} <= drawn


# Pictures


def test_the_chart_has_a_line_for_each_class(made, chart_texts, tmp_path):
    found = evaluate(*made).found
    module.draw_per_class(found, tmp_path)
    names = [f"{row['name']} ({row['positives']})" for row in sorted(found["per_class"], key=lambda row: -row["AP"])]
    drawn = chart_texts(tmp_path / "per_class.svg")
    assert [text for text in drawn if text in names] == names
    assert {"photos.csv: average precision of each class", "AP", "precision at the threshold"} <= {*drawn}
    with Image.open(tmp_path / "per_class.png") as image:
        assert image.width > 900


def test_a_chart_of_many_classes_has_the_best_and_the_worst(chart_texts, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.random((60, 300)) < 0.3
    found = evaluate(rng.normal(size=(60, 300)) + labels, labels, classes=tuple(f"class {k}" for k in range(300))).found
    module.draw_per_class(found, tmp_path)
    ranked = sorted((row for row in found["per_class"] if row["AP"] is not None), key=lambda row: -row["AP"])
    drawn = chart_texts(tmp_path / "per_class.svg")
    shown = [text.rpartition(" (")[0] for text in drawn if text.startswith("class ")]
    assert shown == [row["name"] for row in [*ranked[:40], *ranked[-40:]]]
    assert f"photos.csv: the 40 best and the 40 worst of {len(ranked)} classes" in drawn


def test_without_vega_there_is_no_chart(made, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "chart_obstacle", lambda: "needs other packages")
    module.draw_per_class(evaluate(*made).found, tmp_path)
    assert not list(tmp_path.iterdir())


def captions(evaluation, monkeypatch, path):
    """The headings and the captions of the sheet that is drawn."""
    seen = []
    monkeypatch.setattr(
        module, "draw_sheet", lambda title, key, groups: seen.append(groups) or Image.new("RGB", (9, 9))
    )
    module.write_mistakes(evaluation, path)
    return [(heading, [photo.labels for photo in photos]) for heading, photos in seen[0].items()]


def test_the_sheet_has_the_mistakes_with_the_highest_confidence(monkeypatch, tmp_path):
    logits = [[5, -9, -9, -9], [3, 4, -9, 2], [9, 9, 9, -9], [-3, -4, -9, 1], [-9, -9, -9, -9]]
    labels = [[0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 0, 1], [0, 0, 0, 0]]
    known = np.ones((5, 4), bool)
    known[2, 2] = False  # it would be the surest mistake
    (wrong, first), (missed, second) = captions(evaluate(logits, labels, known), monkeypatch, tmp_path)
    assert wrong.startswith("Wrong labels") and missed.startswith("Missed labels")
    assert first == [[("cat 99 %", True), ("dog", False)], [("dog 98 %", True), ("cup", False), ("fork", False)]]
    assert second == [
        [("dog 0 %", True), ("cat", False)],
        [("cup 0 %", True), ("cat", False), ("dog", False), ("fork", False)],
        [("cat 5 %", True), ("fork", False)],
    ]


def test_unreadable_images_and_one_class_do_not_fill_the_sheet(monkeypatch, tmp_path):
    logits = np.full((40, 4), -9.0)
    logits[:30, 0], logits[30:, 1] = np.linspace(9, 8, 30), np.linspace(5, 4, 10)
    groups = captions(evaluate(logits, np.zeros((40, 4)), broken=[0, 2]), monkeypatch, tmp_path)
    names = [caption[0][0].split()[0] for caption in groups[0][1]]
    assert len(groups) == 1 and len(names) == 12
    assert names == ["cat"] * 2 + ["dog"] * 4 + ["cat"] * 6  # four of each, two of them unreadable, then the rest


def test_the_scores_file_has_what_train_saves(made):
    logits, labels = made
    arrays = evaluate(logits, labels, common=[0, 2]).arrays()
    assert sorted(arrays) == ["classes", "images", "labels", "logits", "task_of_class", "task_of_image"]
    assert arrays["logits"].dtype == np.float32 and np.array_equal(arrays["logits"], logits[:, [0, 2]])
    assert arrays["classes"].tolist() == ["cat", "cup"] and arrays["task_of_class"].tolist() == [0, 1]
    assert arrays["images"][7] == "photo-7.jpg" and len(arrays["task_of_image"]) == 80
