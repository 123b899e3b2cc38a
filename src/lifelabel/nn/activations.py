"""What a network computes before its pooled features: its last feature map, its class token, and earlier stages."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

__all__ = ["Activations", "Layout", "Stage", "find_stages", "layout_of", "record", "shapes_of"]

_CONTAINERS = ("blocks", "stages", "layers", "features", "trunk_output")
"""Names of the module whose children are the stages of a network, in timm and torchvision."""
_NUMBERED = re.compile(r"(?:layer|stage|s)\d")
"""Names of stages that are children of the network itself: `layer1` … `layer4` of a ResNet."""
_LAST_STAGES = 3


class Activations(NamedTuple):
    """The activations of a batch of images, see `Backbone.activations`."""

    maps: Tensor
    """The last feature map (B x dim x h x w). For a transformer, its patch tokens after the final norm."""
    prefix: Tensor
    """Class and register tokens (B x k x dim). k is 0 for a network without them."""
    stages: tuple[Tensor, ...]
    """The mean over all places (B x C, float32) of the outputs of the last stages, three at most."""


@dataclass(frozen=True)
class Stage:
    """A stage of a network: the name of its module, the order of the dimensions of its output, and their sizes."""

    name: str
    order: str
    dim: int
    prefix: int = 0

    def mean(self, output: Tensor) -> Tensor:
        """The mean over places (B x dim)."""
        if self.order == "NLC":
            return output[:, self.prefix :].mean(1, dtype=torch.float32)
        return output.mean((2, 3) if self.order == "NCHW" else (1, 2), dtype=torch.float32)


@dataclass(frozen=True)
class Layout:
    """The dimensions of the output of a network.

    `order` is NCHW (a feature map), NHWC (a feature map with channels last) or NLC (tokens). The first `prefix` tokens
    are class and register tokens. With `class_token`, the first of them is the pooled feature. `patch` is the height
    and width of a patch in pixels, where it is known.
    """

    order: str
    dim: int
    prefix: int = 0
    class_token: bool = False
    patch: tuple[int, int] | None = None
    stages: tuple[Stage, ...] = ()

    def split(self, output: Tensor, image: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The feature map and the prefix tokens of an output. `image` is the height and width of the images."""
        if self.order != "NLC":
            maps = output if self.order == "NCHW" else output.permute(0, 3, 1, 2)
            return maps, output.new_empty(output.shape[0], 0, self.dim)
        patches = output[:, self.prefix :].transpose(1, 2)
        return patches.unflatten(2, self._grid(patches.shape[2], image)), output[:, : self.prefix]

    def _grid(self, places: int, image: Sequence[int]) -> tuple[int, int]:
        if self.patch:
            height, width = (-(-size // patch) for size, patch in zip(image, self.patch, strict=True))
            if height * width == places:
                return height, width
        return places, 1


def find_stages(net: nn.Module) -> Sequence[nn.Module]:
    """The modules of the last three stages of a network; none if its structure is not known."""
    for holder in (net, *net.children()):
        for name in _CONTAINERS:
            container = getattr(holder, name, None)
            if isinstance(container, nn.Sequential | nn.ModuleList) and len(container):
                return list(container)[-_LAST_STAGES:]
        numbered = [child for name, child in holder.named_children() if _NUMBERED.fullmatch(name)]
        if numbered:
            return numbered[-_LAST_STAGES:]
    return [child for child in net.children() if isinstance(child, nn.ReLU)][-_LAST_STAGES:]


@contextlib.contextmanager
def record(body: nn.Module, stages: Sequence[Stage]) -> Iterator[dict[str, Tensor]]:
    """Within the context, the means of stages, by their names, as `body` computes them."""
    means: dict[str, Tensor] = {}

    def keep(stage: Stage) -> torch.utils.hooks.RemovableHandle:
        # the mean is computed at once: the next layer may overwrite the output
        return body.get_submodule(stage.name).register_forward_hook(
            lambda _, given, output: means.__setitem__(stage.name, stage.mean(output))
        )

    handles = [keep(stage) for stage in stages]
    try:
        yield means
    finally:
        for handle in handles:
            handle.remove()


def shapes_of(
    body: nn.Module, image: Sequence[int], modules: Sequence[nn.Module] = ()
) -> tuple[torch.Size, list[torch.Size]]:
    """The shapes of the output of `body` and of the outputs of `modules` for an image (3 x H x W).

    They are found with the meta device, which computes only shapes. The shape is empty if the output is not a tensor.
    """
    found: list[torch.Size] = [torch.Size()] * len(modules)

    def keep(index: int) -> torch.utils.hooks.RemovableHandle:
        return modules[index].register_forward_hook(lambda _, given, output: found.__setitem__(index, _shape(output)))

    tensors = itertools.chain(body.named_parameters(), body.named_buffers())
    on_meta = {name: tensor.to("meta") for name, tensor in tensors}
    modes = [(module, module.training) for module in body.modules()]
    handles = [keep(index) for index in range(len(modules))]
    try:
        with torch.no_grad():
            output = functional_call(body.eval(), on_meta, (torch.empty(1, *image, device="meta"),))
    finally:
        for module, training in modes:
            module.training = training
        for handle in handles:
            handle.remove()
    return _shape(output), found


def layout_of(body: nn.Module, image: Sequence[int], stages: Sequence[nn.Module] = (), prefix: int = 0) -> Layout:
    """The layout of the output of `body` for a square image (3 x H x W), with the `stages` among its modules.

    Raises a `ValueError` if the output is neither a feature map nor tokens.
    """
    names = {id(module): name for name, module in body.named_modules()}
    modules = [stage for stage in stages if id(stage) in names]
    shape, stage_shapes = shapes_of(body, image, modules)
    if (order := _order(shape)) is None:
        raise ValueError(f"an output of shape {tuple(shape)}")
    known = []
    for module, stage_shape in zip(modules, stage_shapes, strict=True):
        if stage_order := _order(stage_shape):
            # the class token may be appended after this stage
            has_prefix = stage_order == order == "NLC" and stage_shape[1] == shape[1]
            known.append(
                Stage(names[id(module)], stage_order, _channels(stage_shape, stage_order), prefix if has_prefix else 0)
            )
    return Layout(order, _channels(shape, order), prefix if order == "NLC" else 0, stages=tuple(known))


def _shape(output: object) -> torch.Size:
    return output.shape if isinstance(output, Tensor) else torch.Size()


def _order(shape: torch.Size) -> str | None:
    """The order of dimensions of an output for a square image: the two equal sizes are height and width."""
    if len(shape) == 3:
        return "NLC"
    if len(shape) != 4:
        return None
    return "NCHW" if shape[2] == shape[3] else "NHWC" if shape[1] == shape[2] else None


def _channels(shape: torch.Size, order: str) -> int:
    return shape[1] if order == "NCHW" else shape[-1]
