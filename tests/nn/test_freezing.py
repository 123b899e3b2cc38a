"""Folding of batch norm: the same results, and no change where it would give others."""

import pytest
import timm
import torch
from support.networks import with_statistics
from torch import nn

from lifelabel.nn.backbones import PairedBackbone, build
from lifelabel.nn.freezing import fold_batch_norm, inference_copy

NETWORKS = {"resnet18": 64, "efficientnet-lite0": 96, "tiny": 64, "torchvision/mnasnet0_5": 64}


def norms(net):
    return [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]


def difference(found, expected):
    return float((found - expected).norm() / expected.norm())


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_folded_copy_agrees_with_the_backbone(name):
    """In float64: a network with random weights amplifies the rounding errors of float32."""
    backbone = with_statistics(build(name, "avg")).double().eval()
    images = torch.randn(2, 3, NETWORKS[name], NETWORKS[name], dtype=torch.float64)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    folded = inference_copy(backbone)
    assert len(norms(folded)) == (name == "torchvision/mnasnet0_5")  # its last convolution is a stage
    assert difference(folded(images), backbone(images)) < 1e-10
    found, expected = folded.activations(images), backbone.activations(images)
    for a, b in zip((found.maps, *found.stages), (expected.maps, *expected.stages), strict=True):
        assert difference(a, b) < 1e-6  # means of stages are in float32
    assert not folded.training and not any(parameter.requires_grad for parameter in folded.parameters())
    assert before.keys() == backbone.state_dict().keys()
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


@torch.no_grad()
def test_with_imagenet_weights_a_folded_copy_agrees_to_1e_5():
    backbone = build("efficientnet-lite0", "avg", "imagenet").eval()
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    assert difference(inference_copy(backbone)(images), backbone(images)) < 1e-5


class Block(nn.Module):
    """Conv, batch norm and what is between them, as `forward` says."""

    def __init__(self, forward):
        super().__init__()
        self.conv, self.norm, self.run = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), forward

    def forward(self, images):
        return self.run(self, images)


def both(block, images):
    maps = block.conv(images)
    return block.norm(maps) + maps


def depends_on_the_images(block, images):
    return block.norm(block.conv(images)) if images.sum() > 0 else images


@torch.no_grad()
@pytest.mark.parametrize(
    "forward",
    [
        lambda block, images: block.norm(block.conv(images).relu()),
        lambda block, images: block.conv(block.norm(block.conv(images))[:, :3]),
        both,
        depends_on_the_images,
    ],
    ids=["activation between", "convolution used twice", "output used twice", "not traceable"],
)
def test_other_layers_are_not_changed(forward):
    block = with_statistics(Block(forward)).eval()
    images = torch.randn(2, 3, 8, 8)
    expected = block(images)
    fold_batch_norm(block)
    assert len(norms(block)) == 1 and torch.equal(block(images), expected)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval(),
        nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)).eval(),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4)).eval(),
    ],
    ids=["train mode", "statistics of the batch", "transposed convolution", "group norm"],
)
def test_layers_that_cannot_be_folded_are_not_changed(net):
    layers, weight = list(net), net[0].weight.clone()
    fold_batch_norm(net)
    assert list(net) == layers and torch.equal(net[0].weight, weight)


@torch.no_grad()
def test_an_activation_of_timm_is_kept():
    norm = timm.layers.BatchNormAct2d(4, act_layer=nn.ReLU6)
    net = with_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), norm)).eval()
    images = 20 * torch.randn(2, 3, 8, 8)
    expected = net(images)
    fold_batch_norm(net)
    assert not norms(net) and isinstance(net[1], nn.ReLU6)
    assert difference(net(images), expected) < 1e-5


@torch.no_grad()
def test_both_parts_of_a_pair_are_folded():
    parts = [with_statistics(build("tiny")), with_statistics(build("torchvision/mobilenet_v2"))]
    pair = PairedBackbone(parts).eval()
    folded = inference_copy(pair)
    images = torch.randn(2, 3, 64, 64)
    assert norms(pair) and not norms(folded)
    assert difference(folded(images), pair(images)) < 1e-5
