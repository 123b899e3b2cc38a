"""EWC: Elastic Weight Consolidation (Kirkpatrick et al., 2017), with one running Fisher (Schwarz et al., 2018).

    loss = cls + strength · ½ Σ_k F_k (θ_k - θ*_k)²

F_k measures how much the predictions of old tasks depend on weight k, and θ*_k is the value of the weight when the last
task ended. F is estimated during training, from labels sampled from the model: see docs/methods/ewc.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.methods.fine_tuning import ClassificationOptions, FineTuning
from lifelabel.methods.method import Batch, Footprint
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class _EWCOptions(ClassificationOptions):
    strength: float = option(100.0, "weight of the penalty on changes of the weights", low=0)
    decay: float = option(1.0, "factor for the Fisher values of earlier tasks when a task ends", low=0, high=1)
    fisher_every: int = option(1, "estimate the Fisher values in every k-th step", low=1, high=1_000_000)


class EWC(FineTuning):
    summary = "penalty on changes of weights that matter to old tasks (diagonal Fisher)"
    position = 40
    Options = _EWCOptions
    saved = ("fisher", "anchor", "squares", "images", "steps")
    per_step = ("squares", "images", "steps")
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"strength": (10.0, 100.0, 1000.0, 10000.0)}

    def __init__(self, setting: Setting, options: _EWCOptions):
        super().__init__(setting, options)
        self.fisher = self.anchor = self.squares = torch.zeros(0, device=setting.device)
        self.images = self.steps = 0

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.squares = torch.zeros_like(_flat(self.parameters()))
        self.images = self.steps = 0

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        measured = self.steps % self.options.fisher_every == 0
        self.steps += 1
        self.images += len(batch.images) if measured else 0
        learn = functools.partial(self.learn, measured=measured)
        return self.recorder(learn, batch, mode=measured)

    def learn(self, batch: Batch, measured: bool = True) -> dict[str, Tensor]:
        logits = self.train_logits(batch.images)
        labels, known = self.targets(batch.labels, batch.known)
        cls = self.classification(logits, labels, known)
        if measured:
            self.estimate_fisher(logits[:, -labels.shape[1] :], known)
        penalty = self.penalty()
        self.learner.step(cls + self.options.strength * penalty)
        return {"cls": cls.detach(), "ewc": penalty.detach()}

    def estimate_fisher(self, logits: Tensor, known: Tensor) -> None:
        """Add one sample of the summed Fisher diagonal of the images of `logits`, over the labels of the loss."""
        sampled = torch.bernoulli(logits.detach().sigmoid())
        log_loss = F.binary_cross_entropy_with_logits(logits, sampled, known.float(), reduction="sum")
        score = torch.autograd.grad(
            log_loss, self.parameters(), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        self.squares += _flat(self.setting.group.average(score)).square()

    def penalty(self) -> Tensor:
        """½ Σ_k F_k (θ_k - θ*_k)² over the weights of the last task; 0 in the first task."""
        moved = _flat(self.parameters())[: len(self.anchor)] - self.anchor
        return (self.fisher * moved.square()).sum() / 2

    @torch.no_grad()
    def end_task(self) -> None:
        super().end_task()
        fisher = self.squares / max(self.images, 1)
        fisher[: len(self.fisher)] += self.options.decay * self.fisher
        self.fisher, self.anchor = fisher, _flat(self.parameters())
        self.squares = torch.zeros(0, device=self.setting.device)

    def parameters(self) -> list[Tensor]:
        """The parameters of the backbone, then the rows of the head by task."""
        rows = [part for task in zip(self.head.weights, self.head.biases, strict=True) for part in task]
        return [*self.learner.backbone.parameters(), *rows]

    def footprint(self) -> Footprint:
        return Footprint(bytes=self.fisher.nbytes + self.anchor.nbytes)


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    """All values in one vector."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
