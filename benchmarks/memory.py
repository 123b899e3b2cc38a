"""The resident memory of a long run: the training process, the label process and the workers that decode images.

    python -m benchmarks.memory [--methods fine-tuning,er] [--steps 50000] [--verbose]

It trains with `lifelabel.train` on a table of many rows that name few small pictures, in many short tasks. The memory
of every process is read every 1,000 steps. For each process it prints the memory after a tenth of the steps and after
all of them, and their ratio. Memory that does not grow with the number of steps has a ratio of 1.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import lifelabel
from benchmarks.common import Results, make_parser

_INTERVAL = 1000
_PICTURES, _SIDE, _CLASSES_PER_TASK, _TEST_IMAGES = 64, 32, 2, 64


class _Sampler(lifelabel.Callback):
    """Reads the memory of all processes of the run every 1,000 steps."""

    def __init__(self, batch: int, verbose: bool = False):
        self.batch, self.verbose, self.images = batch, verbose, 0
        self.samples: list[dict[str, int]] = []

    def steps(self, task: int, images: int, losses: dict[str, float]) -> None:
        self.images += images
        if self.images // (self.batch * _INTERVAL) > len(self.samples):
            self.samples.append(_memory())
            if self.verbose:
                megabytes = (f"{name} {size / 1e6:.1f} MB" for name, size in self.samples[-1].items())
                print(f"{len(self.samples) * _INTERVAL:,} steps, task {task + 1}: {', '.join(megabytes)}", flush=True)


def _memory() -> dict[str, int]:
    """The resident bytes of this process and of its children. The label process is started first."""
    children = sorted(process.pid for process in multiprocessing.active_children() if process.pid)
    names = ["training", "label server", *(f"worker {n}" for n in range(1, len(children)))]
    return {name: _resident(pid) for name, pid in zip(names, (os.getpid(), *children), strict=True)}


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"the system does not report the memory of process {pid}")


def _write_table(folder: Path, tasks: int, images: int) -> Path:
    """A table of `images` training images in each task. All folders are links to one with few pictures."""
    rng, pictures = np.random.default_rng(0), folder / "pictures"
    pictures.mkdir()
    for number in range(_PICTURES):
        pixels = rng.integers(0, 256, (_SIDE, _SIDE, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(pictures / f"{number}.png")
    with open(folder / "table.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["image", "labels", "split", "task"])
        for task in range(tasks):
            for split, count in (("train", images), ("test", _TEST_IMAGES)):
                for number in range(count):
                    link = f"{task}-{split}-{number // _PICTURES}"
                    if number % _PICTURES == 0:
                        (folder / link).symlink_to(pictures)
                    label = f"class {task * _CLASSES_PER_TASK + number % _CLASSES_PER_TASK}"
                    table.writerow([f"{link}/{number % _PICTURES}.png", label, split, task])
    return folder / "table.csv"


def measure(method: str, steps: int, tasks: int, batch: int, verbose: bool = False) -> list[dict[str, int]]:
    """The bytes of each process of a run, every 1,000 steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = _write_table(folder, tasks, batch * steps // tasks)
        sampler = _Sampler(batch, verbose)
        lifelabel.train(
            folder / "run", method=method, stream=str(table), root=str(folder), callback=sampler, device="cpu",
            workers=1, backbone="tiny", weights="none", image_size=_SIDE, batch_size=batch, lr=1e-4, backbone_lr=1e-4,
        )  # fmt: skip
    return sampler.samples


def main() -> None:
    flags = {"methods": "fine-tuning,er", "steps": 50_000, "tasks": 25, "batch": 2, "verbose": False}
    parser = make_parser(__doc__, device="cpu", **flags)
    given = parser.parse_args()
    if given.steps < 10 * _INTERVAL or given.steps % given.tasks:
        parser.error(f"--steps must be at least {10 * _INTERVAL:,}, and a multiple of --tasks")
    what = f"{given.steps:,} steps in {given.tasks} tasks", f"batch {given.batch}", f"{_SIDE} px"
    results = Results(given, "method and process", *what)
    for method in given.methods.split(","):
        samples = measure(method, given.steps, given.tasks, given.batch, given.verbose)
        first, last = samples[len(samples) // 10 - 1], samples[-1]
        for name, size in first.items():
            figures = {"MB after a tenth of the steps": size / 1e6, "MB after all": last[name] / 1e6}
            results.add(f"{method}, {name}", {**figures, "ratio": last[name] / size})


if __name__ == "__main__":
    main()
