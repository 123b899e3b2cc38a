"""The label graph: correlation matrix, adjacency, graph network, label relations and label words. No training code."""

from lifelabel.nn.graph.acm import ACM
from lifelabel.nn.graph.adjacency import Adjacency
from lifelabel.nn.graph.calibrated_acm import CalibratedACM
from lifelabel.nn.graph.network import GraphNetwork
from lifelabel.nn.graph.relations import LabelRelations
from lifelabel.nn.graph.words import embed

__all__ = ["ACM", "Adjacency", "CalibratedACM", "GraphNetwork", "LabelRelations", "embed"]
