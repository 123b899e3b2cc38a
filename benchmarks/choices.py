"""Measurements behind two choices of the fast path, on this GPU.

    python -m benchmarks.choices --backbone efficientnet-lite0 --size 224 --batch 32
    python -m benchmarks.choices --backbone resnet101 --size 448 --batch 8

The first rows are the seconds of AGCN's first step with a new batch size, with cuDNN's convolutions and without cuDNN
(`cuda_graphs.without_cudnn`), and of a step with a size that was used before. The last rows are images/s of
640 x 480 JPEGs, decoded and resized, by the loader's processes and by the decoder of the GPU.
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np
import torch
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from benchmarks.common import STEP, Results, make_batch, make_jobs, make_parser, rates, seconds
from benchmarks.loading import image_paths, photographs
from benchmarks.step import ours
from lifelabel.images.loader import Loader, default_workers
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.nn.device import resolve_device

CLASSES, IMAGES, TURNS = 40, 2000, 3


def sizes(given: argparse.Namespace) -> dict[str, float]:
    """Medians over a few batch sizes, each used once."""
    step, device = ours(given, "off"), resolve_device(given.device)

    def first_step(count: int) -> float:
        batch = make_batch(given, count)
        return seconds(lambda: step(batch), device)

    first = first_step(given.batch)
    again = [first_step(given.batch) for _ in range(TURNS)]
    smaller = range(given.batch - 1, given.batch - 1 - 2 * TURNS, -1)
    cudnn = [first_step(count) for count in smaller[::2]]
    with without_cudnn(True):
        without = [first_step(count) for count in smaller[1::2]]
    found = {"again": again, "cudnn": cudnn, "without_cudnn": without}
    return {"first": first, **{name: statistics.median(turns) for name, turns in found.items()}}


def decoding(given: argparse.Namespace) -> dict[str, float]:
    device = resolve_device(given.device)
    with photographs(None, IMAGES) as source:
        loader = Loader({"train": source}, given.size, default_workers(device), given.batch)
        jobs = make_jobs(np.arange(IMAGES), given.batch)
        files = [read_file(str(path)) for path in image_paths(source)]

        def by_loader() -> None:
            for _ in loader.batches(jobs):
                pass

        def by_gpu() -> None:
            for start in range(0, IMAGES, given.batch):
                images = decode_jpeg(files[start : start + given.batch], device=device)
                torch.stack([functional.resize(image, [given.size, given.size]) for image in images])

        found = rates({"loader": by_loader, "gpu": by_gpu}, IMAGES, device, TURNS)
        loader.close()
    return found


def main() -> None:
    given = make_parser(__doc__, **STEP, batch=8).parse_args()
    given.classes = CLASSES
    if resolve_device(given.device).type != "cuda":
        raise SystemExit("this benchmark needs a GPU: see benchmarks.step for the CPU")
    results = Results(given, "", given.backbone, f"{given.size} px", f"batch {given.batch}")
    for unit, measure in (("s", sizes), ("images/s", decoding)):
        for name, value in measure(given).items():
            results.add(f"{name}, {unit}", value)


if __name__ == "__main__":
    main()
