"""Scores of the test images, computed in the training process. The label server computes their metrics (`judging`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from lifelabel.methods import Method
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.utils.transfer import HostCopy, to_device

__all__ = ["compute_features", "compute_scores"]


@torch.no_grad()
def compute_features(method: Method, batches: Iterable[Tensor], check_stop: Callable[[], None]) -> list[Tensor]:
    """The features of all images in `batches` (uint8 pixels), on the host. Each image runs through the network once."""
    features: list[Tensor] = []
    pending: HostCopy | None = None
    largest = 0
    for pixels in batches:
        check_stop()
        largest = max(largest, len(pixels))
        with without_cudnn(len(pixels) < largest):
            copy = HostCopy(method.features(method.setting.backbone.normalize(pixels)))
        if pending is not None:  # it arrives while the device works on the next batch
            features.append(pending.wait().clone())  # into memory that is not pinned
        pending = copy
    return features if pending is None else [*features, pending.wait().clone()]


@torch.no_grad()
def compute_scores(method: Method, features: Iterable[Tensor], num_classes: int | None = None) -> np.ndarray:
    """The logits of all images from their features: for all seen classes, or for the first `num_classes`."""
    device = method.setting.device
    parts = [method.logits(to_device(part, device), num_classes).cpu() for part in features]
    if not parts:  # a process of several may have no image
        return np.zeros((0, num_classes or sum(method.sizes)), np.float32)
    scores = torch.cat(parts)
    if not bool(scores.isfinite().all()):
        raise FloatingPointError("the scores of the test images are not finite")
    return scores.numpy()
