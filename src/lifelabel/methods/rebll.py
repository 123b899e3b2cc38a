"""RebLL: Rebalancing Multi-Label Class-Incremental Learning (Du, Zhou et al., AAAI 2025): two parts, no published code.

Asymmetric knowledge distillation. Positive labels that are predicted with confidence have less weight, so that negative
labels have more, and confident positive predictions of the expert have less weight in the distillation.

Online relabelling. The missing labels of stored images are filled in. Rows: tasks of images, columns: tasks of classes.

    known   model 2 model 3      model t: the model at the end of task t. Above the diagonal, it labels the images of
    model 1 known   model 3      earlier tasks with its new classes. Below the diagonal, the model before the task of an
    model 2 model 2 known        image labels it with the old classes.

docs/methods/rebll.md states what is from the paper and what is our reading.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.methods.buffer import Replayed, Reservoir
from lifelabel.methods.er import ER, EROptions
from lifelabel.methods.lwf import LwF
from lifelabel.methods.method import Batch
from lifelabel.nn.losses import reduce_terms
from lifelabel.options import option


@dataclass(frozen=True)
class _RebLLOptions(EROptions):
    lambdas: tuple[float, float] = option(
        (0.5, 0.5), "weights of the classification and the distillation loss, after the first task", low=0
    )
    gamma: float = option(
        0.5, "a positive label that is predicted with probability p has the weight (1 - p)^gamma; 0: all have 1", low=0
    )
    decay: float = option(
        1.0, "a prediction p of the expert has the weight exp(-decay p) in the distillation; 0: all have 1", low=0
    )
    relabel: str = option(
        "hard", "missing labels of stored images: 0 or 1, probabilities, or not used", choices=("hard", "soft", "none")
    )


class RebLL(ER, LwF):
    """The replay of `ER` and the expert of `LwF`."""

    summary = "replay of images whose missing labels are filled in by other models, with asymmetric losses"
    position = 220
    Options = _RebLLOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"gamma": (0.0, 0.5, 1.0), "decay": (0.0, 1.0, 2.0)}
    buffer: Reservoir

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        parts = self.recorder(self.learn, batch, self.recall(self.sample(batch)))
        below_diagonal = parts.pop("old_logits", None)
        self.store(batch, None if self.options.relabel == "none" else below_diagonal)
        return parts

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        logits, new = self.forward(batch, replayed), self.sizes[-1]
        own, stored = logits.split([len(batch.images), len(logits) - len(batch.images)])
        labels, known = batch.of_task(new)
        parts = {"cls": self.asymmetric_loss(own[:, -new:], labels, known)}
        loss, outputs = parts["cls"], {}
        if self.expert:
            outputs["old_logits"] = self.expert.logits(batch.images)
            parts["dst"] = self.distillation_loss(own[:, :-new], outputs["old_logits"].sigmoid(), batch)
            l1, l2 = self.options.lambdas
            loss = l1 * parts["cls"] + l2 * parts["dst"]
        parts["replay"] = self.replay_loss(stored, replayed)
        self.learner.step(loss + self.options.replay_weight * parts["replay"])
        return {name: part.detach() for name, part in {**parts, **outputs}.items()}

    def asymmetric_loss(self, logits: Tensor, targets: Tensor, known: Tensor) -> Tensor:
        """Cross entropy in which the positive part of a probability p has the weight (1 - p)^gamma."""
        positive, negative = F.logsigmoid(logits), F.logsigmoid(-logits)  # ln p, ln(1 - p)
        weight = (self.options.gamma * negative).exp()
        entropy = -(weight * targets * positive + (1 - targets) * negative) * known
        return reduce_terms(entropy, self.setting.reduction, known)

    def distillation_loss(self, logits: Tensor, predicted: Tensor, batch: Batch) -> Tensor:
        """Cross entropy with the predictions of the expert for the old classes. Known labels have the weight 1."""
        new, weight = self.sizes[-1], (-self.options.decay * predicted).exp()
        known = batch.known[:, :-new]
        if known.shape[1]:
            weight = weight.masked_fill(known, 1.0)
        targets = batch.with_known(predicted, new)
        entropy = F.binary_cross_entropy_with_logits(logits, targets, weight, reduction="none")
        return reduce_terms(entropy, self.setting.reduction)

    def replay_loss(self, logits: Tensor, replayed: Replayed | None) -> Tensor:
        """The loss of stored images on their visible labels and on those that were filled in."""
        if replayed is None:
            return logits.new_zeros(())
        targets, known = replayed.labels, replayed.known
        if replayed.logits is not None and replayed.stored is not None:
            hard = self.options.relabel == "hard"
            filled = (replayed.logits > 0).float() if hard else replayed.logits.sigmoid()
            targets, known = torch.where(known, targets, filled), known | replayed.stored
        return self.asymmetric_loss(logits, targets, known)

    def end_task(self) -> None:
        """Fill in the missing labels above the diagonal, and the labels of this task that were unknown."""
        super().end_task()
        if not len(self.buffer) or self.options.relabel == "none":
            return
        new = self.sizes[-1]
        logits = self.buffer.compute(
            lambda images, _: self.scores(images)[:, -new:], np.arange(len(self.buffer)), self.setting.batch_size
        )
        self.buffer.extend_logits(logits)
