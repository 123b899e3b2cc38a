"""A backbone: a network with a global pool, what it computes before the pool, and several backbones side by side."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lifelabel.errors import UserError
from lifelabel.nn.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize
from lifelabel.nn.provenance import SCRATCH, Provenance, combined

_CONTAINERS = ("blocks", "stages", "layers", "features", "trunk_output")
"""Names of the module whose children are the stages of a network, in timm and torchvision."""
_NUMBERED = re.compile(r"(?:layer|stage|s)\d")
"""Names of stages that are children of the network itself: `layer1` … `layer4` of a ResNet."""
_LAST_STAGES = 3
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


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


class Backbone(nn.Module):
    """A network and a global pool: normalized images (B x 3 x H x W) to features (B x `dim`).

    `body` returns a feature map (B x `dim` x h x w), or an output as described by `layout`. `pool` is "max" or "avg".
    `normalize` converts pixels to the input of the network. `classifier` has the weight (n x `dim`) and the bias (n) of
    the classifier in the file of the weights, if the network applies it to the average of the last feature map. It is
    not part of the module.
    """

    def __init__(
        self,
        body: nn.Module,
        dim: int,
        pool: str,
        mean: tuple[float, ...] = IMAGENET_MEAN,
        std: tuple[float, ...] = IMAGENET_STD,
        provenance: Provenance = SCRATCH,
        layout: Layout | None = None,
        classifier: tuple[Tensor, Tensor] | None = None,
    ):
        super().__init__()
        self.body, self.dim, self.pool, self.provenance = body, dim, pool, provenance
        self.normalize = Normalize(mean, std)
        self.layout = layout or Layout("NCHW", dim)
        self.classifier = classifier

    @property
    def parts(self) -> tuple[Backbone, ...]:
        """The backbones that run side by side: this one."""
        return (self,)

    def forward(self, images: Tensor) -> Tensor:
        return self.pooled(self.body(images))

    def pooled(self, output: Tensor) -> Tensor:
        """Features (B x dim) from the output of `body`."""
        if self.layout.class_token:
            return output[:, 0]
        if self.layout.order == "NLC":
            patches = output[:, self.layout.prefix :]
            return patches.amax(1) if self.pool == "max" else patches.mean(1)
        places = (2, 3) if self.layout.order == "NCHW" else (1, 2)
        return output.amax(places) if self.pool == "max" else output.mean(places)

    def maps(self, output: Tensor, image: Sequence[int]) -> Tensor:
        """The last feature map (B x dim x h x w) from the output of `body` for images of the size `image`."""
        return self.layout.split(output, image)[0]

    def activations(self, images: Tensor) -> Activations:
        """The last feature map, the class and register tokens, and the means of the last stages, in one forward pass.

        >>> from lifelabel.nn.backbones import build
        >>> maps, prefix, stages = build("tiny").activations(torch.zeros(2, 3, 64, 64))
        >>> maps.shape, prefix.shape, [stage.shape[1] for stage in stages]
        (torch.Size([2, 256, 8, 8]), torch.Size([2, 0, 256]), [64, 128, 256])
        """
        stages = self.layout.stages
        modules = [self.body.get_submodule(stage.name) for stage in stages]
        # the means are computed at once: the next layer may overwrite the output of a stage
        with _recorded(modules, lambda index, output: stages[index].mean(output)) as means:
            output = self.body(images)
        maps, prefix = self.layout.split(output, images.shape[2:])
        return Activations(maps, prefix, tuple(means[index] for index in range(len(stages))))

    def set_training(self, freeze_statistics: bool) -> None:
        """Set train mode. With `freeze_statistics`, batch norm is in eval mode."""
        self.train()
        if freeze_statistics:
            for module in self.modules():
                if isinstance(module, _BATCH_NORMS):
                    module.eval()


class PairedBackbone(Backbone):
    """Backbones side by side: their pooled features are concatenated. `parts` has each of them.

    Images are normalized for the first part. Each other part converts them to its own mean and standard deviation.
    """

    def __init__(self, parts: Sequence[Backbone]):
        nn.Module.__init__(self)
        self._parts = nn.ModuleList(parts)
        first = self.normalize = parts[0].normalize
        for part in parts[1:]:
            if (part.normalize.mean, part.normalize.std) != (first.mean, first.std):
                part.renormalize = _Renormalize(first, part.normalize)
                part.body.register_forward_pre_hook(part.renormalize.before)
        self.dim, self.pool = sum(part.dim for part in parts), parts[0].pool
        self.provenance, self.classifier = combined([part.provenance for part in parts]), None
        self.layout = Layout("parts", self.dim)

    @property
    def parts(self) -> tuple[Backbone, ...]:
        return tuple(self._parts)  # type: ignore[arg-type]  # a ModuleList has no type for its items

    def body(self, images: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]  # a module in `Backbone`
        return tuple(part.body(images) for part in self.parts)

    def pooled(self, output: Sequence[Tensor]) -> Tensor:  # type: ignore[override]  # an output for each part
        return torch.cat([part.pooled(each) for part, each in zip(self.parts, output, strict=True)], 1)

    def maps(self, output: Any, image: Sequence[int]) -> Tensor:
        raise UserError("this method needs the feature map of one backbone: give one --backbone, not several")

    def activations(self, images: Tensor) -> Activations:
        raise TypeError("a pair of backbones has no single feature map: use the activations of each of its `parts`")


class _Renormalize(nn.Module):
    """Converts images that were normalized by `given` to those that `wanted` gives."""

    scale: Tensor
    shift: Tensor

    def __init__(self, given: Normalize, wanted: Normalize):
        super().__init__()
        self.register_buffer("scale", wanted.scale / given.scale, persistent=False)
        self.register_buffer("shift", (given.shift - wanted.shift) * wanted.scale, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        return images * self.scale + self.shift

    def before(self, body: nn.Module, given: tuple[Tensor]) -> Tensor:
        """The hook before the forward pass of a network."""
        return given[0] if given[0].is_meta else self(given[0])


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
def _recorded(modules: Sequence[nn.Module], compute: Callable[[int, Any], Any]) -> Iterator[dict[int, Any]]:
    """Within the context, `compute(index, output)` by index of the modules, as their outputs are computed."""
    found: dict[int, Any] = {}

    def keep(index: int) -> torch.utils.hooks.RemovableHandle:
        return modules[index].register_forward_hook(
            lambda _, given, output: found.__setitem__(index, compute(index, output))
        )

    handles = [keep(index) for index in range(len(modules))]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def shapes_of(
    body: nn.Module, image: Sequence[int], modules: Sequence[nn.Module] = ()
) -> tuple[torch.Size, list[torch.Size]]:
    """The shapes of the output of `body` and of the outputs of `modules` for an image (3 x H x W).

    They are found with the meta device, which computes only shapes. The shape is empty if the output is not a tensor.
    """
    tensors = itertools.chain(body.named_parameters(), body.named_buffers())
    on_meta = {name: tensor.to("meta") for name, tensor in tensors}
    modes = [(module, module.training) for module in body.modules()]
    try:
        with torch.no_grad(), _recorded(modules, lambda _, output: _shape(output)) as found:
            output = functional_call(body.eval(), on_meta, (torch.empty(1, *image, device="meta"),))
    finally:
        for module, training in modes:
            module.training = training
    return _shape(output), [found.get(index, torch.Size()) for index in range(len(modules))]


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
