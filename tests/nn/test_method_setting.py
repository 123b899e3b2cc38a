"""The setting of a method: precision, memory format, and the forward pass of a backbone."""

import dataclasses

import pytest
import torch
from support.networks import CPU, make_setting

from lifelabel.nn import method_setting as setting_module
from lifelabel.nn.cuda_graphs import set_static_shapes
from lifelabel.nn.method_setting import _body, run_backbone

GPU = torch.device("cuda")


@pytest.fixture
def images():
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("precision", "device", "fast"),
    [("bf16", GPU, True), ("fp32", GPU, False), ("bf16", CPU, False), ("fp32", CPU, False)],
)
def test_only_bf16_on_a_gpu_is_fast_and_channels_last(precision, device, fast):
    setting = dataclasses.replace(make_setting(precision=precision), device=device)
    assert setting.fast == fast
    assert setting.memory_format == (torch.channels_last if fast else torch.contiguous_format)


def test_the_backbone_is_placed_in_the_memory_format_of_the_run():
    setting = make_setting()
    weight = setting.backbone.body[3].weight
    setting.backbone.to(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert setting.place_backbone() is setting.backbone
    assert weight.is_contiguous()


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_products_have_the_precision_of_the_run_inside_autocast_only(precision, dtype):
    setting, matrix = make_setting(precision=precision), torch.ones(2, 2)
    with setting.autocast():
        assert (matrix @ matrix).dtype == dtype
        assert (matrix + matrix).dtype == torch.float32
        assert torch.is_autocast_cache_enabled() == (precision == "fp32")  # CUDA graphs cannot use the cache
    assert (matrix @ matrix).dtype == torch.float32


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_features_are_float32_and_are_those_of_the_backbone(precision, images):
    setting = make_setting(precision=precision)
    backbone = setting.place_backbone().eval()
    with torch.no_grad():
        features = run_backbone(backbone, images, setting)
        with setting.autocast():
            expected = backbone(images)
        full = backbone(images)
    assert features.dtype == torch.float32 and features.shape == (3, backbone.dim)
    assert torch.equal(features, expected.float())
    assert torch.equal(features, full) == (precision == "fp32")


@pytest.mark.parametrize("training", [True, False])
def test_the_backbone_stays_in_its_mode(training, images):
    setting = make_setting()
    backbone = setting.backbone.train(training)
    statistics = {name: value.clone() for name, value in backbone.state_dict().items() if "running" in name}
    features = run_backbone(backbone, images, setting)
    assert backbone.training == training and features.requires_grad
    same = all(torch.equal(backbone.state_dict()[name], value) for name, value in statistics.items())
    assert same == (not training)


def test_images_of_any_memory_format_have_the_same_features(images):
    setting = make_setting()
    setting.backbone.eval()
    seen = []
    setting.backbone.body[0].register_forward_pre_hook(lambda module, given: seen.append(given[0].is_contiguous()))
    with torch.no_grad():
        one = run_backbone(setting.backbone, images, setting)
        other = run_backbone(setting.backbone, images.contiguous(memory_format=torch.channels_last), setting)
    assert torch.equal(one, other) and seen == [True, True]


@pytest.mark.parametrize(("compiles", "static", "expected"), [(True, True, 1), (True, False, 0), (False, True, 0)])
def test_only_steps_of_static_shapes_are_compiled(compiles, static, expected, images, monkeypatch):
    """Each shape is compiled once: batches of other sizes run eagerly. The pool is not compiled."""
    shapes = []

    def compiled(backbone, given):
        maps = _body(backbone, given)
        shapes.append(tuple(maps.shape[:2]))
        return maps

    monkeypatch.setattr(setting_module, "_compiled_body", lambda: compiled)
    setting = dataclasses.replace(make_setting(), compile=compiles)
    setting.backbone.eval()
    with torch.no_grad(), set_static_shapes(static):
        features = run_backbone(setting.backbone, images, setting)
        assert torch.equal(features, setting.backbone(images))
    assert shapes == [(3, setting.backbone.dim)] * expected
