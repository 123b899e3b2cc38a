"""Copies of frozen backbones for inference: batch norm is folded into the convolutions before it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection

import torch
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from lifelabel.nn.backbones import Backbone

_CONVOLUTIONS = ("torch.nn.modules.conv.Conv2d", "timm.layers.conv2d_same.Conv2dSame")
"""Layers that are linear in `weight` and add `bias`. Other subclasses may change the weight in the forward pass."""
_NORMS = ("torch.nn.modules.batchnorm.BatchNorm2d", "timm.layers.norm_act.BatchNormAct2d")
"""Batch norm, and batch norm with an activation `act`."""


def inference_copy(backbone: Backbone) -> Backbone:
    """A copy in eval mode that needs no gradient and has its batch norm folded. The original is not changed.

    Its features and activations are those of the original up to rounding, but its state dict is another one.
    """
    copied = copy.deepcopy(backbone).eval().requires_grad_(False)
    fold_backbone(copied)
    return copied


def fold_backbone(backbone: Backbone) -> None:
    """Fold the batch norm of a backbone in place. Its activations stay the same up to rounding."""
    for part in backbone.parts:
        fold_batch_norm(part.body, keep=[stage.name for stage in part.layout.stages])


@torch.no_grad()
def fold_batch_norm(module: nn.Module, keep: Collection[str] = ()) -> None:
    """Fold batch norm in eval mode into the convolution directly before it, in place.

    The results agree up to rounding. A pair is not changed if anything else uses the output of the convolution, or if
    the name of the convolution is in `keep`. Nothing is changed if `torch.fx` cannot trace the forward pass.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    >>> fold_batch_norm(net)
    >>> net[1], net[0].bias.shape
    (Identity(), torch.Size([8]))
    """
    for conv_name, norm_name in _foldable(module):
        if conv_name in keep:
            continue
        conv, norm = module.get_submodule(conv_name), module.get_submodule(norm_name)
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None and norm.running_var is not None
        conv.weight, conv.bias = fuse_conv_bn_weights(
            conv.weight, conv.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
        )
        module.set_submodule(norm_name, getattr(norm, "act", nn.Identity()))


class _Tracer(fx.Tracer):
    """Records convolutions and batch norm as single calls, also those of timm."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (nn.Conv2d, nn.BatchNorm2d)) or super().is_leaf_module(m, module_qualified_name)


def _foldable(module: nn.Module) -> list[tuple[str, str]]:
    """The names of each convolution and of the batch norm that alone uses its output; [] if it cannot be traced."""
    try:
        nodes = list(_Tracer().trace(module).nodes)
    except Exception:  # control flow that depends on the images raises errors of many types
        return []
    called = [node for node in nodes if node.op == "call_module"]
    modules, calls = dict(module.named_modules()), Counter(node.target for node in called)
    pairs = []
    for node in called:
        before = node.args[0] if node.args else None
        if (
            isinstance(before, fx.Node)
            and before.op == "call_module"
            and len(before.users) == calls[before.target] == calls[node.target] == 1
            and _class_name(modules[str(before.target)]) in _CONVOLUTIONS
            and _class_name(norm := modules[str(node.target)]) in _NORMS
            and not norm.training
            and norm.running_mean is not None
        ):
            pairs.append((str(before.target), str(node.target)))
    return pairs


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
