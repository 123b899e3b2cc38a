"""Which weights and statistics change, bit by bit."""

import pytest
import torch

from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.methods import Batch
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.frozen import Frozen

TASKS = [("sky", "sea"), ("boat", "fish", "sun"), ("tree", "house")]


def make(method=Frozen, **options):
    torch.manual_seed(0)
    # options with which backbone and statistics of every other method change in every task
    config = Config.make({"batch_norm": "running", "later_backbone_lr": 0.01})
    setting = make_setting(config, lambda labels: torch.zeros(len(labels), 1), torch.device("cpu"))
    return method(setting, method.Options(**options))


def batches(task, count=2):
    torch.manual_seed(100 + task)
    shape = 4, len(TASKS[task])
    known = torch.ones(shape, dtype=torch.bool)
    return [
        Batch(torch.randn(4, 3, 32, 32), (torch.rand(shape) < 0.5).float(), known, TASKS[task]) for _ in range(count)
    ]


def parts(method):
    """All weights and statistics by name, as they are now."""
    named = {**method.learner.backbone.state_dict(prefix="backbone."), **method.head.state_dict(prefix="head.")}
    return {name: value.clone() for name, value in named.items()}


def changed_by(method, task):
    """The names of the weights and statistics that one task changes."""
    method.begin_task(TASKS[task])
    before = parts(method)
    for batch in batches(task):
        method.observe(batch)
    method.end_task()
    return {name for name, value in parts(method).items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("learn_first", [False, True])
def test_only_new_rows_change_once_the_backbone_is_frozen(learn_first):
    method = make(learn_first=learn_first)
    everything = {*method.learner.backbone.state_dict(prefix="backbone."), "head.weights.0", "head.biases.0"}
    assert changed_by(method, 0) == (everything if learn_first else {"head.weights.0", "head.biases.0"})
    for task in (1, 2):
        images = torch.randn(3, 3, 32, 32)
        with torch.no_grad():
            before = method.scores(images)
        assert changed_by(method, task) == {f"head.weights.{task}", f"head.biases.{task}"}
        with torch.no_grad():
            torch.testing.assert_close(method.scores(images)[:, : before.shape[1]], before)


def test_with_learn_first_the_first_task_is_fine_tuning():
    frozen, plain = make(learn_first=True), make(FineTuning)
    for method in (frozen, plain):
        torch.manual_seed(0)
        changed_by(method, 0)
    assert all(torch.equal(value, parts(plain)[name]) for name, value in parts(frozen).items())


def test_a_frozen_backbone_has_no_gradients_and_is_in_eval_mode():
    method = make(learn_first=True)
    method.begin_task(TASKS[0])
    images = batches(0)[0].images
    assert method.learner.train_features(images).requires_grad
    method.begin_task(TASKS[1])
    features = method.learner.train_features(images)
    assert not features.requires_grad
    assert torch.equal(method.learner.eval_features(images), features)
    assert not any(module.training for module in method.learner.backbone.modules())
    assert method.head(features).requires_grad
    assert method.footprint().bytes == 0
