"""Frozen: a frozen backbone with a linear classifier for the classes of each task. Nothing is forgotten.

The old rows of the head do not change if no label of an old class is known: the loss is over the new classes, so their
gradient is zero, and each task has a new Adam optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.options import option


@dataclass(frozen=True)
class _FrozenOptions:
    learn_first: bool = option(False, "train the backbone in the first task, for a backbone without pretrained weights")


class Frozen(FineTuning):
    summary = "a frozen backbone with a new linear head for each task: old classes do not change"
    position = 130
    Options = _FrozenOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"learn_first": (False, True)}
    shared_options: ClassVar[tuple[str, ...]] = ("lr", "backbone_lr")

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        if len(self.tasks) > 1 or not self.options.learn_first:
            self.learner.freeze()

    @property
    def fixed_features(self) -> bool:
        return self.learner.frozen
