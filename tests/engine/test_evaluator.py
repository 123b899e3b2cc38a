"""The evaluation: scores of simple methods, features that are computed once, and the details for reports."""

import io

import numpy as np
import pytest
import torch
from engine.small_runs import SMALL, At, Killed, assert_same_files, kill, options
from PIL import Image

from lifelabel.engine import evaluator as evaluation
from lifelabel.engine import run as engine
from lifelabel.engine.evaluator import choose_examples, compute_features, compute_scores, example_positions, picture
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.frozen import Frozen
from lifelabel.methods.l3a import L3A
from lifelabel.methods.weighted_ridge import WeightedRidge
from lifelabel.nn.backbones import build


class Scripted:
    """Gives each image its brightness as the logit of every class, and records its batches."""

    def __init__(self):
        self.setting = type("Setting", (), {"backbone": build("tiny"), "device": torch.device("cpu")})
        self.calls = []

    def features(self, images):
        self.calls.append((len(images), torch.backends.cudnn.enabled))
        return images[:, 0, 0, :1]

    def logits(self, features, num_classes=None):
        return features.repeat(1, 3)[:, :num_classes]


def test_the_last_batch_is_scored_without_cudnn_if_it_is_smaller(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "enabled", True)
    method = Scripted()
    compute_features(method, [torch.zeros(count, 8, 8, 3, dtype=torch.uint8) for count in (4, 4, 3)], lambda: None)
    assert method.calls == [(4, True), (4, True), (3, False)] and torch.backends.cudnn.enabled


def test_scores_keep_the_order_of_the_images():
    batches = [torch.full((2, 8, 8, 3), value, dtype=torch.uint8) for value in (10, 200, 90)]
    features = compute_features(Scripted(), batches, lambda: None)
    logits = compute_scores(Scripted(), features)
    assert logits.shape == (6, 3) and np.argsort(logits[:, 0], kind="stable").tolist() == [0, 1, 4, 5, 2, 3]
    assert np.array_equal(compute_scores(Scripted(), features, 1), logits[:, :1])


def test_features_are_computed_once_and_a_stop_is_checked_before_every_batch():
    def check_stop():
        checks.append(len(method.calls))
        if len(checks) == 3:
            kill()

    method, checks = Scripted(), []
    batches = [torch.zeros(2, 8, 8, 3, dtype=torch.uint8)] * 4
    with pytest.raises(Killed):
        compute_features(method, batches, check_stop)
    assert [count for count, _ in method.calls] == [2, 2] and checks == [0, 1, 2]
    assert compute_features(Scripted(), [], lambda: None) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_an_error(value):
    with pytest.raises(FloatingPointError, match="the scores of the test images are not finite"):
        compute_scores(Scripted(), [torch.zeros(2, 1), torch.full((1, 1), value)])


# Features of test images that do not change any more


def counted(base, monkeypatch, fixed=None):
    """A method that counts the images that it computes the features of, while it does not learn."""

    class Counted(base):
        images: list = []  # noqa: RUF012
        learning = False

        def observe(self, batch):
            self.learning = True
            losses = super().observe(batch)
            self.learning = False
            return losses

        def features(self, images):
            if not self.learning:
                self.images.append((len(self.tasks), len(images)))
            return super().features(images)

        if fixed is not None:

            @property
            def fixed_features(self):
                return fixed

    monkeypatch.setitem(METHODS._items, "counted", Counted)
    return Counted


def scored(method):
    """The number of images by task, with those of the check before each checkpoint."""
    return {task: sum(count for t, count in method.images if t == task) for task in (1, 2, 3)}


METHODS_AND_TASKS = [
    (WeightedRidge, {"directions": 40, "warm_up": 8}, (2, 3)),
    (L3A, {"projection": 20, "warm_up": 8}, (2, 3)),
    (Frozen, {"learn_first": False}, (2, 3)),
    (Frozen, {"learn_first": True}, (3,)),  # the backbone is frozen from the second task on
    (FineTuning, {}, ()),
]
"""Methods, their options, and the tasks in which no test image is computed."""


@pytest.mark.parametrize(("base", "own", "tasks"), METHODS_AND_TASKS)
def test_test_images_are_computed_once_and_results_are_the_same(base, own, tasks, monkeypatch, tmp_path):
    given = options(method="counted", save_scores=True, method_options=own, batch_size=8)
    plain = counted(base, monkeypatch, fixed=False)
    expected = engine.train(tmp_path / "again", given)
    each = scored(plain)
    assert min(each.values()) >= SMALL["test_images"]  # in every task
    once = counted(base, monkeypatch)
    found = engine.train(tmp_path / "once", given)
    assert {task: each[task] - scored(once)[task] for task in each} == {
        task: SMALL["test_images"] if task in tasks else 0 for task in each
    }
    assert found.metrics == expected.metrics
    assert_same_files(found.folder, expected.folder, "history.jsonl", "scores.npz")


def test_features_that_need_too_much_memory_are_not_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(evaluation, "CACHE_BYTES", 60 * 41 * 4 - 1)  # one byte less than the features of 60 images
    method = counted(WeightedRidge, monkeypatch)
    engine.train(tmp_path / "run", options(method="counted", method_options={"directions": 40}))
    assert min(scored(method).values()) >= SMALL["test_images"]


def test_a_run_that_resumes_computes_them_again(monkeypatch, tmp_path):
    given = options(method="counted", method_options={"directions": 40})
    counted(WeightedRidge, monkeypatch)
    whole = engine.train(tmp_path / "whole", given)
    with pytest.raises(Killed):
        engine.train(tmp_path / "run", given, callback=At(act=kill, task=2))
    method = counted(WeightedRidge, monkeypatch)
    resumed = engine.resume(tmp_path / "run")
    assert scored(method)[3] >= SMALL["test_images"] and scored(method)[1] == scored(method)[2] == 0
    assert resumed.metrics == whole.metrics


def test_unreadable_test_images_stay_left_out(photographs, tmp_path):
    """With kept features, the pixels are dropped, and rows and scores still belong together."""
    given = {**photographs[0], "method": "weighted-ridge", "save_scores": True, "method_options": {"directions": 8}}
    done = engine.train(tmp_path / "run", given)
    assert done.environment["images_skipped"] > 0
    assert 0 < done.metrics["final"]["mAP"] <= 1


# Examples for reports


def test_examples_are_spread_over_the_test_images():
    found = example_positions(1000, 80)
    assert len(found) == 256 and found[0] == 0 and found[-1] == 999
    assert np.diff(found).max() <= 4


def test_the_most_confident_mistakes_are_first():
    labels = np.array([[1, 0], [1, 0], [1, 0], [0, 1]], bool)
    p = np.array([[0.9, 0.1], [0.9, 0.8], [0.05, 0.1], [0.2, 0.6]])
    known = np.ones_like(labels)
    assert choose_examples(p, labels, known, 4).tolist() == [2, 1, 3, 0]
    assert choose_examples(p, labels, known, 2).tolist() == [2, 1]
    known[2, 0] = False  # an unknown label is not missed
    assert choose_examples(p, labels, known, 4).tolist() == [1, 3, 0, 2]


def test_a_picture_is_a_small_jpeg():
    image = Image.open(io.BytesIO(picture(torch.zeros(300, 300, 3, dtype=torch.uint8))))
    assert image.format == "JPEG" and image.size == (160, 160)


@pytest.mark.parametrize("pictures", [0, 5])
def test_the_files_of_a_run(tmp_path, pictures):
    run = engine.train(tmp_path / "run", options(method="fine-tuning", pictures=pictures))
    folder, tasks = tmp_path / "run" / "details", len(run.metrics["tasks"])
    for number in range(1, tasks + 1):
        with np.load(folder / f"task-{number}.npz") as task:
            assert task["scores"].shape[1] == len(task["ap"]) == sum(map(len, run.metrics["tasks"][:number]))
    with np.load(folder / f"task-{tasks}.npz") as last, np.load(folder / "examples.npz") as examples:
        final = run.metrics["final"]["ap"]
        assert last["ap"].tolist() == pytest.approx([final[name] for name in run.metrics["classes"]])
        assert len(examples["chosen"]) == len(examples["picture_ends"]) == pictures
    one = {**SMALL, "tasks": 1}
    engine.train(tmp_path / "run", options(method="fine-tuning", pictures=0, stream_options=one), overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["examples.npz", "task-1.npz"]
