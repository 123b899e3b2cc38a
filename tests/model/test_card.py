import dataclasses
import re

import pytest

from lifelabel.model.card import model_card


def test_a_card_says_what_the_model_is(folder, model):
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card == model_card(model.info)
    for text in (
        "# fine-tuning on test", "5 classes", "2 tasks", "| 1 | sky, sea | 12 |", "| 2 | boat, fish, sun | 12 |",
        "- Fingerprint (SHA-256 of tasks, images and labels): " + 64 * "0", "- Backbone: tiny",
        "- Images: 32 x 32 pixels", "- Initial weights: random initialisation", "| mAP | 50.0 | 10.0 |",
        "| OF1 | 30.0 | – |", "| sky | 1 | 50.0 |", "They are not calibrated", "lifelabel predict MODEL", "- seed: 0",
    ):  # fmt: skip
        assert text in card, text
    headings = re.findall(r"^## (.*)$", card, re.MULTILINE)
    wanted = ["Use", "Training data", "Network", "Figures", "Classes", "Probabilities and thresholds", "Limits"]
    assert headings == [*wanted, "Versions"]


def test_a_calibrated_model_says_so(model):
    calibration = {"slope": [1.0] * 5, "shift": [0.0] * 5, "images": 1234, "by": "f1"}
    info = dataclasses.replace(model.info, calibration=calibration, thresholds=(0.1, 0.2, 0.3, 0.4, 0.5))
    card = model_card(info)
    assert "calibrated on 1,234 labelled images. " in card and "not calibrated" not in card
    assert "| sky | 1 | 50.0 | 10.0 |" in card and "at least the threshold of the class (by f1)." in card
    info = dataclasses.replace(info, calibration={**calibration, "probabilities": "none"})
    card = model_card(info)
    assert "They are not calibrated" in card and "1,234" not in card and "threshold of the class (by f1)." in card


def test_untrusted_names_are_escaped(model):
    names = ("a|b", "[x](http://x)", "<script>", "*bold*", "# head")
    training = {**model.info.training, "ap": dict.fromkeys(names, 0.5), "device": "<b>", "plugins": ["<i>"]}
    card = model_card(dataclasses.replace(model.info, classes=names, label="`x`", training=training))
    assert r"a\|b" in card and r"\[x\](http://x)" in card and "&lt;script>" in card and r"\*bold\*" in card
    assert "<script" not in card and "<b" not in card and "<i" not in card and r"# \`x\`" in card


@pytest.mark.parametrize(
    "training",
    [
        {}, {"final": 3, "ap": [1], "images": "many", "plugins": 4, "seed": [1], "date": {}},
        {"final": {"mAP": "high", "forgetting": 3, "ap": {"sky": "x"}}, "images": ["a", None], "plugins": [1, {}]},
        {"final": {"ap": {"sky": 0.25}, "forgetting": {"mAP": None}}, "images": [3], "seed": True},
        {"final": {"mAP": 10**400, "forgetting": {"mAP": float("nan")}}, "ap": {"sky": 10**400}},
    ],
)  # fmt: skip
def test_values_of_other_types_are_left_out(model, training):
    """They may come from a folder of somebody else."""
    card = model_card(dataclasses.replace(model.info, training=training, stream={"name": 3, "dataset": []}))
    assert "## Classes" in card and "{" not in card.split("## Training data")[1]


def test_many_classes_are_not_all_listed(model):
    names = tuple(f"name {number}" for number in range(500))
    info = dataclasses.replace(model.info, classes=names, task_of_class=(0,) * 500, thresholds=None)
    card = model_card(info)
    assert "… 500 in all" in card and len(card) < 10_000
