"""LwF: Learning without Forgetting (Li & Hoiem, ECCV 2016), with sigmoids for many labels. Equations are AGCN's.

The network as it was when the last task ended says what it sees of the old classes in the new images, and the
network that learns is held to it. docs/methods/lwf.md says what was adapted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lifelabel import losses
from lifelabel.learner import Expert, Setting
from lifelabel.methods.base import Batch, Kept
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.options import option


@dataclass(frozen=True)
class LwFOptions:
    lambdas: tuple[float, float] = option(
        (0.3, 0.7), "weights of the classification and the distillation loss, after the first task", low=0
    )


class LwF(FineTuning):
    summary = "distillation: the old classes keep the probabilities that a copy of the last task's network gives them"
    Options = LwFOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"lambdas": ((0.07, 0.93), (0.15, 0.85), (0.3, 0.7), (0.5, 0.5))}

    def __init__(self, setting: Setting, options: LwFOptions):
        super().__init__(setting, options)
        self.expert: Expert | None = None

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        logits, reduction = self.scores(batch.images), self.setting.reduction
        old = logits.shape[1] - batch.labels.shape[1]
        parts = {"cls": losses.classification(logits[:, old:], batch.labels, reduction, batch.known)}  # Eq. 2
        loss = parts["cls"]
        if self.expert:
            soft_labels = self.expert.logits(batch.images).sigmoid()
            parts["dst"] = losses.distillation(logits[:, :old], soft_labels, reduction)  # Eq. 3
            l1, l2 = self.options.lambdas
            loss = l1 * parts["cls"] + l2 * parts["dst"]
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}

    def end_task(self) -> None:
        super().end_task()
        weight, bias = self.head.rows()
        self.expert = Expert(self.learner.backbone, weight, self.setting, bias, self.expert)

    def kept(self) -> Kept:
        return Kept(bytes=self.expert.bytes if self.expert else 0)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "expert": None if self.expert is None else self.expert.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["expert"] is not None:
            self.expert = Expert.restore(state["expert"], self.learner.backbone, self.setting)
