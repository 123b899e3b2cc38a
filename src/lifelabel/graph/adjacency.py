"""What the graph layers multiply with: the correlation matrix itself, or something gentler made from it.

Every function takes the matrix A^t (entry [i, j] = P(C_i | C_j)) and the number of classes of each task so far, and
returns the adjacency of all seen classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Adjacency = Callable[[Tensor, Sequence[int]], Tensor]


def raw(matrix: Tensor, sizes: Sequence[int]) -> Tensor:
    """The conditional probabilities as the paper prints them (Eq. 8)."""
    return matrix


def identity(matrix: Tensor, sizes: Sequence[int]) -> Tensor:
    """No graph: every label word alone. The control for what the matrix is worth."""
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def intra_task(matrix: Tensor, sizes: Sequence[int]) -> Tensor:
    """The matrix with R and Q left out: what classes of different tasks have to do with each other is forgotten."""
    task = task_of_class(tuple(sizes), matrix.device)
    return matrix * (task[:, None] == task[None, :])


def mixed(matrix: Tensor, sizes: Sequence[int], *, share: float) -> Tensor:
    """(1 - share) I + share P, where P is the matrix without its diagonal, each row scaled to sum to 1.

    A row without any relation keeps only its identity part. Rows sum to at most 1, so no node is drowned by the
    sum of its neighbours however many classes there are: raw probabilities make all nodes alike.
    """
    mix = matrix.clone().fill_diagonal_(0)
    rows = mix.sum(1, keepdim=True)  # a row of zeros stays one
    mix *= share / rows.clamp(min=torch.finfo(mix.dtype).tiny)
    mix.diagonal().fill_(1 - share)
    return mix


def binarised(matrix: Tensor, sizes: Sequence[int]) -> Tensor:
    """The authors' code, block by block, every block as the task that made it left it.

    New-New: 1 where P > 0.4 (a tie is below: the code adds 1e-6 to N_j), columns scaled to sum 0.25, plus I, then
    D^-1/2 (.)^T D^-1/2 with D its row sums; in the first task every entry is 1 (threshold 0), columns sum to 0.28 and
    the exponent is -0.8. Old-New and New-Old: 1 where P >= 0.3, columns scaled to sum 0.25 within the block.
    """
    task = task_of_class(tuple(sizes), matrix.device)
    row, column = task[:, None], task[None, :]
    first = task == 0
    new_new = (row == column) & ((matrix.clone().fill_diagonal_(0) > 0.4) | first)
    old_new, new_old = (row < column) & (matrix >= 0.3), (row > column) & (matrix >= 0.3)
    intra = scale_columns(new_new, torch.where(first, 0.28, 0.25), matrix.dtype)
    intra.diagonal().add_(1)
    degree = intra.sum(1).pow(torch.where(first, -0.8, -0.5))
    by_task = (row == torch.arange(len(sizes), device=matrix.device)).to(matrix.dtype)
    new_rows = by_task.T @ new_old.to(matrix.dtype)  # ones of a column within each task's rows
    cross = scale_columns(old_new, 0.25, matrix.dtype)
    cross += new_old * (0.25 / (new_rows[task] + 1e-6))
    return degree[:, None] * intra.T * degree + cross


@functools.lru_cache(maxsize=16)
def task_of_class(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The task number of each class; kept on the device, as it changes with the task and not with the step."""
    return torch.tensor([task for task, size in enumerate(sizes) for _ in range(size)], device=device)


def scale_columns(ones: Tensor, total: Tensor | float, dtype: torch.dtype) -> Tensor:
    """True entries as numbers, each column scaled to sum to `total`."""
    numbers = ones.to(dtype)
    return numbers * (total / (numbers.sum(0) + 1e-6))
