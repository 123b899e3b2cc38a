"""A-GEM: gradients that would raise the loss on stored images are projected (Chaudhry et al., ICLR 2019).

    g ← g − (g·r / r·r) r    if g·r < 0

g is the gradient of the new batch and r that of a batch of stored images, over backbone and head together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lifelabel.methods.buffer import BufferOptions, Replayed
from lifelabel.methods.er import ER
from lifelabel.methods.fine_tuning import ClassificationOptions
from lifelabel.methods.method import Batch


@dataclass(frozen=True)
class _AGEMOptions(BufferOptions, ClassificationOptions):
    """The options of the buffer and of the loss."""


class AGEM(ER):
    summary = "projects gradients that would raise the loss on stored images"
    position = 60
    Options = _AGEMOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        optimizer = self.learner.optimizer
        assert optimizer is not None, "call begin_task first"
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        replay, reference = batch.images.new_zeros(()), None
        if replayed is not None:
            replay = self.replay_loss(self.train_logits(replayed.images), replayed)
            reference = self.flat_gradient(replay, parameters)
        cls = self.classify(self.train_logits(batch.images), batch)
        gradient = self.flat_gradient(cls, parameters)
        if reference is not None:
            gradient = _project(gradient, reference)
        for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
            # the fused Adam needs gradients in the memory format of the parameter
            p.grad = torch.empty_like(p).copy_(part.view_as(p))
        optimizer.step()
        return {"cls": cls.detach(), "replay": replay.detach()}

    def flat_gradient(self, loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
        """The gradient as one vector; 0 for a parameter that the loss does not depend on."""
        parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
        return torch.cat([part.reshape(-1) for part in self.setting.group.average(parts)])


def _project(gradient: Tensor, reference: Tensor) -> Tensor:
    """The gradient without its component against the reference. There is no branch, so the host does not wait."""
    against = torch.dot(gradient, reference).clamp(max=0)
    squared_norm = torch.dot(reference, reference).clamp(min=torch.finfo(reference.dtype).tiny)
    return gradient - against / squared_norm * reference
