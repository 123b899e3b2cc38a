"""Toy-bar: fine-tuning with a penalty on large logits of the new classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.method import Batch
from lifelabel.options import option


@dataclass(frozen=True)
class ToyBarOptions:
    penalty: float = option(0.01, "weight of the mean squared logit", low=0)


class ToyBar(FineTuning):
    summary = "fine-tuning with a penalty on large logits of the new classes"
    Options = ToyBarOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"penalty": (0.0, 0.01, 0.1)}
    fidelities: ClassVar[dict[str, dict[str, Any]]] = {"plain": {"penalty": 0.0}}

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.train_logits(batch.images)
        parts = {"cls": self.classify(logits, batch), "penalty": logits.square().mean()}
        self.learner.step(parts["cls"] + self.options.penalty * parts["penalty"])
        return {name: part.detach() for name, part in parts.items()}
