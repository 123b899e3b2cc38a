"""iCaRL: Incremental Classifier and Representation Learning (Rebuffi et al., CVPR 2017). Algorithm numbers are the
paper's.

    loss = − Σ_new  y ln ŷ + (1 − y) ln(1 − ŷ)  − Σ_old  q ln ŷ + (1 − q) ln(1 − ŷ)                  Alg. 3
    p_k  = argmin_x ‖ μ − (φ(x) + Σ_{j<k} φ(p_j)) / k ‖                                    herding, Alg. 4
    logit_c = (‖φ(x) − ρ_c‖² − ‖φ(x) − μ_c‖²) / 2s²                         nearest mean of exemplars, Alg. 1

The loss is over the new images and the stored ones, q is the output of the network of the last task, and φ(x) is a
feature vector of length 1. The logit is our reading of Alg. 1 for several labels per image: docs/methods/icarl.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.methods.buffer import BufferOptions, Replayed
from lifelabel.methods.er import ER
from lifelabel.methods.exemplars import ExemplarReplay
from lifelabel.methods.lwf import LwF
from lifelabel.methods.method import Batch
from lifelabel.nn import losses
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option

_MIN_SPREAD = 0.01
"""The least s². It is 0 if no class has two different images."""


@dataclass(frozen=True)
class _ICaRLOptions(BufferOptions):
    classifier: str = option(
        "nearest-mean",
        "what gives the scores after a task: the means of the stored images, or the head with sigmoid outputs",
        choices=("nearest-mean", "head"),
    )
    replay_targets: str = option(
        "expert",
        "targets of old classes on stored images: the outputs of the expert, or the stored labels where there are any",
        choices=("expert", "labels"),
    )


class ICaRL(ExemplarReplay, ER, LwF):
    """The replay of `ER`, with exemplars, and the expert of `LwF`."""

    summary = "distillation and replay of exemplars chosen by herding; scores by the nearest mean of exemplars"
    position = 110
    saved = ("nearest",)
    Options: ClassVar[type] = _ICaRLOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"replay_targets": ("expert", "labels")}

    def __init__(self, setting: Setting, options: _ICaRLOptions):
        super().__init__(setting, options)
        self.nearest: tuple[Tensor, Tensor] | None = None
        """Weight and bias on features of length 1, for the classes of the tasks that have ended."""

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        new, reduction = self.sizes[-1], self.setting.reduction
        images, (labels, known) = batch.images, batch.of_task(new)
        if replayed is not None:
            images = torch.cat([images, replayed.images])
            labels = torch.cat([labels, replayed.labels[:, -new:]])
            known = torch.cat([known, replayed.known[:, -new:]])  # false for images of old tasks
        logits = self.train_logits(images)
        parts = {"cls": losses.classification(logits[:, -new:], labels, reduction, known)}
        loss = parts["cls"]
        if self.expert:
            targets = self._targets(self.expert.logits(images).sigmoid(), batch, replayed)
            parts["dst"] = losses.distillation(logits[:, :-new], targets, reduction)
            loss = _add(parts["cls"], parts["dst"], known.sum(), targets.numel(), reduction)
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}

    def _targets(self, soft_labels: Tensor, batch: Batch, replayed: Replayed | None) -> Tensor:
        """q of the batch and the stored images: the soft labels, or known labels in their place."""
        new, count = self.sizes[-1], len(batch.images)
        stored = soft_labels[count:]
        if replayed is not None and self.options.replay_targets == "labels":
            stored = torch.where(replayed.known[:, :-new], replayed.labels[:, :-new], stored)
        return torch.cat([batch.with_known(soft_labels[:count], new), stored])

    def end_task(self) -> None:
        super().end_task()
        self.nearest = None
        features = self.herd(self.features)
        if features is not None and self.options.classifier == "nearest-mean":
            head = [part.detach().cpu().double() for part in self.head.rows()]
            weight, bias = nearest_mean(features, self._positives(), *head)
            self.nearest = weight.float().to(self.setting.device), bias.float().to(self.setting.device)

    def _positives(self) -> Tensor:
        """Stored images x seen classes: whether the image is known to show the class."""
        shown = torch.zeros(len(self.buffer), sum(self.sizes), dtype=torch.bool)
        for row, item in enumerate(self.buffer.items):
            shown[row, item.positives] = True
        return shown

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        logits = self.head(features)
        if self.nearest is not None:
            means = F.linear(F.normalize(features, dim=1), *self.nearest)
            logits = torch.cat([means, logits[:, means.shape[1] :]], 1)  # while a task runs, its classes have no means
        return logits[:, :num_classes]

    def network(self) -> InferenceNetwork:
        if self.nearest is None:
            return super().network()
        return InferenceNetwork(PooledFeatures(self.learner.backbone, normalise=True), Classifier(*self.nearest))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["nearest"] is not None:
            weight, bias = (tensor.to(self.setting.device) for tensor in state["nearest"])
            self.nearest = weight, bias


def _add(cls: Tensor, dst: Tensor, known: Tensor, soft: int, reduction: str) -> Tensor:
    """The loss over all entries: `cls` has the `known` labels of new classes, `dst` the `soft` ones of old classes."""
    return cls + dst if reduction == "sum" else (known * cls + soft * dst) / (known + soft)


def nearest_mean(features: Tensor, shown: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (classes x dim) and bias of the logits by the nearest mean, on features of length 1.

    `features` are those of the stored images, `shown` (images x classes) states whether an image is known to show a
    class. A class that no stored image shows, or that all show, has no two means. It gets its row of the head, `weight`
    and `bias`, for features of mean length.
    """
    phi, pairs = F.normalize(features, dim=1), shown.to(features)
    counts, sums = pairs.sum(0), pairs.T @ phi
    mean = sums / counts.clamp(min=1)[:, None]  # μ
    rest = (phi.sum(0) - sums) / (len(phi) - counts).clamp(min=1)[:, None]  # ρ
    within = pairs.T @ phi.square().sum(1) - counts * mean.square().sum(1)  # Σ ‖φ − μ‖² of each class
    spread = (within.sum() / counts.sum().clamp(min=1)).clamp(min=_MIN_SPREAD)  # s²
    two = (counts > 0) & (counts < len(phi))
    length = features.norm(dim=1).mean()
    return (
        torch.where(two[:, None], (mean - rest) / spread, weight * length),
        torch.where(two, (rest.square() - mean.square()).sum(1) / (2 * spread), bias),
    )
