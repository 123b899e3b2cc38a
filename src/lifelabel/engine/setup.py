"""The method of a run and its setting, from the configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.engine.label_server import StreamInfo
from lifelabel.errors import UserError
from lifelabel.methods import METHODS, Method
from lifelabel.nn import backbones, provenance
from lifelabel.nn.cuda_graphs import should_compile
from lifelabel.nn.device import resolve_precision
from lifelabel.nn.graph import embed
from lifelabel.nn.method_setting import Setting
from lifelabel.nn.normalize import AUTHORS_MEAN, AUTHORS_STD, Normalize
from lifelabel.parallel.group import ALONE, Group
from lifelabel.streams.order import order_places

__all__ = ["build_method", "make_setting"]


def build_method(
    config: Config, info: StreamInfo, device: torch.device, images: int, group: Group, note: Callable[[str], None]
) -> tuple[Method, dict[str, str | None]]:
    """The method of a run, and what it was made from: SHA-256 of the stream, its files, word vectors and weights.

    `images` is the number of images that the run learns, in all passes.
    """
    names: list[str] = list(info.classes)
    vectors, missing = embed(names, config.words, config.word_dim, config.word_norm)
    if missing:
        note(f"{len(missing)} label words are not in {config.words} and get a fixed vector: {', '.join(missing)}")
    table = torch.from_numpy(vectors).to(device)
    row = {name: i for i, name in enumerate(names)}
    setting = make_setting(
        config, lambda labels: table[[row[label] for label in labels]], device, images, info.sizes[0], group
    )
    weights = setting.backbone.provenance
    made_from = {
        "stream": info.fingerprint, "files": _image_files(config, info),
        "words": hashlib.sha256(vectors.tobytes()).hexdigest(), "weights": weights.sha256,
    }  # fmt: skip
    seen = provenance.check(weights, names, info.dataset, config.allow_seen_weights)
    if seen:
        note(seen)
    return METHODS[config.method](setting, config.method_options), made_from


def _image_files(config: Config, info: StreamInfo) -> str:
    """SHA-256 of the mask of images that have a file. If their order depends on their places, of these too."""
    places = order_places(info.train, config.image_order)
    return hashlib.sha256(info.files.encode() + places).hexdigest() if places else info.files


def make_setting(
    config: Config,
    embed: Callable[[Sequence[str]], Tensor],
    device: torch.device,
    images: int = 0,
    first_task_images: int = 0,
    group: Group = ALONE,
) -> Setting:
    """The setting of a run with a new backbone. Its other fields are the options of the same name."""
    backbone = backbones.build(config.backbone, config.pool, config.weights)
    if config.normalize == "authors":
        if len(backbone.parts) > 1:
            raise UserError("normalize=authors is for one backbone: leave it out, or give one --backbone")
        backbone.normalize = Normalize(AUTHORS_MEAN, AUTHORS_STD)
    # the collective operations of several processes are not recorded or compiled
    compile_choice = config.compile if group.size == 1 else "off"
    given: dict[str, Any] = {
        "group": group,
        "backbone": backbone,
        "embed": embed,
        "device": device,
        "precision": resolve_precision(config.precision, device),
        "record": compile_choice != "off" and device.type == "cuda",
        "compile": should_compile(compile_choice, device, math.ceil(images / config.batch_size)),
        "images": images,
        "first_task_images": first_task_images,
    }
    names = [field.name for field in dataclasses.fields(Setting) if field.name not in given]
    return Setting(**given, **{name: getattr(config, name) for name in names})
