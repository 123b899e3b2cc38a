"""Which weights and statistics change, bit by bit."""

import pytest
import torch
from support.methods import TASKS, batch, make

# options with which backbone and statistics of every other method change in every task
LEARNING = {"batch_norm": "running", "later_backbone_lr": 0.01}


def parts(method):
    """All weights and statistics by name, as they are now."""
    named = {**method.learner.backbone.state_dict(prefix="backbone."), **method.head.state_dict(prefix="head.")}
    return {name: value.clone() for name, value in named.items()}


def changed_by(method, task):
    """The names of the weights and statistics that one task changes."""
    method.begin_task(TASKS[task])
    before = parts(method)
    for step in range(2):
        method.observe(batch(method, task, step))
    method.end_task()
    return {name for name, value in parts(method).items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("learn_first", [False, True])
def test_only_new_rows_change_once_the_backbone_is_frozen(learn_first):
    method = make("frozen", learn_first=learn_first, **LEARNING)
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
    frozen, plain = make("frozen", learn_first=True, **LEARNING), make("fine-tuning", **LEARNING)
    for method in (frozen, plain):
        torch.manual_seed(0)
        changed_by(method, 0)
    assert all(torch.equal(value, parts(plain)[name]) for name, value in parts(frozen).items())
