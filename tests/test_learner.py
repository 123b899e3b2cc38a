import copy
import dataclasses

import pytest
import torch

from lifelabel.config import Config
from lifelabel.learner import (
    Expert,
    Learner,
    LinearHead,
    Setting,
    frozen,
    run_backbone,
    with_products_in_bfloat16,
)


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


def test_a_frozen_backbone_has_no_gradient_and_keeps_its_statistics():
    learner = make_learner(batch_norm="running")
    learner.begin_task(first=True)
    learner.freeze()
    before = copy.deepcopy(learner.backbone.state_dict())
    rows = learner.head.weights[0].detach().clone()
    learn(learner)
    assert all(torch.equal(v, before[k]) for k, v in learner.backbone.state_dict().items())
    assert not torch.equal(learner.head.weights[0], rows)


def test_the_expert_of_a_linear_head_says_what_the_network_said_also_when_restored():
    learner = make_learner()
    with torch.no_grad():
        learner.head.biases[0].copy_(torch.tensor([3.0, -2.0]))
    weight, bias = learner.head.rows()
    expert = Expert(learner.backbone, weight, learner.setting, bias)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        learner.backbone.eval()
        said = [[sum(f * w).item() + b for w, b in zip(weight, (3, -2), strict=True)] for f in learner.backbone(images)]
    torch.testing.assert_close(expert.logits(images), torch.tensor(said))
    again = Expert.restore(expert.state_dict(), make_setting().backbone, learner.setting)
    assert torch.equal(again.logits(images), expert.logits(images))
    assert again.bytes == 4 * 2 * 257 + sum(
        v.numel() * v.element_size() for v in learner.backbone.state_dict().values()
    )


def test_an_expert_without_a_bias_is_restored_from_a_state_that_does_not_name_one():
    setting = make_setting()
    expert = Expert(setting.backbone, torch.randn(3, 256), setting)
    state = {key: expert.state_dict()[key] for key in ("backbone", "nodes")}
    images = torch.randn(2, 3, 32, 32)
    again = Expert.restore(state, make_setting().backbone, setting)
    assert torch.equal(again.logits(images), expert.logits(images))


def worn(backbone):
    """As if it had been trained: batch norm with statistics and weights of its own."""
    for module in backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.weight, 0.5, 2)
            torch.nn.init.normal_(module.bias)
    return backbone


@pytest.mark.parametrize("name", ["tiny", "resnet18", "torchvision/densenet121"])
def test_folded_batch_norm_says_the_same_with_fewer_layers(name):
    backbone = worn(make_setting(backbone=name, weights="none").backbone)
    before = copy.deepcopy(backbone.state_dict())
    images = torch.randn(2, 3, 64, 64)
    as_it_is, folded = frozen(backbone, fold=False), frozen(backbone, fold=True)
    with torch.no_grad():
        torch.testing.assert_close(folded(images), as_it_is(images), rtol=1e-3, atol=1e-3)
    assert len(folded.state_dict()) < len(as_it_is.state_dict())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_a_network_that_cannot_be_traced_is_not_folded():
    class Choosy(torch.nn.Module):
        def forward(self, images):
            return images if images.mean() > 0 else -images

    backbone = make_setting().backbone
    backbone.body.append(Choosy())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(frozen(backbone, fold=True)(images), frozen(backbone, fold=False)(images))


def test_a_folded_expert_follows_the_network_and_goes_on_where_nothing_is_compiled():
    setting = make_setting()
    compiling = dataclasses.replace(setting, compile=True)
    images, nodes = torch.randn(2, 3, 32, 32), torch.randn(3, 256)
    expert = Expert(worn(setting.backbone), nodes, compiling)
    network = expert.backbone
    for there in (setting, compiling):
        said = Expert(worn(setting.backbone), nodes, setting).logits(images)
        expert = Expert(setting.backbone, nodes, compiling, last=expert)
        assert expert.backbone is network and expert.fold
        torch.testing.assert_close(expert.logits(images), said, rtol=1e-4, atol=1e-4)
        again = Expert.restore(expert.state_dict(), make_setting().backbone, there)
        assert again.fold and torch.equal(again.logits(images), expert.logits(images))
        then = Expert(setting.backbone, nodes, there, last=again)
        assert then.fold == there.compile
        torch.testing.assert_close(then.logits(images), said, rtol=1e-4, atol=1e-4)


def test_only_what_autocast_turns_into_bfloat16_is_turned():
    setting = make_setting(precision="bf16")
    images = torch.randn(2, 3, 32, 32)
    kept, turned = (frozen(worn(setting.backbone), fold=False) for _ in range(2))
    turned.load_state_dict(kept.state_dict())
    with_products_in_bfloat16(turned)
    kinds = {
        type(module): weight.dtype
        for module in turned.modules()
        if (weight := getattr(module, "weight", None)) is not None
    }
    assert kinds == {torch.nn.Conv2d: torch.bfloat16, torch.nn.BatchNorm2d: torch.float32}
    with torch.no_grad():
        assert torch.equal(run_backbone(turned, images, setting), run_backbone(kept, images, setting))


def test_a_state_from_a_device_with_another_memory_format_goes_on_to_the_bit():
    """Adam's fused step goes through memory as it lies: moments that lie otherwise would be mixed up, silently."""
    straight = make_learner()
    straight.begin_task(first=True)
    learn(straight)
    state = copy.deepcopy(straight.state_dict())
    for moments in state["optimizer"]["state"].values():
        for name in ("exp_avg", "exp_avg_sq"):
            if moments[name].dim() == 4:
                moments[name] = moments[name].contiguous(memory_format=torch.channels_last)
    resumed = make_learner()
    resumed.begin_task(first=True)
    resumed.load_state_dict(state)
    for learner in (straight, resumed):
        torch.manual_seed(1)
        learn(learner)
    for a, b in zip(straight.backbone.parameters(), resumed.backbone.parameters(), strict=True):
        assert torch.equal(a, b)


def is_channels_last(learner):
    return learner.backbone.body[3].weight.is_contiguous(memory_format=torch.channels_last)


def test_the_memory_format_is_the_plain_one_on_the_cpu():
    assert not any(is_channels_last(make_learner(precision=precision)) for precision in ("fp32", "bf16"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_on_the_gpu_runs_with_the_channels_last(precision):
    device = torch.device("cuda")
    setting = dataclasses.replace(make_setting(precision=precision), device=device)
    head = LinearHead(256)
    head.grow(2, device)
    learner = Learner(head, setting)
    assert is_channels_last(learner) == (precision == "bf16")
    seen = []
    learner.backbone.body[3].register_forward_hook(lambda _, given, out: seen.extend([given[0], out]))
    images = torch.randn(4, 3, 32, 32, device=device)
    learner.begin_task(first=True)
    for _ in range(2):
        learner.step(learner.head(learner.features(images)).square().sum())
    expert = Expert(learner.backbone, torch.randn(3, 256, device=device), setting)
    expert.logits(images)
    assert len(seen) == 6
    for maps in seen:
        assert maps.is_contiguous(memory_format=torch.channels_last) == (precision == "bf16")
    on_cpu = make_learner(precision=precision)
    on_cpu.begin_task(first=True)
    on_cpu.load_state_dict(learner.state_dict())
    learn(on_cpu)
    learner.load_state_dict(on_cpu.state_dict())
    learner.step(learner.head(learner.features(images)).square().sum())
    assert all(parameter.isfinite().all() for parameter in learner.backbone.parameters())
