"""The Augmented Correlation Matrix with calibrated soft labels. This is not part of the paper.

The expert is over-confident on old classes: docs/methods/agcn.md says why. Two changes correct for this:

- `prevalence`: n images were seen so far, and N_i of them have the hard label i. The mean of z_i over the images of the
  new task may be at most `prevalence` times N_i / n. If it is higher, all z_i are scaled down to this mean.
- `over_stream`: the New-Old block divides by the expected number of images of the old class in all tasks. Eq. 7 divides
  by that in the new task only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lifelabel.nn.graph.acm import ACM

_TINY = torch.finfo(torch.float64).tiny


class CalibratedACM(ACM):
    """An `ACM` with calibrated soft labels. `prevalence=None` does not limit the soft labels.

    >>> acm = CalibratedACM(prevalence=1.0)
    >>> acm.begin_task(1)
    >>> acm.update(torch.tensor([[1.0], [0.0]]))
    >>> acm.begin_task(1)
    >>> acm.update(torch.tensor([[1.0], [0.0]]), torch.tensor([[1.0], [1.0]]))
    >>> acm.soft_label_scale().tolist()  # 1 of 4 images has the label, and the mean soft label is 1
    [0.25]
    """

    sums = (*ACM.sums, "old_hard_counts", "old_expected_counts", "images", "task_images")

    def __init__(
        self, device: torch.device | str = "cpu", *, prevalence: float | None = None, over_stream: bool = False,
        halve: bool = False,
    ):  # fmt: skip
        super().__init__(device, halve=halve)
        self.prevalence, self.over_stream = prevalence, over_stream
        zeros = self._matrix.new_zeros
        self.images, self.task_images = zeros(()), zeros(())
        self.old_hard_counts, self.old_expected_counts = zeros(0), zeros(0)

    def begin_task(self, new: int) -> None:
        hard, expected = torch.cat([self.old_hard_counts, self.hard_counts()]), self.expected_counts()
        super().begin_task(new)
        self.old_hard_counts, self.old_expected_counts = hard, expected
        self.task_images = torch.zeros_like(self.task_images)

    def update(self, labels: Tensor, soft_labels: Tensor | None = None, known: Tensor | None = None) -> None:
        super().update(labels, soft_labels, known)
        self.images += len(labels)
        self.task_images += len(labels)

    def soft_label_scale(self) -> Tensor:
        """The factor for the soft labels of each old class: 1, or less if their mean exceeds the limit."""
        if self.prevalence is None:
            return torch.ones_like(self.sum_z)
        share = self.prevalence * self.task_images / self.images.clamp(min=1)
        return (share * self.old_hard_counts / self.sum_z.clamp(min=_TINY)).clamp(max=1)

    def expected_counts(self) -> Tensor:
        """Expected number of images of all tasks with each class.

        This is the number of images with its hard label, plus the sum of its soft labels in later tasks.
        """
        return torch.cat([self.old_expected_counts + self.soft_label_scale() * self.sum_z, self.hard_counts()])

    def joint_counts(self) -> Tensor:
        return self.sum_zy * self.soft_label_scale()[:, None]

    def soft_counts(self) -> Tensor:
        return self.soft_label_scale()[:, None] * super().soft_counts()

    def new_old_counts(self) -> Tensor:
        counts = self.soft_counts()
        return counts + self.old_expected_counts[:, None] if self.over_stream else counts
