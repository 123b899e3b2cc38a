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
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Results, make_jobs, make_method, make_parser, rates
from benchmarks.loading import photographs
from lifelabel.images.loader import Loader, default_workers
from lifelabel.images.photographs import FileImages
from lifelabel.methods import Batch
from lifelabel.nn.device import resolve_device
from lifelabel.nn.freezing import inference_copy
from lifelabel.nn.onnx_runtime import OnnxFeatures
from lifelabel.utils.memory import keep_freed_memory

CLASSES = ("a", "b", "c", "d")
Step = Callable[[Tensor], object]


def two_views(images: Tensor) -> Tensor:
    return torch.cat([images, images.flip(3)])


def bare(method: Any) -> Step:
    backbone = method.setting.place_backbone().eval().requires_grad_(False)
    backbone.to(memory_format=torch.channels_last)

    def step(images: Tensor) -> Tensor:
        with method.setting.autocast():
            return backbone(two_views(images).contiguous(memory_format=torch.channels_last))

    return step


def ours(method: Any) -> Step:
    method.begin_task(CLASSES)

    def step(images: Tensor) -> object:
        labels = torch.ones(len(images), len(CLASSES), device=images.device)
        return method.observe(Batch(images, labels, labels.bool(), CLASSES))

    return step


def onnx(method: Any, size: int) -> Step:
    backbone = method.setting.backbone.eval().requires_grad_(False)
    forward = OnnxFeatures(inference_copy(backbone), torch.zeros(1, 3, size, size))
    return lambda images: forward(two_views(images))


def measure(given: argparse.Namespace, source: FileImages) -> dict[str, float]:
    """Images/s of every path."""
    device = resolve_device(given.device)
    options = {"backbone": given.backbone, "weights": given.weights, "batch_size": given.batch, "pool": "avg"}
    make = functools.partial(make_method, "weighted-ridge", device, method_options={"warm_up": 0}, **options)
    paths = {"bare": bare(make()), "ours": ours(make())}
    if device.type == "cpu":
        with contextlib.suppress(ImportError):
            paths["onnx"] = onnx(make(), given.size)
            paths["ours+onnx"] = ours(make(images=10**9))
    normalize = make().setting.place_backbone().normalize
    jobs = make_jobs(np.arange(len(source)), given.batch)
    loader = Loader({"train": source}, given.size, default_workers(device), given.batch)

    @torch.no_grad()
    def run(step: Step) -> None:
        for loaded in loader.batches(jobs):
            step(normalize(loaded.pixels))

    try:
        return rates({name: functools.partial(run, step) for name, step in paths.items()}, len(source), device)
    finally:
        loader.close()


def main() -> None:
    flags = {"root": Path, "backbone": "efficientnet-lite0", "weights": "none", "size": 352, "images": 64, "batch": 32}
    given = make_parser(__doc__, **flags).parse_args()
    keep_freed_memory()
    with photographs(given.root, given.images) as source:
        what = f"{given.size} px", f"{len(source)} images", f"batch {given.batch}"
        results = Results(given, "", given.backbone, *what)
        speed = measure(given, source)
    for name, rate in speed.items():
        results.add(name, {"images/s": rate, "relative to bare": rate / speed["bare"]})


if __name__ == "__main__":
    main()
