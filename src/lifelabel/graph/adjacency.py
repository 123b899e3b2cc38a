"""What the graph layers multiply with: the correlation matrix itself, or something gentler made from it.

Every function takes the matrix A^t (entry [i, j] = P(C_i | C_j)), the number of classes of each task so far, and
the adjacency that the previous task ended with; it returns the adjacency of all seen classes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Adjacency = Callable[[Tensor, Sequence[int], "Tensor | None"], Tensor]


def raw(matrix: Tensor, sizes: Sequence[int], previous: Tensor | None = None) -> Tensor:
    """The conditional probabilities as the paper prints them (Eq. 8)."""
    return matrix


def identity(matrix: Tensor, sizes: Sequence[int], previous: Tensor | None = None) -> Tensor:
    """No graph: every label word alone. The control for what the matrix is worth."""
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def mixed(matrix: Tensor, sizes: Sequence[int], previous: Tensor | None = None, *, share: float) -> Tensor:
    """(1 - share) I + share P, where P is the matrix without its diagonal, each row scaled to sum to 1.

    A row without any relation keeps only its identity part. Rows sum to at most 1, so no node is drowned by the
    sum of its neighbours however many classes there are: raw probabilities make all nodes alike.
    """
    mix = matrix.clone().fill_diagonal_(0)
    rows = mix.sum(1, keepdim=True)  # a row of zeros stays one
    mix *= share / rows.clamp(min=torch.finfo(mix.dtype).tiny)
    mix.diagonal().fill_(1 - share)
    return mix


def binarised(matrix: Tensor, sizes: Sequence[int], previous: Tensor | None = None) -> Tensor:
    """The authors' code, block by block; blocks of earlier tasks stay as those tasks left them.

    New-New: 1 where P >= 0.4, columns scaled to sum 0.25, plus I, then D^-1/2 (.)^T D^-1/2 with D its row sums; the
    first task takes threshold 0, sum 0.28 and exponent -0.8. Old-New and New-Old: 1 where P >= 0.3, columns scaled
    to sum 0.25 within the block.
    """
    if not sizes:
        return matrix
    old = sum(sizes[:-1])
    if previous is None and old:
        previous = binarised(matrix[:old, :old], sizes[:-1])
    first = old == 0
    out = torch.empty_like(matrix)
    new_new = matrix[old:, old:].clone().fill_diagonal_(0)
    new_new = threshold_columns(new_new, 0.0 if first else 0.4, 0.28 if first else 0.25)
    new_new.diagonal().add_(1)
    degree = new_new.sum(1).pow(-0.8 if first else -0.5)
    out[old:, old:] = degree[:, None] * new_new.T * degree
    if previous is not None:
        out[:old, :old] = previous
        out[:old, old:] = threshold_columns(matrix[:old, old:], 0.3, 0.25)
        out[old:, :old] = threshold_columns(matrix[old:, :old], 0.3, 0.25)
    return out


def threshold_columns(block: Tensor, threshold: float, total: float) -> Tensor:
    """1 where block >= threshold, else 0; each column then scaled to sum to `total`."""
    ones = (block >= threshold).to(block.dtype)
    return ones * (total / (ones.sum(0, keepdim=True) + 1e-6))
