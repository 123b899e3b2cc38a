"""What AGCN's step costs with many classes, and after many images.

    python -m benchmarks.scale [--classes 40,1000,10000] [--images 100000] [--backbone tiny] [--size 64] [--device cpu]
    python -m benchmarks.scale --backbone resnet101 --size 448 --batch 8 --device cuda

By classes: steps of learners with so many classes, in turns. By images: a learner's step when its task begins and after
so many images have passed (always with the tiny backbone, in which nothing else is large).
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch

from benchmarks.step import asking, batch_of, images_per_second, ours, write
from lifelabel.config import resolve_device
from lifelabel.environment import commit, machine
from lifelabel.recording import UNRECORDED


def with_classes(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a step and the device memory it takes, by the number of classes; all learners stay."""
    device, steps, memory = resolve_device(given.device), {}, {}
    batch = batch_of(given, given.batch)
    for classes in map(int, given.by_classes.split(",")):
        before = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        step = steps[str(classes)] = ours(argparse.Namespace(**{**vars(given), "classes": classes}))
        for _ in range(UNRECORDED + 1):
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
    step, batch = ours(small), batch_of(small, 8)

    def measure() -> float:
        return statistics.median(8e3 / images_per_second({"": step}, batch, given.steps)[""] for _ in range(3))

    start = measure()
    for _ in range(given.images // 8):
        step(batch)
    return {"images": given.images, "ms_at_start": start, "ms_then": (then := measure()), "ratio": then / start}


def main() -> None:
    parser = asking(__doc__)
    parser.add_argument("--classes", dest="by_classes", default="40,1000,10000")
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    given.classes = 40
    about = machine(resolve_device(given.device))
    print(f"{given.backbone}, {given.size} px, batch {given.batch}; {about['device']}, commit {commit()}")
    print(f"{'classes':>8} {'ms':>9} {'of first':>9} {'MB':>9}")
    rows = with_classes(given)
    for row in rows:
        megabytes = "–" if row["bytes"] is None else f"{row['bytes'] / 1e6:.0f}"
        print(f"{row['classes']:>8,} {row['ms']:>9.2f} {row['of_first']:>9.3f} {megabytes:>9}")
    flat = with_images(given)
    begin, then = flat["ms_at_start"], flat["ms_then"]
    print(f"tiny: {begin:.2f} ms as a task begins, {then:.2f} after {given.images:,} images, ratio {flat['ratio']:.3f}")
    write(given, by_classes=rows, by_images=flat)


if __name__ == "__main__":
    main()
