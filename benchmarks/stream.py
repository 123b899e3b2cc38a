"""The speed of AGCN on JPEGs from the disk, relative to its training step without loading.

    python -m benchmarks.stream [--root DIR] [--images 2000] [--backbone tiny] [--size 64] [--batch 8] [--device cpu]
    python -m benchmarks.stream --root coco --images 20000 --backbone efficientnet-lite0 --size 224 --batch 32
    python -m benchmarks.stream --images 6000 --backbone resnet101 --size 448 --batch 8

A whole run of two tasks, as by `lifelabel train`, timed in two ways: all of its training, with the time to record (and
compile) its steps, and its speed in the second task, which has an expert, once the steps are recorded. The step without
loading trains on one batch repeatedly. Without --root the files are 640 x 480 JPEGs of images of the embedded stream.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import STEP, Results, make_batch, make_parser, step_rates
from benchmarks.loading import write_jpegs
from benchmarks.step import ours
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback

CLASSES, HELD_OUT, SETTLED = 8, 100, 3
"""Classes of the stream; one test image per this many images; readings of the second task before the timing starts."""


class Timer(Callback):
    """Times at which images of the second task were learned, and the time of all tasks."""

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

    def speed(self) -> float:
        if len(self.readings) < 3 * SETTLED:
            raise SystemExit("the second task is too short: give more --images")
        # the last two readings come together; all others have the same delay as the first
        (start, first), (end, last) = self.readings[SETTLED], self.readings[-3]
        return (last - first) / (end - start)


def table(folder: Path, root: Path | None, count: int) -> Path:
    """A stream of two tasks over `count` files: a CSV file and links to them."""
    files = sorted(root.rglob("*.jpg"))[:count] if root else write_jpegs(folder)
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
    """Images/s with recorded steps, and the seconds of the whole run and of its parts."""
    timer = Timer()
    options: dict[str, Any] = {
        "stream": str(table(folder, given.root, given.images)), "method": "agcn", "backbone": given.backbone,
        "weights": "none", "image_size": given.size, "batch_size": given.batch, "device": given.device,
        "precision": given.precision, "compile": given.compile, "workers": given.workers, "batch_norm": "first-task",
        "stream_options": {"root": str(folder / "images"), "tasks": 2, "order": "source"},
        "method_options": {"hidden": given.hidden},
    }  # fmt: skip
    start = time.perf_counter()
    engine.train(folder / "run", options, callback=timer)
    return {"speed": timer.speed(), **timer.seconds, "whole": time.perf_counter() - start}


def main() -> None:
    given = make_parser(__doc__, **STEP, root=Path, images=2000, batch=8, workers=int).parse_args()
    given.classes = CLASSES
    what = f"{given.images} images", given.backbone, f"{given.size} px", f"batch {given.batch}"
    results = Results(given, "", *what)
    with tempfile.TemporaryDirectory() as folder:
        ran = whole(given, Path(folder))
    alone = step_rates({"ours": ours(given)}, make_batch(given, given.batch), given.steps)["ours"]
    results.add("from JPEGs, images/s", ran["speed"])
    results.add("step without loading, images/s", alone)
    results.add("ratio", ran["speed"] / alone)
    for name in ("learning", "evaluating", "whole"):
        results.add(f"{name}, s", ran[name])
    learned = given.images - math.ceil(given.images / HELD_OUT)
    print(f"all training: ratio {learned / alone / ran['learning']:.3f}")


if __name__ == "__main__":
    main()
