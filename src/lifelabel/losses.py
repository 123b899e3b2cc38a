"""The three losses of AGCN (Eq. 2, 3, 9), on logits, each a sum over classes (paper) or a mean (authors' code).

All are means over the images of a batch. Probabilities never appear: log-sigmoid of the logit is exact where
log(sigmoid(.)) would be minus infinity.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def classification(logits: Tensor, labels: Tensor, reduction: str = "mean", known: Tensor | None = None) -> Tensor:
    """Eq. 2: cross entropy between the labels (0/1) and the predictions for the new classes, where they are known."""
    return _cross_entropy(logits, labels, reduction, known)


def distillation(logits: Tensor, soft_labels: Tensor, reduction: str = "mean") -> Tensor:
    """Eq. 3: cross entropy between the expert's probabilities and the predictions for the old classes."""
    return _cross_entropy(logits, soft_labels, reduction)


def relationship(expert_nodes: Tensor, nodes: Tensor, reduction: str = "mean") -> Tensor:
    """Eq. 9: squared distance of the old classes' node outputs from the expert's."""
    return F.mse_loss(nodes.float(), expert_nodes.float(), reduction=reduction)


def _cross_entropy(logits: Tensor, targets: Tensor, reduction: str, known: Tensor | None = None) -> Tensor:
    weight = None if known is None else known.float()
    entropy = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), weight, reduction="none")
    if reduction == "sum":
        return entropy.sum(1).mean()
    return entropy.mean() if weight is None else entropy.sum() / weight.sum().clamp(min=1)
