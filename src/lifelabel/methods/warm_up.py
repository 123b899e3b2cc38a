"""Warm-up of a backbone without pretrained weights, for methods with a closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lifelabel.errors import UserError
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.method import Batch
from lifelabel.nn.method_setting import Setting


class WarmUp:
    """Trains the backbone by gradient on the first `images` images of the first task, with a temporary linear head.

    Then the backbone is frozen. With `images=0` it is frozen from the start.
    """

    def __init__(self, setting: Setting, images: int):
        self.setting, self.images, self.seen = setting, images, 0
        self.training: FineTuning | None = None
        if not images:
            self.freeze()

    @property
    def done(self) -> bool:
        """Whether the backbone is frozen."""
        return self.seen >= self.images

    def begin_task(self, classes: Sequence[str]) -> None:
        """Begin a task. Only the first one has a warm-up."""
        if not self.done and self.training is None:
            self.training = FineTuning(self.setting, None)
            self.training.begin_task(classes)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """One gradient step. Returns the loss (Eq. 2)."""
        assert self.training is not None, "call begin_task first"
        parts = self.training.observe(batch)
        self.seen += len(batch.images)
        if self.done:
            self.freeze()
        return parts

    def freeze(self) -> None:
        """Freeze the backbone and drop its optimizer."""
        self.setting.backbone.requires_grad_(False).zero_grad(set_to_none=True)
        self.training = None

    def check_images_left(self, images: float) -> None:
        """Raise a `UserError` if the first task has no images for the regression."""
        if not images:
            raise UserError(
                f"method.warm_up={self.images} used all {self.seen} images of the first task and left none for the "
                "regression: start again with a smaller one, --set method.warm_up=N"
            )

    def state_dict(self) -> dict[str, Any]:
        learner = self.training.learner.state_dict() if self.training else None
        return {"images": self.images, "seen": self.seen, "learner": learner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state. The first task must have begun if it had begun in the state."""
        self.images, self.seen = state["images"], state["seen"]
        if self.training and state["learner"]:
            self.training.learner.load_state_dict(state["learner"])
        elif self.done:
            self.freeze()
