"""The network of a finished model: normalized images to logits of all classes.

What only training needs is folded away: the label graph of AGCN, the sums and main directions of closed forms.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.backbones import Backbone
from lifelabel.nn.freezing import fold_backbone
from lifelabel.nn.frozen_features import PARTS, PartFeatures
from lifelabel.nn.graph.relations import refine_logits

__all__ = ["Classifier", "InferenceNetwork", "PooledFeatures"]


class PooledFeatures(nn.Module):
    """The pooled features of a backbone. With `standardise`, those of each image have mean 0 and variance 1."""

    def __init__(self, backbone: Backbone, standardise: bool = False):
        super().__init__()
        self.backbone, self.standardise = backbone, standardise

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images).float()
        return F.layer_norm(features, features.shape[1:], eps=1e-12) if self.standardise else features


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

    def __init__(self, features: PooledFeatures | PartFeatures, classifier: Classifier):
        super().__init__()
        self.features, self.classifier = features, classifier

    @property
    def backbone(self) -> Backbone:
        return self.features.backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))

    def folded(self) -> InferenceNetwork:
        """A copy in eval mode that needs no gradient and has its batch norm folded. The classifier is shared."""
        features = copy.deepcopy(self.features).requires_grad_(False).eval()
        fold_backbone(features.backbone)
        return InferenceNetwork(features, self.classifier).eval()

    def describe(self) -> dict[str, Any]:
        """What `restore` needs besides the backbone and the tensors, in plain values."""
        if isinstance(self.features, PartFeatures):
            parts = {"parts": list(self.features.parts), "views": self.features.views}
            return {**parts, "context": self.classifier.context}
        return {"standardise": self.features.standardise, "context": self.classifier.context}

    @staticmethod
    def restore(backbone: Backbone, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> InferenceNetwork:
        """The network of a `describe` and a state dict, in eval mode.

        Raises KeyError, RuntimeError or ValueError if they do not fit.
        """
        features: PooledFeatures | PartFeatures
        if "parts" in description:
            if not set(description["parts"]) <= set(PARTS) or description["views"] not in (1, 2):
                raise ValueError("unknown features")
            for number, part in enumerate(backbone.parts):
                if (weight := tensors.get(f"features.weight{number}")) is not None:
                    part.classifier = weight, tensors[f"features.bias{number}"]
            features = PartFeatures(backbone, description["parts"], description["views"])
        else:
            features = PooledFeatures(backbone, bool(description["standardise"]))
        given = {name: tensors.get(f"classifier.{name}") for name in ("bias", "projection", "log_lift")}
        classifier = Classifier(tensors["classifier.weight"], **given, context=float(description["context"]))
        network = InferenceNetwork(features, classifier)
        network.load_state_dict(dict(tensors))
        return network.eval().requires_grad_(False)
