"""A-GEM: a step may not raise the loss on kept images (Chaudhry et al., ICLR 2019).

    g ← g − (g·r / r·r) r    where g·r < 0

g is the gradient of the new batch and r that of a batch of kept images, over backbone and head together.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lifelabel.buffer import BufferOptions, Replayed
from lifelabel.methods.base import Batch
from lifelabel.methods.er import ER


class AGEM(ER):
    summary = "gradients that would raise the loss on kept images are turned aside"
    Options = BufferOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        optimizer = self.learner.optimizer
        assert optimizer is not None, "begin_task comes first"
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        replay, reference = batch.images.new_zeros(()), None
        if replayed is not None:
            replay = self.replay_loss(self.scores(replayed.images), replayed)
            reference = flat_gradient(replay, parameters)
        cls = self.classify(self.scores(batch.images), batch)
        gradient = flat_gradient(cls, parameters)
        if reference is not None:
            gradient = project(gradient, reference)
        for p, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
            p.grad = torch.empty_like(p).copy_(part.view_as(p))  # Adam wants it to lie in memory as the parameter does
        optimizer.step()
        return {"cls": cls.detach(), "replay": replay.detach()}


def flat_gradient(loss: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """The gradient as one vector; 0 for a parameter that the loss does not depend on."""
    parts = torch.autograd.grad(loss, parameters, materialize_grads=True)
    return torch.cat([part.reshape(-1) for part in parts])


def project(gradient: Tensor, reference: Tensor) -> Tensor:
    """The gradient without what points against the reference. Nothing is asked of the device: the host goes on."""
    against = torch.dot(gradient, reference).clamp(max=0)
    length = torch.dot(reference, reference).clamp(min=torch.finfo(reference.dtype).tiny)
    return gradient - against / length * reference
