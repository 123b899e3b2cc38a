"""Measurements behind two choices of the fast path, on this GPU.

    python -m benchmarks.choices --backbone efficientnet-lite0 --size 224 --batch 32
    python -m benchmarks.choices --backbone resnet101 --size 448 --batch 8

sizes     Seconds of AGCN's first step with a new batch size, with cuDNN's convolutions and without cuDNN
          (`cuda_graphs.without_cudnn`), and of a step with a size that was used before.
decoding  Images/s of 640 x 480 JPEGs, decoded and resized, by the loader's processes and by the decoder of the GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from benchmarks.common import make_batch, print_header, step_parser, write_json
from benchmarks.loading import image_paths, photographs
from benchmarks.step import ours
from lifelabel.images.loader import Job, Loader, default_workers
from lifelabel.nn.cuda_graphs import without_cudnn
from lifelabel.nn.device import resolve_device

CLASSES, IMAGES, TURNS = 40, 2000, 3


def sizes(given: argparse.Namespace) -> dict[str, float]:
    """Medians over a few batch sizes, each used once."""
    step = ours(given, "off")

    def seconds(count: int) -> float:
        batch = make_batch(given, count)
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(batch)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    first = seconds(given.batch)
    again = [seconds(given.batch) for _ in range(TURNS)]
    smaller = range(given.batch - 1, given.batch - 1 - 2 * TURNS, -1)
    cudnn = [seconds(count) for count in smaller[::2]]
    with without_cudnn(True):
        without = [seconds(count) for count in smaller[1::2]]
    found = {"again": again, "cudnn": cudnn, "without_cudnn": without}
    return {"first": first, **{name: statistics.median(turns) for name, turns in found.items()}}


def decoding(given: argparse.Namespace) -> dict[str, float]:
    device = resolve_device(given.device)
    with photographs(None, IMAGES) as source:
        loader = Loader({"train": source}, given.size, default_workers(device), given.batch)
        starts, rows = range(0, IMAGES, given.batch), np.arange(IMAGES)
        jobs = [Job("train", rows[start : start + given.batch]) for start in starts]
        files = [read_file(str(path)) for path in image_paths(source)]

        def by_loader() -> int:
            return sum(len(loaded.good) for loaded in loader.batches(jobs))

        def by_gpu() -> int:
            done = 0
            for start in starts:
                images = decode_jpeg(files[start : start + given.batch], device=device)
                done += len(torch.stack([functional.resize(image, [given.size, given.size]) for image in images]))
            torch.cuda.synchronize(device)
            return done

        rates: dict[str, list[float]] = {"loader": [], "gpu": []}
        for turn in range(TURNS + 1):
            for name, decode in (("loader", by_loader), ("gpu", by_gpu)):
                start = time.perf_counter()
                done = decode()
                if turn:  # the first turn starts processes
                    rates[name].append(done / (time.perf_counter() - start))
        loader.close()
    return {name: statistics.median(turns) for name, turns in rates.items()}


def main() -> None:
    parser = step_parser(__doc__)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    given.classes = CLASSES
    if resolve_device(given.device).type != "cuda":
        raise SystemExit("this benchmark needs a GPU: see benchmarks.step for the CPU")
    print_header(given, given.backbone, f"{given.size} px", f"batch {given.batch}")
    found: dict[str, float] = {}
    for name, unit, measure in (("sizes", "s", sizes), ("decoding", "images/s", decoding)):
        figures = measure(given)
        found |= {f"{each}, {unit}": value for each, value in figures.items()}
        print(f"{name:>9} ({unit}): {', '.join(f'{each} {value:.4g}' for each, value in figures.items())}", flush=True)
    write_json(given, "", found)


if __name__ == "__main__":
    main()
