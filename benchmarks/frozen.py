"""The speed of weighted-ridge over photographs, relative to a bare loop over the forward pass of its backbone.

    python -m benchmarks.frozen [--device cpu] [--backbone efficientnet-lite0] [--size 352] [--images 64] [--root DIR]

Every path runs over two views of each image, the image and its mirror, in one batch, from JPEG files that the package's
loader decodes, with the package's settings of memory. Without --root the files are generated.

bare        The backbone in eval mode, eager, channels-last.
ours        The method's `observe`: its features, and their sums.
onnx        The forward pass alone in ONNX Runtime, if it is installed (CPU only).
ours+onnx   The method's `observe` with ONNX Runtime, which long runs use.

The paths take turns, so that a busy machine slows all of them. Figures are medians of images/s over the turns (an image
with its two views counts once). On a GPU all paths use bfloat16.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import make_parser, print_header, synchronize, write_json
from benchmarks.loading import photographs
from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.images.loader import Job, Loader, default_workers
from lifelabel.images.photographs import FileImages
from lifelabel.methods import METHODS, Batch
from lifelabel.nn.backbones import Backbone
from lifelabel.nn.device import resolve_device
from lifelabel.nn.freezing import inference_copy
from lifelabel.nn.method_setting import Setting
from lifelabel.nn.onnx_runtime import OnnxFeatures
from lifelabel.utils.memory import keep_freed_memory

TURNS = 5
Step = Callable[[Tensor], object]


def bare(backbone: Backbone, setting: Setting) -> Step:
    placed = copy.deepcopy(backbone).to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in types

    def step(images: Tensor) -> Tensor:
        with setting.autocast():
            return placed(two_views(images).contiguous(memory_format=torch.channels_last))

    return step


def ours(config: Config, setting: Setting) -> Step:
    method = METHODS[config.method](setting, config.method_options)
    names = ("a", "b", "c", "d")
    method.begin_task(names)

    def step(images: Tensor) -> object:
        labels = torch.ones(len(images), len(names), device=images.device)
        return method.observe(Batch(images, labels, labels.bool(), names))

    return step


def onnx(backbone: Backbone, size: int) -> Step:
    forward = OnnxFeatures(inference_copy(backbone), torch.zeros(1, 3, size, size))
    return lambda images: forward(two_views(images))


def two_views(images: Tensor) -> Tensor:
    return torch.cat([images, images.flip(3)])


def seconds(step: Step, backbone: Backbone, loader: Loader, jobs: list[Job], device: torch.device) -> float:
    """The time of one pass over all images."""
    synchronize(device)
    start = time.perf_counter()
    with torch.no_grad():
        for loaded in loader.batches(jobs):
            step(backbone.normalize(loaded.pixels))
    synchronize(device)
    return time.perf_counter() - start


def measure(given: argparse.Namespace, source: FileImages) -> dict[str, float]:
    """Images/s of every path."""
    device = resolve_device(given.device)
    options = {"backbone": given.backbone, "weights": given.weights, "batch_size": given.batch, "pool": "avg"}
    config = Config.make({"method": "weighted-ridge", "method_options": {"warm_up": 0}, **options})

    def setting(images: int = 0) -> Setting:
        torch.manual_seed(0)
        return make_setting(config, lambda labels: torch.zeros(len(labels), 1), device, images)

    first = setting()
    backbone = first.place_backbone().eval().requires_grad_(False)
    paths = {"bare": bare(backbone, first), "ours": ours(config, setting())}
    if device.type == "cpu":
        with contextlib.suppress(ImportError):
            paths["onnx"] = onnx(backbone, given.size)
            paths["ours+onnx"] = ours(config, setting(images=10**9))
    rows = np.arange(len(source))
    jobs = [Job("train", rows[i : i + given.batch]) for i in range(0, len(rows), given.batch)]
    loader = Loader({"train": source}, given.size, default_workers(device), given.batch)
    rates: dict[str, list[float]] = {name: [] for name in paths}
    try:
        for turn in range(TURNS + 1):
            for name, step in paths.items():
                rate = len(rows) / seconds(step, backbone, loader, jobs, device)
                if turn:  # the first turn is for warm-up
                    rates[name].append(rate)
    finally:
        loader.close()
    return {name: statistics.median(each) for name, each in rates.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--root", type=Path, help="a folder of JPEGs; none: generated images of 640 x 480")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--weights", default="none", help="none (random), imagenet, or a file")
    parser.add_argument("--size", type=int, default=352)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    given = parser.parse_args()
    keep_freed_memory()
    with photographs(given.root, given.images) as source:
        print_header(given, given.backbone, f"{given.size} px", f"{len(source)} images", f"batch {given.batch}")
        speed = measure(given, source)
    ratios = {f"{name}/bare": rate / speed["bare"] for name, rate in speed.items() if name != "bare"}
    row = {**speed, **ratios}
    print("".join(f"{name:>11}" for name in row))
    print("".join(f"{value:>11.4g}" for value in row.values()), flush=True)
    figures = {name: {"images/s": rate, "relative to bare": rate / speed["bare"]} for name, rate in speed.items()}
    write_json(given, "", figures)


if __name__ == "__main__":
    main()
