"""What the benchmarks share: flags, methods that learn, timing in turns, and the table of figures."""

from __future__ import annotations

import argparse
import functools
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.figures import write
from lifelabel.config.config import Config
from lifelabel.engine.environment import commit, machine
from lifelabel.engine.setup import make_setting
from lifelabel.images.loader import Job
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.nn.device import resolve_device

TURNS = 5
NEW = tuple(f"new {number}" for number in range(4))
"""The classes of a second task."""
STEP = {"backbone": "tiny", "size": 64, "hidden": 1024, "precision": "auto", "compile": "on", "steps": 10}
"""The flags of benchmarks of training steps."""
_HELP = {
    "batch": "images per batch",
    "count": "number of images",
    "json": "write the figures to this file too",
    "methods": "names, separated by commas",
    "root": "a folder of images",
    "size": "pixels of a side",
    "steps": "steps per turn",
    "weights": "none (random), imagenet, or a file",
    "workers": "processes that decode images",
}
_CHOICES = {"precision": ("auto", "fp32", "bf16"), "compile": ("auto", "on", "off")}


def make_parser(description: str | None, *paths: str, **flags: Any) -> argparse.ArgumentParser:
    """A parser with the arguments `paths`, the flags of every benchmark, and others with their defaults.

    The type of a flag is that of its default. A type in its place is a flag without a default.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in paths:
        parser.add_argument(name, type=Path)
    for name, default in {"device": "auto", "json": Path, **flags}.items():
        flag, text = "--" + name.replace("_", "-"), _HELP.get(name)
        if default is False:
            parser.add_argument(flag, action="store_true", help=text)
        else:
            kind, value = (default, None) if isinstance(default, type) else (type(default), default)
            parser.add_argument(flag, type=kind, default=value, choices=_CHOICES.get(name), help=text)
    return parser


class Results:
    """The figures of a benchmark. A row is printed when it is added, and written to the file of `--json`.

    `row` is the heading of the rows. `what` says what is measured: it is printed with the machine and the commit.
    """

    def __init__(self, given: argparse.Namespace, row: str, *what: str):
        about, at = machine(resolve_device(given.device)), commit()
        versions = f"torch {about['torch']}, {about['threads']} threads, commit {at}"
        print(f"{', '.join([*what, about['device']])}, {versions}", flush=True)
        self.figures: dict[str, dict[str, Any]] = {}
        self._path, self._columns = given.json, [""]
        self._facts = {
            "command": shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
            "date": about["date"],
            "machine": f"{about['device']}, threads: {about['threads']}, torch {about['torch'].partition('+')[0]}",
            "commit": None if at is None else at[:7] + at[40:],  # with + if files differ from it
            "row": row,
        }

    def add(self, name: str, figures: Mapping[str, Any] | float) -> None:
        """Add a row of figures by column, or with one column, `value`. Numbers get four significant digits."""
        given = figures if isinstance(figures, Mapping) else {"value": figures}
        row = self.figures[name] = {column: _round(value) for column, value in given.items()}
        if [*row] != self._columns:
            self._columns = [*row]
            print(f"{self._facts['row']:<32}" + "".join(f"  {column:>9}" for column in row))
        cells = (f"{'–' if value is None else value:>{max(9, len(column))}}" for column, value in row.items())
        print("  ".join([f"{name:<32}", *cells]), flush=True)
        if self._path:
            columns = {column: {"digits": "each"} for each in self.figures.values() for column in each}
            write(self._path, **self._facts, columns=columns, figures=self.figures)


def _round(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    number = float(f"{value:.4g}")
    return int(number) if abs(number) >= 1000 else number


# Timing


def synchronize(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], Any], device: torch.device | None = None) -> float:
    """The time of a call, with what it leaves to the GPU."""
    synchronize(device)
    start = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - start


def medians(measures: Mapping[str, Callable[[], Any]], turns: int = TURNS) -> dict[str, Any]:
    """The median of each measure, a number or several, over the turns, without the first one, which is for warm-up.

    The measures take turns, so that a busy machine slows all of them.
    """
    found = []
    for turn in range(turns + 1):
        order = list(measures)[:: 1 if turn % 2 else -1]  # the first in a turn must have no advantage
        found.append({name: measures[name]() for name in order})
    return {name: np.median([turn[name] for turn in found[1:]], axis=0) for name in measures}


def rates(
    runs: Mapping[str, Callable[[], Any]], images: int, device: torch.device | None = None, turns: int = TURNS
) -> dict[str, float]:
    """Images/s of functions that process `images` images per call: medians over the turns."""
    times = medians({name: functools.partial(seconds, run, device) for name, run in runs.items()}, turns)
    return {name: images / each for name, each in times.items()}


def step_rates(steps: Mapping[str, Callable[[Batch], Any]], batch: Batch, per_turn: int) -> dict[str, float]:
    """Images/s of training steps: medians over 15 turns of `per_turn` steps each."""

    def turn(step: Callable[[Batch], Any]) -> None:
        for _ in range(per_turn):
            step(batch)

    runs = {name: functools.partial(turn, step) for name, step in steps.items()}
    return rates(runs, per_turn * len(batch.images), batch.images.device, 15)


# Methods and their images


def make_method(name: str, device: torch.device, images: int = 0, **options: Any) -> Any:
    """A method with the same initial weights every time, for `images` training images. Word vectors are random."""
    torch.manual_seed(0)
    config = Config.make({"method": name, **options})
    setting = make_setting(config, lambda labels: torch.randn(len(labels), 300, device=device), device, images)
    return METHODS[name](setting, config.method_options)


def host_batch(method: Any, pixels: Tensor, classes: Sequence[str]) -> Batch:
    """A batch as the engine makes it, of pixels (B x S x S x 3). Every image has a class."""
    shape = len(pixels), len(classes)
    labels = torch.rand(shape) < 0.3
    labels[torch.arange(shape[0]), torch.randint(shape[1], shape[:1])] = True
    known = torch.ones_like(labels)
    y, mask = labels.float().to(method.setting.device), known.to(method.setting.device)
    host = HostBatch(pixels, labels.numpy(), known.numpy())
    return Batch(method.setting.backbone.normalize(pixels), y, mask, tuple(classes), host)


def learn(method: Any, tasks: Iterable[Sequence[str]], pixels: Tensor) -> None:
    """Let a method learn tasks of classes from the same images, 8 at a time."""
    for classes in tasks:
        method.begin_task(tuple(classes))
        for part in pixels.split(8):
            method.observe(host_batch(method, part, classes))
        method.end_task()


def make_batch(given: argparse.Namespace, count: int) -> Batch:
    """A batch of random images of the new classes."""
    device = resolve_device(given.device)
    images = torch.randn(count, 3, given.size, given.size, device=device)
    labels = (torch.rand(count, len(NEW), device=device) < 0.3).float()
    return Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), NEW)


def make_jobs(rows: np.ndarray, batch: int, augment: str = "none") -> list[Job]:
    """The batches of a pass over the rows of a loader's images `train`."""
    seed = None if augment == "none" else (0, 0)
    return [Job("train", rows[start : start + batch], augment, seed) for start in range(0, len(rows), batch)]
