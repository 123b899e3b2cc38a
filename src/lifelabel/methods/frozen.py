"""Frozen: a backbone that does not learn, and a linear classifier for each task's classes. Nothing can be forgotten.

The old rows of the head stay where they are by themselves: the loss is over the new classes, so their gradient is
zero, and Adam is a fresh one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.options import option


@dataclass(frozen=True)
class FrozenOptions:
    learn_first: bool = option(
        False, "let the backbone learn in the first task; for one that starts from nothing, which has no features yet"
    )


class Frozen(FineTuning):
    summary = "a frozen backbone, a new linear head with each task: forgets nothing, learns heads alone"
    Options = FrozenOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {"learn_first": (False, True)}
    knobs: ClassVar[tuple[str, ...]] = ("lr", "backbone_lr")

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        if len(self.tasks) > 1 or not self.options.learn_first:
            self.learner.freeze()
