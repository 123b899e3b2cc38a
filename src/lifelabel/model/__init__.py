"""A finished model: the folder that a run leaves, its use on images, and its description."""

from __future__ import annotations

from lifelabel.model.files import ModelInfo, read_model, write_model
from lifelabel.model.model import Model, load

__all__ = ["Model", "ModelInfo", "load", "read_model", "write_model"]
