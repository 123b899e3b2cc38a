"""Heads on the last feature map of a backbone, one file each. `build_head` makes them again from a description."""

from lifelabel.nn.heads.class_graph import ClassGraphHead
from lifelabel.nn.heads.map_head import MapHead, build_head
from lifelabel.nn.heads.matrix_graph import MatrixGraphHead
from lifelabel.nn.heads.tokens import TokenHead

__all__ = ["ClassGraphHead", "MapHead", "MatrixGraphHead", "TokenHead", "build_head"]
