"""The speed of the forward pass of a frozen backbone over photographs, relative to a bare loop.

    python -m benchmarks.frozen [--device cpu] [--backbone efficientnet-lite0] [--size 352] [--images 32] [--root DIR]

Every path runs over two views of each image, the image and its mirror, from JPEG files that the package's loader
decodes and normalizes, with the package's settings of memory. Without --root the files are generated.

bare   The backbone in eval mode, eager, channels-last.
ours   The package's path for frozen backbones, see `ours`.
onnx   The same in ONNX Runtime, if it is installed (CPU only).

The paths take turns, so that a busy machine slows all of them. Figures are medians of images/s over the turns (an image
with its two views counts once). On a GPU all paths use the precision of a run.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.common import make_parser, print_header, synchronize, write_json
from lifelabel.engine.loading import Job, Loader, default_workers
from lifelabel.nn.backbones import Backbone, build
from lifelabel.nn.device import resolve_device, resolve_precision
from lifelabel.nn.freezing import inference_copy
from lifelabel.nn.onnx_runtime import OnnxFeatures
from lifelabel.streams import Names
from lifelabel.streams.files import FileImages
from lifelabel.utils.processes import keep_freed_memory

TURNS = 5
FILES = 32
Forward = Callable[[Tensor], Tensor]


def channels_last(backbone: Backbone) -> Forward:
    placed = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's types
    return lambda images: placed(images.contiguous(memory_format=torch.channels_last))


def bare(backbone: Backbone) -> Forward:
    return channels_last(copy.deepcopy(backbone))


def ours(backbone: Backbone) -> Forward:
    """The path that is measured as the package's own."""
    return channels_last(inference_copy(backbone))


def onnx(backbone: Backbone, size: int) -> Forward:
    return OnnxFeatures(inference_copy(backbone), torch.zeros(1, 3, size, size))


@contextlib.contextmanager
def photographs(root: Path | None, count: int) -> Iterator[FileImages]:
    """The first `count` JPEGs under `root`, or generated ones."""
    if root is not None:
        found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))[:count]
        yield FileImages(root, Names(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            noise(number).save(Path(folder, f"{number}.jpg"), quality=90)
        yield FileImages(Path(folder), Names(f"{row % FILES}.jpg" for row in range(count)))


def noise(seed: int) -> Image.Image:
    """A photograph-like image of 500 x 375: noise with more contrast in larger structures."""
    generator, pixels = np.random.default_rng(seed), np.zeros((375, 500, 3))
    for cells in (4, 16, 64, 256):
        coarse = Image.fromarray(generator.integers(0, 256, (cells * 3 // 4, cells, 3), np.uint8))
        pixels += np.asarray(coarse.resize((500, 375), Image.Resampling.BICUBIC)) / cells**0.5
    return Image.fromarray((pixels * 255 / pixels.max()).astype(np.uint8))


def seconds(forward: Forward, backbone: Backbone, loader: Loader, jobs: list[Job], device: torch.device) -> float:
    """The time of one pass over all images."""
    precision = resolve_precision("auto", device)
    synchronize(device)
    start = time.perf_counter()
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        for loaded in loader.batches(jobs):
            images = backbone.normalize(loaded.pixels)
            (forward(images) + forward(images.flip(3))) / 2
    synchronize(device)
    return time.perf_counter() - start


def measure(given: argparse.Namespace, source: FileImages) -> dict[str, float]:
    """Images/s of every path."""
    device = resolve_device(given.device)
    torch.manual_seed(0)
    backbone = build(given.backbone, "avg", given.weights).to(device).eval().requires_grad_(False)
    paths = {"bare": bare(backbone), "ours": ours(backbone)}
    if device.type == "cpu":
        with contextlib.suppress(ImportError):
            paths["onnx"] = onnx(backbone, given.size)
    rows = np.arange(len(source))
    jobs = [Job("train", rows[i : i + given.batch]) for i in range(0, len(rows), given.batch)]
    loader = Loader({"train": source}, given.size, default_workers(device), given.batch)
    rates: dict[str, list[float]] = {name: [] for name in paths}
    try:
        for turn in range(TURNS + 1):
            for name, forward in paths.items():
                rate = len(rows) / seconds(forward, backbone, loader, jobs, device)
                if turn:  # the first turn is for warm-up
                    rates[name].append(rate)
    finally:
        loader.close()
    return {name: statistics.median(each) for name, each in rates.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--root", type=Path, help="a folder of JPEGs; none: generated images of 500 x 375")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--weights", default="none", help="none (random), imagenet, or a file")
    parser.add_argument("--size", type=int, default=352)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    keep_freed_memory()
    with photographs(given.root, given.images) as source:
        print_header(given, given.backbone, f"{given.size} px", f"{len(source)} images", f"batch {given.batch}")
        speed = measure(given, source)
    ratios = {f"{name}/bare": rate / speed["bare"] for name, rate in speed.items() if name != "bare"}
    row = {**speed, **ratios}
    print("".join(f"{name:>11}" for name in row))
    print("".join(f"{value:>11.4g}" for value in row.values()), flush=True)
    write_json(given, **row)


if __name__ == "__main__":
    main()
