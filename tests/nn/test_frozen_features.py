"""Features of a frozen backbone, against what its parts compute image by image."""

import copy

import numpy as np
import pytest
import torch
from support.networks import make_setting, with_statistics

from lifelabel.errors import UserError
from lifelabel.nn import frozen_features
from lifelabel.nn.frozen_features import PARTS, FrozenFeatures

DIMS = {
    # map and stages; no head with random weights
    "tiny": 256 + (64 + 128 + 256),
    "resnet18": 512 + (128 + 256 + 512),
    "timm/test_vit": 2 * 64 + 3 * 64,  # the class token is treated as a map
    "tiny+timm/test_vit": 256 + (64 + 128 + 256) + 2 * 64 + 3 * 64,
}
SIZES = {"resnet18": 64}


def make(backbone="tiny", classifier=0, batch_size=8, precision="fp32", device="cpu", compile="auto"):
    """A setting for tests. With `classifier`, its backbone has a classifier of that many classes."""
    torch.manual_seed(0)
    options = {"backbone": backbone, "weights": "none", "batch_size": batch_size, "precision": precision}
    setting = make_setting(torch.device(device), **options, compile=compile)
    with_statistics(setting.backbone)  # so that folding batch norm changes weights
    for part in setting.backbone.parts if classifier else ():
        part.classifier = torch.randn(classifier, part.dim) / 4, torch.randn(classifier)
    setting.place_backbone()
    return setting


def images(count=5, size=48, seed=1):
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def assert_close(found, expected, tolerance=1e-5):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.double(), expected.double(), rtol=0, atol=tolerance * expected.abs().max().item())


def slow_features(backbone, image, parts):
    """The features of one image in float64, part by part."""
    found = []
    for part in copy.deepcopy(backbone).double().eval().parts:
        activations = part.activations(image[None].double())
        maps = activations.maps[0].detach().numpy()
        vectors = [maps.mean((1, 2)), *activations.prefix[0].detach().numpy()]
        if "map" in parts:
            for vector in vectors:
                root = np.sign(vector) * np.sqrt(np.abs(vector))
                found.append(root / np.linalg.norm(root) * np.sqrt(len(vector)))
        if "stages" in parts:
            found += [stage[0].detach().double().numpy() for stage in activations.stages]
        if "head" in parts and part.classifier:
            weight, bias = (each.double().numpy() for each in part.classifier)
            largest, total = np.zeros(len(bias)), np.zeros(len(bias))
            for row in range(maps.shape[1]):
                for column in range(maps.shape[2]):
                    exponential = np.exp(weight @ maps[:, row, column] + bias)
                    probability = exponential / exponential.sum()
                    largest, total = np.maximum(largest, probability), total + probability
            found += [np.sqrt(largest), np.sqrt(total / (maps.shape[1] * maps.shape[2]))]
    return np.concatenate(found)


@pytest.mark.parametrize("parts", [PARTS, ("map",), ("stages",), ("head",), ("head", "map")], ids="+".join)
@pytest.mark.parametrize("name", DIMS)
def test_features_equal_those_of_each_image_by_loops(name, parts):
    setting = make(name, classifier=7)
    given = images(3, SIZES.get(name, 32))
    extract = FrozenFeatures(setting, parts)
    found, one_view = extract(given), FrozenFeatures(setting, parts, views=1)(given)
    views = [[slow_features(setting.backbone, view, parts) for view in (image, image.flip(2))] for image in given]
    assert_close(found, torch.from_numpy(np.mean(views, 1)), 1e-4)
    assert_close(one_view, torch.from_numpy(np.array(views)[:, 0]), 1e-4)
    assert extract.dim == found.shape[1] and found.dtype == torch.float32 and not found.requires_grad


@pytest.mark.parametrize("name", DIMS)
def test_dimensions_and_groups_of_standardised_features(name):
    """The groups cover stages and heads."""
    assert FrozenFeatures(make(name)).dim == DIMS[name]
    setting = make(name, classifier=7)
    extract = FrozenFeatures(setting)
    covered = np.zeros(extract.dim, int)
    for group in extract.standardised:
        covered[group] += 1
    expected = []
    for part in setting.backbone.parts:
        stages = sum(stage.dim for stage in part.layout.stages)
        expected += [0] * part.dim * (1 + part.layout.prefix) + [1] * (stages + 2 * 7)
    assert covered.tolist() == expected
    assert len(extract.standardised) == 5 * len(setting.backbone.parts)
    assert not FrozenFeatures(setting, ("map",)).standardised


@pytest.mark.parametrize("name", ["tiny", "resnet18", "timm/test_vit"])
def test_batches_do_not_change_features(name, monkeypatch):
    given = images(2 * frozen_features._CPU_CHUNK + 3)
    expected = FrozenFeatures(make(name))(given)
    for chunk in (1, 5, 100):
        monkeypatch.setattr(frozen_features, "_CPU_CHUNK", chunk)
        assert_close(FrozenFeatures(make(name))(given), expected, 1e-6)
    extract = FrozenFeatures(make(name))
    assert_close(torch.cat([extract(image[None]) for image in given]), expected, 1e-6)


def test_images_of_several_sizes():
    extract = FrozenFeatures(make())
    for size in (32, 48, 32):
        assert_close(extract(images(2, size)), FrozenFeatures(make())(images(2, size)), 1e-6)


def test_the_backbone_is_not_changed():
    setting = make("resnet18")
    before = copy.deepcopy(setting.backbone.state_dict())
    setting.backbone.train()
    FrozenFeatures(setting)(images())
    after = setting.backbone.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


def test_bfloat16_agrees_roughly():
    expected, found = (FrozenFeatures(make(precision=precision))(images()) for precision in ("fp32", "bf16"))
    assert found.dtype == torch.float32 and not torch.equal(found, expected)
    assert_close(found, expected, 0.05)


def test_a_backbone_without_any_of_the_parts_is_refused():
    assert FrozenFeatures(make(), ("head", "stages")).dim
    with pytest.raises(UserError, match=r"^this backbone has no head: add 'map' to method\.features$"):
        FrozenFeatures(make(), ("head",))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["tiny", "timm/test_vit"])
def test_on_a_gpu_all_batches_have_one_shape(name, precision):
    """Smaller batches are filled up, larger ones are split, and the pass is recorded."""
    setting = make(name, batch_size=4, precision=precision, device="cuda")
    extract = FrozenFeatures(setting)
    expected = FrozenFeatures(make(name))(images(11))
    given = images(11).cuda()
    tolerance = 1e-2 if precision == "fp32" else 0.1  # the square root of the map enlarges differences near 0
    for count in (4, 4, 4, 4, 3, 11, 1):
        assert_close(extract(given[:count]).cpu(), expected[:count], tolerance)
    assert len(extract.recorder.recorded) == 1
    eager = FrozenFeatures(make(name, batch_size=4, precision=precision, device="cuda", compile="off"))
    assert_close(extract(given).cpu(), eager(given).cpu(), 1e-5)
    assert not eager.recorder.recorded
