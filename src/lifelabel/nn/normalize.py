"""Conversion of pixels to the input of a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lifelabel.utils.transfer import to_device

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of red, green and blue over ImageNet, for pixels from 0 to 1."""
AUTHORS_MEAN, AUTHORS_STD = (0.488, 0.486, 0.406), (0.229, 0.224, 0.228)
"""The values in the published code of AGCN. They differ from those of ImageNet in three numbers."""


class Normalize(nn.Module):
    """Converts pixels (B x H x W x 3, uint8) to network input (B x 3 x H x W, float32): (x / 255 - mean) / std.

    The output is on the device of the module. Pixels are copied to it as bytes, which are a quarter of the floats.

    >>> Normalize(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))(torch.tensor([[[[0, 255, 255]]]])).flatten().tolist()
    [-1.0, 1.0, 1.0]
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD):
        super().__init__()
        self.mean, self.std = tuple(mean), tuple(std)
        # not in the state dict: they are constants
        self.register_buffer("shift", 255 * torch.tensor(self.mean)[:, None, None], persistent=False)
        self.register_buffer("scale", 1 / (255 * torch.tensor(self.std)[:, None, None]), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        x = to_device(pixels, self.shift.device).permute(0, 3, 1, 2).float()
        return ((x - self.shift) * self.scale).contiguous()
