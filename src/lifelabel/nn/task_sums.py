"""Sums of features by task, for the ridge regression of each task (see `lifelabel.nn.ridge`).

    W_t = (a G + (1 - a) G_t + g I)^-1 b_t

G is the sum of phi phi' over the images of all tasks, G_t over those of task t, and b_t the sum of phi y' over those of
task t. Images of other tasks count with the weight a: they are not labelled for the classes of task t. So they are not
negative examples (a = 1), and they are not left out (a = 0). Nothing grows with the number of images, and the systems
of old tasks are solved again when G has grown.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

__all__ = ["TaskSums", "pack", "unpack"]


class TaskSums:
    """The sums of a weighted ridge regression, in float64: G, and for each task G_t and b_t.

    Features (B x dim) must end with a constant 1, so the sums also hold the numbers of images and labels. Matrices of
    past tasks are stored as triangles in host memory, in the type `storage`.
    """

    def __init__(self, dim: int, device: torch.device | str, storage: torch.dtype = torch.float64):
        self.storage = storage
        self.sizes: list[int] = []
        self.total = torch.zeros(dim, dim, dtype=torch.float64, device=device)
        """G."""
        self.current = torch.zeros_like(self.total)
        """G_t of the current task."""
        self.cross = self.total.new_zeros(dim, 0)
        """b of every class."""
        self.stored: list[Tensor] = []
        """G_t of past tasks, packed."""
        self.later: dict[int, Tensor] = {}
        """What images of the current task add to G_t of past tasks, if their labels of those classes are known."""

    @property
    def dim(self) -> int:
        return len(self.total)

    def begin_task(self, new: int) -> None:
        """Begin a task with `new` classes."""
        self.end_task()
        self.sizes.append(new)
        self.current = torch.zeros_like(self.total)
        self.cross = torch.cat([self.cross, self.cross.new_zeros(self.dim, new)], 1)

    def end_task(self) -> None:
        """Store the matrix of the current task. It must not get further images."""
        for task, gram in self.later.items():
            self.stored[task] = pack((unpack(self.stored[task], self.dim).to(gram) + gram).to("cpu", self.storage))
        self.later = {}
        if len(self.stored) < len(self.sizes):
            self.stored.append(pack(self.current).to("cpu", self.storage))

    def add(self, features: Tensor, labels: Tensor, known: Tensor) -> None:
        """Add a batch. `labels` and `known` (B x K) are those of the last K classes, at least of the current task.

        An image counts for a task if all its labels of the task are known. Otherwise it counts as an image of another
        task.
        """
        phi, y = features.double(), (labels * known).double()
        self.total.addmm_(phi.T, phi)
        first = sum(self.sizes) - y.shape[1]
        for task, (begin, end) in enumerate(self._columns()):
            if begin < first:
                continue
            columns = slice(begin - first, end - first)
            counts = known[:, columns].all(1).double()
            gram = self.current if task == len(self.sizes) - 1 else self.later.get(task)
            if gram is None:
                gram = self.later[task] = torch.zeros_like(self.total)
            gram.addmm_(phi.T * counts, phi)
            self.cross[:, begin:end].addmm_(phi.T * counts, y[:, columns])

    def _columns(self) -> list[tuple[int, int]]:
        """The first class, and the end, of each task."""
        ends = list(itertools.accumulate(self.sizes))
        return list(zip([0, *ends], ends, strict=False))

    def change_basis(self, matrix: Tensor) -> None:
        """Replace the features x of the first task, the only one so far, by x @ matrix."""
        self.total, self.current = (matrix.T @ gram @ matrix for gram in (self.total, self.current))
        self.cross = matrix.T @ self.cross

    def of_task(self, task: int) -> tuple[Tensor, Tensor]:
        """G_t and b_t of a task, on the device."""
        begin, end = self._columns()[task]
        is_current = task == len(self.stored)
        gram = self.current if is_current else unpack(self.stored[task].to(self.total), self.dim)
        later = self.later.get(task)
        return gram if later is None else gram + later, self.cross[:, begin:end]

    @property
    def bytes(self) -> int:
        """Size in memory between tasks, in bytes."""
        half = (self.dim + 1) // 2
        packed = half * (2 * half + 1) * self.storage.itemsize  # the matrix of each task, also of the current one
        return self.total.nbytes + self.cross.nbytes + len(self.sizes) * packed

    def state_dict(self) -> dict[str, Any]:
        names = ("sizes", "total", "current", "cross", "stored")
        return {**{name: getattr(self, name) for name in names}, "later": list(self.later.items())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.total.device
        for name in ("total", "current", "cross"):
            setattr(self, name, state[name].to(device, copy=True))  # they are updated in place
        self.sizes, self.stored = list(state["sizes"]), list(state["stored"])
        self.later = {task: gram.to(device, copy=True) for task, gram in state["later"]}


def pack(matrix: Tensor) -> Tensor:
    """The lower triangle of a symmetric matrix (2n x 2n, or one less) as a rectangle (n x 2n + 1).

    >>> pack(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([[1., 3., 2.]])
    """
    size = len(matrix)
    half = (size + 1) // 2
    packed = matrix.new_zeros(half, 2 * half + 1)
    rest = size - half
    packed[:, :half] = matrix[:half, :half].tril()
    packed[:rest, 1 : rest + 1] += matrix[half:, half:].triu()
    packed[:, half + 1 : half + 1 + rest] = matrix[:half, half:]
    return packed


def unpack(packed: Tensor, size: int) -> Tensor:
    """The symmetric matrix of a `pack`."""
    half, rest = len(packed), size - len(packed)
    matrix = packed.new_empty(size, size)
    first, second = packed[:, :half].tril(), packed[:rest, 1 : rest + 1].triu()
    matrix[:half, :half] = first + first.tril(-1).T
    matrix[half:, half:] = second + second.triu(1).T
    matrix[:half, half:] = packed[:, half + 1 : half + 1 + rest]
    matrix[half:, :half] = matrix[:half, half:].T
    return matrix
