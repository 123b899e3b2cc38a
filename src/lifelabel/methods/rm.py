"""RM: rainbow memory (Bang et al., CVPR 2021). The exemplars of a class are spread evenly over its images, from those
that the network is most certain of to those that it is least certain of.

    u(x) = 1 − 1/T Σ_t p_c(x̃_t)

p_c is the predicted probability of the class c that image x serves, and x̃_1 … x̃_T are perturbed copies of x. The paper
counts votes of a softmax classifier in place of the probabilities: docs/methods/rm.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.methods.buffer import Buffer
from lifelabel.methods.er import ER, ClassificationReplayOptions
from lifelabel.methods.exemplars import ExemplarBuffer, ExemplarReplay
from lifelabel.options import option
from lifelabel.utils.transfer import to_device

_SMALLEST_CROP = 0.6
"""Side of the smallest crop, as a share of the side of the image."""
_BRIGHTNESS, _CONTRAST = 0.8, 0.4
"""Largest shift of all values, in standard deviations of pixels, and largest relative change of the contrast."""
_CUT_OUT = 0.4
"""Side of the square that is cut out, as a share of the side of the image."""


@dataclass(frozen=True)
class _RMOptions(ClassificationReplayOptions):
    perturbations: int = option(
        12, "perturbed copies of an image from which its uncertainty is estimated, when a task ends", low=1, high=1000
    )


class _RainbowBuffer(ExemplarBuffer):
    def choose(self, ordered: np.ndarray, count: int) -> np.ndarray:
        return ordered[spread_evenly(len(ordered), count)]


class RM(ExemplarReplay, ER):
    summary = "replay of exemplars of each class that are spread from certain to uncertain ones"
    position = 120
    Options: ClassVar[type] = _RMOptions
    buffer_class: ClassVar[type[Buffer]] = _RainbowBuffer

    def end_task(self) -> None:
        super().end_task()
        changed = self.buffer.changed()
        if not changed:
            return
        uncertainty = self.buffer.compute(self.uncertainty, np.concatenate(changed), self.setting.batch_size).numpy()
        ends = np.cumsum([len(members) for members in changed])
        for members, own in zip(changed, np.split(uncertainty, ends[:-1]), strict=True):
            self.buffer.set_order(members[np.argsort(own, kind="stable")])

    def uncertainty(self, images: Tensor, positions: np.ndarray) -> Tensor:
        """u of stored images, for the classes that they serve."""
        served = to_device(torch.from_numpy(self.buffer.serves[positions]), images.device)[:, None]
        copies = (perturb(images) for _ in range(self.options.perturbations))
        probabilities = [self.scores(copy).gather(1, served)[:, 0].sigmoid() for copy in copies]
        return 1 - torch.stack(probabilities).mean(0)


def spread_evenly(size: int, count: int) -> np.ndarray:
    """`count` indices of a list of `size`, from the first to the last at equal distances.

    >>> spread_evenly(9, 3).tolist(), spread_evenly(6, 4).tolist(), spread_evenly(5, 1).tolist()
    ([0, 4, 8], [0, 1, 3, 5], [0])
    """
    return np.arange(count) * (size - 1) // max(count - 1, 1)


def perturb(images: Tensor) -> Tensor:
    """Each image (B x 3 x H x W) cropped, mirrored, changed in brightness and contrast, and with a square cut out.

    All random numbers are from torch's CPU generator.
    """
    count, height, width = len(images), *images.shape[2:]
    drawn = to_device(torch.rand(8, count), images.device)
    side, x, y, mirror, brightness, contrast = drawn[:6, :, None, None]
    side = _SMALLEST_CROP + (1 - _SMALLEST_CROP) * side
    across, down = (1 - side) * (2 * x - 1), (1 - side) * (2 * y - 1)  # the centre of the crop, from -1 to 1
    none = torch.zeros_like(side)
    rows = torch.cat([side * torch.where(mirror < 0.5, -1, 1), none, across], 2), torch.cat([none, side, down], 2)
    grid = F.affine_grid(torch.cat(rows, 1), list(images.shape), align_corners=False)
    images = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    brightness, contrast = (part[..., None] * 2 - 1 for part in (brightness, contrast))  # from -1 to 1
    mean = images.mean((1, 2, 3), keepdim=True)
    images = (images - mean) * (1 + _CONTRAST * contrast) + mean + _BRIGHTNESS * brightness
    inside = [
        ((torch.arange(size, device=images.device) + 0.5) / size - centre[:, None]).abs() < _CUT_OUT / 2
        for size, centre in ((height, drawn[6]), (width, drawn[7]))
    ]
    return images.masked_fill((inside[0][:, :, None] & inside[1][:, None, :])[:, None], 0.0)
