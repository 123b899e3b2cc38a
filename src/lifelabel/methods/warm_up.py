"""Warm-up of a backbone without pretrained weights, for methods with a closed form."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lifelabel.errors import UserError
from lifelabel.methods.method import Batch
from lifelabel.nn import losses
from lifelabel.nn.cuda_graphs import StepRecorder
from lifelabel.nn.learner import Learner, LinearHead
from lifelabel.nn.method_setting import Setting

__all__ = ["WarmUp"]


class WarmUp:
    """Trains the backbone by gradient on the first `images` images of the first task, with a temporary linear head.

    Then the backbone is frozen. With `images=0` it is frozen from the start.
    """

    def __init__(self, setting: Setting, images: int):
        self.setting, self.images, self.seen = setting, images, 0
        self.learner: Learner | None = None
        self.recorder = StepRecorder(setting.record)
        if not images:
            self.freeze()

    @property
    def done(self) -> bool:
        """Whether the backbone is frozen."""
        return self.seen >= self.images

    def begin_task(self, new: int) -> None:
        """Begin the first task, with `new` classes."""
        head = LinearHead(self.setting.backbone.dim)
        head.grow(new, self.setting.device)
        self.learner = Learner(head, self.setting)
        self.learner.begin_task(first_task=True)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step. Returns the loss (Eq. 2)."""
        parts = self.recorder(self._learn, batch)
        self.seen += len(batch.images)
        if self.done:
            self.freeze()
        return parts

    def _learn(self, batch: Batch) -> dict[str, Tensor]:
        assert self.learner is not None, "call begin_task first"
        logits = self.learner.head(self.learner.train_features(batch.images))
        loss = losses.classification(logits, batch.labels, self.setting.reduction, batch.known)
        self.learner.step(loss)
        return {"cls": loss.detach()}

    def freeze(self) -> None:
        """Freeze the backbone and drop its optimizer."""
        self.setting.backbone.requires_grad_(False).zero_grad(set_to_none=True)
        self.learner = None
        self.recorder.reset()

    def check_images_left(self, images: float) -> None:
        """Raise a `UserError` if the first task has no images for the regression."""
        if not images:
            raise UserError(
                f"method.warm_up={self.images} used all {self.seen} images of the first task and left none for the "
                "regression: start again with a smaller one, --set method.warm_up=N"
            )

    def state_dict(self) -> dict[str, Any]:
        learner = self.learner.state_dict() if self.learner else None
        return {"images": self.images, "seen": self.seen, "learner": learner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The first task must have begun if it had begun in the state."""
        self.images, self.seen = state["images"], state["seen"]
        if self.learner and state["learner"]:
            self.learner.load_state_dict(state["learner"])
        elif self.done:
            self.freeze()
