"""What the graph layers multiply with: the correlation matrix itself, or something gentler made from it.

While a task runs, only the blocks of its own classes change: New-New, Old-New and New-Old. What earlier tasks left
stands, so a step of many classes costs a product with the adjacency, and no other pass over it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

TINY = torch.finfo(torch.float32).tiny


class Adjacency:
    """The adjacency of all seen classes, own · I + diag(scale) · P, from A^t (entry [i, j] = P(C_i | C_j)).

    `kind` says how: "raw" is the matrix as the paper prints it (Eq. 8), "identity" no graph at all, every label word
    alone, "mixed" (1 - share) I + share P, where P is the matrix without its diagonal, each row scaled to sum to 1, and
    "binarised" the authors' code. Raw probabilities make all nodes alike; the rows of "mixed" sum to at most 1, so no
    node is drowned by the sum of its neighbours however many classes there are. A row without any relation keeps only
    its identity part. Without `across`, what classes of different tasks have to do with each other is forgotten.

    >>> matrix = torch.tensor([[1.0, 0.5], [0.25, 1.0]])
    >>> Adjacency("mixed", matrix, [2], share=0.2).dense().tolist()
    [[0.800000011920929, 0.20000000298023224], [0.20000000298023224, 0.800000011920929]]
    """

    def __init__(
        self, kind: str, matrix: Tensor, sizes: Sequence[int], *, share: float = 0.0, across: bool = True,
        dtype: torch.dtype = torch.float32,
    ):  # fmt: skip
        self.kind, self.share, self.across = kind, share, across
        self.own = {"identity": 1.0, "mixed": 1 - share}.get(kind, 0.0)
        self.p = torch.zeros_like(matrix, dtype=dtype)
        self.scale: Tensor | None = None
        self.old = 0
        for self.old, end in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
            self.place(matrix[:end, :end])
        self.kept = self.p[: self.old, : self.old].sum(1, dtype=torch.float32)
        self.refresh(matrix)

    def refresh(self, matrix: Tensor) -> None:
        """Follow the matrix while its last task runs: in place, and nothing but that task's blocks."""
        self.place(matrix)
        if self.kind == "mixed":
            old_rows = self.kept + self.p[: self.old, self.old :].sum(1, dtype=torch.float32)
            rows = torch.cat([old_rows, self.p[self.old :].sum(1, dtype=torch.float32)])
            self.scale = self.share / rows.clamp(min=TINY)

    def place(self, matrix: Tensor) -> None:
        """The blocks of the last task of `matrix`, into P."""
        old, end = self.old, len(matrix)
        if self.kind == "identity":
            return
        new_new, old_new, new_old = matrix[old:, old:], matrix[:old, old:], matrix[old:, :old]
        if self.kind == "binarised":
            new_new, old_new, new_old = binarised(new_new, first=not old), ones(old_new, 0.3), ones(new_old, 0.3)
        self.p[old:end, old:end] = new_new
        if self.kind == "mixed":
            self.p.diagonal()[old:end].zero_()
        if self.across:
            self.p[:old, old:end] = old_new
            self.p[old:end, :old] = new_old

    def __matmul__(self, nodes: Tensor) -> Tensor:
        if self.kind == "identity":
            return nodes
        mixed = (self.p @ nodes.to(self.p.dtype)).to(nodes.dtype)
        if self.scale is not None:
            mixed = mixed * self.scale[:, None]
        return torch.add(mixed, nodes, alpha=self.own) if self.own else mixed

    def dense(self) -> Tensor:
        """All of it as one matrix, float32."""
        return self @ torch.eye(len(self.p), device=self.p.device)


def binarised(matrix: Tensor, first: bool) -> Tensor:
    """New-New in the authors' code: 1 where P > 0.4 (a tie is below: the code adds 1e-6 to N_j), columns scaled to sum
    0.25, plus I, then D^-1/2 (.)^T D^-1/2 with D its row sums; in the first task every entry is 1 (threshold 0),
    columns sum to 0.28 and the exponent is -0.8."""
    related = torch.ones_like(matrix) if first else (matrix.clone().fill_diagonal_(0) > 0.4).to(matrix.dtype)
    scaled = scale_columns(related, 0.28 if first else 0.25)
    scaled.diagonal().add_(1)
    degree = scaled.sum(1).pow(-0.8 if first else -0.5)
    return degree[:, None] * scaled.T * degree


def ones(block: Tensor, threshold: float) -> Tensor:
    """Old-New and New-Old in the authors' code: 1 where P >= 0.3, columns scaled to sum 0.25 within the block."""
    return scale_columns((block >= threshold).to(block.dtype), 0.25)


def scale_columns(numbers: Tensor, total: float) -> Tensor:
    """Each column scaled to sum to `total`."""
    return numbers * (total / (numbers.sum(0) + 1e-6))


@functools.lru_cache(maxsize=16)
def task_of_class(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The task number of each class; kept on the device, as it changes with the task and not with the step."""
    return torch.tensor([task for task, size in enumerate(sizes) for _ in range(size)], device=device)
