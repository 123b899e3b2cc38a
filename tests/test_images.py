import numpy as np
import pytest
import torch

from lifelabel.backbones import build
from lifelabel.images import AUGMENTATIONS, augment, to_input


def pictures(count=4, size=16):
    return torch.from_numpy(np.random.default_rng(0).random((count, 3, size, size), dtype=np.float32))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_pixels_are_scaled_by_the_backbones_rule():
    backbone = build("resnet18")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    x = to_input(pixels, backbone)
    assert x.shape == (2, 3, 5, 7)
    for channel in range(3):
        expected = (pixels[..., channel] / 255 - backbone.mean[channel]) / backbone.std[channel]
        np.testing.assert_allclose(x[:, channel].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_augmentation_follows_its_generator(kind):
    images = pictures(16)
    assert torch.equal(augment(images, kind, generator(1)), augment(images, kind, generator(1)))
    same = torch.equal(augment(images, kind, generator(1)), augment(images, kind, generator(2)))
    assert same == (kind == "none")


def test_flip_mirrors_about_half_of_the_images():
    images = pictures(200)
    out = augment(images, "flip", generator())
    mirrored = [torch.equal(o, i.flip(-1)) for o, i in zip(out, images, strict=True)]
    kept = [torch.equal(o, i) for o, i in zip(out, images, strict=True)]
    assert all(m != k for m, k in zip(mirrored, kept, strict=True))
    assert 70 < sum(mirrored) < 130


def test_a_crop_stays_inside_the_picture():
    ramp = torch.linspace(0, 1, 32).expand(64, 3, 32, 32).contiguous()
    out = augment(ramp, "crop-flip", generator())
    spread = out.amax((1, 2, 3)) - out.amin((1, 2, 3))
    assert out.min() >= 0 and out.max() <= 1
    assert (spread > 0.55).all()  # at least half of the area, aspect at most 4:3
    assert (spread < 0.9).any()
    rising = out[:, 0, 0, -1] > out[:, 0, 0, 0]
    assert 0 < rising.sum() < 64
