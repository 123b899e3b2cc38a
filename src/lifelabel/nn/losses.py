"""Losses on logits: the three of AGCN (Eq. 2, 3, 9), those of KRT, and the entropy of CSC.

`reduction` is "sum" or "mean": sums over classes (the AGCN paper) or means (its authors' code). Losses of images are
means over the images of a batch. The losses take logits, not probabilities: log-sigmoid is finite where log(sigmoid(.))
is minus infinity.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def classification(logits: Tensor, labels: Tensor, reduction: str = "mean", known: Tensor | None = None) -> Tensor:
    """Eq. 2: cross entropy between the known labels (0/1) and the predictions for the new classes."""
    weight = None if known is None else known.float()
    terms = F.binary_cross_entropy_with_logits(logits.float(), labels.float(), weight, reduction="none")
    return reduce_terms(terms, reduction, known)


def distillation(logits: Tensor, soft_labels: Tensor, reduction: str = "mean") -> Tensor:
    """Eq. 3: cross entropy between the probabilities of the expert and the predictions for the old classes."""
    return classification(logits, soft_labels, reduction)


def relationship(expert_nodes: Tensor, nodes: Tensor, reduction: str = "mean") -> Tensor:
    """Eq. 9: squared distance between the old nodes and those of the expert, summed or averaged over their entries.

    Nodes are classes x D, or B x classes x D if each image has its own: then it is the mean over the images.
    """
    loss = F.mse_loss(nodes.float(), expert_nodes.float(), reduction=reduction)
    return loss / len(nodes) if reduction == "sum" and nodes.ndim == 3 else loss


def entropy(logits: Tensor, reduction: str = "mean") -> Tensor:
    """The entropy of the predictions as CSC defines it: the sum or mean over classes of -p log p."""
    logits = logits.float()
    return reduce_terms(-logits.sigmoid() * F.logsigmoid(logits), reduction)


def asymmetric(
    logits: Tensor, labels: Tensor, reduction: str = "mean", known: Tensor | None = None, *,
    gamma_negative: float = 4.0, gamma_positive: float = 0.0, clip: float = 0.05,
) -> Tensor:  # fmt: skip
    """The asymmetric loss (Ridnik et al., ICCV 2021) on the known labels (0/1).

        - y (1 - p)^gamma_positive ln p - (1 - y) q^gamma_negative ln(1 - q),    q = max(p - clip, 0)

    The powers are weights without a gradient, as in the code of its authors.
    """
    logits, labels = logits.float(), labels.float()
    absent = ((-logits).sigmoid() + clip).clamp(max=1)  # 1 - q
    with torch.no_grad():
        weight_positive, weight_negative = (-logits).sigmoid() ** gamma_positive, (1 - absent) ** gamma_negative
    tiny = torch.finfo(absent.dtype).tiny
    positive, negative = -F.logsigmoid(logits), -absent.clamp(min=tiny).log()
    terms = labels * weight_positive * positive + (1 - labels) * weight_negative * negative
    return reduce_terms(terms if known is None else terms * known, reduction, known)


def token_distance(old_embeddings: Tensor, embeddings: Tensor) -> Tensor:
    """1 - cosine similarity of the embeddings of all old tasks (B x tasks x width), concatenated, and those of the old
    network: the mean over images."""
    return 1 - F.cosine_similarity(embeddings.float().flatten(1), old_embeddings.float().flatten(1)).mean()


def reduce_terms(terms: Tensor, reduction: str, known: Tensor | None = None) -> Tensor:
    """The mean over images of the sum over columns, or the mean over the entries that are known."""
    if reduction == "sum":
        return terms.sum(1).mean()
    return terms.mean() if known is None else terms.sum() / known.sum().clamp(min=1)
