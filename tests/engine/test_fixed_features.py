"""Features of test images that do not change any more are computed once."""

import pytest
from engine.small_runs import SMALL, At, Killed, assert_same_files, kill, options

from lifelabel.engine import evaluator as evaluation
from lifelabel.engine import run as engine
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.frozen import Frozen
from lifelabel.methods.l3a import L3A
from lifelabel.methods.weighted_ridge import WeightedRidge


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
