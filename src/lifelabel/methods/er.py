"""ER: experience replay. Each batch is learned together with a batch of kept images (Rolnick et al., 2019).

An image is kept with the labels that were visible when it came. All others stay unknown, and weigh nothing in the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lifelabel import losses
from lifelabel.buffer import Buffer, BufferOptions, Replayed, Reservoir
from lifelabel.learner import Setting
from lifelabel.methods.base import Batch, Kept
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.options import option


@dataclass(frozen=True)
class EROptions(BufferOptions):
    replay_weight: float = option(1.0, "weight of the loss on kept images", low=0)


class ER(FineTuning):
    summary = "experience replay: each batch with kept images, drawn evenly from the whole stream"
    Options: ClassVar[type] = EROptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"replay_weight": (0.5, 1.0, 2.0)}

    keeps: ClassVar[type[Buffer]] = Reservoir
    """What chooses the images that are kept."""

    def __init__(self, setting: Setting, options: BufferOptions):
        super().__init__(setting, options)
        self.buffer = self.keeps(options, setting)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        parts = self.recorder(self.learn, batch, self.recall(self.draw(batch)))
        self.remember(batch)  # after the draw: no image is replayed beside itself
        return parts

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        logits = self.forward(batch, replayed)
        parts = {"cls": self.classify(logits, batch), "replay": self.replay_loss(logits[len(batch.images) :], replayed)}
        self.learner.step(parts["cls"] + self.options.replay_weight * parts["replay"])
        return {name: part.detach() for name, part in parts.items()}

    def draw(self, batch: Batch) -> list[int]:
        """Places of the kept images that go with a batch."""
        return self.buffer.draw(self.options.replay_batch or len(batch.images))

    def recall(self, places: list[int]) -> Replayed | None:
        """The kept images at some places; None where there are none."""
        return self.buffer.replay(places, sum(self.sizes)) if places else None

    def forward(self, batch: Batch, replayed: Replayed | None) -> Tensor:
        """Logits of a batch and of kept images below it, from one pass: batch norm sees both at once."""
        return self.scores(batch.images if replayed is None else torch.cat([batch.images, replayed.images]))

    def classify(self, logits: Tensor, batch: Batch) -> Tensor:
        """The loss on the new classes of a batch, whose logits come first."""
        rows, new = batch.labels.shape
        return losses.classification(logits[:rows, -new:], batch.labels, self.setting.reduction, batch.known)

    def replay_loss(self, logits: Tensor, replayed: Replayed | None) -> Tensor:
        """The loss of kept images on every seen class, where their labels are known; 0 where nothing is kept yet."""
        if replayed is None:
            return logits.new_zeros(())
        return losses.classification(logits, replayed.labels, self.setting.reduction, replayed.known)

    def remember(self, batch: Batch) -> None:
        """Offer the images of a batch to the buffer."""
        self.buffer.offer(batch, sum(self.sizes[:-1]))

    def kept(self) -> Kept:
        return Kept(len(self.buffer), self.buffer.kept_bytes())

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "buffer": self.buffer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.buffer.load_state_dict(state["buffer"])
