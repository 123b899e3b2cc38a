"""The setting of a method: the shared options of its run, and the forward pass of a backbone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lifelabel.nn.backbones import Backbone
from lifelabel.nn.cuda_graphs import static_shapes
from lifelabel.parallel.group import ALONE, Group
from lifelabel.parallel.passes import run_divided


@dataclass(frozen=True)
class Setting:
    """The shared options of a run, its backbone and its label words. It contains no part of the stream."""

    backbone: Backbone
    embed: Callable[[Sequence[str]], Tensor]
    """Label embeddings (labels x d) on the device."""
    device: torch.device
    batch_size: int
    lr: float
    backbone_lr: float
    later_backbone_lr: float
    batch_norm: str
    adam_eps: float
    reduction: str
    precision: str
    augment: str
    record: bool
    """Whether steps are recorded as CUDA graphs and replayed."""
    compile: bool
    """Whether the backbone is compiled in recorded steps."""
    images: int = 0
    """The number of training images; 0 if it is not known."""
    first_task_images: int = 0
    """The number of training images of the first task; 0 if it is not known."""
    classes: int = 0
    """The number of classes of the whole stream, for `hidden_labels=negative-all` alone; 0 if it is not known."""
    group: Group = ALONE
    """The processes of the run."""

    @property
    def fast(self) -> bool:
        """Whether the run uses bfloat16 on a GPU."""
        return self.precision == "bf16" and self.device.type == "cuda"

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of backbone and images: channels-last if `fast`, because bfloat16 is fastest with it."""
        return torch.channels_last if self.fast else torch.contiguous_format

    def place_backbone(self) -> Backbone:
        """Move the backbone to the device, in the memory format of the run, and return it."""
        self.backbone.to(self.device)
        self.backbone.to(memory_format=self.memory_format)  # type: ignore[call-overload]  # missing in torch's types
        return self.backbone

    def autocast(self) -> contextlib.AbstractContextManager:
        """A context in which matrix products and convolutions use the precision of the run."""
        if self.precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16, cache_enabled=False)  # CUDA graphs cannot use the cache


def run_backbone(backbone: Backbone, images: Tensor, setting: Setting) -> Tensor:
    """The features of images (B x dim, float32), computed in the precision of the run by the processes of the run.

    The backbone stays in the mode that it has, train or eval.
    """
    # the pool is not compiled: a compiled bfloat16 maximum can differ in its last bits from its input, and its
    # gradient, which compares the two, is then NaN
    return _run(backbone, images, setting, backbone.pooled)


def run_maps(backbone: Backbone, images: Tensor, setting: Setting) -> Tensor:
    """The last feature maps of images (B x dim x h x w, float32), computed as in `run_backbone`."""
    return _run(backbone, images, setting, lambda output: backbone.maps(output, images.shape[2:]))


def _run(backbone: Backbone, images: Tensor, setting: Setting, finish: Callable[[Tensor], Tensor]) -> Tensor:
    body = _compiled_body() if setting.compile and static_shapes.get() else _body

    def forward(rows: Tensor) -> Tensor:
        with setting.autocast():
            return finish(body(backbone, rows.contiguous(memory_format=setting.memory_format))).float()

    return run_divided(setting.group, forward, images, backbone)


def _body(backbone: Backbone, images: Tensor) -> Tensor:
    return backbone.body(images)


@functools.cache
def _compiled_body() -> Callable[[Backbone, Tensor], Tensor]:
    """`_body`, compiled for every shape that it is called with."""
    # the backward pass may not reuse buffers: EWC runs two backward passes over the same graph. torch names this switch
    # in the error of such a pass, and has no public one: pyproject.toml has a ceiling for torch
    torch._functorch.config.donated_buffer = False
    # student and expert, running and frozen statistics, two or three shapes
    torch.compiler.config.recompile_limit = 64
    return torch.compile(_body, dynamic=False)
