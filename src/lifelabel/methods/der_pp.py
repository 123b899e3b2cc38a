"""DER++: dark experience replay (Buzzega et al., NeurIPS 2020). Images are stored with their logits and labels.
Later logits of an image are trained towards the stored ones.

    L = cls(new batch) + α · ‖z(x') − z'‖² + β · cls(x'', y'')

(x', z') and (x'', y'') are two independent samples of stored images: the first with its stored logits, the second with
its labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.methods.buffer import BufferOptions, Replayed
from lifelabel.methods.er import ER
from lifelabel.methods.fine_tuning import ClassificationOptions
from lifelabel.methods.method import Batch
from lifelabel.options import option


@dataclass(frozen=True)
class _DERppOptions(BufferOptions, ClassificationOptions):
    alpha: float = option(
        0.5, "weight of the squared distance between the logits of a stored image and its stored logits", low=0
    )
    beta: float = option(0.5, "weight of the loss on stored labels", low=0)


class DERpp(ER):
    summary = "replay with the stored logits and labels of images"
    name = "der++"
    position = 90
    Options = _DERppOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"alpha": (0.1, 0.5, 1.0), "beta": (0.5, 1.0)}

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        parts = self.recorder(self.learn, batch, self.recall(self.sample(batch) + self.sample(batch)))
        self.store(batch, parts.pop("logits"))
        return parts

    def learn(self, batch: Batch, replayed: Replayed | None = None) -> dict[str, Tensor]:
        logits, seen = self.forward(batch, replayed), sum(self.sizes)
        half = 0 if replayed is None else len(replayed.images) // 2
        new, dark, labelled = logits.split([len(batch.images), half, half])
        parts = {"cls": self.classify(new, batch), "mse": new.new_zeros(()), "replay": new.new_zeros(())}
        if replayed is not None:
            parts["mse"] = _distance(dark[:, :seen], replayed[:half], self.setting.reduction)
            parts["replay"] = self.replay_loss(labelled, replayed[half:])
        self.learner.step(parts["cls"] + self.options.alpha * parts["mse"] + self.options.beta * parts["replay"])
        return {name: part.detach() for name, part in {**parts, "logits": new[:, :seen]}.items()}


def _distance(logits: Tensor, replayed: Replayed, reduction: str) -> Tensor:
    """Squared distance between logits and stored logits, of the classes that were seen when an image was stored."""
    assert replayed.logits is not None and replayed.stored is not None, "every image is stored with its logits"
    squares = (logits - replayed.logits).square() * replayed.stored
    return squares.sum(1).mean() if reduction == "sum" else squares.sum() / replayed.stored.sum().clamp(min=1)
