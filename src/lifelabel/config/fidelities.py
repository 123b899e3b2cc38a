"""Fidelities: named sets of options that follow our measurements, the paper, the authors' code, or plain training."""

from __future__ import annotations

from typing import Any

BUFFER_IMAGES = {"scenes": 200, "photographs": 2000}
"""The budget (`buffer_images`) of every method that stores images, by kind of stream. It is equal in all fidelities."""

FIDELITIES: dict[str, dict[str, Any]] = {
    # The defaults of the options, and the preset of the method.
    "tuned": {},
    # The equations as printed. The paper states no learning rate, batch size and pooling: they are as in the authors'
    # code.
    "paper": {
        "batch_size": 8,
        "lr": 3e-5,
        "backbone_lr": 1e-4,
        "later_backbone_lr": 1e-4,
        "batch_norm": "running",
        "adam_eps": 1e-4,
        "augment": "crop-flip",
        "pool": "max",
        "reduction": "sum",
        "word_norm": None,
    },
    # The authors' code, with the loss weights of the paper, because the code does not define them.
    "release": {
        "batch_size": 8,
        "lr": 3e-5,
        "backbone_lr": 1e-4,
        "later_backbone_lr": 1e-4,
        "batch_norm": "running",
        "adam_eps": 1e-8,
        "augment": "flip",
        "pool": "max",
        "reduction": "mean",
        "normalize": "authors",
        "word_norm": None,
    },
    # Plain training: one learning rate for all weights, running statistics, the matrix of the authors' code.
    "plain": {
        "lr": 1e-3,
        "backbone_lr": 1e-3,
        "later_backbone_lr": 1e-3,
        "batch_norm": "running",
    },
}
"""The options that each fidelity sets. The options of single methods are in `Method.fidelities`."""

PHOTOGRAPHS: dict[str, dict[str, Any]] = {
    "tuned": {
        "batch_size": 32,
        "lr": 1e-3,
        "backbone_lr": 2e-5,
        "later_backbone_lr": 2e-5,
        "batch_norm": "frozen",
        "backbone": "efficientnet-lite0",
        "weights": "imagenet",
        "image_size": 224,
        "pool": "avg",
    },
    "plain": {
        "batch_size": 32,
        "lr": 2e-4,
        "backbone_lr": 2e-4,
        "later_backbone_lr": 2e-4,
        "backbone": "efficientnet-lite0",
        "weights": "imagenet",
        "image_size": 224,
        "pool": "avg",
    },
    "paper": {"backbone": "resnet101", "weights": "imagenet", "image_size": 448},
    "release": {"backbone": "resnet101", "weights": "imagenet", "image_size": 448},
}
"""The options that each fidelity sets in addition for photographs: larger images and pretrained weights."""
