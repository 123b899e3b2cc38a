"""The warm-up of the backbone, in both methods that have one."""

import copy

import pytest
import torch
from support.methods import TASKS, batch, same, small

from lifelabel.errors import UserError
from lifelabel.nn import losses

either_method = pytest.mark.parametrize("name", ["l3a", "weighted-ridge"])


@either_method
def test_the_warm_up_trains_whole_batches_then_freezes(name):
    method, plain = small(name, warm_up=6), small(name, warm_up=0)
    first, second, *rest = (batch(method, 0, step) for step in range(4))  # the second one crosses the border
    before = copy.deepcopy(method.backbone.state_dict())
    for each in (method, plain):
        each.begin_task(TASKS[0])
    for given in (first, second):
        learner = copy.deepcopy(method.warm_up.training.learner)
        logits = learner.head(learner.train_features(given.images))
        expected = losses.classification(logits, given.labels, method.setting.reduction, given.known)
        assert method.observe(given)["cls"].item() == pytest.approx(expected.item())
    trained = copy.deepcopy(method.backbone.state_dict())
    changed = [key for key in before if not torch.equal(before[key], trained[key])]
    assert "body.0.weight" in changed and "body.1.running_mean" in changed and method.warm_up.training is None
    plain.backbone.load_state_dict(trained)  # the images of the warm-up are not part of the sums
    for each in (method, plain):
        for given in rest:
            each.observe(given)
        each.end_task()
        for task in (1, 2):
            each.begin_task(TASKS[task])
            each.observe(batch(each, task, 0))
            each.end_task()
        assert same(trained, each.backbone.state_dict())
        assert all(p.grad is None and not p.requires_grad for p in each.backbone.parameters())
    images = batch(method, 0, 9).images
    assert torch.equal(plain.weights, method.weights) and torch.equal(plain.scores(images), method.scores(images))


@either_method
def test_scores_during_the_warm_up_do_not_change_the_features(name):
    """The engine computes scores before it writes a checkpoint, at any step."""
    expected, scored = (small(name, warm_up=6) for _ in range(2))
    images = batch(scored, 0, 9).images
    for method in (expected, scored):
        torch.manual_seed(3)
        method.begin_task(TASKS[0])
        for step in range(4):
            method.observe(batch(method, 0, step))
            if method is scored:
                scores = method.scores(images)
                assert torch.equal(scores, scores[:1, :1].expand(4, 2))  # the regression is not solved yet
        method.end_task()
    assert torch.equal(scored.scores(images), expected.scores(images))


@either_method
@pytest.mark.parametrize("warm_up", [8, 9])
def test_a_warm_up_with_all_images_is_refused(name, warm_up):
    method = small(name, warm_up=warm_up)
    method.begin_task(TASKS[0])
    for step in range(2):
        method.observe(batch(method, 0, step))
    expected = f"method.warm_up={warm_up} used all 8 images of the first task and left none for the regression"
    with pytest.raises(UserError, match=expected):
        method.end_task()
