"""L3A: Label-Augmented Analytic Adaptation (Zhang, He et al., ICML 2025): ridge regression, in closed form.

    W = (sum Z' Omega Z + ridge I)^-1  sum Z' Omega Y

Z are features of a frozen backbone, widened by a fixed random ReLU layer. Y are the visible labels, and pseudo labels
for the old classes. Omega weighs the images. The sums run over all tasks; no image is kept, and nothing is forgotten.
docs/methods/l3a.md tells every option's story.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel import losses
from lifelabel.errors import UserError
from lifelabel.learner import Learner, LinearHead, Setting, run_backbone
from lifelabel.methods.base import Batch, Kept, Method
from lifelabel.options import option

STEEPNESS = 4.0
"""What turns regression values, which lie around 0 and 1, into logits; neither order nor sign depends on it."""
CARRIED = ("projection", "gram", "cross", "weights", "counts", "since")
"""The tensors that go from task to task."""


@dataclass(frozen=True)
class L3AOptions:
    projection: int = option(2048, "random ReLU units beside the features; 0: the features alone", low=0, high=32_768)
    ridge: float = option(1e4, "γ: the larger it is, the smaller the weights of the regression", above=0)
    pseudo_threshold: float | None = option(
        0.7, "an old class is a label of a new image where the old model's value is above; none: no pseudo labels"
    )
    weighting: str = option(
        "inverse", "the weight of an image: 1, or more where its classes are rare", choices=("none", "inverse")
    )
    decision: float = option(0.16, "a label is predicted where the regression's value is above")
    warm_up: int = option(
        0, "images of the first task that train the backbone by gradient, before it is frozen", low=0, high=10**9
    )


class L3A(Method):
    summary = "closed form: frozen features, a random layer, pseudo labels, one ridge regression over all tasks"
    Options = L3AOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {
        "ridge": (100.0, 1e3, 1e4, 1e5),
        "pseudo_threshold": (None, 0.5, 0.7, 0.85),
        "weighting": ("none", "inverse"),
        "warm_up": (0,),  # a preset may have one; how many images a first task can spare, nobody knows
    }
    knobs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, setting: Setting, options: L3AOptions):
        super().__init__(setting, options)
        self.backbone = setting.place_backbone()
        dim, units = self.backbone.dim, options.projection
        self.projection = (torch.randn(dim, units) / math.sqrt(dim)).to(setting.device)
        width = dim + units + 1
        self.gram = torch.zeros(width, width, dtype=torch.float64, device=setting.device)  # sum Z' Omega Z
        self.cross = self.gram.new_zeros(width, 0)  # sum Z' Omega Y
        self.weights = self.gram.new_zeros(width, 0)  # W, as the last task left it
        self.counts = self.gram.new_zeros(0)  # images with a class, visible or pseudo label
        self.since = self.gram.new_zeros(0)  # images since a class arrived
        self.warmed = 0
        self.learner: Learner | None = None
        if not options.warm_up:
            self.freeze()

    def freeze(self) -> None:
        """The backbone stays as it is from here on; what trained it goes."""
        self.backbone.requires_grad_(False).zero_grad(set_to_none=True)
        self.learner = None
        self.recorder.forget()

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        new = self.gram.new_zeros(len(self.gram), len(classes))
        self.cross, self.weights = torch.cat([self.cross, new], 1), torch.cat([self.weights, new], 1)
        self.counts, self.since = torch.cat([self.counts, new[0]]), torch.cat([self.since, new[0]])
        if self.options.warm_up and len(self.tasks) == 1:
            head = LinearHead(self.backbone.dim)
            head.grow(len(classes), self.setting.device)
            self.learner = Learner(head, self.setting)
            self.learner.begin_task(first=True)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        if self.learner is None:
            return super().observe(batch)
        parts = self.recorder(self.learn, batch, mode="warm up")
        self.warmed += len(batch.images)
        if self.warmed >= self.options.warm_up:
            self.freeze()
        return parts

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        return {"cls": self.warm_up(batch, self.learner) if self.learner else self.accumulate(batch)}

    def warm_up(self, batch: Batch, learner: Learner) -> Tensor:
        """A step by gradient with a linear head that is thrown away; returns the loss (Eq. 2)."""
        logits = learner.head(learner.features(batch.images))
        loss = losses.classification(logits, batch.labels, self.setting.reduction, batch.known)
        learner.step(loss)
        return loss.detach()

    @torch.no_grad()
    def accumulate(self, batch: Batch) -> Tensor:
        """Add a batch to the sums; returns the loss (Eq. 2) of its classes under W as it is."""
        z = self.expand(self.features(batch.images))
        values = z @ self.weights
        y = self.augment_labels(batch, values)
        weighted = z.T * self.image_weights(y)
        self.gram.addmm_(weighted, z)
        self.cross.addmm_(weighted, y)
        logits = self.to_logits(values[:, -batch.labels.shape[1] :])
        return losses.classification(logits, batch.labels, self.setting.reduction, batch.known)

    def expand(self, f: Tensor) -> Tensor:
        """Z: the standardised features, random ReLU units of them, and a 1, in float64."""
        return torch.cat([f, (f @ self.projection).relu(), f.new_ones(len(f), 1)], 1).double()

    def augment_labels(self, batch: Batch, values: Tensor) -> Tensor:
        """Y: the visible labels of the new classes (0 where not known), the old model's pseudo labels of the others."""
        old, threshold = values[:, : -batch.labels.shape[1]], self.options.pseudo_threshold
        pseudo = torch.zeros_like(old) if threshold is None else (old > threshold).double()
        return torch.cat([pseudo, (batch.labels * batch.known).double()], 1)

    def image_weights(self, y: Tensor) -> Tensor:
        """The diagonal of Omega. It follows from the images up to each one, not from how they are cut into batches."""
        if self.options.weighting == "none":
            return y.new_ones(len(y))
        counts = self.counts + y.cumsum(0)
        since = self.since + torch.arange(1, len(y) + 1, device=y.device)[:, None]
        rarity = ((since + 1) / (counts + 1)).sqrt()
        typical = (counts * rarity).sum(1) / counts.sum(1)  # over all labels so far, so that weights stay around 1
        weights = (y * rarity).sum(1) / y.sum(1) / typical
        self.counts.copy_(counts[-1])
        self.since.copy_(since[-1])
        return weights.masked_fill(y.sum(1) == 0, 1.0)

    def end_task(self) -> None:
        """Solve for W."""
        super().end_task()
        o = self.options
        if not self.gram[-1, -1]:  # the sum of the weights
            raise UserError(
                f"method.warm_up={o.warm_up} took all {self.warmed} images of the first task, and none was left for "
                "the regression: start anew with fewer, --set method.warm_up=N"
            )
        system = self.gram.clone()
        system.diagonal().add_(o.ridge)
        factor, failed = torch.linalg.cholesky_ex(system)
        if failed:
            raise UserError(f"method.ridge={o.ridge:g} is too small for these features: start anew with a larger one")
        self.weights = torch.cholesky_solve(self.cross, factor)

    def features(self, images: Tensor) -> Tensor:
        """Standardised: those of an untrained backbone are small."""
        self.backbone.eval()
        f = run_backbone(self.backbone, images, self.setting)
        return F.layer_norm(f, (self.backbone.dim,), eps=1e-12)

    def logits(self, features: Tensor, first: int | None = None) -> Tensor:
        return self.to_logits(self.expand(features) @ self.weights)[:, :first]

    def to_logits(self, values: Tensor) -> Tensor:
        return ((values - self.options.decision) * STEEPNESS).float()

    def kept(self) -> Kept:
        return Kept(bytes=sum(getattr(self, name).nbytes for name in CARRIED))

    def state_dict(self) -> dict[str, Any]:
        return {
            "tasks": [list(names) for names in self.tasks],
            "backbone": self.backbone.state_dict(),
            "learner": self.learner.state_dict() if self.learner else None,
            "warmed": self.warmed,
            **{name: getattr(self, name) for name in CARRIED},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for names in state["tasks"]:
            self.begin_task(names)
        self.backbone.load_state_dict(state["backbone"])
        for name in CARRIED:
            setattr(self, name, state[name].to(self.setting.device, copy=True))  # the sums are changed in place
        self.warmed = state["warmed"]
        if self.learner and state["learner"]:
            self.learner.load_state_dict(state["learner"])
        elif self.learner:
            self.freeze()
