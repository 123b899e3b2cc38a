"""The ridge regression of one task from its sums (see `TaskSums`), its strength of regularisation, and its calibration.

All of it follows from the sums: no image is needed, and neither the order of images nor their batches matter.

- Generalised cross-validation compares strengths of regularisation. It estimates the squared error that images of the
  task would have if they had been left out: RSS / n / (1 - h)^2, where h is the mean leverage, trace(A^-1 G_t) / n.
- Calibration: logit = slope * score + shift, as linear discriminant analysis gives it from the mean score of images
  with the class, the mean score of those without, and their common variance. The mean scores of images with the class
  are those that leaving out the image would give, (mean - h) / (1 - h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifelabel.errors import UserError

__all__ = ["Regression", "choose_basis"]

_CALIBRATION_WEIGHT = 0.03
"""Weight of images of other tasks in the calibration. With 0, it would be right for images of the task only, and with 1
if no image of another task had the class."""

_STANDARDISED_SCALE = 0.5
"""The scale of standardised features relative to the others, whose mean square is 1."""
_ITERATIONS = 1
"""Subspace iterations. More of them did not change mAP."""
_SHIFT = 1e-3
"""Added to the diagonal, relative to its mean, so that directions without an image keep their random vectors."""
_SMALLEST_VALUE = 1e-3
"""The smallest second moment of a direction, relative to their mean, that it is scaled by."""


@dataclass(frozen=True)
class Regression:
    """The regression of a task: `total` is G, `gram` G_t, `cross` b_t and `weight` a (see `lifelabel.nn.task_sums`)."""

    total: Tensor
    gram: Tensor
    cross: Tensor
    weight: float

    def factor(self, ridge: float) -> Tensor:
        """The Cholesky factor of the system. The regularisation is `ridge` times the mean diagonal of the matrix."""
        system = self.weight * self.total + (1 - self.weight) * self.gram
        system.diagonal().add_(ridge * system.diagonal().mean())
        factor, failed = torch.linalg.cholesky_ex(system)
        if failed:
            raise UserError(f"method.ridge={ridge:g} is too small for these features: give a larger one")
        return factor

    def leverage(self, factor: Tensor) -> Tensor:
        """The mean leverage of the images of the task."""
        # exact: in a task with few images it is almost 1, and an estimate above 1 would turn signs around
        return (torch.cholesky_inverse(factor) * self.gram).sum() / self.gram[-1, -1].clamp(min=1)

    def generalised_error(self, ridge: float) -> Tensor:
        """The error by generalised cross-validation, the mean over the classes."""
        factor = self.factor(ridge)
        weights = torch.cholesky_solve(self.cross, factor)
        positives, images = self.cross[-1], self.gram[-1, -1].clamp(min=1)  # 0: no image has all labels known
        residual = positives - 2 * (weights * self.cross).sum(0) + (weights * (self.gram @ weights)).sum(0)
        error = (residual / images / (1 - self.leverage(factor)) ** 2).mean()
        return error.clamp(min=1e-12)  # 0: no image has a class of the task

    def solve(self, ridge: float) -> tuple[Tensor, Tensor, Tensor]:
        """The weights (dim x classes), and the slope and shift of the logit of each class."""
        factor = self.factor(ridge)
        weights = torch.cholesky_solve(self.cross, factor)
        leverage, positives = self.leverage(factor), self.cross[-1].clamp(min=1e-9)
        moments = _CALIBRATION_WEIGHT * self.total + (1 - _CALIBRATION_WEIGHT) * self.gram
        images = moments[-1, -1]
        prior = (positives / images).clamp(1e-6, 1 - 1e-6)
        mean, square = moments[-1] @ weights / images, (weights * (moments @ weights)).sum(0) / images
        with_class = ((weights * self.cross).sum(0) / positives - leverage) / (1 - leverage)
        without = (mean - prior * with_class) / (1 - prior)
        variance = square - prior * with_class**2 - (1 - prior) * without**2
        slope = (with_class - without).clamp(min=1e-6) / variance.clamp(min=1e-4)
        shift = (prior / (1 - prior)).log() - slope * (with_class + without) / 2
        return weights, slope, shift


def choose_basis(gram: Tensor, standardised: Sequence[slice], directions: int | None) -> Tensor:
    """The map from features and a 1 to the features of the regression and a 1 (dim + 1 x kept + 1).

    `gram` is the matrix of sums of the first task. Each group of `standardised` features is centred and divided by the
    square roots of its standard deviations: rare features, such as the probability of an unusual class, are then large
    in the images that have them, but not as large as a standard score. Then the main directions are kept, each divided
    by the fourth root of its second moment.
    """
    dim, images = len(gram) - 1, gram[-1, -1]
    mean = gram[-1, :-1] / images
    deviation = (gram.diagonal()[:-1] / images - mean**2).clamp(min=0).sqrt()
    basis = torch.eye(dim + 1, dtype=gram.dtype, device=gram.device)
    for group in standardised:
        median = deviation[group].median().clamp(min=1e-9)
        scale = _STANDARDISED_SCALE / (median * deviation[group].clamp(min=1e-3 * median)).sqrt()
        basis.diagonal()[group] = scale
        basis[-1, group] = -mean[group] * scale
    if directions is None:
        return basis
    values, vectors = _main_directions((basis.T @ gram @ basis)[:-1, :-1], directions)
    vectors = vectors * (values / values.mean()).clamp(min=_SMALLEST_VALUE) ** -0.25
    return torch.cat([basis[:, :-1] @ vectors, basis[:, -1:]], 1)


def _main_directions(gram: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest eigenvalues of a symmetric matrix, up to `count`, and their eigenvectors (dim x count).

    If there are more, they are approximate: by subspace iteration from fixed random vectors, which takes a fraction of
    the time of all eigenvectors. In the space that has no image, the directions are random.
    """
    if count < len(gram):
        generator = torch.Generator().manual_seed(0)
        found = torch.randn(len(gram), count, generator=generator, dtype=torch.float64).to(gram)
        shift = _SHIFT * gram.diagonal().mean()
        for _ in range(_ITERATIONS):
            found = torch.linalg.qr(gram @ found + shift * found).Q
        values, vectors = torch.linalg.eigh(found.T @ (gram @ found))
        return values, found @ vectors
    return torch.linalg.eigh(gram)
