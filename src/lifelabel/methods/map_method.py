"""The parts that methods with a head on the feature map share: network, frozen expert, scores and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.methods.method import Method
from lifelabel.nn.expert import MapExpert
from lifelabel.nn.heads import MapHead
from lifelabel.nn.inference import InferenceNetwork, MapFeatures
from lifelabel.nn.learner import Learner
from lifelabel.nn.method_setting import Setting


class MapMethod(Method):
    """A backbone with a `MapHead`, and a frozen copy of both as they were when the last task ended.

    `features` are the logits, so that the feature maps of test images are not kept.
    """

    saved: ClassVar[tuple[str, ...]] = ("learner", "expert")

    def __init__(self, setting: Setting, options: Any, head: MapHead):
        super().__init__(setting, options)
        self.head = head
        self.learner = Learner(head, setting)
        self.expert: MapExpert | None = None

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.head.grow(len(classes), self.setting.device)
        self.learner.begin_task(first_task=len(self.tasks) == 1)

    def end_task(self) -> None:
        super().end_task()
        self.expert = MapExpert(self.learner.backbone, self.head, self.setting, self.expert)

    def features(self, images: Tensor) -> Tensor:
        return self.head.score(self.learner.eval_maps(images))

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        return features[:, :num_classes]

    def network(self) -> InferenceNetwork:
        return InferenceNetwork(MapFeatures(self.learner.backbone), self.head)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["expert"] is not None:
            self.expert = MapExpert.restore(state["expert"], self.learner.backbone, self.setting)
