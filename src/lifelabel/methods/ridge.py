"""The ridge regressions of weighted-ridge: sums of features by task, their solutions, and their calibration.

    W_t = (a G + (1 - a) G_t + g I)^-1 b_t

G is the sum of phi phi' over the images of all tasks, G_t over those of task t, and b_t the sum of phi y' over those of
task t. Images of other tasks count with the weight a: they are not labelled for the classes of task t. So they are not
negative examples (a = 1), and they are not left out (a = 0). Nothing grows with the number of images, and the systems
of old tasks are solved again when G has grown.

All results follow from the sums: neither the order of images nor their batches matter.

- The score that an image would have if it had been left out is y - (y - score) / (1 - h), where h is its leverage. For
  h the mean over the images of the task is used, trace(A^-1 G_t) / n. So the sums of these scores follow from the sums.
- Generalised cross-validation compares strengths of regularisation by the squared error of left-out images.
- Calibration: logit = slope * score + shift, by linear discriminant analysis of left-out scores. It needs the mean of
  images with the class, the mean of the others, their common variance, and the share of images with the class.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lifelabel.errors import UserError

_CALIBRATION_WEIGHT = 0.03
"""Weight of images of other tasks in the calibration. With 0, it would be right for images of the task only, and with 1
if no image of another task had the class."""

_SPREAD = 1.5
"""Scores of images with a class vary more than their common variance says, which is mostly that of the other images."""
_LARGEST_ODDS = 9.0
"""If nearly all images of a task have a class, those of other tasks still have it less often."""
_STANDARDISED_SCALE = 0.5
"""The scale of standardised features relative to the others, whose mean square is 1."""
_ITERATIONS = 1
"""Subspace iterations. More of them did not change mAP."""
_SHIFT = 1e-3
"""Added to the diagonal, relative to its mean, so that directions without an image keep their random vectors."""
_SMALLEST_VALUE = 1e-3
"""The smallest second moment of a direction, relative to their mean, that it is scaled by."""
_IMAGES_PER_DIRECTION = 2
"""The first task's images for each direction that is scaled by its own second moment. The further directions have the
scale of the last of these. Scaled by their own, they would fit the images in which they were found too well: the error
of left-out images would be too small, and the chosen regularisation too weak."""
_SMALLEST_DIFFERENCE = 0.01
"""The smallest difference of two means, in standard deviations. Below it, rounding would make equal logits."""


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
    def nbytes(self) -> int:
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


@dataclass(frozen=True)
class Regression:
    """The regression of a task: `total` is G, `gram` G_t, `cross` b_t and `weight` a."""

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

    def solve(self, ridge: float) -> Solution:
        """The weights, and what leaving out each image would give."""
        factor = self.factor(ridge)
        weights = torch.cholesky_solve(self.cross, factor)
        inverse = torch.cholesky_inverse(factor)
        own = self.gram[-1, -1].clamp(min=1)  # 0: no image has all labels known
        others = (self.total[-1, -1] - self.gram[-1, -1]).clamp(min=1)
        # exact, not by random vectors: with few images it is almost 1, and an estimate above 1 would turn signs around
        leverage = (inverse * self.gram).sum() / own
        other_leverage = self.weight * (inverse * (self.total - self.gram)).sum() / others
        square, all_square = ((weights * (gram @ weights)).sum(0) for gram in (self.gram, self.total))
        total, all_total = self.gram[-1] @ weights, self.total[-1] @ weights
        with_class, positives = (weights * self.cross).sum(0), self.cross[-1]
        residual = (positives - 2 * with_class + square).clamp(min=0) / (1 - leverage) ** 2
        return Solution(
            weights, own, others, positives.clamp(min=1e-9), residual,
            ((with_class / positives.clamp(min=1e-9)) - leverage) / (1 - leverage),
            (total - with_class) / (own - positives).clamp(min=1) / (1 - leverage),
            (all_total - total) / others / (1 - other_leverage),
            (all_square - square) / others / (1 - other_leverage) ** 2,
        )  # fmt: skip


@dataclass(frozen=True)
class Solution:
    """The regression of a task for one strength of regularisation. All scores are those of left-out images."""

    weights: Tensor
    """W_t (dim x classes)."""
    images: Tensor
    """The number of images of the task."""
    others: Tensor
    """The number of images of other tasks."""
    positives: Tensor
    """For each class, the number of images with it."""
    residual: Tensor
    """The sum of squared errors of the images of the task."""
    with_class: Tensor
    """The mean score of images with the class."""
    without: Tensor
    """The mean score of images of the task without the class."""
    of_others: Tensor
    """The mean score of images of other tasks."""
    square_of_others: Tensor
    """The mean squared score of images of other tasks."""

    @property
    def error(self) -> Tensor:
        """The generalised cross-validation error, averaged over the classes."""
        return (self.residual / self.images).mean().clamp(min=1e-12)  # 0: no image has a class of the task

    def calibrate(self) -> tuple[Tensor, Tensor]:
        """Slope and shift of the logit of each class, by linear discriminant analysis."""
        others = _CALIBRATION_WEIGHT * self.others
        negatives = (self.images - self.positives).clamp(min=1)
        within = self.residual - self.positives * (1 - self.with_class) ** 2 - negatives * self.without**2
        without = (negatives * self.without + others * self.of_others) / (negatives + others)
        square = negatives * self.without**2 + others * self.square_of_others + within.clamp(min=0)
        variance = (square - (negatives + others) * without**2) / (self.positives + negatives + others)
        odds = (self.positives / (negatives + others)).clamp(max=_LARGEST_ODDS)
        variance = variance.clamp(min=1e-4)
        slope = (self.with_class - without).clamp(min=_SMALLEST_DIFFERENCE * variance.sqrt()) / (_SPREAD * variance)
        return slope, odds.log() - slope * (self.with_class + without) / 2


def choose_basis(gram: Tensor, standardised: Sequence[slice], directions: int | None) -> Tensor:
    """The map from features and a 1 to the features of the regression and a 1 (dim + 1 x kept + 1).

    `gram` is the matrix of sums of the first task. Each group of `standardised` features is centred and divided by the
    square roots of its standard deviations: rare features, such as the probability of an unusual class, are then large
    in the images that have them, but not as large as a standard score. Then the main directions are kept, each divided
    by the fourth root of its second moment, if there are enough images for it.
    """
    dim, images = len(gram) - 1, gram[-1, -1]
    mean = gram[-1, :-1] / images
    deviation = (gram.diagonal()[:-1] / images - mean**2).clamp(min=0).sqrt()
    basis = torch.eye(dim + 1, dtype=gram.dtype, device=gram.device)
    for group in standardised:
        size = deviation[group]
        if not size.max() > 0:  # one image, or the same ones
            continue
        varying = size[size >= 1e-6 * size.max()]  # many features may be 0 in all images of the first task
        median = varying.median().clamp(min=1e-6)
        scale = _STANDARDISED_SCALE / (median * size.clamp(min=1e-3 * median)).sqrt()
        basis.diagonal()[group] = scale
        basis[-1, group] = -mean[group] * scale
    if directions is None:
        return basis
    values, vectors = _main_directions((basis.T @ gram @ basis)[:-1, :-1], directions)
    scaled = min(len(values), max(1, int(images) // _IMAGES_PER_DIRECTION))
    sizes = values.clamp(min=values[-scaled]) / values.mean().clamp(min=1e-12)  # values are in ascending order
    vectors = vectors * sizes.clamp(min=_SMALLEST_VALUE) ** -0.25
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
