"""The frozen expert: a copy of the network that does not change."""

import copy

import pytest
import torch
from support.networks import make_setting, with_statistics

from lifelabel.nn.expert import Expert, _cast_products_to_bfloat16
from lifelabel.nn.learner import Learner, LinearHead
from lifelabel.nn.method_setting import run_backbone


def test_the_expert_is_a_copy_without_gradient_and_its_logits_do_not_change_its_statistics():
    setting = make_setting()
    nodes, images = torch.randn(3, 256, requires_grad=True), torch.randn(2, 3, 32, 32)
    expert = Expert(with_statistics(setting.backbone.train()), nodes, setting)
    before = copy.deepcopy(expert.backbone.state_dict())
    logits = expert.logits(images)
    with torch.no_grad():
        nodes.zero_()
        for parameter in setting.backbone.parameters():
            parameter.zero_()
    assert torch.equal(expert.logits(images), logits)
    assert all(torch.equal(value, before[key]) for key, value in expert.backbone.state_dict().items())
    assert not any(tensor.requires_grad for tensor in (logits, *expert.backbone.parameters()))
    assert setting.backbone.training  # the network itself stays in train mode


def test_the_expert_of_a_linear_head_has_the_logits_of_the_network_also_when_restored():
    head = LinearHead(256)
    head.grow(2, torch.device("cpu"))
    learner = Learner(head, make_setting())
    with torch.no_grad():
        learner.head.biases[0].copy_(torch.tensor([3.0, -2.0]))
    weight, bias = learner.head.rows()
    expert = Expert(learner.backbone, weight, learner.setting, bias)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        learner.backbone.eval()
        features = learner.backbone(images)
        expected = [[sum(f * w).item() + b for w, b in zip(weight, (3, -2), strict=True)] for f in features]
    torch.testing.assert_close(expert.logits(images), torch.tensor(expected))
    again = Expert.restore(expert.state_dict(), make_setting().backbone, learner.setting)
    assert torch.equal(again.logits(images), expert.logits(images))
    assert again.nbytes == 4 * 2 * 257 + sum(value.nbytes for value in learner.backbone.state_dict().values())


def test_a_new_expert_takes_over_the_network_of_the_previous_one():
    setting = make_setting()
    images, nodes = torch.randn(2, 3, 32, 32), torch.randn(3, 256)
    expert = Expert(with_statistics(setting.backbone), nodes, setting)
    network, tensors = expert.backbone, [t.data_ptr() for t in expert.backbone.state_dict().values()]
    for _ in range(2):
        with_statistics(setting.backbone)
        fresh = Expert(setting.backbone, nodes, setting)
        expert = Expert(setting.backbone, nodes, setting, previous=expert)
        assert expert.backbone is network
        assert [t.data_ptr() for t in network.state_dict().values()] == tensors  # the same memory
        assert torch.equal(expert.logits(images), fresh.logits(images))
        again = Expert.restore(expert.state_dict(), make_setting().backbone, setting)
        assert torch.equal(again.logits(images), expert.logits(images))
        expert_of_restored = Expert(setting.backbone, nodes, setting, previous=again)
        assert torch.equal(expert_of_restored.logits(images), expert.logits(images))


@pytest.mark.parametrize("name", ["tiny", "resnet18", "torchvision/densenet121"])
def test_the_expert_has_the_logits_of_the_network_in_eval_mode_to_the_bit(name):
    setting = make_setting(backbone=name, weights="none")
    backbone = with_statistics(setting.backbone)
    before = copy.deepcopy(backbone.state_dict())
    images, nodes = torch.randn(2, 3, 64, 64), torch.randn(3, backbone.dim)
    expert = Expert(backbone, nodes, setting)
    with torch.no_grad():
        assert torch.equal(expert.logits(images), backbone.eval()(images) @ nodes.T)
    assert expert.backbone.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


def test_only_the_weights_that_autocast_casts_are_cast_to_bfloat16():
    setting = make_setting(precision="bf16")
    images = torch.randn(2, 3, 32, 32)
    original = with_statistics(setting.backbone).eval()
    cast = copy.deepcopy(original)
    _cast_products_to_bfloat16(cast)
    dtypes = {
        type(module): weight.dtype
        for module in cast.modules()
        if (weight := getattr(module, "weight", None)) is not None
    }
    assert dtypes == {torch.nn.Conv2d: torch.bfloat16, torch.nn.BatchNorm2d: torch.float32}
    with torch.no_grad():
        assert torch.equal(run_backbone(cast, images, setting), run_backbone(original, images, setting))
