"""The content of an export: the network that computes probabilities, its program, its metadata, and its README.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.model.info import ModelInfo
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.onnx_runtime import export_onnx, export_program
from lifelabel.utils.markdown import escape
from lifelabel.utils.text import counted
from lifelabel.version import __version__

_RESIZE = "to image_size x image_size without cropping, bilinear with antialiasing, rounded to whole pixel values"
_OPEN = 'image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")'
_INPUT = {
    "images": f"""size, mean, std = about["image_size"], about["mean"], about["std"]
{_OPEN}.resize((size, size), Image.Resampling.BILINEAR)
images = ((np.asarray(image) / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1)[None]""",
    "pixels": f"""{_OPEN}
pixels = np.array(image)[None]""",
}
_PROGRAMS = {
    "onnx": """import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("model.onnx")
texts = session.get_modelmeta().custom_metadata_map
about = {{name: json.loads(texts[name]) for name in ("classes", "thresholds", "image_size", "mean", "std")}}
{read}
probabilities = session.run(["probabilities"], {{"{name}": {name}}})[0][0]
""",
    "torch-export": """import json

import numpy as np
import torch
from PIL import Image, ImageOps

model = torch.export.load("model.pt2").module()
about = json.load(open("model.json", encoding="utf-8"))
{read}
probabilities = model(torch.from_numpy({name}))[0]
""",
}
_PRINT = """for name, probability, threshold in zip(about["classes"], probabilities, about["thresholds"]):
    if probability >= threshold:
        print(f"{probability:.3f} {name}")
"""
_PACKAGES = {"onnx": "onnxruntime pillow", "torch-export": "torch numpy pillow"}
_WHERE = {"onnx": "the metadata of `model.onnx`, as JSON", "torch-export": "`model.json`"}


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


def metadata(info: ModelInfo, network: Exportable, sha256: str) -> dict[str, Any]:
    """What a program needs to know to use an export, and where it comes from. `sha256` is that of model.safetensors."""
    size, classes, pixels = info.image_size, list(info.classes), isinstance(network, PixelNetwork)
    shape = "uint8, batch x height x width x 3" if pixels else f"float32, batch x 3 x {size} x {size}"
    return {
        "classes": classes,
        "thresholds": list(info.thresholds or [0.5] * len(classes)),
        "image_size": size,
        "mean": info.normalize[0]["mean"],
        "std": info.normalize[0]["std"],
        "color_order": "RGB",
        "resize": _RESIZE,
        "preprocessing": "in the model" if pixels else "resize, then (pixel / 255 - mean) / std",
        "input": f"{network.input_name}: {shape}",
        "output": f"probabilities: float32, batch x {len(classes)}, calibration included",
        "calibration": info.calibration and {name: info.calibration[name] for name in ("slope", "shift")},
        "method": info.method,
        "label": info.label,
        "backbone": info.backbone,
        "lifelabel_version": __version__,
        "model_sha256": sha256,
    }


def metadata_texts(about: dict[str, Any]) -> dict[str, str]:
    """The metadata as texts: texts as they are, other values as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}


def readme(info: ModelInfo, network: Exportable, format: str) -> str:
    """README.md of an export."""
    name = network.input_name
    program = _PROGRAMS[format].format(read=_INPUT[name], name=name) + _PRINT
    return f"""# {escape(info.label)}

A model of {counted(len(info.classes), "classes")} with the backbone {escape(info.backbone)}, exported by lifelabel
{__version__}. The input is `{name}`, the output the probability of each class. Names of the classes, thresholds and
everything else that a program needs are in {_WHERE[format]}.

    pip install {_PACKAGES[format]}

```python
{program}```
"""
