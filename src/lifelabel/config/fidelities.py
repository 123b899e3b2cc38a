"""Fidelities: named sets of options that follow our measurements, the paper, the authors' code, or plain training."""

from __future__ import annotations

from typing import Any

BUFFER_IMAGES = {"scenes": 200, "photographs": 2000}
"""The budget (`buffer_images`) of every method that stores images, by kind of stream. It is equal in all fidelities."""

_AUTHORS: dict[str, Any] = {
    "batch_size": 8,
    "lr": 1e-4,
    "backbone_lr": 1e-4,
    "later_backbone_lr": 1e-4,
    "batch_norm": "running",
    "pool": "max",
    "word_norm": None,
    "precision": "fp32",
}
"""What `paper` and `release` have in common. The paper states no learning rate, batch size and pooling: they are as in
the authors' code. Neither states the rate of a linear head, for the baselines: it is that of the CNN. With fp32, torch
lets the convolutions of a GPU use TF32, as it did for the authors."""

LABEL_GRAPHS: dict[str, dict[str, Any]] = {"paper": {"lr": 3e-5}, "release": {"lr": 3e-5}}
"""The options that a fidelity sets in addition for methods whose head is a graph over the label words: its own rate."""

FIDELITIES: dict[str, dict[str, Any]] = {
    # The defaults of the options, and the preset of the method.
    "tuned": {},
    # The equations as printed.
    "paper": {**_AUTHORS, "adam_eps": 1e-4, "augment": "crop-flip", "reduction": "sum"},
    # The authors' code, with the loss weights of the paper, because the code does not define them.
    "release": {**_AUTHORS, "adam_eps": 1e-8, "augment": "flip", "reduction": "mean", "normalize": "authors"},
    # Plain training: one learning rate for all weights, running statistics, the matrix of the authors' code.
    "plain": {"lr": 1e-3, "backbone_lr": 1e-3, "later_backbone_lr": 1e-3, "batch_norm": "running"},
}
"""The options that each fidelity sets. The options of single methods are in `Method.fidelities`."""

_LITE: dict[str, Any] = {
    "batch_size": 32,
    "backbone": "efficientnet-lite0",
    "weights": "imagenet",
    "image_size": 224,
    "pool": "avg",
}
_RESNET: dict[str, Any] = {"backbone": "resnet101", "weights": "imagenet", "image_size": 448}

PHOTOGRAPHS: dict[str, dict[str, Any]] = {
    "tuned": {**_LITE, "lr": 1e-3, "backbone_lr": 2e-5, "later_backbone_lr": 2e-5, "batch_norm": "frozen"},
    "plain": {**_LITE, "lr": 2e-4, "backbone_lr": 2e-4, "later_backbone_lr": 2e-4},
    "paper": _RESNET,
    "release": _RESNET,
}
"""The options that each fidelity sets in addition for photographs: larger images and pretrained weights."""
