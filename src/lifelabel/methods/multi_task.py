"""Multi-task: one pass over the shuffled images of all tasks, with complete labels. The paper's upper bound."""

from __future__ import annotations

from typing import ClassVar

from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.methods.method import Method


class MultiTask(FineTuning):
    summary = "all tasks at once, shuffled, with complete labels (the upper bound)"
    position = 10
    Options = Method.Options  # nothing is hidden from it
    joint = True
    shared_options: ClassVar[tuple[str, ...]] = ("lr", "backbone_lr", "batch_norm")
