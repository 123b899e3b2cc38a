"""The interface of a method: four calls, its options, and a state that can be saved and restored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.errors import HiddenLabel
from lifelabel.nn.cuda_graphs import StepRecorder
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.method_setting import Setting


@dataclass(frozen=True)
class HostBatch:
    """A batch in host memory, with `labels` and `known` as in `Batch`.

    `pixels` (B x H x W x 3, uint8) is overwritten by the next batch.
    """

    pixels: Tensor
    labels: np.ndarray
    known: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Images (B x 3 x H x W) and their visible labels.

    `labels` (B x K, 0/1) has one column for each of the K `classes`: those of the current task, or, if some labels of
    earlier tasks are known, all classes so far. The last columns are those of the current task. `known` (B x K, bool)
    is true for the entries that are known. An unknown entry is 0 and has no meaning. The method's process has no other
    labels.
    """

    images: Tensor
    labels: Tensor
    known: Tensor
    classes: tuple[str, ...]
    host: HostBatch | None = None
    """The same batch in host memory, for methods that store images."""
    first_pass: bool = True
    """Whether the task shows these images for the first time. A run with several `epochs` shows them again: what is
    counted or stored once for each image must not change then."""

    def label(self, name: str) -> Tensor:
        """The labels of one class (B). Raises `HiddenLabel` for a class whose labels are hidden."""
        if name not in self.classes:
            raise HiddenLabel(f"the label '{name}' is hidden: the visible classes are {', '.join(self.classes)}")
        return self.labels[:, self.classes.index(name)]

    def of_task(self, new: int) -> tuple[Tensor, Tensor]:
        """Labels and the mask of known labels (B x new) of the `new` classes of the current task."""
        return self.labels[:, -new:], self.known[:, -new:]

    def with_known(self, soft_labels: Tensor, new: int) -> Tensor:
        """Targets of the old classes (B x old): the known labels, and the given soft labels where they are unknown."""
        old = self.labels.shape[1] - new
        if not old:
            return soft_labels
        assert old == soft_labels.shape[1], "a batch with known labels of old classes has columns for all of them"
        return torch.where(self.known[:, :old], self.labels[:, :old].to(soft_labels), soft_labels)


@dataclass(frozen=True)
class Footprint:
    """What a method stores from task to task, in addition to the network that is evaluated."""

    images: int = 0
    bytes: int = 0
    """The total size: images with their labels, copies of the network, statistics."""


@dataclass(frozen=True)
class _NoOptions:
    """The options of a method that has none."""


class Method(ABC):
    """The base class of all methods.

    For each task the engine calls `begin_task`, `observe` for each batch, and `end_task`. Then it scores test images.
    """

    summary: ClassVar[str]
    """One line for `lifelabel list methods`. A class that does not set it is a base class and no method."""
    name: ClassVar[str]
    """The name of the method, if it is not that of its file (`my-bar` for my_bar.py). It is not inherited."""
    position: ClassVar[int]
    """The place in lists and tables. A method that does not declare it comes last. It is not inherited."""
    Options: ClassVar[type] = _NoOptions
    """A dataclass of the method's own options."""
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {}
    """The values of the method's own options that `lifelabel tune` tries."""
    shared_options: ClassVar[tuple[str, ...]] = ("lr", "backbone_lr", "later_backbone_lr", "batch_norm")
    """The shared options that `lifelabel tune` searches for this method."""
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    """Options by kind of stream (`scenes`, `photographs`), as `lifelabel tune` writes them. They are the defaults."""
    fidelities: ClassVar[dict[str, dict[str, Any]]] = {}
    """The method's own options by fidelity, such as `paper`, or by fidelity and kind of stream: `tuned/photographs`.
    They are not inherited: a subclass has other options."""
    label_graph: ClassVar[bool] = False
    """Whether the head is a graph over the label words: the fidelities of the AGCN paper give it a rate of its own."""
    default_for_photographs: ClassVar[bool] = False
    """Whether it is the default on photographs with pretrained weights, except on the paper's streams."""
    float64: ClassVar[bool] = False
    """Whether the method uses float64 on the device. The device mps does not support it."""
    counts_labels: ClassVar[bool] = False
    """Whether the engine counts the labels of the images of a task before its first batch: see `count_labels`."""
    validates: ClassVar[bool] = False
    """Whether the method chooses an option by the validation images of a stream: see `validate`."""
    per_step: ClassVar[tuple[str, ...]] = ()
    """The entries of the state, besides `learner`, that change also in steps on images that are shown again."""
    joint: ClassVar[bool] = False
    """True for the upper bound, which trains on all tasks at once with complete labels."""
    saved: ClassVar[tuple[str, ...]] = ()
    """The attributes that are the state of the class, besides those of its bases: tensors, numbers, and parts with
    `state_dict` and `load_state_dict`."""

    def __init__(self, setting: Setting, options: Any):
        self.setting, self.options = setting, options
        self.tasks: list[tuple[str, ...]] = []
        self.recorder = StepRecorder(setting.record)

    @property
    def sizes(self) -> list[int]:
        """The number of classes of each task so far."""
        return [len(names) for names in self.tasks]

    def begin_task(self, classes: Sequence[str]) -> None:
        """Begin a task with new classes."""
        self.tasks.append(tuple(classes))
        self.recorder.reset()

    def count_labels(self, counts: np.ndarray) -> None:
        """How many images of the task have both of two labels (K x K), for the K classes of its batches.

        The diagonal has the images of each class. Unknown labels are not counted. Called after `begin_task`, if the
        method declares `counts_labels`.
        """
        raise NotImplementedError("a method that declares counts_labels implements count_labels")

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        """Learn from one batch. Returns its losses by name, on the device."""
        return self.recorder(self.learn, batch, mode=batch.first_pass)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        """The part of `observe` that runs on the device. It can be recorded as a CUDA graph (see `StepRecorder`)."""
        raise NotImplementedError("a method implements learn, or observe in its place")

    def end_task(self) -> None:
        """End the task, after its last batch."""
        self.recorder.reset()

    def validate(self, features: Tensor, labels: Tensor, known: Tensor) -> None:
        """Choose an option by validation images: their features, and their labels of the task's classes (N x new).

        Called after `end_task`, if the method declares `validates` and the stream has such images.
        """
        raise NotImplementedError("a method that declares validates implements validate")

    def scores(self, images: Tensor) -> Tensor:
        """Logits for all seen classes, B x seen, in eval mode."""
        return self.logits(self.features(images))

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """The input of the classifier, one row per image, in eval mode."""

    @abstractmethod
    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        """Logits for all seen classes, or for the first `num_classes` as if there were no others.

        The authors' code scores an earlier test set in this way, with the matrix of its own task. If the classes of a
        method do not influence each other, the result is the first columns of all logits.
        """

    @property
    def fixed_features(self) -> bool:
        """Whether `features` of an image are the same from now on. Then each test image is computed only once."""
        return False

    def network(self) -> InferenceNetwork | None:
        """Normalized images to the logits of `scores`, for use after training. None if the method has no such network.

        It shares its weights with the method. Called after the end of a task.
        """
        return None

    def footprint(self) -> Footprint:
        """What the method stores now, in addition to its network: what is in `saved` and has a size in `nbytes`."""
        return Footprint(bytes=sum(getattr(getattr(self, name), "nbytes", 0) for name in self.saved_names()))

    def matrix(self) -> np.ndarray | None:
        """The correlation matrix of the seen classes, if the method has one."""
        return None

    def saved_names(self) -> list[str]:
        """The names in `saved` of the class and of its bases."""
        return [name for each in reversed(type(self).__mro__) for name in each.__dict__.get("saved", ())]

    def state_dict(self) -> dict[str, Any]:
        """The state in tensors, numbers and strings (in dicts and lists). `load_state_dict` restores it exactly."""
        parts = {name: getattr(self, name) for name in self.saved_names()}
        state = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
        return {"tasks": [list(names) for names in self.tasks], **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state on a method that has not begun any task. A subclass makes the parts that are None by then."""
        for names in state["tasks"]:
            self.begin_task(names)
        self.load_saved(state)

    def load_saved(self, state: dict[str, Any]) -> None:
        """Restore the attributes in `saved`."""
        for name in self.saved_names():
            part, value = getattr(self, name), state[name]
            if part is None:
                continue
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, value.to(part.device, copy=True) if isinstance(value, Tensor) else value)
