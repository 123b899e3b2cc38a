"""The graph network over label words (Eq. 8, A.3) whose outputs are the classifier (Eq. 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.graph.adjacency import Adjacency


class GraphNetwork(nn.Module):
    """Two graph layers d -> d' -> D without bias: H^{l+1} = h(A H^l W^l), h = LeakyReLU(0.2).

    The size of the weights does not depend on the number of classes. A new class is a new row of `nodes` and a new row
    and column of `adjacency`.

    With `activate_output`, h is also applied after the second layer, as in A.3. In the authors' code it is not, so that
    negative classifier weights are not multiplied by 0.2.
    """

    def __init__(self, d: int, hidden: int, out: int, activate_output: bool = False):
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(d, hidden))
        self.w2 = nn.Parameter(torch.empty(hidden, out))
        for weight in (self.w1, self.w2):
            bound = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)
        self.activate_output = activate_output

    def forward(self, adjacency: Tensor | Adjacency, nodes: Tensor) -> Tensor:
        """Label representations H^t (classes x D) from the label words H^{t,0} (classes x d).

        Each image may have different nodes (B x classes x d).
        """
        hidden = F.leaky_relu(_propagate(adjacency, nodes, self.w1), 0.2)
        out = _propagate(adjacency, hidden, self.w2)
        return F.leaky_relu(out, 0.2) if self.activate_output else out


def _propagate(adjacency: Tensor | Adjacency, nodes: Tensor, weight: Tensor) -> Tensor:
    """A H W. The product with A is the expensive one if there are many classes, so it is done on the narrower side."""
    if weight.shape[0] <= weight.shape[1]:
        return (adjacency @ nodes) @ weight
    return adjacency @ (nodes @ weight)
