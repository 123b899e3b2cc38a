"""Incremental cross-attention (KRT): a token and a classifier per task, and one token that all tasks share.

The feature map is projected to `width`, and its places are the patch tokens. The tokens attend to them with several
heads. The embedding of a task is made from its retention token and from the shared transfer token:

    o(k) = k + W_o · attention(query: k; keys and values: k and the patch tokens)
    e_s  = LN(o(r_s) + o(u))                                  r_s: retention token of task s, u: transfer token

The classifier of a task is a linear layer on its embedding. docs/methods/krt.md states what is from the paper.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.heads.map_head import MapHead


class TokenHead(MapHead):
    """Retention tokens and classifiers of tasks, a transfer token, and the attention that all of them share.

    When a task begins, the retention token and the classifier of the task before it become buffers: they are frozen,
    and no optimizer gets them. All other weights are trained in every task.
    """

    kind = "tokens"
    old_retention: Tensor
    old_weight: Tensor
    old_bias: Tensor

    def __init__(self, dim: int, width: int, heads: int):
        super().__init__(dim=dim, width=width, heads=heads)
        if not isinstance(heads, int) or heads < 1 or width % heads:
            raise ValueError("the width of the tokens is no multiple of the number of heads")
        self.width, self.heads = width, heads
        self.project = nn.Linear(dim, width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.transfer = nn.Parameter(self._new_token())
        for name, shape in (("retention", (0, width)), ("weight", (0, width)), ("bias", (0,))):
            self.register_buffer(f"old_{name}", torch.empty(shape))

    def add_classes(self, new: int, device: torch.device) -> None:
        if len(self.sizes) > 1:
            for name in ("retention", "weight", "bias"):
                frozen = torch.cat([getattr(self, f"old_{name}"), getattr(self, name).detach()])
                setattr(self, f"old_{name}", frozen)
        bound = 1 / math.sqrt(self.width)
        self.retention = nn.Parameter(self._new_token().to(device))
        self.weight = nn.Parameter(torch.empty(new, self.width).uniform_(-bound, bound).to(device))
        self.bias = nn.Parameter(torch.zeros(new).to(device))

    def _new_token(self) -> Tensor:
        return nn.init.trunc_normal_(torch.empty(1, self.width), std=0.02)

    def forward(self, maps: Tensor) -> Tensor:
        return self.classify(self.embed(maps))

    def embed(self, maps: Tensor) -> Tensor:
        """The embeddings of all tasks (B x tasks x width), of feature maps (B x dim x h x w)."""
        places = self.project(maps.flatten(2).transpose(1, 2))
        tokens = torch.cat([self.old_retention, self.retention, self.transfer])
        outputs = tokens + self.output(self._attend(_normalized(tokens), _normalized(places)))
        return _normalized(outputs[:, :-1] + outputs[:, -1:])

    def _attend(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Each token attends to the places of each image and to itself: B x tokens x width."""
        query, own_key, own_value = (self._by_head(layer(tokens)) for layer in (self.query, self.key, self.value))
        key, value = (self._by_head(layer(places)) for layer in (self.key, self.value))
        scores = query @ key.transpose(-2, -1)  # B x heads x tokens x places
        own = (query * own_key).sum(-1, keepdim=True).expand(places.shape[0], -1, -1, -1)
        weights = (torch.cat([scores, own], -1) / math.sqrt(self.width / self.heads)).softmax(-1)
        mixed = weights[..., :-1] @ value + weights[..., -1:] * own_value
        return mixed.transpose(1, 2).flatten(2)

    def _by_head(self, rows: Tensor) -> Tensor:
        """… x rows x width to … x heads x rows x (width / heads)."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def classify(self, embeddings: Tensor) -> Tensor:
        """The logits of all classes (B x classes), each from the embedding (B x tasks x width) of its own task."""
        weight, bias = torch.cat([self.old_weight, self.weight]), torch.cat([self.old_bias, self.bias])
        logits, first_task, first_class = [], 0, 0
        for size, group in itertools.groupby(self.sizes):  # one product for consecutive tasks of equal sizes
            tasks = len(list(group))
            rows = weight[first_class : first_class + tasks * size].unflatten(0, (tasks, size))
            of_tasks = embeddings[:, first_task : first_task + tasks]
            logits.append(torch.einsum("btd,tcd->btc", of_tasks, rows).flatten(1))
            first_task, first_class = first_task + tasks, first_class + tasks * size
        return torch.cat(logits, 1) + bias


def _normalized(rows: Tensor) -> Tensor:
    """Rows of mean 0 and variance 1. Gains and biases would only repeat those of the linear layers that follow."""
    return F.layer_norm(rows, rows.shape[-1:])
