"""The learner: modes of batch norm, learning rates, precision, and states."""

import copy
import dataclasses

import pytest
import torch
from support.networks import CPU, make_setting

from lifelabel.nn.expert import Expert
from lifelabel.nn.learner import Learner, LinearHead


def make_learner(device=CPU, **options):
    setting = dataclasses.replace(make_setting(**options), device=device)
    head = LinearHead(setting.backbone.dim)
    head.grow(2, device)
    return Learner(head, setting)


def learn(learner, count=4):
    images = torch.randn(count, 3, 32, 32, device=learner.setting.device)
    learner.step(learner.head(learner.train_features(images)).square().sum())


def statistics(module):
    return {k: v.clone() for k, v in module.state_dict().items() if "running" in k}


def changed(module, before):
    return any(not torch.equal(v, before[k]) for k, v in statistics(module).items())


@pytest.mark.parametrize(
    ("regime", "first", "later"), [("running", True, True), ("frozen", False, False), ("first-task", True, False)]
)
def test_batch_norm_statistics_change_as_the_option_states(regime, first, later):
    learner = make_learner(batch_norm=regime)
    for is_first, changes in ((True, first), (False, later)):
        learner.begin_task(first_task=is_first)
        before = statistics(learner.backbone)
        learn(learner)
        assert changed(learner.backbone, before) == changes


@pytest.mark.parametrize("gradients", [True, False])
def test_train_features_change_statistics_and_eval_features_do_not_with_and_without_gradients(gradients):
    learner, images = make_learner(batch_norm="running"), torch.randn(4, 3, 32, 32)
    learner.begin_task(first_task=True)
    before = statistics(learner.backbone)
    with torch.set_grad_enabled(gradients):
        features = learner.eval_features(images)
        assert not changed(learner.backbone, before)
        trained = learner.train_features(images)
        assert changed(learner.backbone, before)
        before = statistics(learner.backbone)
        again = learner.eval_features(images)
    assert not changed(learner.backbone, before)
    assert features.requires_grad == trained.requires_grad == again.requires_grad == gradients
    with torch.no_grad():
        torch.testing.assert_close(again, learner.backbone.eval()(images))  # eval mode after train mode
        assert not torch.allclose(trained, again)


def test_backbone_and_head_have_different_learning_rates():
    learner = make_learner(lr=0.5, backbone_lr=0.25, later_backbone_lr=0.125, adam_eps=1e-3)
    for first, expected in ((True, [0.25, 0.5]), (False, [0.125, 0.5])):
        learner.begin_task(first)
        assert [group["lr"] for group in learner.optimizer.param_groups] == expected
        assert {group["eps"] for group in learner.optimizer.param_groups} == {1e-3}


def test_a_backbone_with_a_learning_rate_of_zero_does_not_change():
    learner = make_learner(later_backbone_lr=0)
    learner.begin_task(first_task=False)
    before = copy.deepcopy(learner.backbone.state_dict())
    learn(learner)
    assert all(torch.equal(v, before[k]) for k, v in learner.backbone.state_dict().items())
    assert all(parameter.grad is None for parameter in learner.backbone.parameters())  # its memory is free again


def test_growing_a_linear_head_does_not_change_old_rows():
    head = LinearHead(6)
    head.grow(3, CPU)
    features = torch.randn(5, 6)
    before = head(features)
    head.grow(2, CPU)
    assert head(features).shape == (5, 5)
    torch.testing.assert_close(head(features)[:, :3], before)


def test_a_batch_of_one_image_can_be_learned_if_the_last_feature_map_is_one_pixel():
    learner = make_learner(backbone="resnet18", batch_norm="running")
    learner.begin_task(first_task=True)
    before = statistics(learner.backbone)
    learn(learner, count=1)
    assert not changed(learner.backbone, before)


def test_a_frozen_backbone_has_no_gradient_and_does_not_change_its_statistics():
    learner = make_learner(batch_norm="running")
    learner.begin_task(first_task=True)
    learner.freeze()
    before = copy.deepcopy(learner.backbone.state_dict())
    rows = learner.head.weights[0].detach().clone()
    learn(learner)
    assert all(torch.equal(v, before[k]) for k, v in learner.backbone.state_dict().items())
    assert not torch.equal(learner.head.weights[0], rows)


def test_a_state_from_a_device_with_another_memory_format_continues_to_the_bit():
    """The fused Adam reads memory in order: moments in another memory format would be mixed up without an error."""
    straight = make_learner()
    straight.begin_task(first_task=True)
    learn(straight)
    state = copy.deepcopy(straight.state_dict())
    for moments in state["optimizer"]["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            if moments[name].dim() == 4:
                moments[name] = moments[name].contiguous(memory_format=torch.channels_last)
    resumed = make_learner()
    resumed.begin_task(first_task=True)
    resumed.load_state_dict(state)
    for learner in (straight, resumed):
        torch.manual_seed(1)
        learn(learner)
    for a, b in zip(straight.backbone.parameters(), resumed.backbone.parameters(), strict=True):
        assert torch.equal(a, b)


def is_channels_last(learner):
    return learner.backbone.body[3].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_on_the_gpu_uses_channels_last(precision):
    learner = make_learner(torch.device("cuda"), precision=precision)
    assert is_channels_last(learner) == (precision == "bf16")
    seen = []
    learner.backbone.body[3].register_forward_hook(lambda _, given, out: seen.extend([given[0], out]))
    learner.begin_task(first_task=True)
    for _ in range(2):
        learn(learner)
    expert = Expert(learner.backbone, torch.randn(3, 256, device="cuda"), learner.setting)
    expert.logits(torch.randn(4, 3, 32, 32, device="cuda"))
    assert len(seen) == 6
    for maps in seen:
        assert maps.is_contiguous(memory_format=torch.channels_last) == (precision == "bf16")
    on_cpu = make_learner(precision=precision)
    on_cpu.begin_task(first_task=True)
    on_cpu.load_state_dict(learner.state_dict())
    learn(on_cpu)
    learner.load_state_dict(on_cpu.state_dict())
    learn(learner)
    assert all(parameter.isfinite().all() for parameter in learner.backbone.parameters())
