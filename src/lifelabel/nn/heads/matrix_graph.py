"""The head of AGCN++: nodes from label words and from the places of each image, in the graph of AGCN.

    M = softmax over places of F (E Q)^T / sqrt(dim)        class attention, places x classes
    V = M^T (F W + b), each row scaled to `length`          class features, classes x width
    H = AGCN(A, [E; V])                                     two graph layers, classes x dim (Eq. 8 of AGCN)
    logits = H (pooled F)                                   (Eq. 1 of AGCN)

F (places x dim) is the feature map, E (classes x words) are the label embeddings, and A is the adjacency of a
correlation matrix. docs/methods/agcn++.md states what is from the paper.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.graph.network import GraphNetwork
from lifelabel.nn.heads.map_head import MapHead


class MatrixGraphHead(MapHead):
    """The head of AGCN++. No parameter depends on the number of classes.

    `embeddings` (classes x words) and `adjacency` (classes x classes) are not trained. The method writes them, in
    place. The feature map is pooled by its mean with `average` 1, and by its maximum with 0.
    """

    kind: ClassVar[str] = "matrix-graph"
    embeddings: Tensor
    adjacency: Tensor

    def __init__(self, dim: int, words: int, width: int, hidden: int, length: float, average: int):
        super().__init__(dim=dim, words=words, width=width, hidden=hidden, length=length, average=average)
        self.query = nn.Linear(words, dim, bias=False)
        self.project = nn.Linear(dim, width)
        self.network = GraphNetwork(words + width, hidden, dim)
        self.register_buffer("embeddings", torch.empty(0, words))
        self.register_buffer("adjacency", torch.empty(0, 0))

    def add_classes(self, new: int, device: torch.device) -> None:
        self.embeddings = F.pad(self.embeddings, (0, 0, 0, new))
        self.adjacency = torch.block_diag(self.adjacency, torch.eye(new, device=device))

    def forward(self, maps: Tensor) -> Tensor:
        return self.logits_and_nodes(maps)[0]

    def logits_and_nodes(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B x classes), and the nodes H of each image (B x classes x dim)."""
        features = self.encode(maps.flatten(2).transpose(1, 2))
        nodes = torch.cat([self.embeddings.expand(features.shape[0], -1, -1), features], 2)
        nodes = self.network(self.adjacency, nodes)
        pooled = maps.mean((2, 3)) if self.numbers["average"] else maps.amax((2, 3))
        return (nodes * pooled[:, None]).sum(2), nodes

    def encode(self, places: Tensor) -> Tensor:
        """The class features V (B x classes x width) of the places (B x places x dim)."""
        scores = places @ self.query(self.embeddings).T / math.sqrt(places.shape[2])
        return self.numbers["length"] * F.normalize(scores.softmax(1).transpose(1, 2) @ self.project(places), dim=2)
