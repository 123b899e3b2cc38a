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
        "labels that are hidden from the method: not part of the loss (masked), or trained as 0, those of all seen "
        "classes (negative) or of all classes of the stream (negative-all)",
        choices=("masked", "negative", "negative-all"),
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
        self.hidden_labels = getattr(options, "hidden_labels", "masked")  # not every subclass has the option
        self.first_rows = setting.classes if self.hidden_labels == "negative-all" else 0
        """The rows of the head from the first task on, if there are more than seen classes."""

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        if missing := max(sum(self.sizes), self.first_rows) - self.head.rows_so_far:
            self.head.grow(missing, self.setting.device)
        self.learner.begin_task(first_task=len(self.tasks) == 1)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        loss = self.classify(self.train_logits(batch.images), batch)
        self.learner.step(loss)
        return {"cls": loss.detach()}

    def train_logits(self, images: Tensor) -> Tensor:
        """Logits for all seen classes in train mode; with `negative-all` for all classes of the stream."""
        return self.head(self.learner.train_features(images))

    def classify(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss of a batch on its `targets`. Its logits are the first rows of `logits`."""
        return self.classification(logits[: len(batch.labels)], *self.targets(batch.labels, batch.known))

    def classification(self, logits: Tensor, labels: Tensor, known: Tensor) -> Tensor:
        """The loss on the known labels of the last classes, as many as `labels` has columns."""
        return losses.classification(logits[:, -labels.shape[1] :], labels, self.setting.reduction, known)

    def targets(self, labels: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """The labels in the loss and the mask of those that count, from visible labels of the last seen classes."""
        if self.hidden_labels == "masked":
            return labels, known
        seen = sum(self.sizes)  # a hidden label is 0 already
        labels = F.pad(labels, (seen - labels.shape[1], self.head.rows_so_far - seen))
        return labels, torch.ones_like(labels, dtype=torch.bool)

    def features(self, images: Tensor) -> Tensor:
        return self.learner.eval_features(images)

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        return self.head(features)[:, : num_classes or sum(self.sizes)]

    def network(self) -> InferenceNetwork:
        weight, bias = (rows[: sum(self.sizes)] for rows in self.head.rows())
        return InferenceNetwork(PooledFeatures(self.learner.backbone), Classifier(weight, bias))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.first_rows:  # a run that is extended has a stream with more classes
            self.first_rows = len(state["learner"]["head"]["weights.0"])
        super().load_state_dict(state)
