"""The three losses of AGCN (Eq. 2, 3, 9) and the entropy of CSC, with sums over classes or means.

`reduction` is "sum" (the paper of AGCN) or "mean" (its authors' code). Losses of images are means over the images of a
batch. The losses take logits, not probabilities: log-sigmoid is finite where log(sigmoid(.)) is minus infinity.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["classification", "distillation", "entropy", "relationship"]


def classification(logits: Tensor, labels: Tensor, reduction: str = "mean", known: Tensor | None = None) -> Tensor:
    """Eq. 2: cross entropy between the known labels (0/1) and the predictions for the new classes."""
    return _cross_entropy(logits, labels, reduction, known)


def distillation(logits: Tensor, soft_labels: Tensor, reduction: str = "mean") -> Tensor:
    """Eq. 3: cross entropy between the probabilities of the expert and the predictions for the old classes."""
    return _cross_entropy(logits, soft_labels, reduction)


def relationship(expert_nodes: Tensor, nodes: Tensor, reduction: str = "mean") -> Tensor:
    """Eq. 9: squared distance between the old nodes and those of the expert, summed or averaged over their entries.

    Nodes are classes x D, or B x classes x D if each image has its own: then it is the mean over the images.
    """
    loss = F.mse_loss(nodes.float(), expert_nodes.float(), reduction=reduction)
    return loss / len(nodes) if reduction == "sum" and nodes.ndim == 3 else loss


def entropy(logits: Tensor, reduction: str = "mean") -> Tensor:
    """The entropy of the predictions as CSC defines it: the sum or mean over classes of -p log p."""
    logits = logits.float()
    terms = -logits.sigmoid() * F.logsigmoid(logits)
    return terms.sum(1).mean() if reduction == "sum" else terms.mean()


def _cross_entropy(logits: Tensor, targets: Tensor, reduction: str, known: Tensor | None = None) -> Tensor:
    weight = None if known is None else known.float()
    entropy = F.binary_cross_entropy_with_logits(logits.float(), targets.float(), weight, reduction="none")
    if reduction == "sum":
        return entropy.sum(1).mean()
    return entropy.mean() if weight is None else entropy.sum() / weight.sum().clamp(min=1)
