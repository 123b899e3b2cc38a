"""The time of AGCN's step with many classes, and after many images.

    python -m benchmarks.scale [--classes 40,1000,10000] [--images 100000] [--backbone tiny] [--size 64] [--device cpu]
    python -m benchmarks.scale --backbone resnet101 --size 448 --batch 8 --device cuda

By classes: steps of learners with different numbers of classes, in turns. By images: a step at the beginning of a task
and after this many images (with the tiny backbone, in which nothing else takes much time).
"""

from __future__ import annotations

import argparse
import statistics

import torch

from benchmarks.common import STEP, Results, make_batch, make_parser, step_rates
from benchmarks.step import ours
from lifelabel.nn.cuda_graphs import _EAGER_STEPS
from lifelabel.nn.device import resolve_device


def with_classes(given: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    """Milliseconds and device memory of a step by number of classes. All learners stay in memory."""
    device, steps, memory = resolve_device(given.device), {}, {}
    batch = make_batch(given, given.batch)

    def reserved() -> int:
        return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0

    for classes in map(int, given.classes.split(",")):
        before, name = reserved(), f"{classes:,} classes"
        step = steps[name] = ours(argparse.Namespace(**{**vars(given), "classes": classes}))
        for _ in range(_EAGER_STEPS + 1):
            step(batch)
        memory[name] = (reserved() - before) / 1e6 if device.type == "cuda" else None
    speed = step_rates(steps, batch, given.steps)
    first = next(iter(speed.values()))
    return {
        name: {"ms": 1e3 * given.batch / each, "relative to the first": first / each, "MB": memory[name]}
        for name, each in speed.items()
    }


def with_images(given: argparse.Namespace) -> tuple[float, float]:
    """Milliseconds of a step at the beginning of a task and after `given.images` images."""
    small = argparse.Namespace(**{**vars(given), "backbone": "tiny", "size": 64, "classes": 40})
    step, batch = ours(small), make_batch(small, 8)

    def measure() -> float:
        return statistics.median(8e3 / step_rates({"": step}, batch, given.steps)[""] for _ in range(3))

    start = measure()
    for _ in range(given.images // 8):
        step(batch)
    return start, measure()


def main() -> None:
    given = make_parser(__doc__, **STEP, classes="40,1000,10000", images=100_000, batch=8).parse_args()
    results = Results(given, "a step with", given.backbone, f"{given.size} px", f"batch {given.batch}")
    for name, figures in with_classes(given).items():
        results.add(name, figures)
    begin, then = with_images(given)
    results.add("tiny, at the start of a task", {"ms": begin})
    results.add(f"tiny, after {given.images:,} images", {"ms": then, "relative to the first": then / begin})


if __name__ == "__main__":
    main()
