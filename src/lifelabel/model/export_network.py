"""Networks that are exported: images or pixels to probabilities, and their programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.onnx_runtime import export_onnx, export_program

__all__ = ["Exportable", "PixelNetwork", "ProbabilityNetwork", "onnx_program", "torch_program"]


class ProbabilityNetwork(nn.Module):
    """Normalized images (B x 3 x S x S) to probabilities (B x classes). Batch norm is folded, in a copy."""

    input_name = "images"
    any_size: ClassVar = {0: "batch"}
    """Names of the dimensions of the input that may have any size."""
    slope: Tensor | None
    shift: Tensor | None

    def __init__(self, network: InferenceNetwork, calibration: Mapping[str, Any] | None = None):
        super().__init__()
        self.network = network.folded()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types
        for name in ("slope", "shift"):
            self.register_buffer(name, None if calibration is None else torch.tensor(calibration[name]).float())

    def forward(self, images: Tensor) -> Tensor:
        logits = self.network(images.contiguous(memory_format=torch.channels_last))
        return (logits if self.slope is None else logits * self.slope + self.shift).sigmoid()


class PixelNetwork(nn.Module):
    """Pixels (B x H x W x 3, uint8) of any height and width to probabilities (B x classes).

    Pixels are resized as bytes, with the arithmetic of Pillow: few bytes differ, by 1.
    """

    input_name = "pixels"
    any_size: ClassVar = {0: "batch", 1: "height", 2: "width"}

    def __init__(self, network: ProbabilityNetwork, image_size: int):
        super().__init__()
        self.probabilities, self.image_size = network, image_size
        self.normalize = network.network.backbone.normalize

    def forward(self, pixels: Tensor) -> Tensor:
        size = (self.image_size, self.image_size)
        resized = F.interpolate(pixels.permute(0, 3, 1, 2), size, mode="bilinear", antialias=True)
        return self.probabilities(self.normalize(resized.permute(0, 2, 3, 1)))


Exportable = ProbabilityNetwork | PixelNetwork


def torch_program(network: Exportable, image_size: int) -> torch.export.ExportedProgram:
    """The network as a program of torch."""
    if isinstance(network, PixelNetwork):  # different sizes: equal ones could be exported as one size
        example = torch.zeros(2, image_size + 3, image_size + 5, 3, dtype=torch.uint8)
    else:
        example = torch.zeros(2, 3, image_size, image_size)
    with torch.no_grad():
        network(example)  # checks that run once for each size of images cannot be exported
    return export_program(network, example, network.any_size)


def onnx_program(network: Exportable, image_size: int, opset: int | None = None) -> torch.onnx.ONNXProgram:
    """The network as an ONNX model from `images` or `pixels` to `probabilities`."""
    names = [network.input_name], ["probabilities"]
    return export_onnx(torch_program(network, image_size), network.any_size, names, opset)
