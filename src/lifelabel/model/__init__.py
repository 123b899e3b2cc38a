"""A finished model: the folder that a run leaves, its use on images, and its description."""

from __future__ import annotations

from lifelabel.model.info import ModelInfo
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import read_model, write_model

__all__ = ["Model", "ModelInfo", "load", "read_model", "write_model"]
