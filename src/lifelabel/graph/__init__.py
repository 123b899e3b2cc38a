"""The label graph: correlation matrix, adjacency, network, label words. No training code."""

from lifelabel.graph.acm import ACM
from lifelabel.graph.adjacency import Adjacency
from lifelabel.graph.network import GraphNetwork
from lifelabel.graph.words import embed

__all__ = ["ACM", "Adjacency", "GraphNetwork", "embed"]
