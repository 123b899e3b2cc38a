"""The time of a replay step after many images, relative to one with a buffer that was just filled.

    python -m benchmarks.buffer [--methods er] [--offered 100000] [--images 2000] [--size 64] [--batch 8] [--json FILE]

Two learners of each method have a full buffer: one has just filled it, the other was offered many more images through
the method's own `store`, without training. Then both learn the same batches in turns, step by step, so that a busy
machine slows both. Figures are medians over the turns. A ratio above 1 means slower after many images. It is below 1
if an early buffer still stores many images, each of which has to be encoded. These methods store images: er, agem,
der++, prs, ocdm, icarl, rm. The time to offer an image includes the end of the task, in which icarl and rm compute
features.

"encode" and "decode" are the times for one stored image, in one thread.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.common import NEW, Results, host_batch, make_method, make_parser, medians, seconds, synchronize
from lifelabel.methods import Batch
from lifelabel.methods.buffer import decode, encode
from lifelabel.nn.device import resolve_device

OLD = tuple(f"old {number}" for number in range(16))


def images(count: int, size: int) -> np.ndarray:
    """Smooth spots with some noise: their JPEGs have about the size of those of photographs."""
    rng = np.random.default_rng(0)
    spots = rng.integers(0, 256, (count, max(2, size // 8), max(2, size // 8), 3), np.uint8)
    smooth = [np.asarray(Image.fromarray(spot).resize((size, size), Image.Resampling.BICUBIC)) for spot in spots]
    return np.clip(np.stack(smooth) + rng.normal(0, 4, (count, size, size, 3)), 0, 255).astype(np.uint8)


def batches(method: Any, classes: tuple[str, ...], given: argparse.Namespace) -> list[Batch]:
    """A few different batches."""
    pixels = torch.from_numpy(images(8 * given.batch, given.size))
    return [host_batch(method, part, classes) for part in pixels.split(given.batch)]


def second_task(name: str, given: argparse.Namespace, offered: int) -> tuple[Any, Callable[[], float]]:
    """A method that was offered `offered` images, and a function that lets it learn a batch and returns the time.

    The time is the wall-clock time on a GPU, and the CPU time of this process otherwise.
    """
    device, buffer = resolve_device(given.device), {"buffer_images": given.images}
    method = make_method(name, device, backbone=given.backbone, method_options=buffer)
    if not hasattr(method, "store"):
        raise SystemExit(f"{name} stores no images")
    method.begin_task(OLD)
    stored = batches(method, OLD, given)
    step = 0
    while step * given.batch < offered or method.footprint().images < given.images:
        method.store(stored[step % len(stored)])
        step += 1
    method.end_task()
    method.begin_task(NEW)
    learned = itertools.cycle(batches(method, NEW, given))
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def learn() -> float:
        batch = next(learned)
        synchronize(device)
        start = clock()
        method.observe(batch)
        synchronize(device)
        return clock() - start

    return method, learn


def compare(name: str, given: argparse.Namespace) -> dict[str, float]:
    _, early = second_task(name, given, 0)
    start = time.perf_counter()
    method, late = second_task(name, given, given.offered)
    elapsed = time.perf_counter() - start
    times = medians({"early": early, "late": late}, given.turns)
    return {
        "early_ms": 1e3 * times["early"],
        "late_ms": 1e3 * times["late"],
        "ratio": times["late"] / times["early"],
        "offer_us": 1e6 * elapsed / given.offered,
        "stored": method.footprint().images,
        "bytes": method.footprint().bytes,
    }


def coding(size: int) -> dict[str, float]:
    """Milliseconds to encode and to decode an image, and its bytes, in one thread."""
    pixels = images(64, size)
    jpegs, out = [encode(image) for image in pixels], np.empty_like(pixels[0])
    return {
        "encode, ms": 1e3 * statistics.median(seconds(functools.partial(encode, image)) for image in pixels),
        "decode, ms": 1e3 * statistics.median(seconds(functools.partial(decode, jpeg, out)) for jpeg in jpegs),
        "bytes per image": statistics.mean(map(len, jpegs)),
    }


def main() -> None:
    flags = {"methods": "er", "offered": 100_000, "images": 2000, "turns": 200, "backbone": "tiny"}
    given = make_parser(__doc__, device="cpu", **flags, size=64, batch=8).parse_args()
    results = Results(given, "method", given.backbone, f"{given.size} px", f"batch {given.batch}")
    for name, value in coding(given.size).items():
        results.add(name, value)
    for name in given.methods.split(","):
        results.add(name, compare(name, given))


if __name__ == "__main__":
    main()
