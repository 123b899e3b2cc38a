"""Pixels in, network input out: scaling by the backbone's own rule, and augmentation that follows the seed."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lifelabel.backbones import Backbone

AUGMENTATIONS = {
    "none": "the image as it is",
    "flip": "mirrored left to right for half of the images (the authors' code: resize, then flip)",
    "crop-flip": "a random part of 50 to 100 % of the area, resized back, then flipped (the paper, A.4)",
}


def to_input(images: np.ndarray, backbone: Backbone) -> Tensor:
    """uint8 B x H x W x 3 to float32 B x 3 x H x W on the backbone's device, (x / 255 - mean) / std.

    The bytes travel to the device, not the floats.
    """
    x = send(torch.from_numpy(images), backbone.shift.device).permute(0, 3, 1, 2).float()
    return ((x - backbone.shift) * backbone.scale).contiguous()


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """To the device without waiting for the work that is already queued there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def augment(images: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Augment a batch; every random number comes from `generator` (on the CPU), so a run can be repeated."""
    if kind == "none":
        return images
    count = len(images)
    flip = torch.rand(count, generator=generator) < 0.5
    if kind == "flip":
        return torch.where(send(flip, images.device)[:, None, None, None], images.flip(-1), images)
    area = 0.5 + 0.5 * torch.rand(count, generator=generator)
    aspect = torch.exp((torch.rand(count, generator=generator) * 2 - 1) * np.log(4 / 3))
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    shift_x = (torch.rand(count, generator=generator) * 2 - 1) * (1 - width)
    shift_y = (torch.rand(count, generator=generator) * 2 - 1) * (1 - height)
    sign = torch.where(flip, -1.0, 1.0)
    zero = torch.zeros(count)
    rows = torch.stack([torch.stack([sign * width, zero, shift_x], 1), torch.stack([zero, height, shift_y], 1)], 1)
    grid = F.affine_grid(send(rows, images.device), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
