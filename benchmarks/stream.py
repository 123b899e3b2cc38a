"""How fast AGCN learns from JPEGs on disk, decoding and all, against its step alone.

    python -m benchmarks.stream [--root DIR] [--images 2000] [--backbone tiny] [--size 64] [--batch 8] [--device cpu]
    python -m benchmarks.stream --root coco --images 20000 --backbone efficientnet-lite0 --size 224 --batch 32
    python -m benchmarks.stream --images 6000 --backbone resnet101 --size 448 --batch 8

A whole run of two tasks, as `lifelabel train` does it, timed in two ways: all its learning, with what it takes to
record (and compile) its steps, and its pace in the second task, which has an expert, once they are recorded. The step
alone learns one batch again and again. Without --root the files are 640 x 480 JPEGs of the embedded stream's pictures,
made on the spot.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.loading import draw
from benchmarks.step import asking, batch_of, images_per_second, ours, write
from lifelabel import engine
from lifelabel.config import resolve_device
from lifelabel.environment import commit, machine

CLASSES, HELD_OUT, SETTLED = 8, 100, 3
"""Classes of the stream; every so many images one for testing; readings of the second task before the clock starts."""


class Clock(engine.Watcher):
    """When so many images of the second task had been learned, and how long all tasks took."""

    def __init__(self) -> None:
        self.readings: list[tuple[float, int]] = []
        self.seconds = {"learning": 0.0, "evaluating": 0.0}

    def begin(self, *_: object) -> None:
        self.last = self.since = time.perf_counter()

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        self.last = time.perf_counter()
        if task == 1:
            done = self.readings[-1][1] if self.readings else 0
            self.readings.append((self.last, done + images))

    def evaluated(self, record: dict[str, Any]) -> None:
        now = time.perf_counter()
        self.seconds["learning"] += self.last - self.since
        self.seconds["evaluating"] += now - self.last
        self.since = now

    def pace(self) -> float:
        if len(self.readings) < 3 * SETTLED:
            raise SystemExit("the second task is too short: give more --images")
        # the last two come at once; all others as many steps late as the first
        (start, first), (end, last) = self.readings[SETTLED], self.readings[-3]
        return (last - first) / (end - start)


def table(folder: Path, root: Path | None, count: int) -> Path:
    """A stream of two tasks over `count` files: a CSV file beside links to them."""
    files = sorted(root.rglob("*.jpg"))[:count] if root else draw(folder)
    (folder / "images").mkdir()
    lines = [",".join(["image", "split", *(f"class {c}" for c in range(CLASSES))])]
    for number in range(count):
        name, second = f"{number}.jpg", number % 3 > 0
        os.symlink(files[number % len(files)].absolute(), folder / "images" / name)
        shown = [int(c // (CLASSES // 2) == second and (number + c) % 3 == 0) for c in range(CLASSES)]
        shown[4 * second] = 1
        lines.append(",".join([name, "test" if number % HELD_OUT == 0 else "train", *map(str, shown)]))
    (folder / "stream.csv").write_text("\n".join(lines) + "\n")
    return folder / "stream.csv"


def whole(given: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Images/s at its best, and the seconds of the whole run and of its parts."""
    clock = Clock()
    options: dict[str, Any] = {
        "stream": str(table(folder, given.root, given.images)), "method": "agcn", "backbone": given.backbone,
        "weights": "none", "image_size": given.size, "batch_size": given.batch, "device": given.device,
        "precision": given.precision, "compile": given.compile, "workers": given.workers, "batch_norm": "first-task",
        "stream_options": {"root": str(folder / "images"), "tasks": 2, "order": "source"},
        "method_options": {"hidden": given.hidden},
    }  # fmt: skip
    start = time.perf_counter()
    engine.train(folder / "run", options, watch=clock)
    return {"pace": clock.pace(), **clock.seconds, "whole": time.perf_counter() - start}


def main() -> None:
    parser = asking(__doc__)
    parser.add_argument("--root", type=Path, help="a folder of JPEGs; none: 640 x 480 pictures made on the spot")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int)
    given = parser.parse_args()
    given.classes = CLASSES
    about = machine(resolve_device(given.device))
    with tempfile.TemporaryDirectory() as folder:
        ran = whole(given, Path(folder))
    alone = images_per_second({"ours": ours(given)}, batch_of(given, given.batch), given.steps)["ours"]
    learned = given.images - math.ceil(given.images / HELD_OUT)
    print(
        f"{given.images} images, {given.backbone}, {given.size} px, batch {given.batch}; {about['device']}, "
        f"torch {about['torch']}, commit {commit()}"
    )
    ratios = {"pace": ran["pace"] / alone, "learning": learned / alone / ran["learning"]}
    print(f"from JPEGs {ran['pace']:.1f} images/s, step alone {alone:.1f} images/s, ratio {ratios['pace']:.3f}")
    print(
        f"all learning {ran['learning']:.1f} s, step alone {learned / alone:.1f} s, ratio {ratios['learning']:.3f}; "
        f"evaluating {ran['evaluating']:.1f} s, the whole run {ran['whole']:.1f} s"
    )
    write(given, seconds=ran, step_alone=alone, ratios=ratios)


if __name__ == "__main__":
    main()
