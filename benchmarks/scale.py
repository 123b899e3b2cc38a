"""The time of AGCN's step with many classes, and after many images.

    python -m benchmarks.scale [--classes 40,1000,10000] [--images 100000] [--backbone tiny] [--size 64] [--device cpu]
    python -m benchmarks.scale --backbone resnet101 --size 448 --batch 8 --device cuda

By classes: steps of learners with different numbers of classes, in turns. By images: a step at the beginning of a task
and after this many images (with the tiny backbone, in which nothing else takes much time).
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from benchmarks.common import images_per_second, make_batch, print_header, step_parser, write_json
from benchmarks.step import ours
from lifelabel.nn.cuda_graphs import _EAGER_STEPS
from lifelabel.nn.device import resolve_device


def with_classes(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds and device memory of a step by number of classes. All learners stay in memory."""
    device, steps, memory = resolve_device(given.device), {}, {}
    batch = make_batch(given, given.batch)
    for classes in map(int, given.by_classes.split(",")):
        before = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        step = steps[str(classes)] = ours(argparse.Namespace(**{**vars(given), "classes": classes}))
        for _ in range(_EAGER_STEPS + 1):
            step(batch)
        memory[str(classes)] = torch.cuda.memory_reserved(device) - before if device.type == "cuda" else None
    speed = images_per_second(steps, batch, given.steps)
    first = next(iter(speed.values()))
    return [
        {"classes": int(name), "ms": 1e3 * given.batch / each, "of_first": first / each, "bytes": memory[name]}
        for name, each in speed.items()
    ]


def with_images(given: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a step at the beginning of a task and after `given.images` images."""
    small = argparse.Namespace(**{**vars(given), "backbone": "tiny", "size": 64, "batch": 8})
    step, batch = ours(small), make_batch(small, 8)

    def measure() -> float:
        return statistics.median(8e3 / images_per_second({"": step}, batch, given.steps)[""] for _ in range(3))

    start = measure()
    for _ in range(given.images // 8):
        step(batch)
    return {"images": given.images, "ms_at_start": start, "ms_then": (then := measure()), "ratio": then / start}


def main() -> None:
    parser = step_parser(__doc__)
    parser.add_argument("--classes", dest="by_classes", default="40,1000,10000")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    given.classes = 40
    print_header(given, given.backbone, f"{given.size} px", f"batch {given.batch}")
    print(f"{'classes':>8} {'ms':>9} {'of first':>9} {'MB':>9}")
    rows = with_classes(given)
    for row in rows:
        megabytes = "–" if row["bytes"] is None else f"{row['bytes'] / 1e6:.0f}"
        print(f"{row['classes']:>8,} {row['ms']:>9.2f} {row['of_first']:>9.3f} {megabytes:>9}")
    by_images = with_images(given)
    begin, then = by_images["ms_at_start"], by_images["ms_then"]
    ratio = by_images["ratio"]
    print(f"tiny: {begin:.2f} ms at the start of a task, {then:.2f} after {given.images:,} images, ratio {ratio:.3f}")
    figures: dict[str, dict[str, float | None]] = {
        f"{row['classes']:,} classes": {
            "ms": row["ms"], "relative to the first": row["of_first"], "MB": row["bytes"] and row["bytes"] / 1e6
        }
        for row in rows
    }  # fmt: skip
    figures["tiny, at the start of a task"] = {"ms": begin}
    figures[f"tiny, after {given.images:,} images"] = {"ms": then, "relative to the first": ratio}
    write_json(given, "a step with", figures)


if __name__ == "__main__":
    main()
