"""Maps of the evidence for a class."""

import pytest
import torch

from lifelabel.nn.backbones import PairedBackbone, build
from lifelabel.nn.frozen_features import PartFeatures
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures

IMAGES = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def classifier(dim, classes=4):
    generator = torch.Generator().manual_seed(1)
    return Classifier(torch.randn(classes, dim, generator=generator), torch.randn(classes, generator=generator))


def network(features, dim):
    return InferenceNetwork(features, classifier(dim)).eval().requires_grad_(False)


@pytest.mark.parametrize("pool", ["max", "avg"])
def test_a_linear_classifier_is_applied_at_each_place(pool):
    backbone = build("tiny", pool).eval()
    net = network(PooledFeatures(backbone), 256)
    maps = backbone.activations(IMAGES).maps
    found = net.activation(IMAGES)
    assert torch.allclose(found, torch.einsum("cd,bdhw->bchw", net.classifier.weight, maps) / 64, atol=1e-5)
    if pool == "avg":  # the places add up to the logit
        assert torch.allclose(found.sum((2, 3)) + net.classifier.bias, net(IMAGES), atol=1e-4)
    assert torch.equal(net.activation(IMAGES, [2, 0]), found[:, [2, 0]])


def test_the_features_are_those_of_the_forward_pass():
    pair = PairedBackbone([build("tiny", "max"), build("tiny", "max")]).eval()
    for features in (
        PooledFeatures(pair, True),
        PooledFeatures(pair, normalise=True),
        PartFeatures(pair, ("map", "stages"), 2),
    ):
        assert torch.equal(features.of_activations(features.activations(IMAGES)), features(IMAGES))


def test_two_views_give_a_map_of_the_upright_image():
    torch.manual_seed(0)
    backbone = build("tiny", "avg").eval()
    net = network(PartFeatures(backbone, ("map", "stages"), 2), 256 + 64 + 128 + 256)
    found, mirrored = net.activation(IMAGES), net.activation(IMAGES.flip(3))
    assert found.shape == (3, 4, 8, 8) and found.isfinite().all() and found.abs().max() > 0
    assert torch.allclose(mirrored.flip(3), found, atol=1e-4)


def test_channels_that_are_zero_everywhere_have_no_evidence():
    backbone = build("tiny", "avg").eval()
    net = network(PartFeatures(backbone, ("map",), 1), 256)
    found = net.activation(torch.zeros(1, 3, 64, 64))  # batch norm without bias: most channels are 0
    assert found.isfinite().all()


def test_several_backbones_add_up_and_nothing_needs_gradients():
    pair = PairedBackbone([build("tiny", "max"), build("tiny", "max")])
    net = network(PooledFeatures(pair, standardise=True), 512)
    found = net.activation(IMAGES)
    assert found.shape == (3, 4, 8, 8) and not found.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_transformer_has_no_map():
    backbone = build("timm/vit_tiny_patch16_224").eval()
    assert network(PooledFeatures(backbone), 192).activation(torch.zeros(1, 3, 224, 224)) is None
