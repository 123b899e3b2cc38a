"""AGCN++: AGCN with nodes that are computed from each image (Du, Lyu, Li, Hu, Feng, Xu, Xi, Cheng; arXiv 2211.14763).

A partial label encoder makes one feature per class from the places of the feature map, by class attention. The nodes of
the graph are these features and the label words (`MatrixGraphHead`), so every image has its own nodes. The correlation
matrix, the frozen expert and the three losses are those of AGCN, and so are the equation numbers.
docs/methods/agcn++.md states what is from the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.methods.map_method import MapMethod
from lifelabel.methods.matrix_options import MatrixOptions
from lifelabel.methods.method import Batch
from lifelabel.nn import losses
from lifelabel.nn.heads import MatrixGraphHead
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class _AGCNppOptions(MatrixOptions):
    width: int = option(256, "number of features per class and image", low=1, high=16_384)
    length: float = option(
        1.0, "Euclidean norm of the features of a class, next to its label word in a node; 0: label words alone", low=0,
        high=1000,
    )  # fmt: skip


class AGCNpp(MapMethod):
    summary = "AGCN whose nodes have features of each image, one vector per class, besides the label words"
    name = "agcn++"
    position = 210
    saved = ("acm",)
    Options = _AGCNppOptions
    label_graph = True
    float64 = True
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {
        "lambdas": ((0.15, 0.85, 1e3), (0.3, 0.7, 1e3), (0.5, 0.5, 1e3)),
        "length": (0.3, 1.0, 3.0),
    }
    head: MatrixGraphHead

    def __init__(self, setting: Setting, options: _AGCNppOptions):
        backbone, words = setting.backbone, setting.embed([]).shape[1]
        average = int(backbone.pool == "avg")
        head = MatrixGraphHead(backbone.dim, words, options.width, options.hidden, options.length, average)
        super().__init__(setting, options, head)
        self.acm = options.make_acm(setting.device)
        self.adjacency = options.make_adjacency(self.acm.matrix(), [], setting)

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.head.embeddings[-len(classes) :] = self.setting.embed(classes)
        self.acm.begin_task(len(classes))
        self.adjacency = self.options.make_adjacency(self.acm.matrix(), self.sizes, self.setting)
        self.adjacency.write_dense(self.head.adjacency)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        old, new, reduction = self.acm.old, self.sizes[-1], self.setting.reduction
        labels, known = batch.of_task(new)
        expert_logits, expert_nodes = self._of_expert(batch.images) if self.expert else (None, None)
        soft_labels = None if expert_logits is None else batch.with_known(self.options.soften(expert_logits), new)
        if batch.first_pass:  # the matrix counts each image once
            self.acm.update(labels, soft_labels, known)  # Eq. 5-7
        self.adjacency.refresh(self.acm.matrix())
        self.adjacency.write_dense(self.head.adjacency)
        maps = self.learner.train_maps(batch.images)
        with self.setting.autocast():
            logits, nodes = self.head.logits_and_nodes(maps)
        parts = {"cls": losses.classification(logits[:, old:], labels, reduction, known)}  # Eq. 2
        loss = parts["cls"]
        if expert_logits is not None and expert_nodes is not None:
            targets = batch.with_known(expert_logits.sigmoid(), new)
            parts["dst"] = losses.distillation(logits[:, :old], targets, reduction)  # Eq. 3
            parts["gph"] = losses.relationship(expert_nodes, nodes[:, :old], reduction)  # Eq. 9, for each image
            l1, l2, l3 = self.options.lambdas
            loss = l1 * parts["cls"] + l2 * parts["dst"] + l3 * parts["gph"]  # Eq. 10
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}

    @torch.no_grad()
    def _of_expert(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and nodes of the expert, for the old classes."""
        assert self.expert is not None
        assert isinstance(self.expert.head, MatrixGraphHead)
        maps = self.expert.maps(images)
        with self.setting.autocast():
            logits, nodes = self.expert.head.logits_and_nodes(maps)
        return logits.float(), nodes

    def matrix(self) -> np.ndarray:
        return self.acm.matrix().cpu().numpy().copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.adjacency = self.options.make_adjacency(self.acm.matrix(), self.sizes, self.setting)
