"""ML-GCN: Multi-Label Image Recognition with Graph Convolutional Networks (Chen, Wei, Wang, Guo, CVPR 2019).

The classifiers of all classes are the nodes of a graph over the label words. Its adjacency is computed once from counts
of labels, and does not change while the network is trained. Equation numbers are those of the ML-GCN paper.
docs/methods/ml-gcn.md documents the options and deviations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lifelabel.methods.method import Batch, Method
from lifelabel.nn import losses
from lifelabel.nn.graph import Adjacency, GraphNetwork
from lifelabel.nn.inference import Classifier, InferenceNetwork, PooledFeatures
from lifelabel.nn.learner import Learner
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class _MLGCNOptions:
    tau: float = option(
        0.4, "two classes are connected if P(neighbour | class) is at least this (Eq. 7)", low=0, high=1
    )
    p: float = option(0.2, "weight of all neighbours of a class together; its own is 1 - p (Eq. 8)", low=0, high=1)
    hidden: int = option(1024, "width of the first graph layer", low=1, high=16_384)


class MLGCNLifelong(Method):
    summary = "ML-GCN task by task: a graph over the label words of each task, without a measure against forgetting"
    name = "ml-gcn-lifelong"
    position = 160
    saved = ("learner", "correlations")
    Options = _MLGCNOptions
    label_graph = True
    counts_labels = True
    search_space: ClassVar[dict[str, tuple[Any, ...]]] = {"tau": (0.2, 0.4), "p": (0.1, 0.2, 0.4)}

    def __init__(self, setting: Setting, options: _MLGCNOptions):
        super().__init__(setting, options)
        self.words = setting.embed([])
        self.graph = GraphNetwork(self.words.shape[1], options.hidden, setting.backbone.dim)
        self.learner = Learner(self.graph, setting)
        self.correlations = torch.zeros(0, 0, dtype=torch.float64)
        """P(C_i | C_j), on the CPU; 0 between classes of different tasks."""
        self.adjacency = self._make_adjacency()

    def begin_task(self, classes: Sequence[str]) -> None:
        super().begin_task(classes)
        self.words = torch.cat([self.words, self.setting.embed(classes)])
        self.correlations = torch.block_diag(self.correlations, torch.eye(len(classes), dtype=torch.float64))
        self.adjacency = self._make_adjacency()
        self.learner.begin_task(first_task=len(self.tasks) == 1)

    def count_labels(self, counts: np.ndarray) -> None:
        """Set the block of the task: P(C_i | C_j) = N_ij / N_j (Eq. 6). Counts with old classes are not used."""
        new = self.sizes[-1]
        given = torch.from_numpy(counts[-new:, -new:].astype(np.float64))
        # the diagonal is 1 by definition, also for a class without images
        self.correlations[-new:, -new:] = (given / given.diagonal().clamp(min=1)).fill_diagonal_(1)
        self.adjacency = self._make_adjacency()

    def _make_adjacency(self) -> Adjacency:
        o, dtype = self.options, torch.bfloat16 if self.setting.precision == "bf16" else torch.float32
        matrix = self.correlations.to(self.setting.device, torch.float32)
        return Adjacency("reweighted", matrix, self.sizes, share=o.p, threshold=o.tau, across=False, dtype=dtype)

    def learn(self, batch: Batch) -> dict[str, Tensor]:
        logits = self.learner.train_features(batch.images) @ self.nodes().T
        known = logits[:, -batch.labels.shape[1] :]
        loss = losses.classification(known, batch.labels, self.setting.reduction, batch.known)  # Eq. 5
        self.learner.step(loss)
        return {"cls": loss.detach()}

    def nodes(self) -> Tensor:
        """The classifiers W of all classes (classes x dim), the output of the second graph layer (Eq. 2-4)."""
        with self.setting.autocast():
            return self.graph(self.adjacency, self.words).float()

    def features(self, images: Tensor) -> Tensor:
        return self.learner.eval_features(images)

    def logits(self, features: Tensor, num_classes: int | None = None) -> Tensor:
        return features @ self.nodes()[:num_classes].T

    @torch.no_grad()
    def network(self) -> InferenceNetwork:
        return InferenceNetwork(PooledFeatures(self.learner.backbone), Classifier(self.nodes()))

    def matrix(self) -> np.ndarray:
        return self.correlations.numpy().copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.adjacency = self._make_adjacency()


class MLGCN(MLGCNLifelong):
    summary = "ML-GCN: all tasks at once, with complete labels and a static graph over the label words"
    position = 20
    joint = True
    shared_options: ClassVar[tuple[str, ...]] = ("lr", "backbone_lr", "batch_norm")
