"""The Augmented Correlation Matrix (Eq. 4-7): label counts in, conditional probabilities out.

Entry [i, j] of the matrix is P(C_i | C_j). While a task runs, three sums over its images are kept in float64:

    N_ij        hard x hard   images that show both new classes; its diagonal is N_j
    sum z_i y_j soft x hard   expected images that show old class i and new class j
    sum z_i     soft          expected images that show old class i

and the matrix of all seen classes is made from them (old = tasks before this one, frozen as they ended):

    A^t = [ Old-Old  Old-New ]  =  [ A^{t-1}  R^t ]
          [ New-Old  New-New ]     [ Q^t      B^t ]

A class never seen has counts of zero; its entries are 0, not NaN, and P(C_j | C_j) is 1 by definition.
"""

from __future__ import annotations

import torch
from torch import Tensor


class ACM:
    """Online Augmented Correlation Matrix. Plain tensors in, matrix out; nothing is read back to the host.

    `new_old` chooses the New-Old block: "bayes" is Eq. 7, "halved" is half of it, as in the authors' code.

    >>> acm = ACM()
    >>> acm.begin_task(2)
    >>> acm.update(torch.tensor([[1, 1], [0, 1]]))
    >>> acm.matrix().tolist()
    [[1.0, 0.5], [1.0, 1.0]]
    """

    def __init__(self, new_old: str = "bayes", device: torch.device | str = "cpu"):
        self.new_old = new_old
        self.old = 0
        self._matrix = torch.zeros(0, 0, dtype=torch.float64, device=device)
        self.n_ij, self.sum_zy, self.sum_z = self._matrix, self._matrix, self._matrix.new_zeros(0)

    def begin_task(self, new: int) -> None:
        """Freeze what is there as Old-Old and start counting `new` further classes."""
        frozen = self.matrix()
        self.old = len(frozen)
        grown = frozen.new_zeros(self.old + new, self.old + new)
        grown[: self.old, : self.old] = frozen
        self._matrix = grown
        self.n_ij = grown.new_zeros(new, new)
        self.sum_zy = grown.new_zeros(self.old, new)
        self.sum_z = grown.new_zeros(self.old)

    def update(self, y: Tensor, z: Tensor | None = None) -> None:
        """Count one batch: hard labels `y` (B x new, 0/1) and the expert's soft labels `z` (B x old, 0..1)."""
        y = y.detach().double()
        self.n_ij += y.T @ y
        if self.old:
            if z is None:
                raise ValueError(f"soft labels of the {self.old} old classes are needed to count this batch")
            z = z.detach().double()
            self.sum_zy += z.T @ y
            self.sum_z += z.sum(0)

    def matrix(self) -> Tensor:
        """A^t over all seen classes, float64. The same storage is refreshed at the next call."""
        old, n_j = self.old, self.n_ij.diagonal()
        ratio(self.n_ij, n_j, out=self._matrix[old:, old:])  # Eq. 5: B_ij = N_ij / N_j
        self._matrix.diagonal()[old:] = 1
        if old:
            ratio(self.sum_zy, n_j, out=self._matrix[:old, old:])  # Eq. 6: R_ij = sum z_i y_j / N_j
            bayes = ratio(self.sum_zy.T, self.sum_z, out=self._matrix[old:, :old])  # Eq. 7: Q_ji = R_ij N_j / sum z_i
            if self.new_old == "halved":
                bayes /= 2
        return self._matrix

    def state_dict(self) -> dict[str, Tensor]:
        names = ("n_ij", "sum_zy", "sum_z")
        return {"matrix": self.matrix().clone(), **{name: getattr(self, name).clone() for name in names}}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._matrix = state["matrix"].to(self._matrix)
        self.n_ij, self.sum_zy, self.sum_z = (state[k].to(self._matrix) for k in ("n_ij", "sum_zy", "sum_z"))
        self.old = len(self.sum_z)


def ratio(joint: Tensor, given: Tensor, out: Tensor) -> Tensor:
    """joint[i, j] / given[j]; where nothing was counted joint is 0 too, and so is the ratio."""
    return torch.div(joint, given.clamp(min=torch.finfo(given.dtype).tiny), out=out)
