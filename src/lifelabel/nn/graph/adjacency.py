"""The adjacency of the graph layers: the correlation matrix, or a normalised form of it.

While a task runs, only the blocks of its own classes change (New-New, Old-New and New-Old). The blocks of earlier tasks
are computed once, so a step with many classes costs one product with the adjacency and no other pass over it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float32).tiny


class Adjacency:
    """The adjacency of all seen classes, identity · I + diag(scale) · P, from A^t (entry [i, j] = P(C_i | C_j)).

    `kind` is one of:

    - "raw": the matrix itself (Eq. 8). With it all nodes become similar to each other.
    - "mixed": (1 - share) I + share P. P is the matrix without its diagonal, and each row is scaled to sum to 1. The
      weight of the other nodes in a node is at most `share`, for any number of classes. A row of zeros stays zero.
    - "binarised": as in the authors' code, see `_binarised`.
    - "reweighted": that of ML-GCN, see `_reweighted`, with its tau `threshold` and its p `share`. Each task has its own
      block, so it is used without `across`.
    - "identity": no graph. The output of a node depends only on its own label word.

    `sizes` are the numbers of classes of the tasks. Without `across`, entries between classes of different tasks are 0.

    >>> matrix = torch.tensor([[1.0, 0.5], [0.25, 1.0]])
    >>> Adjacency("mixed", matrix, [2], share=0.2).dense().tolist()
    [[0.800000011920929, 0.20000000298023224], [0.20000000298023224, 0.800000011920929]]
    """

    def __init__(
        self, kind: str, matrix: Tensor, sizes: Sequence[int], *, share: float = 0.0, threshold: float = 0.0,
        across: bool = True, dtype: torch.dtype = torch.float32,
    ):  # fmt: skip
        if kind == "reweighted" and across:
            raise ValueError("the adjacency 'reweighted' has no blocks between tasks")
        self.kind, self.share, self.threshold, self.across = kind, share, threshold, across
        self.identity = {"identity": 1.0, "mixed": 1 - share}.get(kind, 0.0)
        self.p = torch.zeros_like(matrix, dtype=dtype)
        self.scale: Tensor | None = None
        self.old = 0
        for self.old, end in itertools.pairwise(itertools.accumulate(sizes, initial=0)):
            self._write_blocks(matrix[:end, :end])
        self.old_row_sums = self.p[: self.old, : self.old].sum(1, dtype=torch.float32)
        self.refresh(matrix)

    def refresh(self, matrix: Tensor) -> None:
        """Update the blocks of the current task, in place."""
        self._write_blocks(matrix)
        if self.kind == "mixed":
            old_rows = self.old_row_sums + self.p[: self.old, self.old :].sum(1, dtype=torch.float32)
            rows = torch.cat([old_rows, self.p[self.old :].sum(1, dtype=torch.float32)])
            self.scale = self.share / rows.clamp(min=_TINY)

    def _write_blocks(self, matrix: Tensor) -> None:
        """Write the blocks of the last task of `matrix` into P."""
        old, end = self.old, len(matrix)
        if self.kind == "identity":
            return
        new_new, old_new, new_old = matrix[old:, old:], matrix[:old, old:], matrix[old:, :old]
        if self.kind == "binarised":
            new_new, old_new, new_old = (
                _binarised(new_new, first_task=not old),
                _binarised_across(old_new),
                _binarised_across(new_old),
            )
        elif self.kind == "reweighted":
            new_new = _reweighted(new_new, self.threshold, self.share)
        self.p[old:end, old:end] = new_new
        if self.kind == "mixed":
            self.p.diagonal()[old:end].zero_()
        if self.across:
            self.p[:old, old:end] = old_new
            self.p[old:end, :old] = new_old

    def __matmul__(self, nodes: Tensor) -> Tensor:
        """The product with nodes (classes x d), or with those of each image (B x classes x d)."""
        if self.kind == "identity":
            return nodes
        mixed = (self.p @ nodes.to(self.p.dtype)).to(nodes.dtype)
        if self.scale is not None:
            mixed = mixed * self.scale[:, None]
        return torch.add(mixed, nodes, alpha=self.identity) if self.identity else mixed

    def dense(self) -> Tensor:
        """The adjacency as one float32 matrix."""
        return self.write_dense(torch.empty_like(self.p, dtype=torch.float32))

    def write_dense(self, out: Tensor) -> Tensor:
        """Write the adjacency into a float32 matrix, and return it."""
        out.copy_(self.p)
        if self.scale is not None:
            out *= self.scale[:, None]
        out.diagonal().add_(self.identity)
        return out


def _binarised(matrix: Tensor, first_task: bool) -> Tensor:
    """New-New in the authors' code: 1 if P > 0.4, columns scaled to sum 0.25, plus I, then D^-1/2 (.)^T D^-1/2.

    D are the row sums. P = 0.4 counts as below, because the code adds 1e-6 to N_j. In the first task every entry is 1
    (threshold 0), columns sum to 0.28 and the exponent is -0.8.
    """
    related = torch.ones_like(matrix) if first_task else (matrix.clone().fill_diagonal_(0) > 0.4).to(matrix.dtype)
    scaled = _scale_columns(related, 0.28 if first_task else 0.25)
    scaled.diagonal().add_(1)
    degree = scaled.sum(1).pow(-0.8 if first_task else -0.5)
    return degree[:, None] * scaled.T * degree


def _binarised_across(block: Tensor) -> Tensor:
    """Old-New and New-Old in the authors' code: 1 if P >= 0.3, columns scaled to sum 0.25 within the block."""
    return _scale_columns((block >= 0.3).to(block.dtype), 0.25)


def _reweighted(matrix: Tensor, threshold: float, share: float) -> Tensor:
    """The adjacency of ML-GCN (Chen et al., CVPR 2019), from `matrix` with the entries [i, j] = P(C_i | C_j).

    Class j is a neighbour of class i if P(C_j | C_i) >= threshold (Eq. 7). Row i has share / (number of neighbours) at
    each neighbour, and 1 - share on the diagonal (Eq. 8). The result is D^-1/2 (.) D^-1/2, where D are the row sums.
    With share 1, a class without neighbours has the sum 0. Its row and column are then 0.
    """
    implied = matrix.T  # [i, j] = P(C_j | C_i)
    neighbours = (implied >= threshold).to(matrix.dtype).fill_diagonal_(0)
    weighted = neighbours * (share / neighbours.sum(1, keepdim=True).clamp(min=1))
    weighted.diagonal().add_(1 - share)
    degree = weighted.sum(1)
    scale = torch.where(degree > 0, degree, torch.inf).pow(-0.5)
    return scale[:, None] * weighted * scale


def _scale_columns(numbers: Tensor, total: float) -> Tensor:
    """Each column scaled to sum to `total`."""
    return numbers * (total / (numbers.sum(0) + 1e-6))
