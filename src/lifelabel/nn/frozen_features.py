"""Features of images from a frozen backbone: more than its pooled output, and of the mirrored image too.

The features of an image are these parts, side by side, each the mean over the image and its mirror image:

- `map`: the mean of the last feature map over all places, as sign(x) sqrt(|x|), scaled to length sqrt(dim). The class
  and register tokens of a transformer are treated alike.
- `stages`: the means of the outputs of the last three stages.
- `head`: the largest and the mean probability over all places, as square roots, of each class of the network's own
  ImageNet classifier. A network without such a classifier does not have this part.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.errors import UserError
from lifelabel.nn.backbone import Activations
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.cuda_graphs import StepRecorder
from lifelabel.nn.freezing import inference_copy
from lifelabel.nn.method_setting import Setting
from lifelabel.nn.onnx_runtime import fastest_forward
from lifelabel.parallel.passes import run_divided

PARTS = ("map", "stages", "head")
_CPU_CHUNK = 8
"""Images per forward pass on the CPU. The activations of a larger batch do not fit the cache."""

_EXPORT_FROM = 1000 * 224**2
"""Pixels of all training images from which ONNX Runtime is used, if it is installed: an export takes 10 seconds."""


@dataclass(frozen=True)
class _Images:
    """The input of a recorded forward pass."""

    images: Tensor


class FrozenFeatures:
    """Computes features (B x `dim`, float32) of images. The backbone must not change after the first call.

    On a GPU every forward pass has the same shape. So it can be recorded, and cuDNN prepares its kernels only once: for
    each depthwise convolution and each new shape this takes a quarter of a second. On the CPU batch norm is folded.
    """

    def __init__(self, setting: Setting, parts: Collection[str] = PARTS, views: int = 2):
        self.setting, self.parts, self.views = setting, parts, views
        self.recorder = StepRecorder(setting.record)
        self._forward_on_cpu: dict[tuple[int, ...], Callable[[Tensor], Tensor]] = {}
        self.dim = 0
        """The number of features."""
        self.standardised: list[slice] = []
        """The features that have to be standardised, in groups of one kind."""
        for backbone in setting.backbone.parts:
            if "map" in parts:
                self.dim += backbone.dim * (1 + backbone.layout.prefix)
            groups = [stage.dim for stage in backbone.layout.stages] if "stages" in parts else []
            if "head" in parts and backbone.classifier:
                groups += [len(backbone.classifier[0])] * 2
            for size in groups:
                self.standardised.append(slice(self.dim, self.dim + size))
                self.dim += size
        if not self.dim:
            missing = f"this backbone has no {' and no '.join(parts)}" if parts else "method.features is empty"
            raise UserError(f"{missing}: add 'map' to method.features")

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        return run_divided(self.setting.group, self._features, images)

    def _features(self, images: Tensor) -> Tensor:
        if not len(images):  # there are more processes than images
            return images.new_zeros(0, self.dim)
        if self.setting.device.type != "cuda":
            size = tuple(images.shape[2:])
            if size not in self._forward_on_cpu:
                self._forward_on_cpu[size] = self._make_forward(size)
            forward = self._forward_on_cpu[size]
            return torch.cat([forward(chunk) for chunk in images.split(_CPU_CHUNK)])
        found = []
        rows = math.ceil(self.setting.batch_size / self.setting.group.size)
        for chunk in images.split(rows):
            missing = rows - len(chunk)
            full = torch.cat([chunk, chunk.new_zeros(missing, *chunk.shape[1:])]) if missing else chunk
            found.append(self.recorder(self._forward_on_gpu, _Images(full))["features"][: len(chunk)])
        return torch.cat(found)

    @functools.cached_property
    def _network(self) -> nn.Module:
        """The network. It is made for the first image: a warm-up may come before."""
        backbone = self.setting.backbone.eval()
        on_gpu = self.setting.device.type == "cuda"
        network = PartFeatures(backbone if on_gpu else inference_copy(backbone), self.parts, self.views)
        network.to(self.setting.device)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types
        return network

    def _make_forward(self, size: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        """The network on the CPU, for images of one size."""
        if self.setting.precision == "bf16":
            return self._autocast
        if self.setting.images * math.prod(size) < _EXPORT_FROM:
            return self._network
        return fastest_forward(self._network, torch.empty(1, 3, *size))

    def _autocast(self, images: Tensor) -> Tensor:
        with self.setting.autocast():
            return self._network(images)

    def _forward_on_gpu(self, batch: _Images) -> dict[str, Tensor]:
        return {"features": self._autocast(batch.images)}


class Features(nn.Module):
    """What a classifier gets from a backbone: of images, or of the activations that were computed from them."""

    views = 1

    def __init__(self, backbone: Backbone):
        super().__init__()
        self.backbone = backbone

    def activations(self, images: Tensor) -> list[Activations]:
        """The activations of each network."""
        return [part.activations(images) for part in self.backbone.parts]

    def of_activations(self, given: Sequence[Activations]) -> Tensor:
        """The features of `activations`."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The arguments of the constructor besides the backbone, in plain values."""
        return {}


class PartFeatures(Features):
    """Normalized images (B x 3 x H x W) to features (B x dim), in eval mode."""

    def __init__(self, backbone: Backbone, parts: Collection[str], views: int):
        super().__init__(backbone)
        self.parts, self.views = parts, views
        for number, part in enumerate(backbone.parts):
            weight, bias = part.classifier or (None, None)
            self.register_buffer(f"weight{number}", weight)
            self.register_buffer(f"bias{number}", bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.of_activations(self.activations(images))

    def activations(self, images: Tensor) -> list[Activations]:
        """With two views, those of the mirrored images follow."""
        if self.views == 2:
            images = torch.cat([images, images.flip(3)])
        return super().activations(images.contiguous(memory_format=torch.channels_last))

    def of_activations(self, given: Sequence[Activations]) -> Tensor:
        found: list[Tensor] = []
        for number, activations in enumerate(given):
            if "map" in self.parts:
                found.append(_of_map(activations))
            if "stages" in self.parts:
                found += activations.stages
            weight, bias = getattr(self, f"weight{number}"), getattr(self, f"bias{number}")
            if "head" in self.parts and weight is not None:
                found += _of_head(activations.maps, weight, bias)
        features = torch.cat(found, 1)
        size = features.shape[0] // self.views  # not len(): an exported network takes batches of any size
        return (features[:size] + features[size:]) / 2 if self.views == 2 else features

    def describe(self) -> dict[str, Any]:
        return {"parts": list(self.parts), "views": self.views}


def _of_map(activations: Activations) -> Tensor:
    vectors = torch.cat([activations.maps.float().mean((2, 3))[:, None], activations.prefix.float()], 1)
    roots = vectors.sign() * vectors.abs().sqrt()
    length = vectors.abs().sum(2, keepdim=True).clamp(min=1e-12).sqrt()
    return (roots / length * vectors.shape[2] ** 0.5).flatten(1)


def _of_head(maps: Tensor, weight: Tensor, bias: Tensor) -> list[Tensor]:
    probabilities = F.linear(maps.flatten(2).transpose(1, 2), weight, bias).float().softmax(2)
    return [probabilities.amax(1).sqrt(), probabilities.mean(1).sqrt()]
