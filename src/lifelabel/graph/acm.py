"""The Augmented Correlation Matrix (Eq. 4-7): label counts in, conditional probabilities out.

Entry [i, j] of the matrix is P(C_i | C_j). While a task runs, three sums over its images are kept in float64:

    N_ij        hard x hard   images that show both new classes; its diagonal is N_j
    sum z_i y_j soft x hard   expected images that show old class i and new class j
    sum z_i     soft          expected images that show old class i

and the matrix of all seen classes is made from them (old = tasks before this one, frozen as they ended):

    A^t = [ Old-Old  Old-New ]  =  [ A^{t-1}  R^t ]
          [ New-Old  New-New ]     [ Q^t      B^t ]

A class never seen has counts of zero; its entries are 0, not NaN, and P(C_j | C_j) is 1 by definition.

The expert believes too much in its classes: every image it learned from showed one of its task. `prevalence`
calibrates it by what the stream itself reveals. Of all images so far, the share N_i / n showed label i; on the images
of a new task the mean of z_i may be `prevalence` times that share, and is scaled down to it where it is more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LIFTS = 0.05, 50.0
"""How much rarer or more frequent than by chance two classes may be together, for `log_lift`."""


class ACM:
    """Online Augmented Correlation Matrix. Plain tensors in, matrix out; nothing is read back to the host.

    `new_old` chooses the New-Old block: "bayes" is Eq. 7, which divides by the old class's expected images *of the new
    task*, "halved" is half of it, as in the authors' code, and "stream" divides by its expected images of all tasks:
    most images of an old class lie in its own task, and few of them show the new one.

    >>> acm = ACM()
    >>> acm.begin_task(2)
    >>> acm.update(torch.tensor([[1, 1], [0, 1]]))
    >>> acm.matrix().tolist()
    [[1.0, 0.5], [1.0, 1.0]]
    """

    def __init__(self, new_old: str = "bayes", device: torch.device | str = "cpu", prevalence: float | None = None):
        self.new_old, self.prevalence = new_old, prevalence
        self.old = 0
        self._matrix = torch.zeros(0, 0, dtype=torch.float64, device=device)
        self.images, self.task_images = self._matrix.new_zeros(()), self._matrix.new_zeros(())
        self.n_ij, self.sum_zy, self.sum_z = self._matrix, self._matrix, self._matrix.new_zeros(0)
        self.shown, self.expected = self._matrix.new_zeros(0), self._matrix.new_zeros(0)
        self.ends: list[tuple[Tensor, Tensor]] = []
        """When each task ended: the expected images of every class, and all images so far."""

    def begin_task(self, new: int) -> None:
        """Freeze what is there as Old-Old and start counting `new` further classes."""
        frozen = self.matrix()
        self.shown, self.expected = self.shown_so_far(), self.expected_so_far()
        if len(frozen):
            self.ends.append((self.expected, self.images.clone()))
        self.old, self.task_images = len(frozen), torch.zeros_like(self.task_images)
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
        self.images += len(y)
        self.task_images += len(y)
        if self.old:
            if z is None:
                raise ValueError(f"soft labels of the {self.old} old classes are needed to count this batch")
            z = z.detach().double()
            self.sum_zy += z.T @ y
            self.sum_z += z.sum(0)

    def belief(self) -> Tensor:
        """What the soft labels of each old class are scaled with: 1, or less where they exceed the prevalence."""
        if self.prevalence is None:
            return torch.ones_like(self.sum_z)
        share = self.prevalence * self.task_images / self.images.clamp(min=1)
        return (share * self.shown / self.sum_z.clamp(min=TINY)).clamp(max=1)

    def shown_so_far(self) -> Tensor:
        """N_i: images that were shown with each class, all in the class's own task."""
        return torch.cat([self.shown, self.n_ij.diagonal()])

    def expected_so_far(self) -> Tensor:
        """Images of all tasks that show each class: those that were shown with it, and those expected to have it."""
        return torch.cat([self.expected + self.belief() * self.sum_z, self.n_ij.diagonal()])

    def matrix(self) -> Tensor:
        """A^t over all seen classes, float64. The same storage is refreshed at the next call."""
        old, n_j = self.old, self.n_ij.diagonal()
        ratio(self.n_ij, n_j, out=self._matrix[old:, old:])  # Eq. 5: B_ij = N_ij / N_j
        self._matrix.diagonal()[old:] = 1
        if old:
            belief = self.belief()
            together = self.sum_zy * belief[:, None]
            ratio(together, n_j, out=self._matrix[:old, old:])  # Eq. 6: R_ij = sum z_i y_j / N_j
            of_old = belief * self.sum_z
            if self.new_old == "stream":
                of_old += self.expected
            bayes = ratio(together.T, of_old, out=self._matrix[old:, :old])  # Eq. 7: Q_ji = R_ij N_j / sum z_i
            if self.new_old == "halved":
                bayes /= 2
        return self._matrix

    def log_lift(self, task: Tensor, first: int | None = None) -> Tensor:
        """How much more often than by chance two classes were met together, as a logarithm; 0 on the diagonal.

        `task` says of each class which task brought it. The images with both are those of New-New and Old-New, so they
        are all of the later class's task; chance is over the whole stream. So two classes that have nothing to do with
        each other come out below 0: nobody saw them together elsewhere, and labels compete until they are. With
        `first`, over the first classes alone, as it was when no more were known.
        """
        expected, images = self.expected_so_far(), self.images
        for then, seen in self.ends:
            if len(then) == first:
                expected, images = then, seen
        count = len(expected)
        upper = self.matrix()[:count, :count] * self.shown_so_far()[:count]
        together = torch.where(task[:count] >= task[:count, None], upper, upper.T)
        chance = expected[:, None] * expected[None, :] / images.clamp(min=1)
        return ((together + 1) / (chance + 1)).clamp(*LIFTS).log().fill_diagonal_(0)

    def state_dict(self) -> dict[str, Any]:
        tensors = {name: getattr(self, name).clone() for name in TENSORS}
        return {"matrix": self.matrix().clone(), **tensors, "ends": [list(end) for end in self.ends]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._matrix = state["matrix"].to(self._matrix)
        for name in TENSORS:
            setattr(self, name, state[name].to(self._matrix, copy=True))
        self.old = len(self.sum_z)
        self.ends = [(expected.to(self._matrix), images.to(self._matrix)) for expected, images in state["ends"]]


TENSORS = ("n_ij", "sum_zy", "sum_z", "shown", "expected", "images", "task_images")
TINY = torch.finfo(torch.float64).tiny


def ratio(joint: Tensor, given: Tensor, out: Tensor) -> Tensor:
    """joint[i, j] / given[j]; where nothing was counted joint is 0 too, and so is the ratio."""
    return torch.div(joint, given.clamp(min=TINY), out=out)
