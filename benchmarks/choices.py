"""What three choices of the fast path rest on, measured on this GPU.

    python -m benchmarks.choices --backbone efficientnet-lite0 --size 224 --batch 32
    python -m benchmarks.choices --backbone resnet101 --size 448 --batch 8

sizes     seconds of the first step of AGCN with a batch of another size, with cuDNN's convolutions and with torch's own
          (`recording.in_passing`), against a step of a size that has been seen.
expert    images/s of the expert's recorded pass: compiled or not, with batch norm folded into the convolutions or not.
decoding  images/s of 640 x 480 JPEGs, decoded and resized: by the loader's processes, and by the GPU's decoder.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from torchvision.io import decode_jpeg, read_file
from torchvision.transforms.v2 import functional

from benchmarks.loading import paths_of, photographs
from benchmarks.step import Step, asking, batch_of, images_per_second, ours, setting, write
from lifelabel.config import resolve_device
from lifelabel.environment import commit, machine
from lifelabel.learner import Expert
from lifelabel.loading import Job, Loader, default_workers
from lifelabel.recording import Recorder, in_passing

CLASSES, IMAGES, TURNS = 40, 2000, 3


def sizes(given: argparse.Namespace) -> dict[str, float]:
    """Medians over a few sizes, none of which comes twice."""
    step = ours(argparse.Namespace(**{**vars(given), "compile": "off"}))

    def seconds(count: int) -> float:
        batch = batch_of(given, count)
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(batch)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    first = seconds(given.batch)
    again = [seconds(given.batch) for _ in range(TURNS)]
    smaller = range(given.batch - 1, given.batch - 1 - 2 * TURNS, -1)
    cudnn = [seconds(count) for count in smaller[::2]]
    with in_passing(True):
        own = [seconds(count) for count in smaller[1::2]]
    found = {"again": again, "cudnn": cudnn, "own": own}
    return {"first": first, **{name: statistics.median(turns) for name, turns in found.items()}}


def expert_passes(given: argparse.Namespace) -> dict[str, float]:
    def step(compile: str, fold: bool) -> Step:
        s = setting(given, given.precision, compile)
        expert = Expert(s.place_backbone(), torch.randn(CLASSES, s.backbone.dim, device=s.device), s, fold=fold)
        recorder = Recorder(s.record)
        return lambda batch: recorder(lambda each: {"mean": expert.logits(each.images).mean()}, batch)

    kinds = {"recorded": "auto", "compiled": "on"}
    steps = {
        f"{name}{', folded' if fold else ''}": step(compile, fold)
        for name, compile in kinds.items() for fold in (False, True)
    }  # fmt: skip
    return images_per_second(steps, batch_of(given, given.batch), given.steps)


def decoding(given: argparse.Namespace) -> dict[str, float]:
    device = resolve_device(given.device)
    with photographs(None, IMAGES) as source:
        loader = Loader({"train": source}, given.size, default_workers(device), given.batch)
        starts, rows = range(0, IMAGES, given.batch), np.arange(IMAGES)
        jobs = [Job("train", rows[start : start + given.batch]) for start in starts]
        files = [read_file(str(path)) for path in paths_of(source)]

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
                if turn:  # the first starts processes, and warms up
                    rates[name].append(done / (time.perf_counter() - start))
        loader.close()
    return {name: statistics.median(turns) for name, turns in rates.items()}


def main() -> None:
    parser = asking(__doc__)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    given.classes = CLASSES
    device = resolve_device(given.device)
    if device.type != "cuda":
        raise SystemExit("these are choices for a GPU, and there is none: see benchmarks.step for the CPU")
    about = machine(device)
    print(
        f"{given.backbone}, {given.size} px, batch {given.batch}; {about['device']}, {about['threads']} cores, "
        f"torch {about['torch']}, commit {commit()}"
    )
    found = {}
    for name, measure in (("sizes", sizes), ("expert", expert_passes), ("decoding", decoding)):
        found[name] = figures = measure(given)
        told = ", ".join(f"{each} {value:.4g}" for each, value in figures.items())
        print(f"{name:>9} ({'s' if name == 'sizes' else 'images/s'}): {told}", flush=True)
    write(given, **found)


if __name__ == "__main__":
    main()
