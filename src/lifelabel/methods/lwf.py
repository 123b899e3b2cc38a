"""LwF: Learning without Forgetting (Li & Hoiem, ECCV 2016), with a sigmoid per label.

The frozen network of the last task predicts the old classes on the new images, and the network is trained towards these
predictions. A known label of an old class takes the place of its prediction. Equation numbers are those of the AGCN
paper. docs/methods/lwf.md documents the deviations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.method import Batch
from lifelabel.nn import losses
from lifelabel.nn.expert import Expert
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class _LwFOptions:
    lambdas: tuple[float, float] = option(
        (0.3, 0.7), "weights of the classification and the distillation loss, after the first task", low=0
    )


class LwF(FineTuning):
    summary = "distillation of the old classes from a frozen copy of the network"
    position = 50
    saved: ClassVar[tuple[str, ...]] = ("expert",)
    Options: ClassVar[type] = _LwFOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {
        "lambdas": ((0.07, 0.93), (0.15, 0.85), (0.3, 0.7), (0.5, 0.5))
    }
    fidelities: ClassVar[dict[str, dict[str, Any]]] = {
        fidelity: {"lambdas": (0.07, 0.93)} for fidelity in ("paper", "release", "plain")
    }

    def __init__(self, setting: Setting, options: _LwFOptions):
        super().__init__(setting, options)
        self.expert: Expert | None = None

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        logits, reduction, new = self.train_logits(batch.images), self.setting.reduction, self.sizes[-1]
        labels, known = batch.of_task(new)
        parts = {"cls": losses.classification(logits[:, -new:], labels, reduction, known)}  # Eq. 2
        loss = parts["cls"]
        if self.expert:
            targets = batch.with_known(self.expert.logits(batch.images).sigmoid(), new)
            parts["dst"] = losses.distillation(logits[:, :-new], targets, reduction)  # Eq. 3
            l1, l2 = self.options.lambdas
            loss = l1 * parts["cls"] + l2 * parts["dst"]
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}

    def end_task(self) -> None:
        super().end_task()
        weight, bias = self.head.rows()
        self.expert = Expert(self.learner.backbone, weight, self.setting, bias, self.expert)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["expert"] is not None:
            self.expert = Expert.restore(state["expert"], self.learner.backbone, self.setting)
