"""Export of a finished model: ONNX, a program of torch, or the model folder itself.

An export computes the probabilities of the model, calibrated, for batches of any size. Every export is compared with
the model before it is written to its place.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lifelabel.errors import UserError, unknown
from lifelabel.images.arguments import image_files
from lifelabel.images.decode import open_image
from lifelabel.images.source import BadImage
from lifelabel.images.transforms import load_batch
from lifelabel.model.info import ModelInfo
from lifelabel.model.inputs import Images
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import find_model
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.onnx_runtime import export_onnx, export_program, open_session
from lifelabel.runs.names import MODEL_INFO, MODEL_TENSORS
from lifelabel.utils.files import below, sha256
from lifelabel.utils.markdown import escape
from lifelabel.utils.text import counted, printable, shorten
from lifelabel.version import __version__

RUNTIMES = {"onnx": "ONNX Runtime", "torch-export": "torch", "safetensors": "lifelabel, from DIR"}
"""The formats, and what runs them."""
_MAX_IMAGES = 32
"""Photographs with which an export is checked."""
_MAIN_FILE = {"onnx": "model.onnx", "torch-export": "model.pt2", "safetensors": MODEL_TENSORS}
_FROM_OPSET = 18
"""The first version with an antialiased Resize, and the oldest that the exporter of torch writes itself."""
_TOLERANCE = 1e-4
"""The largest difference of a probability from the model."""
_RESIZE_TOLERANCE = 0.05
"""The same for images that are resized: some bytes differ from those of Pillow by 1. A wrong resize differs by more."""
_BATCHES = (1, 2, 5)
_TIMED_IMAGES, _TURNS = 8, 3
_Run = Callable[[Tensor], Tensor]
"""Pixels (B x S x S x 3, or B x H x W x 3 with preprocessing) to probabilities (B x classes)."""


@dataclass(frozen=True)
class Check:
    """The comparison of an export with the model, in the same process."""

    files: tuple[str, ...]
    """The files in the folder of the export."""
    images: int
    """Different images: random ones, and photographs if they were given."""
    difference: float
    """The largest difference of a probability."""
    resize_difference: float | None
    """The same for images that are resized, with preprocessing."""
    speed: float
    """Images/s of the export."""
    model_speed: float
    """Images/s of the model."""


def export(
    run: str | Path, out: str | Path, format: str = "onnx", *, preprocess: bool = False, opset: int | None = None,
    overwrite: bool = False, images: Sequence[str | Path] = (),
) -> Check:  # fmt: skip
    """Export the model of a run folder or a model folder to the folder `out`, as `lifelabel export` does.

    `format` is onnx, torch-export or safetensors. With `preprocess` the export takes pixels of images of any size. It
    is compared with the model on random images, and on the first 32 of `images`, files and folders. If probabilities
    differ by more than 1e-4, nothing is written.
    """
    _check_options(format, preprocess, opset)
    source, out = find_model(run), Path(out)
    photographs = _photographs(images)
    _check_folder(out, source, format, overwrite)
    if format == "onnx":
        _check_installed()
    model = load(source, "cpu", "fp32")
    with _new_folder(out) as folder:
        exported = _write(model, source, folder, format, preprocess, opset)
        files = tuple(sorted(file.name for file in folder.iterdir()))
        return _check(model, exported, files, preprocess, photographs)


def _photographs(paths: Sequence[str | Path]) -> list[str]:
    """The first files among the paths and in the folders among them."""

    def refuse(path: str, reason: str) -> None:
        raise UserError(f"--images {path}: {reason}; give another folder or a file")

    return list(islice(image_files([str(path) for path in paths], refuse), _MAX_IMAGES))


def _check_options(format: str, preprocess: bool, opset: int | None) -> None:
    if format not in RUNTIMES:
        raise unknown("format", format, RUNTIMES)
    if preprocess and format == "safetensors":
        raise UserError("--preprocess is for onnx and torch-export: a loaded model always takes images of any size")
    if opset is not None and format != "onnx":
        raise UserError(f"--opset is the version of ONNX: it has no meaning with --format {format}")
    if opset is not None and opset < _FROM_OPSET:
        raise UserError(f"--opset must be at least {_FROM_OPSET}, not {shorten(opset)}")


def _check_folder(out: Path, source: Path, format: str, overwrite: bool) -> None:
    """Refuse a folder with other files, before any work."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: choose a folder for --out")
    if not out.exists() or not any(out.iterdir()):
        return
    if out.resolve() == source.resolve():
        raise UserError(f"{out} is the folder of the model itself: choose another --out")
    if not below(out, _MAIN_FILE[format]).exists():
        raise UserError(f"{out} is not empty, and has no {_MAIN_FILE[format]} to replace: choose another --out")
    if not overwrite:
        raise UserError(f"{out} has an export: choose another --out, or replace it with --overwrite")


def _check_installed() -> None:
    try:
        for name in ("onnx", "onnxscript", "onnxruntime"):
            importlib.import_module(name)
    except ImportError:
        raise UserError("--format onnx needs ONNX and ONNX Runtime: pip install 'lifelabel[export]'") from None


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder whose files are moved to `out` at the end of the block, if there was no error."""
    # inside a folder that exists: it may be on another disk, or its parent read-only
    folder = (out if out.exists() else out.absolute().parent) / f".{out.name}.{os.getpid()}.new"
    try:
        folder.mkdir(parents=True)
        yield folder
        for file in folder.iterdir():
            with open(file, "rb+") as handle:
                os.fsync(handle.fileno())
        if out.exists():
            # model.json last: it has the checksum of a model folder
            for file in sorted(folder.iterdir(), key=lambda file: file.name == MODEL_INFO):
                os.replace(file, below(out, file.name))
        else:
            folder.rename(out)
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror or error}; choose another --out") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(model: Model, source: Path, folder: Path, format: str, preprocess: bool, opset: int | None) -> _Run:
    """Write the files of an export. Returns how they run."""
    if format == "safetensors":
        model.save(folder)
        written = load(folder, "cpu", "fp32")
        return lambda pixels: written.probabilities(written.logits(pixels))
    path, size = folder / _MAIN_FILE[format], model.info.image_size
    inner = ProbabilityNetwork(model.network, model.info.calibration)
    network = PixelNetwork(inner, size) if preprocess else inner
    about = _metadata(model.info, network, sha256(source / MODEL_TENSORS))
    (folder / "README.md").write_text(_readme(model.info, network, format), encoding="utf-8")
    try:
        if format == "onnx":
            program = onnx_program(network, size, opset)
            texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in about.items()}
            program.model.metadata_props.update(texts)
            program.save(path)
            return _on_pixels(model, preprocess, _onnx(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(torch_program(network, size), path)
            (folder / MODEL_INFO).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            return _on_pixels(model, preprocess, torch.export.load(path).module())
    except OSError:
        raise
    except Exception as error:  # the exporter and ONNX Runtime raise errors of many types
        lines = (str(error).strip() or type(error).__name__).splitlines()
        raise UserError(
            f"cannot export backbone '{model.info.backbone}' as {format}: {shorten(printable(lines[0]))}; use "
            f"{'--format safetensors' if opset is None else 'another --opset'}"
        ) from error


def _onnx(path: Path) -> _Run:
    session = open_session(path)
    name = session.get_inputs()[0].name
    return lambda given: torch.from_numpy(session.run(["probabilities"], {name: given.numpy()})[0])


def _on_pixels(model: Model, preprocess: bool, program: _Run) -> _Run:
    """A program that is given pixels, also if its input is normalized images."""

    @torch.no_grad()
    def run(pixels: Tensor) -> Tensor:
        return program(pixels if preprocess else model.network.backbone.normalize(pixels))

    return run


def _check(
    model: Model, run: _Run, files: tuple[str, ...], preprocess: bool, photographs: Sequence[str | Path]
) -> Check:
    """Compare an export with the model. Raises a `UserError` if they differ."""

    def expected(pixels: Tensor) -> Tensor:
        return model.probabilities(model.logits(pixels))

    size, generator = model.info.image_size, torch.Generator().manual_seed(0)
    random = torch.randint(256, (_TIMED_IMAGES, size, size, 3), dtype=torch.uint8, generator=generator)
    opened = [_open(path) for path in photographs]
    pixels = torch.cat([random, _resized(opened, size)])
    wanted = expected(pixels)
    found = [run(part) for part in (*(pixels[:count] for count in _BATCHES), *pixels.split(_TIMED_IMAGES))]
    difference = _difference(found, [*(wanted[:count] for count in _BATCHES), wanted])
    resized = None
    if preprocess:
        shapes = [(size // 2 + 1, size), (size * 2 + 1, size * 3)]
        noise = [torch.randint(256, (*shape, 3), dtype=torch.uint8, generator=generator).numpy() for shape in shapes]
        others = [*opened, *noise]
        found = [run(torch.from_numpy(image)[None]) for image in others]
        resized = _difference(found, [expected(_resized(others, size))])
    for value, limit in ((difference, _TOLERANCE), (resized, _RESIZE_TOLERANCE)):
        if value is not None and not value <= limit:  # NaN too
            raise UserError(
                f"a probability of the export differs from that of the model by {value:.1e}, more than {limit:g}: "
                "nothing was written; use --format safetensors"
            )
    speed, model_speed = _images_per_second([run, expected], random)
    return Check(files, len(pixels), difference, resized, speed, model_speed)


def _difference(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference. It is NaN if one of the values is."""
    return float((torch.cat(list(found)) - torch.cat(list(wanted))).abs().max())


def _open(path: str | Path) -> np.ndarray:
    try:
        return np.array(open_image(path))
    except BadImage as error:
        raise UserError(f"cannot use {printable(path)}: {error}") from None


def _resized(images: Sequence[np.ndarray], size: int) -> Tensor:
    return torch.from_numpy(load_batch(Images(images), np.arange(len(images)), size, "none", None)[0])


def _images_per_second(runs: Sequence[_Run], pixels: Tensor) -> list[float]:
    """Medians. The functions take turns, so that a busy machine slows all of them; the first turn is for warm-up."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(_TURNS + 1):
        for run, found in zip(runs, seconds, strict=True):
            start = time.perf_counter()
            run(pixels)
            found.append(time.perf_counter() - start)
    return [len(pixels) / statistics.median(found[1:]) for found in seconds]


# What an export contains

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


def _metadata(info: ModelInfo, network: Exportable, sha256: str) -> dict[str, Any]:
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


def _readme(info: ModelInfo, network: Exportable, format: str) -> str:
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
