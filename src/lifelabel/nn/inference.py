"""The network of a finished model: normalized images to logits of all classes.

What only training needs is folded away: the label graph of AGCN, the sums and main directions of closed forms.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.backbone import Activations
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.freezing import fold_backbone
from lifelabel.nn.frozen_features import Features, PartFeatures
from lifelabel.nn.graph.relations import refine_logits
from lifelabel.nn.heads import MapHead, build_head


class PooledFeatures(Features):
    """The pooled features of a backbone.

    With `standardise`, those of each image have mean 0 and variance 1. With `normalise`, they have length 1.
    """

    def __init__(self, backbone: Backbone, standardise: bool = False, normalise: bool = False):
        super().__init__(backbone)
        self.standardise, self.normalise = standardise, normalise

    def forward(self, images: Tensor) -> Tensor:
        return self._scaled(self.backbone(images))

    def of_activations(self, given: Sequence[Activations]) -> Tensor:
        pools = (part.pool for part in self.backbone.parts)
        maps = (each.maps for each in given)
        pooled = (m.amax((2, 3)) if pool == "max" else m.mean((2, 3)) for m, pool in zip(maps, pools, strict=True))
        return self._scaled(torch.cat(list(pooled), 1))

    def describe(self) -> dict[str, Any]:
        return {"standardise": self.standardise, "normalise": self.normalise}

    def _scaled(self, features: Tensor) -> Tensor:
        features = features.float()
        if self.standardise:
            features = F.layer_norm(features, features.shape[1:], eps=1e-12)
        return F.normalize(features, dim=1) if self.normalise else features


class MapFeatures(Features):
    """The last feature map of a backbone (B x dim x h x w), for a `MapHead`."""

    def forward(self, images: Tensor) -> Tensor:
        return self.backbone.maps(self.backbone.body(images), images.shape[2:]).float()

    def of_activations(self, given: Sequence[Activations]) -> Tensor:
        return given[0].maps.float()


class Classifier(nn.Module):
    """Features (B x dim) to logits (B x classes): random ReLU units, a linear layer, label relations.

    `weight` is classes x dim. With `projection` (features x units) the ReLU of features @ projection is appended to the
    features. With `log_lift` (classes x classes) logits are refined with the weight `context`: see
    `lifelabel.nn.graph.relations`.
    """

    weight: Tensor
    bias: Tensor
    projection: Tensor | None
    log_lift: Tensor | None

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, projection: Tensor | None = None,
        log_lift: Tensor | None = None, context: float = 0.0,
    ):  # fmt: skip
        super().__init__()
        self.context = context
        tensors = {"weight": weight, "bias": weight.new_zeros(len(weight)) if bias is None else bias}
        for name, tensor in {**tensors, "projection": projection, "log_lift": log_lift}.items():
            self.register_buffer(name, None if tensor is None else tensor.detach().float().contiguous())

    def forward(self, features: Tensor) -> Tensor:
        if self.projection is not None:
            features = torch.cat([features, (features @ self.projection).relu()], 1)
        logits = F.linear(features, self.weight, self.bias)
        return logits if self.log_lift is None else refine_logits(logits, self.log_lift, self.context)


class InferenceNetwork(nn.Module):
    """Normalized images (B x 3 x H x W) to logits (B x classes).

    >>> from lifelabel.nn.backbones import build
    >>> network = InferenceNetwork(PooledFeatures(build("tiny")), Classifier(torch.zeros(5, 256)))
    >>> network(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 5])
    """

    def __init__(self, features: Features, classifier: Classifier | MapHead):
        super().__init__()
        self.features, self.classifier = features, classifier

    @property
    def backbone(self) -> Backbone:
        return self.features.backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))

    def activation(self, images: Tensor, classes: Sequence[int] | None = None) -> Tensor | None:
        """Where in the images the evidence for classes is (B x classes x h x w). None if there are no feature maps.

        This is Grad-CAM on the last feature map: each channel is weighted by the mean of its gradient. For a linear
        classifier of pooled features these are its weights, applied at each place. Elsewhere it is a linear
        approximation at the image: of standardised or normalised features, of the square roots of `PartFeatures`, of
        its `head`, and of label relations. Evidence in earlier stages has no place in the map, and is left out. Places
        with evidence against the class are negative. With two views, the map of the mirrored image is mirrored back and
        added.
        """
        if any(part.layout.order == "NLC" for part in self.backbone.parts):
            return None
        with torch.no_grad():
            given = self.features.activations(images)
        with torch.enable_grad():
            maps = [each.maps.detach().float().requires_grad_() for each in given]
            logits = self.classifier(
                self.features.of_activations([each._replace(maps=m) for each, m in zip(given, maps, strict=True)])
            )
            columns = range(logits.shape[1]) if classes is None else classes
            found = [torch.autograd.grad(logits[:, c].sum(), maps, retain_graph=True) for c in columns]
        largest = max((m.shape[2:] for m in maps), key=lambda shape: shape[0] * shape[1])
        total: Tensor = sum(  # type: ignore[assignment]  # there is at least one map
            _resized(torch.stack([_weighted(m.detach(), gradient) for gradient in gradients], 1), largest)
            for m, gradients in zip(maps, zip(*found, strict=True), strict=True)
        )
        if self.features.views == 2:
            upright, mirrored = total.chunk(2)
            return upright + mirrored.flip(3)
        return total

    def folded(self) -> InferenceNetwork:
        """A copy in eval mode that needs no gradient and has its batch norm folded. The classifier is shared."""
        features = copy.deepcopy(self.features).requires_grad_(False).eval()
        fold_backbone(features.backbone)
        return InferenceNetwork(features, self.classifier).eval()

    def describe(self) -> dict[str, Any]:
        """What `restore` needs besides the backbone and the tensors, in plain values."""
        if isinstance(self.classifier, MapHead):
            return {"head": self.classifier.describe()}
        return {**self.features.describe(), "context": self.classifier.context}

    @staticmethod
    def restore(backbone: Backbone, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> InferenceNetwork:
        """The network of a `describe` and a state dict, in eval mode.

        Raises KeyError, RuntimeError or ValueError if they do not fit.
        """
        if "head" in description:
            own = {name.removeprefix("classifier."): t for name, t in tensors.items() if name.startswith("classifier.")}
            network = InferenceNetwork(MapFeatures(backbone), build_head(description["head"], own))
        else:
            given = {name: tensors.get(f"classifier.{name}") for name in ("bias", "projection", "log_lift")}
            classifier = Classifier(tensors["classifier.weight"], **given, context=float(description["context"]))
            network = InferenceNetwork(_restored_features(backbone, description, tensors), classifier)
        network.load_state_dict(dict(tensors))
        return network.eval().requires_grad_(False)


def _restored_features(backbone: Backbone, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Features:
    if "parts" not in description:
        return PooledFeatures(backbone, description["standardise"], description["normalise"])
    for number, part in enumerate(backbone.parts):
        if (weight := tensors.get(f"features.weight{number}")) is not None:
            part.classifier = weight, tensors[f"features.bias{number}"]
    return PartFeatures(backbone, description["parts"], description["views"])


def _resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    if maps.shape[2:] == tuple(size):
        return maps
    return F.interpolate(maps, list(size), mode="bilinear", align_corners=False)


def _weighted(maps: Tensor, gradient: Tensor) -> Tensor:
    """B x h x w: the channels of maps, weighted by the means of their gradients."""
    # the gradient of the square root of a channel that is 0 everywhere is not finite, and the channel has no evidence
    return (gradient.mean((2, 3), True).nan_to_num(0, 0, 0) * maps).sum(1)
