"""EWC: Elastic Weight Consolidation (Kirkpatrick et al., 2017), with one running Fisher (Schwarz et al., 2018).

    loss = cls + strength · ½ Σ_k F_k (θ_k - θ*_k)²

F_k says how much the old tasks' predictions hang on weight k, and θ* is where the last task left it. F is measured
in the pass itself, from labels that the model draws. docs/methods/ewc.md derives the estimate.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel import losses
from lifelabel.learner import Setting
from lifelabel.methods.base import Batch, Kept
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.options import option


@dataclass(frozen=True)
class EWCOptions:
    strength: float = option(100.0, "weight of the pull towards where the last task left the weights", low=0)
    decay: float = option(1.0, "what is left of the Fisher values of earlier tasks when a task ends", low=0, high=1)
    fisher_every: int = option(1, "measure the Fisher values in every k-th step", low=1, high=1_000_000)


class EWC(FineTuning):
    summary = "each weight is held where it was, as firmly as the old tasks hang on it (diagonal Fisher)"
    Options = EWCOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"strength": (10.0, 100.0, 1000.0, 10000.0)}

    def __init__(self, setting: Setting, options: EWCOptions):
        super().__init__(setting, options)
        self.fisher = self.anchor = self.squares = torch.zeros(0, device=setting.device)
        self.images = self.steps = 0

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.squares = torch.zeros_like(flat(self.parameters()))
        self.images = self.steps = 0

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        measured = self.steps % self.options.fisher_every == 0
        self.steps += 1
        self.images += len(batch.images) if measured else 0
        learn = functools.partial(self.learn, measured=measured)
        return self.recorder(learn, batch, mode=measured)

    def learn(self, batch: Batch, measured: bool = True) -> dict[str, Tensor]:
        new = self.scores(batch.images)[:, -batch.labels.shape[1] :]
        cls = losses.classification(new, batch.labels, self.setting.reduction, batch.known)
        if measured:
            self.measure(new, batch.known)
        pull = self.pull()
        self.learner.step(cls + self.options.strength * pull)
        return {"cls": cls.detach(), "ewc": pull.detach()}

    def measure(self, logits: Tensor, known: Tensor) -> None:
        """Add one draw of the summed Fisher diagonal of the images behind `logits`, over the labels that are known."""
        drawn = torch.bernoulli(logits.detach().sigmoid())
        surprise = F.binary_cross_entropy_with_logits(logits, drawn, known.float(), reduction="sum")
        score = torch.autograd.grad(
            surprise, self.parameters(), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        self.squares += flat(score).square()

    def pull(self) -> Tensor:
        """½ Σ_k F_k (θ_k - θ*_k)² over the weights that the last task had; 0 in the first task."""
        moved = flat(self.parameters())[: len(self.anchor)] - self.anchor
        return (self.fisher * moved.square()).sum() / 2

    @torch.no_grad()
    def end_task(self) -> None:
        super().end_task()
        fisher = self.squares / max(self.images, 1)
        fisher[: len(self.fisher)] += self.options.decay * self.fisher
        self.fisher, self.anchor = fisher, flat(self.parameters())
        self.squares = torch.zeros(0, device=self.setting.device)

    def parameters(self) -> list[Tensor]:
        """The backbone's, then each task's rows of the head: those of a new task come last."""
        rows = [each for task in zip(self.head.weights, self.head.biases, strict=True) for each in task]
        return [*self.learner.backbone.parameters(), *rows]

    def kept(self) -> Kept:
        return Kept(bytes=self.fisher.nbytes + self.anchor.nbytes)

    def state_dict(self) -> dict[str, Any]:
        measured = {"fisher": self.fisher, "anchor": self.anchor, "squares": self.squares}
        return {**super().state_dict(), **measured, "images": self.images, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name in ("fisher", "anchor", "squares"):
            setattr(self, name, state[name].to(self.setting.device))
        self.images, self.steps = state["images"], state["steps"]


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers in one row."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
