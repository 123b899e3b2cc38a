"""Incremental cross-attention (KRT): a token and a classifier per task, and one token that all tasks share.

The feature map is projected to `width`, and a learned position is added: these are the places x. The shared transfer
token u attends to them, to itself and to the retention token r_s of a task, with several heads:

    o_s = u + W_o · attention(query: LN(u); keys and values: LN([u, r_s, x]))
    e_s = o_s + W_2 GELU(W_1 LN(o_s))                         the embedding of task s

The classifier of a task is a linear layer on LN(e_s). docs/methods/krt.md states what is from the release.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.heads.map_head import MapHead

_GRID = 7
"""Learned positions per side, as the release has at 224 pixels. They are interpolated to the size of the map."""


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
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.transfer = nn.Parameter(self._new_tokens(1))
        self.positions = nn.Parameter(self._new_tokens(_GRID * _GRID))
        for name, shape in (("retention", (0, width)), ("weight", (0, width)), ("bias", (0,))):
            self.register_buffer(f"old_{name}", torch.empty(shape))

    def add_classes(self, new: int, device: torch.device) -> None:
        if len(self.sizes) > 1:
            for name in ("retention", "weight", "bias"):
                frozen = torch.cat([getattr(self, f"old_{name}"), getattr(self, name).detach()])
                setattr(self, f"old_{name}", frozen)
        bound = 1 / math.sqrt(self.width)
        self.retention = nn.Parameter(self._new_tokens(1).to(device))
        self.weight = nn.Parameter(torch.empty(new, self.width).uniform_(-bound, bound).to(device))
        self.bias = nn.Parameter(torch.zeros(new).to(device))

    def _new_tokens(self, count: int) -> Tensor:
        return nn.init.trunc_normal_(torch.empty(count, self.width), std=0.02)

    def forward(self, maps: Tensor) -> Tensor:
        return self.classify(self.embed(maps))

    def embed(self, maps: Tensor) -> Tensor:
        """The embeddings of all tasks (B x tasks x width), of feature maps (B x dim x h x w)."""
        places = self.project(maps.flatten(2).transpose(1, 2)) + self._positions(*maps.shape[2:])
        retention = torch.cat([self.old_retention, self.retention])
        outputs = self.transfer + self.output(self._attend(*map(_normalized, (self.transfer, retention, places))))
        return outputs + self.mlp(_normalized(outputs))

    def _positions(self, height: int, width: int) -> Tensor:
        """The learned positions for a map of this size, in the order of its places: places x width."""
        rows, columns = (_interpolation(size, self.positions) for size in (height, width))
        grid = self.positions.unflatten(0, (_GRID, _GRID))
        return torch.einsum("yi,xj,ijd->yxd", rows, columns, grid).flatten(0, 1)

    def _attend(self, shared: Tensor, tasks: Tensor, places: Tensor) -> Tensor:
        """The shared token attends to itself, to the token of each task, and to the places: B x tasks x width."""
        query = self._by_head(self.query(shared))  # heads x 1 x size
        keys, values = (
            [self._by_head(layer(rows)) for rows in (shared, tasks, places)] for layer in (self.key, self.value)
        )
        # the scores do not depend on the task, except that of its own token
        of_shared, of_tasks, of_places = (query @ key.transpose(-2, -1) for key in keys)
        shape = (*of_places.shape[:2], len(tasks), -1)  # B x heads x tasks x what is seen
        seen = (of_shared, of_tasks.transpose(-2, -1), of_places)
        scores = torch.cat([each.expand(shape) for each in seen], -1)
        weights = (scores / math.sqrt(self.width / self.heads)).softmax(-1)
        mixed = weights[..., :1] * values[0] + weights[..., 1:2] * values[1] + weights[..., 2:] @ values[2]
        return mixed.transpose(1, 2).flatten(2)

    def _by_head(self, rows: Tensor) -> Tensor:
        """… x rows x width to … x heads x rows x (width / heads)."""
        return rows.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def classify(self, embeddings: Tensor) -> Tensor:
        """The logits of all classes (B x classes), each from the embedding (B x tasks x width) of its own task."""
        embeddings = _normalized(embeddings)
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


def _interpolation(size: int, like: Tensor) -> Tensor:
    """Weights of the linear interpolation of `_GRID` values to `size`: size x grid. The identity for equal sizes.

    A product with them has a gradient that is the same in every run, which that of `interpolate` on a GPU is not.
    """
    grid, places = (torch.arange(count, dtype=like.dtype, device=like.device) for count in (_GRID, size))
    at = ((places + 0.5) * (_GRID / size) - 0.5).clamp(0, _GRID - 1)
    return (1 - (at[:, None] - grid).abs()).clamp(min=0)
