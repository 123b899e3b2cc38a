"""CSC: Confidence Self-Calibration (Du, Zhou, Lyu, Li, Lu, Liu; ECCV 2024).

A graph over the classes of each image, with a learned adjacency that grows with the classes and one that is computed
from the image (`ClassGraphHead`). Besides classification and distillation, the loss rewards the entropy of the
predictions, against over-confidence. A known label of an old class takes the place of its soft label.
docs/methods/csc.md states what is from the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from lifelabel.methods.map_method import MapMethod
from lifelabel.methods.method import Batch
from lifelabel.nn import losses
from lifelabel.nn.heads import ClassGraphHead
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class _CSCOptions:
    alpha: float = option(
        0.5, "weight of the classification loss after the first task; distillation: 1 - alpha", low=0, high=1
    )
    beta: float = option(0.04, "weight of the entropy of the predictions, which is subtracted from the loss")
    entropy: str = option(
        "seen", "the classes whose entropy is in the loss: all seen classes, or the old ones", choices=("seen", "old")
    )
    maps: str = option(
        "softmax",
        "how the scores of a class at all places become the weights of places",
        choices=("softmax", "sigmoid"),
    )
    width: int = option(512, "width of the nodes of the graph", low=1, high=16_384)


class CSC(MapMethod):
    summary = "class graphs of each image with a learned adjacency, a frozen expert, and a loss against over-confidence"
    position = 200
    Options = _CSCOptions
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"alpha": (0.3, 0.5, 0.7), "beta": (0.01, 0.04, 0.2)}

    def __init__(self, setting: Setting, options: _CSCOptions):
        head = ClassGraphHead(setting.backbone.dim, options.width, sigmoid=int(options.maps == "sigmoid"))
        super().__init__(setting, options, head)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        maps, reduction, new = self.learner.train_maps(batch.images), self.setting.reduction, self.sizes[-1]
        with self.setting.autocast():
            logits = self.head(maps).float()
        labels, known = batch.of_task(new)
        parts = {"cls": losses.classification(logits[:, -new:], labels, reduction, known)}
        loss = parts["cls"]
        if self.expert:
            targets = batch.with_known(self.expert.logits(batch.images).sigmoid(), new)
            parts["dst"] = losses.distillation(logits[:, :-new], targets, reduction)
            loss = self.options.alpha * parts["cls"] + (1 - self.options.alpha) * parts["dst"]
        if self.expert or self.options.entropy == "seen":
            regularised = logits if self.options.entropy == "seen" else logits[:, :-new]
            parts["entropy"] = losses.entropy(regularised, reduction)
            loss = loss - self.options.beta * parts["entropy"]
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}
