import copy

import pytest
import torch

from lifelabel.config import Config
from lifelabel.learner import Expert, Learner, LinearHead, Setting


def make_setting(**options):
    return Setting.of(Config.make(options), lambda labels: torch.zeros(len(labels), 4), torch.device("cpu"))


def make_learner(**options):
    head = LinearHead(256)
    head.grow(2, torch.device("cpu"))
    return Learner(head, make_setting(**options))


def learn(learner):
    learner.step(learner.head(learner.features(torch.randn(4, 3, 32, 32))).square().sum())


def statistics(learner):
    return {k: v.clone() for k, v in learner.backbone.state_dict().items() if "running" in k}


@pytest.mark.parametrize(
    ("regime", "first", "later"), [("running", True, True), ("frozen", False, False), ("first-task", True, False)]
)
def test_batch_norm_statistics_move_when_they_should(regime, first, later):
    learner = make_learner(batch_norm=regime)
    for is_first, moves in ((True, first), (False, later)):
        learner.begin_task(first=is_first)
        before = statistics(learner)
        learn(learner)
        moved = any(not torch.equal(v, before[k]) for k, v in statistics(learner).items())
        assert moved == moves
        before = statistics(learner)
        with torch.no_grad():
            learner.features(torch.randn(4, 3, 32, 32))
        assert all(torch.equal(v, before[k]) for k, v in statistics(learner).items())  # scoring never moves them


def test_backbone_and_head_have_learning_rates_of_their_own():
    learner = make_learner(lr=0.5, backbone_lr=0.25, later_backbone_lr=0.125, adam_eps=1e-3)
    for first, expected in ((True, [0.25, 0.5]), (False, [0.125, 0.5])):
        learner.begin_task(first)
        assert [group["lr"] for group in learner.optimizer.param_groups] == expected
        assert {group["eps"] for group in learner.optimizer.param_groups} == {1e-3}


def test_a_backbone_with_no_learning_rate_stays_where_it_is():
    learner = make_learner(later_backbone_lr=0)
    learner.begin_task(first=False)
    before = copy.deepcopy(learner.backbone.state_dict())
    learn(learner)
    assert all(torch.equal(v, before[k]) for k, v in learner.backbone.state_dict().items())


def test_growing_a_linear_head_leaves_old_rows_alone():
    head = LinearHead(6)
    head.grow(3, torch.device("cpu"))
    features = torch.randn(5, 6)
    before = head(features)
    head.grow(2, torch.device("cpu"))
    assert head(features).shape == (5, 5)
    torch.testing.assert_close(head(features)[:, :3], before)


def test_the_expert_is_a_copy_and_has_no_gradient():
    setting = make_setting()
    nodes = torch.randn(3, 256, requires_grad=True)
    expert = Expert(setting.backbone, nodes, setting)
    images = torch.randn(2, 3, 32, 32)
    before = expert.logits(images)
    with torch.no_grad():
        nodes.zero_()
        for parameter in setting.backbone.parameters():
            parameter.zero_()
    assert torch.equal(expert.logits(images), before)
    assert not before.requires_grad


def test_bf16_computes_features_in_half_precision_and_returns_float32():
    images = torch.randn(2, 3, 32, 32)
    full, half = (Learner(LinearHead(256), make_setting(precision=p)) for p in ("fp32", "bf16"))
    half.backbone.load_state_dict(full.backbone.state_dict())
    with torch.no_grad():
        a, b = full.features(images), half.features(images)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, rtol=0.05, atol=0.05)


def test_a_batch_of_one_image_can_be_learned_where_the_last_map_is_one_pixel():
    setting = make_setting(backbone="resnet18", batch_norm="running")
    head = LinearHead(setting.backbone.dim)
    head.grow(2, torch.device("cpu"))
    learner = Learner(head, setting)
    learner.begin_task(first=True)
    before = statistics(learner)
    learner.step(learner.head(learner.features(torch.randn(1, 3, 32, 32))).square().sum())
    assert all(torch.equal(v, before[k]) for k, v in statistics(learner).items())
