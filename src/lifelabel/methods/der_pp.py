"""DER++: dark experience replay. Kept images carry the logits they had, and are pulled back to them
(Buzzega et al., NeurIPS 2020).

    L = cls(new batch) + α · ‖z(x') − z'‖² + β · cls(x'', y'')

(x', z') and (x'', y'') are two draws of kept images: logits from the one, labels from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.buffer import BufferOptions, Replayed
from lifelabel.methods.base import Batch
from lifelabel.methods.er import ER
from lifelabel.options import option


@dataclass(frozen=True)
class DERppOptions(BufferOptions):
    alpha: float = option(0.5, "weight of the distance of a kept image's logits from those kept with it", low=0)
    beta: float = option(0.5, "weight of the loss on kept labels", low=0)


class DERpp(ER):
    summary = "replay that holds on to the logits of kept images, and to their labels"
    Options = DERppOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"alpha": (0.1, 0.5, 1.0), "beta": (0.5, 1.0)}

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        parts = self.recorder(self.learn, batch, self.recall(self.draw(batch) + self.draw(batch)))
        self.remember(batch, parts.pop("logits"))
        return parts

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        logits = self.forward(batch, replayed)
        half = 0 if replayed is None else len(replayed.images) // 2
        new, dark, labelled = logits.split([len(batch.images), half, half])
        parts = {"cls": self.classify(new, batch), "mse": new.new_zeros(()), "replay": new.new_zeros(())}
        if replayed is not None:
            parts["mse"] = distance(dark, replayed[:half], self.setting.reduction)
            parts["replay"] = self.replay_loss(labelled, replayed[half:])
        self.learner.step(parts["cls"] + self.options.alpha * parts["mse"] + self.options.beta * parts["replay"])
        return {name: part.detach() for name, part in {**parts, "logits": new}.items()}

    def remember(self, batch: Batch, logits: Tensor | None = None) -> None:
        """Offer the images of a batch to the buffer, with the logits that they had when they were learned."""
        self.buffer.offer(batch, sum(self.sizes[:-1]), logits)


def distance(logits: Tensor, replayed: Replayed, reduction: str) -> Tensor:
    """Squared distance of the logits from the kept ones: of the classes that were known when an image was kept."""
    if replayed.logits is None or replayed.stored is None:
        return logits.new_zeros(())
    squares = (logits - replayed.logits).square() * replayed.stored
    return squares.sum(1).mean() if reduction == "sum" else squares.sum() / replayed.stored.sum().clamp(min=1)
