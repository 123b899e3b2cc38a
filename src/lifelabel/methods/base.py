"""What a method is: four verbs, its options, and a state that can be saved and restored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from lifelabel.errors import HiddenLabel
from lifelabel.learner import Setting
from lifelabel.recording import Recorder


@dataclass(frozen=True)
class Host:
    """A batch in the memory of the host: `pixels` B x H x W x 3, uint8, used again for the next batch."""

    pixels: Tensor
    labels: np.ndarray
    known: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Images (B x 3 x H x W) and the labels of the current task: all that a method sees.

    `labels` (B x K, 0/1) has a column for each of `classes`, those of the current task. `known` (B x K, bool) says
    which entries are known; an entry that is not known is 0 and means nothing. No other label is in the process.
    """

    images: Tensor
    labels: Tensor
    known: Tensor
    classes: tuple[str, ...]
    host: Host | None = None
    """The same on the host, for a method that keeps images."""

    def label(self, name: str) -> Tensor:
        """The column of one class (B); a class whose labels are hidden in this task is an error that names it."""
        if name not in self.classes:
            raise HiddenLabel(f"the label '{name}' is hidden: this task shows {', '.join(self.classes)} alone")
        return self.labels[:, self.classes.index(name)]


@dataclass(frozen=True)
class Kept:
    """What a method carries from task to task besides the network that it is scored with."""

    images: int = 0
    bytes: int = 0
    """Images with their labels, copies of the network, statistics: everything."""


@dataclass(frozen=True)
class NoOptions:
    """A method without options of its own."""


class Method(ABC):
    """A learner. The engine calls, for each task, `begin_task`, `observe` once a batch, `end_task`, then `scores`."""

    summary: ClassVar[str]
    """One line for `lifelabel list methods`."""
    Options: ClassVar[type] = NoOptions
    """A dataclass of the method's own options."""
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """Values worth trying of its own options, for `lifelabel tune`."""
    knobs: ClassVar[tuple[str, ...]] = ("lr", "backbone_lr", "later_backbone_lr", "batch_norm")
    """The shared options that matter to it, for `lifelabel tune`."""
    joint: ClassVar[bool] = False
    """True for the upper bound, which sees all tasks at once with complete labels."""

    def __init__(self, setting: Setting, options: Any):
        self.setting, self.options = setting, options
        self.tasks: list[tuple[str, ...]] = []
        self.recorder = Recorder(setting.record)

    @property
    def sizes(self) -> list[int]:
        """How many classes each task so far brought."""
        return [len(names) for names in self.tasks]

    def begin_task(self, classes: Sequence[str]) -> None:
        """New classes arrive."""
        self.tasks.append(tuple(classes))
        self.recorder.forget()

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Learn one batch, once. Returns its losses by name, left on the device."""
        return self.recorder(self.learn, batch)

    @abstractmethod
    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """The part of `observe` on the device, which may be recorded (see `Recorder`)."""

    def end_task(self) -> None:
        """The task's last batch has passed."""
        self.recorder.forget()

    def scores(self, images: Tensor) -> Tensor:
        """Logits for all seen classes, B x seen; higher means likelier."""
        return self.logits(self.features(images))

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """What the classifier knows of images, B x whatever: a row an image."""

    @abstractmethod
    def logits(self, features: Tensor, first: int | None = None) -> Tensor:
        """Logits for all seen classes, or for the `first` ones as judged when no more than those were known.

        The authors' code scores so: an earlier test set with the matrix of its own task. For a method whose classes
        do not influence each other these are columns of all logits.
        """

    def kept(self) -> Kept:
        """What it keeps now: images, and bytes of everything that it carries besides its network."""
        return Kept()

    def matrix(self) -> np.ndarray | None:
        """The correlation matrix of the seen classes, where the method has one."""
        return None

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and strings (in dicts and lists) that make the method go on exactly from here."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state`, on a method that has not begun any task."""
