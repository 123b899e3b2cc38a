"""Fine-tuning: each task is learned as it comes, with nothing against forgetting. The paper's lower bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lifelabel import losses
from lifelabel.learner import Learner, LinearHead, Setting
from lifelabel.methods.base import Batch, Method


class FineTuning(Method):
    summary = "each task as it comes, nothing against forgetting (the lower bound)"

    def __init__(self, setting: Setting, options: Any):
        super().__init__(setting, options)
        self.head = LinearHead(setting.backbone.dim)
        self.learner = Learner(self.head, setting)

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.head.grow(len(classes), self.setting.device)
        self.learner.begin_task(first=len(self.tasks) == 1)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.scores(batch.images)
        new = logits[:, -batch.labels.shape[1] :]
        loss = losses.classification(new, batch.labels, self.setting.reduction, batch.known)
        self.learner.step(loss)
        return {"cls": loss.detach()}

    def features(self, images: Tensor) -> Tensor:
        return self.learner.features(images)

    def logits(self, features: Tensor, first: int | None = None) -> Tensor:
        return self.head(features)[:, :first]

    def state_dict(self) -> dict[str, Any]:
        return {"tasks": [list(names) for names in self.tasks], "learner": self.learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for names in state["tasks"]:
            self.begin_task(names)
        self.learner.load_state_dict(state["learner"])
