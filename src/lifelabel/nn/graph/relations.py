"""Label relations: the logit of a label is refined by the probabilities of related labels. Not part of the paper.

    u_i = s_i + weight * sum_j sigmoid(s_j) * log_lift[i, j]          s: logits, u: refined logits

A second step uses sigmoid(u_j) in place of sigmoid(s_j).

The log-lift of two classes is log(joint count / expected count). Both counts are over the images of the task of the
later class, because images of other tasks have at most one of the two hard labels. The expected count is the joint
count that independent classes would have.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lifelabel.nn.graph.acm import ACM

_LIFT_RANGE = 0.05, 50.0
"""Limits of joint count / expected count."""
_STEPS = 2
"""The first step uses the probabilities of the network, which are over-confident, the second one the refined ones."""


class LabelRelations:
    """Log-lifts of all seen classes, and the refinement of logits with them.

    The log-lifts between classes of earlier tasks are frozen. Those of the current task follow from the counts of an
    `ACM`. Without `across`, log-lifts between classes of different tasks are 0, without `negative` those below 0.

    >>> acm, relations = ACM(), LabelRelations(weight=1.0)
    >>> acm.begin_task(2)
    >>> acm.update(torch.tensor([[1, 0], [0, 1]] * 50))  # never together
    >>> print(relations.log_lift(acm).exp())
    tensor([[1.0000, 0.0500],
            [0.0500, 1.0000]])
    """

    def __init__(
        self, weight: float, *, across: bool = True, negative: bool = True, device: torch.device | str = "cpu"
    ):
        self.weight, self.across, self.negative = weight, across, negative
        self.frozen = torch.zeros(0, 0, device=device)

    def freeze(self, acm: ACM) -> None:
        """Freeze the log-lifts of the current task. This must be called before `acm.begin_task`."""
        self.frozen = self.log_lift(acm)

    def log_lift(self, acm: ACM) -> Tensor:
        """The log-lifts of all seen classes (classes x classes, float32), with a zero diagonal.

        Entry [i, j] is about log P(C_i | C_j) / P(C_i). The matrix is symmetric, up to rounding, if all hard labels are
        known.
        """
        old, hard = acm.old, acm.hard_counts()
        rate = hard / acm.known_counts.clamp(min=1)  # P(C_i) of the new classes
        new_new = _log_ratio(acm.n_ij, rate[:, None] * (hard - acm.unknown_new)).fill_diagonal_(0)
        lift = self.frozen.new_zeros(old + len(hard), old + len(hard))
        lift[:old, :old] = self.frozen
        lift[old:, old:] = new_new
        if old and self.across:
            lift[:old, old:] = _log_ratio(acm.joint_counts(), acm.soft_counts() * rate)
            lift[old:, :old] = lift[:old, old:].T
        return lift if self.negative else lift.clamp(min=0)

    def refine_logits(self, logits: Tensor, log_lift: Tensor) -> Tensor:
        """Refined logits (B x classes). If `log_lift` has more classes, only its first rows and columns are used."""
        return refine_logits(logits, log_lift[: logits.shape[1], : logits.shape[1]], self.weight)

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self.frozen.nbytes

    def state_dict(self) -> dict[str, Any]:
        return {"frozen": self.frozen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.frozen = state["frozen"].to(self.frozen)


def refine_logits(logits: Tensor, log_lift: Tensor, weight: float) -> Tensor:
    """Refined logits (B x classes) of the log-lifts of the same classes."""
    refined = logits
    for _ in range(_STEPS):
        refined = logits + weight * refined.sigmoid() @ log_lift.T
    return refined


def _log_ratio(joint: Tensor, expected: Tensor) -> Tensor:
    """log((joint + 1) / (expected + 1)), with the ratio limited to a range."""
    return ((joint + 1) / (expected + 1)).clamp(*_LIFT_RANGE).log()
