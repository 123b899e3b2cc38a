"""The Augmented Correlation Matrix of the paper (Eq. 4-7): label counts in, conditional probabilities out.

Entry [i, j] of the matrix is P(C_i | C_j). While a task runs, three sums over its images are held in float64:

    N_ij        hard x hard   images with both new classes i and j; the diagonal is N_j
    sum z_i y_j soft x hard   expected number of images with old class i and new class j
    sum z_i     soft          expected number of images with old class i

The matrix of all seen classes follows from them. Old classes are those of earlier tasks:

    A^t = [ Old-Old  Old-New ]  =  [ A^{t-1}  R^t ]
          [ New-Old  New-New ]     [ Q^t      B^t ]

An entry whose counts are zero is 0, not NaN. P(C_j | C_j) is 1 by definition.

Hard labels may be unknown in some images. P(C_i | C_j) of a new class i is then counted over the images in which label
i is known: `unknown_new` and `unknown_old` are subtracted from the denominators of B and Q. They are zero if all labels
are known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_TINY = torch.finfo(torch.float64).tiny


class ACM:
    """Online Augmented Correlation Matrix, Eq. 4-7.

    With `halve` the New-Old block is half of Eq. 7, as in the authors' code. `update` and `matrix` do not wait for the
    device and update their tensors in place, so they can be recorded as CUDA graphs.

    >>> acm = ACM()
    >>> acm.begin_task(2)
    >>> acm.update(torch.tensor([[1, 1], [0, 1]]))
    >>> acm.matrix().tolist()
    [[1.0, 0.5], [1.0, 1.0]]
    """

    sums: tuple[str, ...] = ("n_ij", "sum_zy", "sum_z", "unknown_new", "unknown_old", "known_counts")
    """The names of the tensors that are part of the state, in addition to the matrix."""

    def __init__(self, device: torch.device | str = "cpu", *, halve: bool = False):
        self.halve = halve
        self._matrix = torch.zeros(0, 0, dtype=torch.float64, device=device)
        self._zero_sums(new=0)

    @property
    def old(self) -> int:
        """The number of old classes."""
        return len(self.sum_z)

    def begin_task(self, new: int) -> None:
        """Freeze the matrix as the Old-Old block and start to count `new` further classes."""
        frozen = self.matrix()
        old = len(frozen)
        self._matrix = frozen.new_zeros(old + new, old + new)
        self._matrix[:old, :old] = frozen
        self._zero_sums(new)

    def _zero_sums(self, new: int) -> None:
        old = len(self._matrix) - new
        zeros = self._matrix.new_zeros
        self.n_ij, self.sum_zy, self.sum_z = zeros(new, new), zeros(old, new), zeros(old)
        self.unknown_new = zeros(new, new)  # sum of y_j over images in which label i is unknown
        self.unknown_old = zeros(old, new)  # sum of z_i over images in which label j is unknown
        self.known_counts = zeros(new)  # images in which each new label is known

    def update(self, labels: Tensor, soft_labels: Tensor | None = None, known: Tensor | None = None) -> None:
        """Count one batch.

        `labels` (B x new, 0/1) are the hard labels and `soft_labels` (B x old, 0 to 1) the probabilities of the expert.
        `known` (B x new, bool) is the mask of the known hard labels; None: all are known.
        """
        if self.old and soft_labels is None:
            raise ValueError(f"soft labels of the {self.old} old classes are needed to count this batch")
        y = labels.detach().double()
        z = soft_labels.detach().double() if self.old and soft_labels is not None else None
        if known is None:
            self.known_counts += len(y)
        else:
            unknown = (~known).double()
            y = y * known
            self.unknown_new += unknown.T @ y
            self.known_counts += known.sum(0)
            if z is not None:
                self.unknown_old += z.T @ unknown
        self.n_ij += y.T @ y
        if z is not None:
            self.sum_zy += z.T @ y
            self.sum_z += z.sum(0)

    def hard_counts(self) -> Tensor:
        """N_j: images of this task with each new class (new)."""
        return self.n_ij.diagonal()

    def joint_counts(self) -> Tensor:
        """Expected number of images of this task with old class i and new class j (old x new)."""
        return self.sum_zy

    def soft_counts(self) -> Tensor:
        """Expected number of images of this task with old class i in which label j is known (old x new)."""
        known = self.sum_z[:, None] - self.unknown_old
        # the difference of two nearly equal sums can be less than the joint count, even 0: the ratio would be huge
        return torch.where(self.unknown_old > 0, torch.maximum(known, self.sum_zy), known)

    def new_old_counts(self) -> Tensor:
        """The denominator of the New-Old block (old x new)."""
        return self.soft_counts()

    def matrix(self) -> Tensor:
        """A^t over all seen classes, float64. The next call writes to the same memory."""
        old, hard, joint = self.old, self.hard_counts(), self.joint_counts()
        _ratio(self.n_ij, hard - self.unknown_new, out=self._matrix[old:, old:])  # Eq. 5: B_ij = N_ij / N_j
        self._matrix.diagonal()[old:] = 1
        if old:
            _ratio(joint, hard, out=self._matrix[:old, old:])  # Eq. 6: R_ij = sum z_i y_j / N_j
            new_old = self._matrix[old:, :old]
            _ratio(joint.T, self.new_old_counts().T, out=new_old)  # Eq. 7: Q_ji = R_ij N_j / sum z_i
            if self.halve:
                new_old /= 2
        return self._matrix

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self._matrix.nbytes + sum(getattr(self, name).nbytes for name in self.sums)

    def state_dict(self) -> dict[str, Any]:
        return {"matrix": self.matrix().clone(), **{name: getattr(self, name).clone() for name in self.sums}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._matrix = state["matrix"].to(self._matrix, copy=True)
        for name in self.sums:
            setattr(self, name, state[name].to(self._matrix, copy=True))


def _ratio(joint: Tensor, given: Tensor, out: Tensor) -> Tensor:
    """joint / given; 0 if both are 0."""
    return torch.div(joint, given.clamp(min=_TINY), out=out)
