"""ER: experience replay. Each batch is learned together with a batch of stored images (Rolnick et al., 2019).

An image is stored with its visible labels. All other labels are unknown. By default they are not part of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lifelabel.methods.buffer import Buffer, BufferOptions, Replayed, Reservoir
from lifelabel.methods.fine_tuning import ClassificationOptions, FineTuning
from lifelabel.methods.method import Batch, Footprint, Method
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class EROptions(BufferOptions):
    replay_weight: float = option(1.0, "weight of the loss on stored images", low=0)


@dataclass(frozen=True)
class ClassificationReplayOptions(EROptions, ClassificationOptions):
    """The options of a method whose losses on new and stored images are both on labels."""


class Replay(Method):
    """The buffer of a method that learns each batch together with stored images. It comes before the other bases."""

    saved: ClassVar[tuple[str, ...]] = ("buffer",)
    buffer_class: ClassVar[type[Buffer]] = Reservoir
    """The class of the buffer, which decides which images are stored."""

    def __init__(self, setting: Setting, options: Any):
        super().__init__(setting, options)
        self.buffer = self.buffer_class(options, setting.backbone.normalize, mirror=setting.augment != "none")

    def sample(self, batch: Batch) -> list[int]:
        """Positions in the buffer of the images that are replayed with a batch."""
        return self.buffer.sample(self.options.replay_batch or len(batch.images))

    def recall(self, positions: list[int]) -> Replayed | None:
        """The stored images at the given positions; None if the list is empty."""
        return self.buffer.replay(positions, sum(self.sizes)) if positions else None

    def store(self, batch: Batch, logits: Tensor | None = None) -> None:
        """Offer the images of a batch to the buffer, with their logits if they are given: once for each image."""
        if not batch.first_pass:
            return
        assert batch.host is not None
        self.buffer.offer(batch.host, sum(self.sizes) - batch.host.labels.shape[1], logits)

    def footprint(self) -> Footprint:
        return Footprint(len(self.buffer), self.buffer.total_bytes() + super().footprint().bytes)


class ER(Replay, FineTuning):
    summary = "experience replay: each batch with stored images, sampled uniformly from the whole stream"
    position = 70
    Options: ClassVar[type] = ClassificationReplayOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"replay_weight": (0.5, 1.0, 2.0)}

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        parts = self.recorder(self.learn, batch, self.recall(self.sample(batch)))
        self.store(batch)  # after sampling: no image is replayed in its own step
        return parts

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        logits = self.forward(batch, replayed)
        parts = {"cls": self.classify(logits, batch), "replay": self.replay_loss(logits[len(batch.images) :], replayed)}
        self.learner.step(parts["cls"] + self.options.replay_weight * parts["replay"])
        return {name: part.detach() for name, part in parts.items()}

    def forward(self, batch: Batch, replayed: Replayed | None) -> Tensor:
        """Logits of a batch followed by stored images, in one pass: the statistics of batch norm are over both."""
        return self.train_logits(batch.images if replayed is None else torch.cat([batch.images, replayed.images]))

    def replay_loss(self, logits: Tensor, replayed: Replayed | None) -> Tensor:
        """The loss of stored images on their `targets`; 0 if nothing is stored yet."""
        if replayed is None:
            return logits.new_zeros(())
        return self.classification(logits, *self.targets(replayed.labels, replayed.known))
