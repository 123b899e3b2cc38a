"""A backbone: a network with a global pool, and several of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lifelabel.errors import UserError
from lifelabel.nn.activations import Activations, Layout, record
from lifelabel.nn.normalize import IMAGENET_MEAN, IMAGENET_STD, Normalize
from lifelabel.nn.provenance import SCRATCH, Provenance, combined

__all__ = ["Backbone", "PairedBackbone"]


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

    @property
    def stage_dims(self) -> tuple[int, ...]:
        """The numbers of channels of the `stages` of `activations`."""
        return tuple(stage.dim for stage in self.layout.stages)

    @property
    def prefix_tokens(self) -> int:
        """The number of class and register tokens of `activations`."""
        return self.layout.prefix

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
        with record(self.body, self.layout.stages) as means:
            output = self.body(images)
        maps, prefix = self.layout.split(output, images.shape[2:])
        return Activations(maps, prefix, tuple(means[stage.name] for stage in self.layout.stages))

    def set_training(self, freeze_statistics: bool) -> None:
        """Set train mode. With `freeze_statistics`, batch norm is in eval mode."""
        self.train()
        if freeze_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
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
