"""AGCN: Augmented Graph Convolutional Network (Du, Lyu et al., ICME 2022). Equation numbers are the paper's.

    y^ = sigma( AGCN(A^t, H^{t,0}) (x) CNN(x) )                                            Eq. 1

The classifier of every seen class is a node of a graph over the label words. The matrix A^t of the graph is counted
while the task runs, from the hard labels of the new classes and the soft labels of a frozen expert for the old ones. If
the hard label of an old class is known, it takes the place of the soft label.
docs/methods/agcn.md documents every option.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.errors import UserError
from lifelabel.methods.matrix_options import MatrixOptions
from lifelabel.methods.method import Batch, Method
from lifelabel.nn import losses
from lifelabel.nn.expert import Expert
from lifelabel.nn.graph import GraphNetwork, LabelRelations
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.learner import Learner
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option

_AS_PUBLISHED: dict[str, Any] = {"hidden": 1024, "prevalence": None, "context": 0.0}
"""Neither the paper nor the authors' code limits the soft labels or refines scores."""


@dataclass(frozen=True)
class _AGCNOptions(MatrixOptions):
    context: float = option(0.2, "weight of label relations in the refinement of scores; 0: no refinement", low=0)
    relations: str = option(
        "intra",
        "label relations in the refinement of scores: between classes of the same task, or of all tasks",
        choices=("intra", "all"),
    )
    activate_output: bool = option(False, "LeakyReLU after the second graph layer too, as A.3 prints it")


class AGCN(Method):
    summary = "the paper's method: correlation matrix, graph over label words, frozen expert, three losses"
    position = 170
    saved = ("learner", "acm", "relations", "expert")
    Options = _AGCNOptions
    label_graph = True
    float64 = True
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {
        # options of the matrix are not searched: their effect grows with the tasks, and a search has only the first few
        "lambdas": ((0.07, 0.93, 1e3), (0.15, 0.85, 1e3), (0.3, 0.7, 1e3), (0.5, 0.5, 1e3)),
    }

    fidelities: ClassVar[dict[str, dict[str, Any]]] = {
        "tuned/photographs": {"lambdas": (0.15, 0.85, 1e3), "hidden": 2048},
        "paper": {
            **_AS_PUBLISHED, "lambdas": (0.07, 0.93, 1e5), "soft_labels": "sigmoid", "new_old": "bayes",
            "adjacency": "raw", "activate_output": True,
        },
        "release": {
            **_AS_PUBLISHED, "lambdas": (0.07, 0.93, 1e5), "soft_labels": "softmax", "new_old": "halved",
            "adjacency": "binarised", "activate_output": False,
        },
        "plain": {**_AS_PUBLISHED, "lambdas": (0.07, 0.93, 1e3), "new_old": "halved", "adjacency": "binarised"},
    }  # fmt: skip

    def __init__(self, setting: Setting, options: _AGCNOptions):
        super().__init__(setting, options)
        self.words = setting.embed([])
        dims = self.words.shape[1], options.hidden, setting.backbone.dim
        self.graph = GraphNetwork(*dims, options.activate_output)
        self.learner = Learner(self.graph, setting)
        self.acm = options.make_acm(setting.device)
        self.adjacency = options.make_adjacency(self.acm.matrix(), [], setting)
        self.expert: Expert | None = None
        self.relations: LabelRelations | None = None
        if options.context and options.adjacency != "identity":
            if options.relations == "all" and options.blocks != "all":
                raise UserError("method.relations=all uses the blocks between tasks: set method.blocks=all")
            across = options.relations == "all"
            self.relations = LabelRelations(options.context, across=across, device=setting.device)
        self.log_lift: Tensor | None = None
        """Cached between two training steps."""

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.log_lift = None
        if self.relations:
            self.relations.freeze(self.acm)
        self.words = torch.cat([self.words, self.setting.embed(classes)])
        self.acm.begin_task(len(classes))
        self.adjacency = self.options.make_adjacency(self.acm.matrix(), self.sizes, self.setting)
        self.learner.begin_task(first_task=len(self.tasks) == 1)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        self.log_lift = None
        return super().observe(batch)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        old, new, reduction = self.acm.old, self.sizes[-1], self.setting.reduction
        labels, known = batch.of_task(new)
        expert_logits = self.expert.logits(batch.images) if self.expert else None
        soft_labels = None if expert_logits is None else batch.with_known(self.options.soften(expert_logits), new)
        if batch.first_pass:  # the matrix counts each image once
            self.acm.update(labels, soft_labels, known)  # Eq. 5-7
        nodes = self.nodes()  # H^t
        logits = self.learner.train_features(batch.images) @ nodes.T  # Eq. 1, before the sigmoid
        parts = {"cls": losses.classification(logits[:, old:], labels, reduction, known)}  # Eq. 2
        loss = parts["cls"]
        if self.expert and expert_logits is not None:
            targets = batch.with_known(expert_logits.sigmoid(), new)
            parts["dst"] = losses.distillation(logits[:, :old], targets, reduction)  # Eq. 3
            parts["gph"] = losses.relationship(self.expert.nodes, nodes[:old], reduction)  # Eq. 9
            l1, l2, l3 = self.options.lambdas
            loss = l1 * parts["cls"] + l2 * parts["dst"] + l3 * parts["gph"]  # Eq. 10
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}

    def end_task(self) -> None:
        """Update the expert: CNN_xpt = CNN, AGCN_xpt = AGCN with the matrix and words of this task."""
        super().end_task()
        with torch.no_grad():
            self.expert = Expert(self.learner.backbone, self.nodes(), self.setting, previous=self.expert)

    def features(self, images: Tensor) -> Tensor:
        return self.learner.eval_features(images)

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        logits = features @ self.nodes(num_classes).T
        if self.relations is None:
            return logits
        if self.log_lift is None:
            self.log_lift = self.relations.log_lift(self.acm)
        return self.relations.refine_logits(logits, self.log_lift)

    @torch.no_grad()
    def network(self) -> InferenceNetwork:
        log_lift = self.relations.log_lift(self.acm) if self.relations else None
        classifier = Classifier(self.nodes(), log_lift=log_lift, context=self.options.context)
        return InferenceNetwork(PooledFeatures(self.learner.backbone), classifier)

    def nodes(self, num_classes: int | None = None) -> Tensor:
        """H^t = AGCN(A^t, H^{t,0}) (Eq. 8): of all classes, or of the first `num_classes` with the matrix they had."""
        adjacency, words = self.adjacency, self.words
        if num_classes is None:
            adjacency.refresh(self.acm.matrix())
        else:
            sizes = self.sizes[: int(np.searchsorted(np.cumsum(self.sizes), num_classes)) + 1]
            matrix = self.acm.matrix()[:num_classes, :num_classes]  # Old-Old is frozen: A^t is a leading block
            adjacency, words = self.options.make_adjacency(matrix, sizes, self.setting), words[:num_classes]
        with self.setting.autocast():
            return self.graph(adjacency, words).float()

    def matrix(self) -> np.ndarray:
        return self.acm.matrix().cpu().numpy().copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.adjacency = self.options.make_adjacency(self.acm.matrix(), self.sizes, self.setting)
        if state["expert"] is not None:
            self.expert = Expert.restore(state["expert"], self.learner.backbone, self.setting)
