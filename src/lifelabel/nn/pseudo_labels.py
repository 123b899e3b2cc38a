"""Pseudo labels of old classes by a threshold that is searched: the dynamic pseudo labels of KRT.

A probability of the old network at or above the threshold is a pseudo label. The threshold starts at 0.8 and moves in
steps of 0.005 until the mean number of old labels per image is within 0.1 of the expected one. Probabilities are kept
in a histogram with bins of 0.005, so the search needs no stored images, and its time does not depend on the number of
images. docs/methods/krt.md states what is from the paper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["PseudoLabels"]

_STEPS = 200
"""Thresholds are multiples of 1 / 200."""
_START, _TRIES, _TOLERANCE = 160, 100, 0.1
_TENSORS = ("histogram", "task_images", "labels", "images", "expected")


class PseudoLabels:
    """The search for the threshold, and the counts from which the expected number of old labels per image follows.

    All numbers that change are tensors that are updated in place, and no value is read back from the device.

    >>> found = PseudoLabels()
    >>> labels = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> found.count(labels, torch.ones(2, 2, dtype=torch.bool))  # the first task: 1.5 labels per image
    >>> found.begin_task(old=2, new=2)
    >>> found.expected.item()  # 1.5, times 2 of 4 classes
    0.75
    >>> threshold = found.search(torch.tensor([[0.9, 0.1], [0.7, 0.1], [0.6, 0.1], [0.5, 0.1]]))
    >>> round(threshold.item(), 3)  # three labels in four images
    0.6
    """

    def __init__(self, density: float = 1.0, device: torch.device | str = "cpu"):
        self.density = density
        self.thresholds = (torch.arange(_STEPS + 1) / _STEPS).to(device)
        steps = torch.arange(_TRIES)
        self.upwards, self.downwards = ((_START + sign * steps).clamp(max=_STEPS).to(device) for sign in (1, -1))
        self.histogram = torch.zeros(_STEPS + 2, dtype=torch.int64, device=device)
        """Probabilities of this task: entry k counts those that are at or above k of the thresholds."""
        self.task_images, self.labels, self.images = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        self.expected = torch.zeros((), device=device)

    def begin_task(self, old: int, new: int) -> None:
        """Begin a task with `new` classes after tasks with `old` ones. The labels so far are those that it expects."""
        per_image = self.labels / self.images.clamp(min=1)
        self.expected.copy_(self.density * old / (old + new) * per_image)
        self.histogram.zero_()
        self.task_images.zero_()

    def count(self, labels: Tensor, known: Tensor) -> None:
        """Count the labels of the images of a batch (B x classes, 0/1) where they are known."""
        self.labels += (labels * known).sum().long()
        self.images += len(labels)

    def search(self, probabilities: Tensor, new_images: bool = True) -> Tensor:
        """The threshold for the images of the task so far, with these probabilities (B x old) of the next images.

        Images that were counted before are not new.
        The search ends within the tolerance, or when the mean number has passed the expected one, or after 100 tries.
        The result is the try with the smallest error; of equal ones the first.
        """
        if new_images:
            bins = torch.bucketize(probabilities.flatten(), self.thresholds, right=True)
            self.histogram.scatter_add_(0, bins, torch.ones_like(bins))
            self.task_images += len(probabilities)
        at_least = self.histogram.flip(0).cumsum(0).flip(0)[1:]  # by threshold
        means = at_least / self.task_images
        tries = torch.where(means[_START] < self.expected, self.downwards, self.upwards)
        errors = means[tries] - self.expected
        ended = (errors.abs() <= _TOLERANCE) | (errors.sign() != errors[0].sign())
        tried = ended.cumsum(0) - ended.long() == 0
        best = errors.abs().masked_fill(~tried, torch.inf).argmin()
        return self.thresholds.take(tries.take(best))

    @property
    def bytes(self) -> int:
        """Size in memory of what is stored from task to task, in bytes."""
        return sum(tensor.nbytes for tensor in self.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _TENSORS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _TENSORS:
            getattr(self, name).copy_(state[name])
