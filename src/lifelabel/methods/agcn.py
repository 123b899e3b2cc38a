"""AGCN: Augmented Graph Convolutional Network (Du, Lyu et al., ICME 2022). Equation numbers are the paper's.

    y^ = sigma( AGCN(A^t, H^{t,0}) (x) CNN(x) )                                            Eq. 1

The classifier of every seen class is a node of a graph over the label words. The graph's matrix A^t is counted
while the task runs, from the hard labels of the new classes and a frozen expert's soft labels of the old ones.
docs/methods/agcn.md tells every option's story.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel import losses
from lifelabel.graph import ACM, Adjacency, GraphNetwork
from lifelabel.graph.adjacency import task_of_class
from lifelabel.learner import Expert, Learner, Setting
from lifelabel.methods.base import Batch, Kept, Method
from lifelabel.options import option


@dataclass(frozen=True)
class AGCNOptions:
    lambdas: tuple[float, float, float] = option(
        (0.3, 0.7, 1e3), "weights of the classification, distillation and relationship loss (Eq. 10)", low=0
    )
    soft_labels: str = option(
        "sigmoid", "how the expert's logits become the soft labels that feed the matrix", choices=("sigmoid", "softmax")
    )
    new_old: str = option(
        "stream",
        "the New-Old block: Bayes' rule (Eq. 7), half of it, or Bayes' rule over the images of all tasks",
        choices=("bayes", "halved", "stream"),
    )
    prevalence: float | None = option(
        4.0,
        "soft labels may on average reach this many times the share of images that showed the class; none: as they are",
        above=0,
    )
    context: float = option(0.3, "weight of what the other labels say of a label, in its score; 0: nothing", low=0)
    blocks: str = option(
        "all", "the matrix as a whole, or its intra-task blocks alone (Table 2, row 1)", choices=("all", "intra")
    )
    adjacency: str = option(
        "mixed",
        "what the graph multiplies with: the matrix mixed gently into I, raw, binarised, or I alone",
        choices=("mixed", "raw", "binarised", "identity"),
    )
    mix: float = option(0.05, "for adjacency mixed: the share of the other classes in a node", low=0, high=1)
    hidden: int = option(512, "width d' of the first graph layer", low=1, high=100_000)
    activate_output: bool = option(False, "LeakyReLU after the second graph layer too, as A.3 prints it")


STEPS = 2
"""Over the label graph, on the level of scores."""


class AGCN(Method):
    summary = "the paper's method: correlation matrix, graph over label words, frozen expert, three losses"
    Options = AGCNOptions
    tunes: ClassVar[dict[str, tuple[Any, ...]]] = {
        # the matrix pays when there are many tasks: the first few, which a search sees, cannot tell how to use it
        "lambdas": ((0.07, 0.93, 1e3), (0.15, 0.85, 1e3), (0.3, 0.7, 1e3), (0.5, 0.5, 1e3)),
    }

    def __init__(self, setting: Setting, options: AGCNOptions):
        super().__init__(setting, options)
        self.words = setting.embed([])
        dims = self.words.shape[1], options.hidden, setting.backbone.dim
        self.graph = GraphNetwork(*dims, options.activate_output)
        self.learner = Learner(self.graph, setting)
        self.acm = ACM(options.new_old, setting.device, options.prevalence)
        self.adjacency = self.adjacency_of(self.acm.matrix(), [])
        self.expert: Expert | None = None
        self.lifts: dict[int, Tensor] = {}
        """Log lifts of the first so many classes, while nothing is learned."""

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.lifts.clear()
        self.words = torch.cat([self.words, self.setting.embed(classes)])
        self.acm.begin_task(len(classes))
        self.adjacency = self.adjacency_of(self.acm.matrix(), self.sizes)
        self.learner.begin_task(first=len(self.tasks) == 1)

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        self.lifts.clear()
        return super().observe(batch)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        y, old, reduction = batch.labels, self.acm.old, self.setting.reduction
        z = self.expert.logits(batch.images) if self.expert else None
        self.acm.update(y, None if z is None else self.soften(z))  # Eq. 5-7
        nodes = self.nodes()  # H^t
        y_hat = self.learner.features(batch.images) @ nodes.T  # Eq. 1, before the sigmoid
        parts = {"cls": losses.classification(y_hat[:, old:], y, reduction, batch.known)}  # Eq. 2
        loss = parts["cls"]
        if self.expert and z is not None:
            parts["dst"] = losses.distillation(y_hat[:, :old], z.sigmoid(), reduction)  # Eq. 3
            parts["gph"] = losses.relationship(self.expert.nodes, nodes[:old], reduction)  # Eq. 9
            l1, l2, l3 = self.options.lambdas
            loss = l1 * parts["cls"] + l2 * parts["dst"] + l3 * parts["gph"]  # Eq. 10
        self.learner.step(loss)
        return {name: part.detach() for name, part in parts.items()}

    def end_task(self) -> None:
        """The expert auto-updates: CNN_xpt = CNN, AGCN_xpt = AGCN with the matrix and words of this task."""
        super().end_task()
        with torch.no_grad():
            self.expert = Expert(self.learner.backbone, self.nodes(), self.setting, last=self.expert)

    def features(self, images: Tensor) -> Tensor:
        return self.learner.features(images)

    def logits(self, features: Tensor, first: int | None = None) -> Tensor:
        return self.in_context(features @ self.nodes(first).T)

    def in_context(self, logits: Tensor) -> Tensor:
        """Each label's logit, and what the labels beside it say: those it avoids lower it, its companions raise it.

        Steps over the label graph on the level of scores, with log lifts, made from the matrix, as weights. The first
        hears labels that are over-confident; the next hears them after they have heard each other.
        """
        if not self.options.context or self.options.adjacency == "identity":
            return logits
        count = logits.shape[1]
        if count not in self.lifts:
            task = task_of_class(tuple(self.sizes), logits.device)
            lift = self.acm.log_lift(task, count)
            if self.options.blocks == "intra":
                lift = lift * (task[:count, None] == task[:count])
            self.lifts[count] = lift.float()
        heard = logits
        for _ in range(STEPS):
            heard = logits + self.options.context * heard.sigmoid() @ self.lifts[count].T
        return heard

    def soften(self, logits: Tensor) -> Tensor:
        return logits.softmax(1) if self.options.soft_labels == "softmax" else logits.sigmoid()

    def adjacency_of(self, matrix: Tensor, sizes: Sequence[int]) -> Adjacency:
        """What the graph multiplies with, from the matrix of some tasks."""
        o = self.options
        dtype = torch.bfloat16 if self.setting.precision == "bf16" else torch.float32
        return Adjacency(o.adjacency, matrix, sizes, share=o.mix, across=o.blocks == "all", dtype=dtype)

    def nodes(self, first: int | None = None) -> Tensor:
        """H^t = AGCN(A^t, H^{t,0}) (Eq. 8); with `first`, over the first classes alone, with the matrix they had."""
        used, words = self.adjacency, self.words
        if first is None:
            used.refresh(self.acm.matrix())
        else:
            sizes = self.sizes[: int(np.searchsorted(np.cumsum(self.sizes), first)) + 1]
            matrix = self.acm.matrix()[:first, :first]  # A^t leads every later matrix: Old-Old is frozen
            used, words = self.adjacency_of(matrix, sizes), words[:first]
        with self.setting.in_precision():
            return self.graph(used, words).float()

    def kept(self) -> Kept:
        matrix = sum(value.nbytes for value in self.acm.state_dict().values() if isinstance(value, Tensor))
        return Kept(bytes=matrix + (self.expert.bytes if self.expert else 0))

    def matrix(self) -> np.ndarray:
        return self.acm.matrix().cpu().numpy().copy()

    def state_dict(self) -> dict[str, Any]:
        return {
            "tasks": [list(names) for names in self.tasks],
            "learner": self.learner.state_dict(),
            "acm": self.acm.state_dict(),
            "expert": None if self.expert is None else self.expert.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for names in state["tasks"]:
            self.begin_task(names)
        self.learner.load_state_dict(state["learner"])
        self.acm.load_state_dict(state["acm"])
        self.adjacency = self.adjacency_of(self.acm.matrix(), self.sizes)
        if state["expert"] is not None:
            self.expert = Expert.restore(state["expert"], self.learner.backbone, self.setting)
