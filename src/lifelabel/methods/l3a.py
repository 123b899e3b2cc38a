"""L3A: Label-Augmented Analytic Adaptation (Zhang, He et al., ICML 2025): ridge regression in closed form.

    W = (sum Z' Omega Z + ridge I)^-1 sum Z' Omega Y

Z are frozen features behind a fixed random ReLU layer, Y the visible labels and the old model's pseudo labels, Omega
the weights of the images. Both sums run over all tasks; no image is kept. docs/methods/l3a.md tells every option's
story.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lifelabel.learner import Learner, LinearHead, Setting
from lifelabel.methods.base import Method
from lifelabel.options import option

STEEPNESS = 4.0
"""Regression values lie around 0 and 1: times this they become logits. No metric that ranks or thresholds sees it."""


@dataclass(frozen=True)
class L3AOptions:
    projection: int = option(4096, "width D of the random ReLU layer over the features", low=1, high=65_536)
    ridge: float = option(100.0, "γ: the larger, the smaller the weights of the regression", above=0)
    pseudo_threshold: float | None = option(
        0.7, "value from which the old model's answer for an old class is taken as its label; none: no pseudo labels"
    )
    weighting: str = option(
        "none", "weight of an image: 1, or larger for images of rare classes", choices=("none", "inverse")
    )
    decision: float = option(0.3, "value of the regression from which a label is predicted")
    warm_up: int = option(
        0,
        "images of the first task that train the backbone by gradient, before it is frozen",
        low=0,
        high=1_000_000_000,
    )


class L3A(Method):
    summary = "closed form: frozen features, a random layer, pseudo labels, one ridge regression over all tasks"
    Options = L3AOptions
    tunes = {"ridge": (10.0, 100.0, 1000.0), "pseudo_threshold": (None, 0.5, 0.7), "weighting": ("none", "inverse")}

    def __init__(self, setting: Setting, options: L3AOptions):
        super().__init__(setting, options)
        dim, width, device = setting.backbone.dim, options.projection, setting.device
        self.projection = (torch.randn(dim, width) / math.sqrt(dim)).to(device)
        self.zz = torch.zeros(width + 1, width + 1, dtype=torch.float64, device=device)  # sum Z' Omega Z
        self.zy = self.zz.new_zeros(width + 1, 0)  # sum Z' Omega Y
        self.weights = self.zz.new_zeros(width + 1, 0)  # W, as the last task left it
        self.counts = self.zz.new_zeros(0)
        self.images = 0
        self.learner: Learner | None = None
        if options.warm_up:
            self.learner = Learner(LinearHead(dim), setting)
        else:
            self.freeze()

    def freeze(self) -> None:
        """The backbone stays as it is from here on; what trained it goes."""
        self.setting.backbone.to(self.setting.device).requires_grad_(False).zero_grad(set_to_none=True)
        self.learner = None

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        new = self.zz.new_zeros(len(self.zz), len(classes))
        self.zy, self.weights = torch.cat([self.zy, new], 1), torch.cat([self.weights, new], 1)
        self.counts = torch.cat([self.counts, new[0]])
        if self.learner and len(self.tasks) == 1:
            self.learner.head.grow(len(classes), self.setting.device)
            self.learner.begin_task(first=True)
