"""The model folder that a run leaves: the network of its method, with what a user needs to know about it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.label_server import StreamInfo
from lifelabel.methods import Method
from lifelabel.model.model_folder import ModelInfo
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.registry import loaded_plugins
from lifelabel.streams.stream import task_names, task_of_class

__all__ = ["agrees", "describe_model"]

_RELATIONS = 10
"""Related classes of each class that are listed."""
_TOLERANCE = 0.05
"""The largest difference of probabilities between the network and the method. In bfloat16 it can be a few percent."""


@torch.no_grad()
def agrees(network: InferenceNetwork, method: Method, pixels: Tensor) -> bool:
    """Whether the network gives the scores of the method. That of a plug-in may be inherited and not fit."""
    images = method.setting.backbone.normalize(pixels)
    with method.setting.autocast():
        found = network.eval()(images).float().sigmoid()
    return bool((found - method.scores(images).sigmoid()).abs().max() <= _TOLERANCE)


def describe_model(
    config: Config,
    info: StreamInfo,
    method: Method,
    network: InferenceNetwork,
    image_size: int,
    training: Mapping[str, Any],
) -> ModelInfo:
    """What model.json holds of a method after its last task."""
    names = [name for task in method.tasks for name in task]
    tasks = task_of_class(info.tasks)[: len(names)].tolist()
    backbone = network.backbone
    extends = training.get("extends")
    if extends is not None:
        extends = {**extends, "run": Path(extends["run"]).name}
    return ModelInfo(
        classes=tuple(names),
        task_of_class=tuple(tasks),
        image_size=image_size,
        method=config.method,
        label=config.label,
        backbone=config.backbone,
        pool=config.pool,
        normalize=tuple({"mean": list(p.normalize.mean), "std": list(p.normalize.std)} for p in backbone.parts),
        provenance={**backbone.provenance.to_dict(), "source": _without_folders(backbone)},
        network=network.describe(),
        precision=method.setting.precision,
        relations=_relations(method.matrix()),
        task_names=tuple(task_names(info.tasks[: tasks[-1] + 1])),
        stream={"name": info.name, "fingerprint": info.fingerprint, "dataset": info.dataset},
        training={**training, "extends": extends, "plugins": [_file_name(each) for each in loaded_plugins()]},
    )


def _file_name(path: str) -> str:
    """A model folder goes to other machines: it has no paths of this one."""
    return Path(path).name if Path(path).is_absolute() else path


def _without_folders(backbone: Backbone) -> str:
    """The source of the initial weights, with the names of files in place of their paths."""
    sources = [part.provenance.source for part in backbone.parts]
    kept = (f"file {Path(each[5:]).name}" if each.startswith("file ") else each for each in sources)
    return " + ".join(dict.fromkeys(kept))


def _relations(matrix: np.ndarray | None) -> tuple[tuple[tuple[int, float], ...], ...] | None:
    """For each class j, the classes i with the largest P(C_i | C_j), entry [i, j], in descending order."""
    if matrix is None:
        return None
    given = np.clip(matrix.T, 0, 1)
    np.fill_diagonal(given, 0)
    first = np.argsort(-given, axis=1, kind="stable")[:, :_RELATIONS]
    return tuple(
        tuple((int(i), round(float(row[i]), 4)) for i in order if row[i] > 0)
        for row, order in zip(given, first, strict=True)
    )
