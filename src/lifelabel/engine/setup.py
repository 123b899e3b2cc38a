"""The setting of a method from the configuration of a run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lifelabel.config.config import Config
from lifelabel.errors import UserError
from lifelabel.nn import backbones
from lifelabel.nn.cuda_graphs import should_compile
from lifelabel.nn.device import resolve_precision
from lifelabel.nn.normalize import AUTHORS_MEAN, AUTHORS_STD, Normalize
from lifelabel.nn.setting import Setting
from lifelabel.utils.group import ALONE, Group

__all__ = ["make_setting"]


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
