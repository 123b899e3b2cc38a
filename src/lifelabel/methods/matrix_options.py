"""The options of the methods with a correlation matrix (AGCN, AGCN++), and the parts that follow from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifelabel.nn.graph import ACM, Adjacency, CalibratedACM
from lifelabel.nn.method_setting import Setting
from lifelabel.options import option


@dataclass(frozen=True)
class MatrixOptions:
    """Options of the losses, the matrix and the graph. Equation numbers are those of the AGCN paper."""

    lambdas: tuple[float, float, float] = option(
        (0.3, 0.7, 1e3), "weights of the classification, distillation and relationship loss (Eq. 10)", low=0
    )
    soft_labels: str = option(
        "sigmoid", "how the logits of the expert become soft labels for the matrix", choices=("sigmoid", "softmax")
    )
    new_old: str = option(
        "stream",
        "the New-Old block: Bayes' rule (Eq. 7), half of it, or Bayes' rule over the images of all tasks",
        choices=("bayes", "halved", "stream"),
    )
    prevalence: float | None = option(
        4.0,
        "limit of a class's mean soft label, as a multiple of the share of images with its hard label; none: no limit",
        above=0,
    )
    blocks: str = option(
        "all", "use the whole matrix, or its blocks within a task only (Table 2, row 1)", choices=("all", "intra")
    )
    adjacency: str = option(
        "mixed",
        "the adjacency of the graph: the matrix mixed into I, raw, binarised, or only I",
        choices=("mixed", "raw", "binarised", "identity"),
    )
    mix: float = option(0.05, "for adjacency mixed: the share of the other classes in a node", low=0, high=1)
    hidden: int = option(512, "width d' of the first graph layer", low=1, high=16_384)

    def soften(self, logits: Tensor) -> Tensor:
        """The soft labels of the matrix from the logits of the expert."""
        return logits.softmax(1) if self.soft_labels == "softmax" else logits.sigmoid()

    def make_acm(self, device: torch.device) -> ACM:
        """The published matrix, or the calibrated one if an option requires it."""
        halve, over_stream = self.new_old == "halved", self.new_old == "stream"
        if self.prevalence is None and not over_stream:
            return ACM(device, halve=halve)
        return CalibratedACM(device, prevalence=self.prevalence, over_stream=over_stream, halve=halve)

    def make_adjacency(self, matrix: Tensor, sizes: Sequence[int], setting: Setting) -> Adjacency:
        """The adjacency of a matrix of tasks with `sizes` classes."""
        dtype = torch.bfloat16 if setting.precision == "bf16" else torch.float32
        return Adjacency(self.adjacency, matrix, sizes, share=self.mix, across=self.blocks == "all", dtype=dtype)
