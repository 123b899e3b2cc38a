"""Fine-tuning: train on each task in turn, without a measure against forgetting. The paper's lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.methods.method import Batch, Method
from lifelabel.nn import losses
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.learner import Learner, LinearHead
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class ClassificationOptions:
    hidden_labels: str = option(
        "masked",
        "labels of seen classes that an image does not show: not part of the loss, or negative, which trains them as 0",
        choices=("masked", "negative"),
    )


class FineTuning(Method):
    summary = "train on each task in turn, without a measure against forgetting (the lower bound)"
    position = 30
    Options: ClassVar[type] = ClassificationOptions
    saved: ClassVar[tuple[str, ...]] = ("learner",)

    def __init__(self, setting: Setting, options: Any):
        super().__init__(setting, options)
        self.head = LinearHead(setting.backbone.dim)
        self.learner = Learner(self.head, setting)

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.head.grow(len(classes), self.setting.device)
        self.learner.begin_task(first_task=len(self.tasks) == 1)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        loss = self.classify(self.train_logits(batch.images), batch)
        self.learner.step(loss)
        return {"cls": loss.detach()}

    def train_logits(self, images: Tensor) -> Tensor:
        """Logits for all seen classes in train mode."""
        return self.head(self.learner.train_features(images))

    def classify(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch on its `targets`. Its logits are the first rows of `logits`."""
        return self.classification(logits[: len(batch.labels)], *self.targets(batch.labels, batch.known))

    def classification(self, logits: Tensor, labels: Tensor, known: Tensor) -> Tensor:
        """The loss on the known labels of the last classes, as many as `labels` has columns."""
        return losses.classification(logits[:, -labels.shape[1] :], labels, self.setting.reduction, known)

    def targets(self, labels: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """The labels in the loss and the mask of those that count, from visible labels of the last seen classes."""
        if getattr(self.options, "hidden_labels", "masked") == "masked":  # not every subclass has the option
            return labels, known
        labels = F.pad(labels, (sum(self.sizes) - labels.shape[1], 0))  # a hidden label is 0 already
        return labels, torch.ones_like(labels, dtype=torch.bool)

    def features(self, images: Tensor) -> Tensor:
        return self.learner.eval_features(images)

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        return self.head(features)[:, :num_classes]

    def network(self) -> InferenceNetwork:
        return InferenceNetwork(PooledFeatures(self.learner.backbone), Classifier(*self.head.rows()))
