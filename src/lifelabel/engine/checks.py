"""Checks of the images of a stream, and of what plug-ins return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.label_server import StreamInfo
from lifelabel.errors import UserError
from lifelabel.images.shards import ShardImages
from lifelabel.methods import Method
from lifelabel.metrics.functions import METRICS, Scored
from lifelabel.metrics.over_tasks import BUILT_IN
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.learner import Learner
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.memory import available_memory
from lifelabel.utils.text import shorten

_MOST_BYTES = 1000
"""More bytes than most networks keep for a backward pass, for each value of a pixel."""
_WITH_GAPS = 2
"""A step takes up to so many times the bytes that are kept: the heap has gaps between blocks of different sizes."""
_STATE_TYPES = (type(None), bool, int, float, str, bytes)
_STATE_CONTAINERS = (list, tuple, set)


def check_losses(losses: Any, method: str) -> dict[str, Tensor]:
    if not isinstance(losses, dict) or not all(isinstance(loss, Tensor) and not loss.ndim for loss in losses.values()):
        raise UserError(
            f"method {method}: learn(batch) must return a dict of losses, each a tensor of one number, as in "
            "{'cls': loss.detach()}"
        )
    return losses


def check_state(state: Any, method: str, where: str = "state_dict()") -> None:
    """Refuse a state that a checkpoint cannot hold: it would be written, and could not be read."""
    if isinstance(state, dict):
        for key, value in state.items():
            check_state(value, method, f"{where}[{key!r}]")
    elif type(state) in _STATE_CONTAINERS:
        for index, value in enumerate(state):
            check_state(value, method, f"{where}[{index}]")
    elif not isinstance(state, Tensor) and type(state) not in _STATE_TYPES:
        raise UserError(
            f"method {method}: {shorten(where)} is a {type(state).__name__}, which a checkpoint cannot hold: use "
            "tensors, numbers and strings, in dicts and lists"
        )


def check_metrics() -> None:
    """Compute the metrics of plug-ins for a small example: one that fails is reported before the training."""
    if METRICS.keys() - {*BUILT_IN}:
        Scored.from_logits(torch.tensor([[1.0, -1.0], [-1.0, 1.0], [0.5, 0.5]]), torch.eye(3, 2)).all_metrics()


def check_passes(info: StreamInfo, config: Config) -> None:
    if config.epochs > 1 and not info.overlapping:
        raise UserError(
            f"epochs={config.epochs}: the tasks of {info.name} are an online stream, which a method sees in one pass; "
            "leave out --epochs, or choose a protocol with overlapping tasks, where several passes are the rule "
            "(coco-b0-c10; --set stream.protocol=overlap, if the source does not state the task of each image)"
        )


def check_step_memory(method: Method, config: Config, size: int, processes: int, note: Callable[[str], None]) -> None:
    """Refuse a batch whose activations do not fit into the memory that is left, and report one that may not fit.

    If the batch is large for this machine, the activations of two images are measured. This is done on the CPU only,
    where the system may kill a process that uses too much memory, without a message.
    """
    learner = getattr(method, "learner", None)
    if method.setting.device.type != "cpu" or not isinstance(learner, Learner) or learner.frozen:
        return
    replayed = getattr(method.options, "replay_batch", 0)
    images = config.batch_size // processes + (config.batch_size if replayed is None else replayed) // processes
    available = available_memory()
    if 3 * size**2 * _MOST_BYTES * images < available:
        return
    needed = _kept_bytes(learner.backbone, size) * images
    line = (
        f"a step of {images:,} images of {size} × {size} pixels keeps {needed / 1e9:.1f} GB of activations, and "
        f"{available / 1e9:.1f} GB of memory are free"
    )
    if needed > available:
        raise UserError(f"{line}: lower batch_size or image_size")
    if _WITH_GAPS * needed > available:
        note(f"{line}: with gaps in the heap it may take {_WITH_GAPS} times as many; if it ends, lower batch_size")


def _kept_bytes(backbone: Backbone, size: int) -> int:
    """The bytes of the activations that a forward pass keeps for the backward pass, for one image."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    backbone.eval()  # batch norm keeps as much as in train mode, and its statistics do not change
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _output = backbone(torch.zeros(2, 3, size, size))  # keeps the graph until its tensors are counted
        for tensor in (*backbone.parameters(), *backbone.buffers()):
            kept.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(kept.values()) // 2


def check_images(info: StreamInfo, config: Config, folder: RunFolder, note: Callable[[str], None]) -> None:
    """Report missing images to `note`. Refuse a stream if there is nothing to learn from or to score."""
    if config.image_order == "shards" and not isinstance(info.train, ShardImages):
        raise UserError(f"the images of {info.name} are not in tar shards: remove image_order=shards")
    for line in info.problems:
        note(line)
    if sum(info.missing):
        _check_missing(info, config, folder, note)
    if not len(info.test_rows):
        raise UserError(f"stream {info.name} has no test image: nothing could be scored")
    for task, size in zip(info.tasks[info.learned :], info.sizes[info.learned :], strict=True):
        if not size:
            names = ", ".join(task.classes)
            raise UserError(
                f"{task.text} ({names}) has no training image that has a file: `lifelabel data inspect` "
                "lists what is missing; remove its classes, or add the images"
            )


def _check_missing(info: StreamInfo, config: Config, folder: RunFolder, note: Callable[[str], None]) -> None:
    row, source = next((int(np.argmin(s.present)), s) for s in (info.train, info.test) if not s.present.all())
    missing = sum(info.missing)
    total = missing + info.joint_size + len(info.test_rows)
    root = getattr(config.stream_options, "root", None)
    where = f"under {root}" if root else "(no --root was given)"
    what = f"{missing:,} of {total:,} images have no file, such as {source.name(row)} {where}"
    if not info.joint_size or not len(info.test_rows):
        if info.image_size:
            raise UserError(f"{info.name} is drawn, and its manifest holds no images: train with --stream {info.name}")
        if folder.is_run:
            raise UserError(f"{what}: if they moved, edit root in {folder / names.CONFIG}")
        raise UserError(f"{what}: give the folder of the images with --root DIR")
    if config.strict:
        raise UserError(f"{what}: leave out --strict to train without them")
    note(f"{what}: they are left out")
