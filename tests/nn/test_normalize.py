import numpy as np
import pytest
import torch
from support.networks import make_setting

from lifelabel.nn.backbones import build
from lifelabel.nn.normalize import AUTHORS_MEAN, AUTHORS_STD, IMAGENET_MEAN, IMAGENET_STD, Normalize


def assert_normalized(normalize, mean, std):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    x = normalize(torch.from_numpy(pixels))
    assert x.shape == (2, 3, 5, 7) and x.dtype == torch.float32 and x.is_contiguous()
    for channel in range(3):
        expected = (pixels[..., channel] / 255 - mean[channel]) / std[channel]
        np.testing.assert_allclose(x[:, channel].numpy(), expected, atol=1e-5)


def test_the_values_of_imagenet_and_of_the_authors():
    assert (IMAGENET_MEAN, IMAGENET_STD) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert (AUTHORS_MEAN, AUTHORS_STD) == ((0.488, 0.486, 0.406), (0.229, 0.224, 0.228))
    assert_normalized(Normalize(AUTHORS_MEAN, AUTHORS_STD), (0.488, 0.486, 0.406), (0.229, 0.224, 0.228))


@pytest.mark.parametrize(
    ("option", "mean", "std"),
    [("backbone", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)), ("authors", AUTHORS_MEAN, AUTHORS_STD)],
)
def test_the_option_selects_the_values(option, mean, std):
    setting = make_setting(backbone="tiny", normalize=option)
    assert (setting.backbone.normalize.mean, setting.backbone.normalize.std) == (mean, std)
    assert_normalized(setting.backbone.normalize, mean, std)


def test_the_values_are_not_part_of_the_state():
    assert not Normalize().state_dict()
    assert not any("normalize" in name for name in build("tiny").state_dict())
