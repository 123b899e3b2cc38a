"""The head of CSC: one node per class for each image, and the graph CI-GCN over these nodes.

    M   = softmax over places of F C^T, or its sigmoid            class activation maps, places x classes
    V0  = M^T (F W + b)                                           nodes, classes x width
    V1  = V0 + h(A_g V0 W_g)                                      A_g: classes x classes, learned
    A_s = sigma([g; V1] U + u) / classes,   g = h(mean V1 W' + b')  classes x classes, for each image
    V2  = V1 + h(A_s V1 W_s)                                      h = LeakyReLU(0.2)

F (places x dim) is the feature map, C (classes x dim) a linear classifier at each place. The logit of a class is the
mean of two scores: the largest one of its column of F C^T, and that of a linear classifier on its row of V2.
docs/methods/csc.md states what is from the paper.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.heads.map_head import MapHead


class ClassGraphHead(MapHead):
    """The head of CSC. With `sigmoid` 1, M is the sigmoid of the scores; with 0 their softmax over places.

    A new class has no relation to the others at first: its row and column in A_g are those of the identity. The
    parameters grow once per task, so that a step copies none of them.
    """

    kind: ClassVar[str] = "class-graph"

    def __init__(self, dim: int, width: int, sigmoid: int):
        super().__init__(dim=dim, width=width, sigmoid=sigmoid)
        self.class_maps = nn.Parameter(torch.empty(0, dim))
        self.project = nn.Linear(dim, width)
        self.adjacency = nn.Parameter(torch.empty(0, 0))
        self.general, self.specific = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.mean = nn.Linear(width, width)
        # row i of these three gives the weight of class i in all nodes: column i of A_s
        self.from_node, self.from_mean = (nn.Parameter(torch.empty(0, width)) for _ in range(2))
        self.relation_bias = nn.Parameter(torch.empty(0))
        self.classifier, self.bias = nn.Parameter(torch.empty(0, width)), nn.Parameter(torch.empty(0))

    def add_classes(self, new: int, device: torch.device) -> None:
        for name in ("class_maps", "from_node", "from_mean", "classifier"):
            rows = getattr(self, name).detach()
            added = torch.empty(new, rows.shape[1])
            nn.init.uniform_(added, -1 / math.sqrt(rows.shape[1]), 1 / math.sqrt(rows.shape[1]))
            setattr(self, name, nn.Parameter(torch.cat([rows, added.to(device)])))
        for name in ("relation_bias", "bias"):
            setattr(self, name, nn.Parameter(F.pad(getattr(self, name).detach(), (0, new))))
        self.adjacency = nn.Parameter(torch.block_diag(self.adjacency.detach(), torch.eye(new, device=device)))

    def forward(self, maps: Tensor) -> Tensor:
        places = maps.flatten(2).transpose(1, 2)
        scores = places @ self.class_maps.T  # B x places x classes
        weights = scores.sigmoid() if self.numbers["sigmoid"] else scores.softmax(1)
        nodes = self.graph(weights.transpose(1, 2) @ self.project(places))
        return (scores.amax(1) + (nodes * self.classifier).sum(2) + self.bias) / 2

    def graph(self, nodes: Tensor) -> Tensor:
        """V2 from V0 (B x classes x width)."""
        nodes = nodes + F.leaky_relu(self.adjacency @ self.general(nodes), 0.2)
        mean = F.leaky_relu(self.mean(nodes.mean(1)), 0.2)
        # the product with the concatenation [g; V1], without copies of g for all classes
        of_mean = mean @ self.from_mean.T + self.relation_bias
        relations = (nodes @ self.from_node.T + of_mean[:, None]).sigmoid() / nodes.shape[1]
        return nodes + F.leaky_relu(relations @ self.specific(nodes), 0.2)
