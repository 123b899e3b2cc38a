"""L3A: Label-Augmented Analytic Adaptation (Zhang, He et al., ICML 2025): ridge regression, in closed form.

    W = (sum Z' Omega Z + ridge I)^-1  sum Z' Omega Y

Z are the features of a frozen backbone and a fixed random ReLU layer on them. Y are the visible labels, and pseudo
labels for the old classes. Omega has the weights of the images. The sums are over all tasks, so no image is stored and
nothing is forgotten. docs/methods/l3a.md documents every option.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.errors import UserError
from lifelabel.methods.method import Batch, Method
from lifelabel.methods.warm_up import WarmUp
from lifelabel.nn import losses
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.method_setting import Setting, run_backbone
from lifelabel.options import option

_LOGIT_SCALE = 4.0
"""Scales regression values, which are around 0 and 1, to logits. Neither their order nor their sign depends on it."""


@dataclass(frozen=True)
class _L3AOptions:
    projection: int = option(
        2048, "random ReLU units in addition to the features; 0: only the features", low=0, high=32_768
    )
    ridge: float = option(1e4, "γ, the regularisation of the regression: larger values give smaller weights", above=0)
    pseudo_threshold: float | None = option(
        0.7, "value of the last model above which an old class is a pseudo label of a new image; none: no pseudo labels"
    )
    weighting: str = option(
        "inverse", "the weight of an image: 1 (none), or larger for rare classes", choices=("none", "inverse")
    )
    compensation: float = option(
        0.0, "weight of a second regression, on the residuals of each class in its own task (DS-AL); 0: none", low=0
    )
    decision: float = option(0.16, "a label is predicted if the value of the regression is above this")
    warm_up: int = option(
        0, "images of the first task that train the backbone by gradient before it is frozen", low=0, high=10**9
    )


class L3A(Method):
    summary = "closed form: frozen features, a random layer, pseudo labels, one ridge regression over all tasks"
    position = 140
    Options = _L3AOptions
    float64 = True
    saved = ("backbone", "warm_up", "projection", "gram", "cross", "weights", "counts", "since")
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {
        "ridge": (100.0, 1e3, 1e4, 1e5),
        "pseudo_threshold": (None, 0.5, 0.7, 0.85),
        "weighting": ("none", "inverse"),
        "compensation": (0.0, 1.0),
        "warm_up": (0,),  # not searched: the right number depends on the size of the first task
    }
    shared_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting, options: _L3AOptions):
        super().__init__(setting, options)
        self.backbone = setting.place_backbone()
        dim, units = self.backbone.dim, options.projection
        self.projection = (torch.randn(dim, units) / math.sqrt(dim)).to(setting.device)
        width = dim + units + 1
        self.gram = torch.zeros(width, width, dtype=torch.float64, device=setting.device)  # sum Z' Omega Z
        self.cross = self.gram.new_zeros(width, 0)  # sum Z' Omega Y
        self.weights = self.gram.new_zeros(width, 0)  # W, as of the last task
        self.residual = self.gram.new_zeros(width, 0)  # sum Z' Omega (Y - Z W), of each class in its own task
        self.gram_before = self.gram.new_zeros(0, 0)  # `gram` when the task began, with compensation
        self.counts = self.gram.new_zeros(0)  # images with each class as a visible or pseudo label
        self.since = self.gram.new_zeros(0)  # images since each class was added
        self.warm_up = WarmUp(setting, options.warm_up)

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        new = self.gram.new_zeros(len(self.gram), len(classes))
        self.cross, self.weights = torch.cat([self.cross, new], 1), torch.cat([self.weights, new], 1)
        self.counts, self.since = torch.cat([self.counts, new[0]]), torch.cat([self.since, new[0]])
        if self.options.compensation:
            self.residual, self.gram_before = torch.cat([self.residual, new], 1), self.gram.clone()
        self.warm_up.begin_task(classes)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        if not self.warm_up.done:
            return self.warm_up.observe(batch)
        return super().observe(batch) if batch.first_pass else {}  # the sums have each image once

    @torch.no_grad()
    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """Add a batch to the sums. Returns the loss (Eq. 2) of its classes with the current W."""
        z = self.expand(self.features(batch.images))
        values = z @ self.weights
        y = self.augment_labels(batch, values)
        weighted = z.T * self.image_weights(y)
        self.gram.addmm_(weighted, z)
        self.cross.addmm_(weighted, y)
        logits = self.to_logits(values[:, -batch.labels.shape[1] :])
        return {"cls": losses.classification(logits, batch.labels, self.setting.reduction, batch.known)}

    def expand(self, f: Tensor) -> Tensor:
        """Z: the standardised features, random ReLU units of them, and a 1, in float64."""
        return torch.cat([f, (f @ self.projection).relu(), f.new_ones(len(f), 1)], 1).double()

    def augment_labels(self, batch: Batch, values: Tensor) -> Tensor:
        """Y: known or pseudo labels of the old classes, then the labels of the new ones (0 if unknown)."""
        new, threshold = self.sizes[-1], self.options.pseudo_threshold
        old, (labels, known) = values[:, :-new], batch.of_task(new)
        pseudo = torch.zeros_like(old) if threshold is None else (old > threshold).double()
        return torch.cat([batch.with_known(pseudo, new), (labels * known).double()], 1)

    def image_weights(self, y: Tensor) -> Tensor:
        """The diagonal of Omega. Each weight depends on the images up to its own, so not on the batch size."""
        if self.options.weighting == "none":
            return y.new_ones(len(y))
        counts = self.counts + y.cumsum(0)
        since = self.since + torch.arange(1, len(y) + 1, device=y.device)[:, None]
        rarity = ((since + 1) / (counts + 1)).sqrt()
        mean_rarity = (counts * rarity).sum(1) / counts.sum(1)  # over all labels so far, so that weights are around 1
        weights = (y * rarity).sum(1) / y.sum(1) / mean_rarity
        self.counts.copy_(counts[-1])
        self.since.copy_(since[-1])
        return weights.masked_fill(y.sum(1) == 0, 1.0)

    def end_task(self) -> None:
        """Solve for W."""
        super().end_task()
        o = self.options
        self.warm_up.check_images_left(self.gram[-1, -1].item())  # the sum of the weights
        system = self.gram.clone()
        system.diagonal().add_(o.ridge)
        factor, failed = torch.linalg.cholesky_ex(system)
        if failed:
            raise UserError(f"method.ridge={o.ridge:g} is too small for these features: start again with a larger one")
        self.weights = torch.cholesky_solve(self.cross, factor)
        if o.compensation:
            own = slice(-self.sizes[-1], None)  # no image of an earlier task has these labels
            self.residual[:, own] = self.cross[:, own] - (self.gram - self.gram_before) @ self.weights[:, own]
            self.weights += o.compensation * torch.cholesky_solve(self.residual, factor)

    @property
    def fixed_features(self) -> bool:
        return self.warm_up.done

    def features(self, images: Tensor) -> Tensor:
        """Standardised features. Those of an untrained backbone are small."""
        self.backbone.eval()
        f = run_backbone(self.backbone, images, self.setting)
        return F.layer_norm(f, (self.backbone.dim,), eps=1e-12)

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        return self.to_logits(self.expand(features) @ self.weights)[:, :num_classes]

    def network(self) -> InferenceNetwork:
        weight, bias = (_LOGIT_SCALE * self.weights[:-1]).T, _LOGIT_SCALE * (self.weights[-1] - self.options.decision)
        classifier = Classifier(weight, bias, self.projection if self.options.projection else None)
        return InferenceNetwork(PooledFeatures(self.backbone, standardise=True), classifier)

    def to_logits(self, values: Tensor) -> Tensor:
        return ((values - self.options.decision) * _LOGIT_SCALE).float()

    def saved_names(self) -> list[str]:
        return super().saved_names() + (["residual", "gram_before"] if self.options.compensation else [])
