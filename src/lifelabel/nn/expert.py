"""The frozen expert: the network as it was when the last task ended."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lifelabel.nn.backbones import Backbone
from lifelabel.nn.heads import MapHead, build_head
from lifelabel.nn.method_setting import Setting, run_backbone, run_maps


class Expert:
    """CNN_xpt and AGCN_xpt as they were when a task ended (Sec. 3.2).

    The matrix and the label words of the expert are fixed, so its node outputs G are fixed too. They are computed once
    per task and stored in place of the graph. For a linear head, `nodes` are the rows of its weight, and `bias` is its
    bias.

    The new expert takes over the network of the `previous` one, so that code compiled for it stays valid. The previous
    expert cannot be used afterwards.
    """

    def __init__(
        self, backbone: Backbone, nodes: Tensor, setting: Setting, bias: Tensor | None = None,
        previous: Expert | None = None,
    ):  # fmt: skip
        self.setting = setting
        self.backbone = _frozen_copy(backbone, setting, previous)
        self.nodes = nodes.detach().clone()
        self.bias = None if bias is None else bias.detach().clone()

    @classmethod
    def restore(cls, state: dict[str, Any], backbone: Backbone, setting: Setting) -> Expert:
        """The expert of a `state_dict`. `backbone` must have the same architecture. The device may be another one."""
        nodes, bias = state["nodes"].to(setting.device), state["bias"]
        expert = cls(backbone, nodes, setting, None if bias is None else bias.to(setting.device))
        expert.backbone.load_state_dict(state["backbone"])
        return expert

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Logits for the old classes. Their sigmoids are the soft labels (Eq. 3)."""
        logits = run_backbone(self.backbone, images, self.setting) @ self.nodes.T
        return logits if self.bias is None else logits + self.bias

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        head = [self.nodes] if self.bias is None else [self.nodes, self.bias]
        return sum(tensor.nbytes for tensor in (*self.backbone.state_dict().values(), *head))

    def state_dict(self) -> dict[str, Any]:
        return {"backbone": self.backbone.state_dict(), "nodes": self.nodes, "bias": self.bias}


class MapExpert:
    """A backbone and a head on its feature maps, as they were when a task ended.

    The new expert takes over the network of the `previous` one, as `Expert` does.
    """

    def __init__(self, backbone: Backbone, head: MapHead, setting: Setting, previous: MapExpert | None = None):
        self.setting = setting
        self.backbone = _frozen_copy(backbone, setting, previous)
        self.head = copy.deepcopy(head).eval().requires_grad_(False)

    @classmethod
    def restore(cls, state: dict[str, Any], backbone: Backbone, setting: Setting) -> MapExpert:
        """The expert of a `state_dict`. `backbone` must have the same architecture. The device may be another one."""
        tensors = {name: tensor.to(setting.device) for name, tensor in state["head"].items()}
        expert = cls(backbone, build_head(state["description"], tensors), setting)
        expert.backbone.load_state_dict(state["backbone"])
        return expert

    @torch.no_grad()
    def maps(self, images: Tensor) -> Tensor:
        """The last feature maps (B x dim x h x w, float32)."""
        return run_maps(self.backbone, images, self.setting)

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Logits for the old classes (B x classes, float32)."""
        maps = self.maps(images)
        with self.setting.autocast():
            return self.head(maps).float()

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        parts = (*self.backbone.state_dict().values(), *self.head.state_dict().values())
        return sum(tensor.nbytes for tensor in parts)

    def state_dict(self) -> dict[str, Any]:
        return {
            "backbone": self.backbone.state_dict(),
            "head": self.head.state_dict(),
            "description": self.head.describe(),
        }


def _frozen_copy(backbone: Backbone, setting: Setting, previous: Expert | MapExpert | None) -> Backbone:
    """A copy in eval mode that needs no gradient. If there is a previous expert, it is its network with new weights."""
    if previous is not None:
        previous.backbone.load_state_dict(backbone.state_dict())
        return previous.backbone
    copied = copy.deepcopy(backbone).eval().requires_grad_(False)
    if setting.fast:
        _cast_products_to_bfloat16(copied)
    return copied


def _cast_products_to_bfloat16(backbone: Backbone) -> None:
    """Cast the weights of convolutions and linear layers in place. Autocast would cast them in every step."""
    for module in backbone.modules():
        if type(module) in (nn.Conv2d, nn.Linear):
            module.to(torch.bfloat16)
