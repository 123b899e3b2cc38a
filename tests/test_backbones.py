import pytest
import torch

from lifelabel.backbones import BACKBONES, build
from lifelabel.errors import UserError


@pytest.mark.parametrize("name", [*BACKBONES, "timm/resnet10t"])
def test_features_are_the_pool_of_the_last_map(name):
    if name.startswith("timm/"):
        pytest.importorskip("timm")
    images = torch.randn(2, 3, 64, 64)
    for pool in ("max", "avg"):
        torch.manual_seed(0)
        net = build(name, pool).eval()
        with torch.no_grad():
            features, maps = net(images), net.body(images)
        assert features.shape == (2, net.dim)
        expected = maps.flatten(2).max(2).values if pool == "max" else maps.flatten(2).mean(2)
        torch.testing.assert_close(features, expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [("resnet11", "did you mean 'resnet1(01|8)'"), ("timm/resnetXX", "unknown timm model"), ("", "unknown")],
)
def test_an_unknown_name_offers_another(name, message):
    with pytest.raises(UserError, match=message):
        build(name)


def test_a_model_without_a_feature_map_is_refused():
    pytest.importorskip("timm")
    with pytest.raises(UserError, match="no feature map"):
        build("timm/vit_tiny_patch16_224")
