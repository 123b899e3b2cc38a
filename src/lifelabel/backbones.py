"""Image feature extractors by name: ours for the embedded stream, torchvision's and timm's for photographs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lifelabel.errors import UserError, unknown

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


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
    ):
        super().__init__()
        self.body, self.dim, self.pool, self.mean, self.std = body, dim, pool, mean, std
        # on the device once, not once a batch; no weights, so not part of the state
        self.register_buffer("shift", 255 * torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("scale", 1 / (255 * torch.tensor(std)[:, None, None]), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.body(images)
        return maps.amax((2, 3)) if self.pool == "max" else maps.mean((2, 3))

    def set_training(self, freeze_statistics: bool) -> None:
        """Training mode; with `freeze_statistics` batch norm uses, and leaves alone, the statistics it has."""
        self.train()
        if freeze_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()


def tiny(pool: str) -> Backbone:
    """Four convolutions for 64-pixel pictures, trained from scratch."""
    layers: list[nn.Module] = []
    for into, out, stride in ((3, 32, 2), (32, 64, 2), (64, 128, 2), (128, 256, 1)):
        layers += [nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
    return Backbone(nn.Sequential(*layers), 256, pool, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


def resnet(name: str) -> Callable[[str], Backbone]:
    def build(pool: str) -> Backbone:
        from torchvision import models

        net = models.get_model(name, weights=None)
        body = nn.Sequential(*list(net.children())[:-2])
        return Backbone(body, net.fc.in_features, pool)

    return build


def from_timm(name: str, pool: str) -> Backbone:
    """Any timm model that yields a feature map, by its timm name, without weights."""
    try:
        import timm
    except ImportError:
        raise UserError(f"backbone 'timm/{name}' needs timm: pip install 'lifelabel[timm]'") from None
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    net: Any = timm.create_model(name, pretrained=False, num_classes=0, global_pool="")
    net.eval()
    with torch.no_grad():
        maps = net(torch.zeros(1, *net.pretrained_cfg["input_size"]))
    if maps.dim() != 4 or maps.shape[1] != net.num_features:
        raise UserError(f"backbone 'timm/{name}' gives no feature map to pool; choose a convolutional timm model")
    return Backbone(net, net.num_features, pool, net.pretrained_cfg["mean"], net.pretrained_cfg["std"])


BACKBONES: dict[str, tuple[str, Callable[[str], Backbone]]] = {
    "tiny": ("4 convolutions, 256 features, from scratch, for the embedded 64-pixel pictures", tiny),
    "resnet18": ("torchvision, 512 features, from scratch", resnet("resnet18")),
    "resnet34": ("torchvision, 512 features, from scratch", resnet("resnet34")),
    "resnet50": ("torchvision, 2048 features, from scratch", resnet("resnet50")),
    "resnet101": ("torchvision, 2048 features, from scratch: the paper's architecture", resnet("resnet101")),
}


def build(name: str, pool: str = "max") -> Backbone:
    """A backbone by name (`lifelabel list backbones`), with fresh weights.

    >>> build("tiny")(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 256])
    """
    if name.startswith("timm/"):
        return from_timm(name.removeprefix("timm/"), pool)
    if name not in BACKBONES:
        raise unknown("backbone", name, [*BACKBONES, "timm/NAME"])
    return BACKBONES[name][1](pool)
