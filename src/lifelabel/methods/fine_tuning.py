"""Fine-tuning: train on each task in turn, without a measure against forgetting. The paper's lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.methods.method import Batch, Method
from lifelabel.nn import losses
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.learner import Learner, LinearHead
from lifelabel.nn.method_setting import Setting


class FineTuning(Method):
    summary = "train on each task in turn, without a measure against forgetting (the lower bound)"
    position = 30
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
        """The loss on the known labels of a batch. Its logits are the first rows of `logits`."""
        rows, classes = batch.labels.shape
        return losses.classification(logits[:rows, -classes:], batch.labels, self.setting.reduction, batch.known)

    def features(self, images: Tensor) -> Tensor:
        return self.learner.eval_features(images)

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        return self.head(features)[:, :num_classes]

    def network(self) -> InferenceNetwork:
        return InferenceNetwork(PooledFeatures(self.learner.backbone), Classifier(*self.head.rows()))
