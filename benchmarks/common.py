"""What the benchmarks share: arguments, batches, timing in turns, and the JSON file."""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import write
from lifelabel.engine.environment import commit, machine
from lifelabel.methods import Batch
from lifelabel.nn.device import resolve_device

NEW_CLASSES, TURNS = 4, 15
Step = Callable[[Batch], Any]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of every benchmark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    return parser


def step_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments of benchmarks of training steps."""
    parser = make_parser(description)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--compile", default="on", choices=("auto", "on", "off"))
    parser.add_argument("--steps", type=int, default=10, help="steps per turn")
    return parser


def print_header(given: argparse.Namespace, *what: str) -> None:
    """One line: what is measured, on what, at which commit."""
    about = machine(resolve_device(given.device))
    where = f"{about['device']}, torch {about['torch']}, {about['threads']} threads, commit {commit()}"
    print(f"{', '.join(what)}; {where}" if what else where, flush=True)


def write_json(
    given: argparse.Namespace, row: str, figures: Mapping[str, Mapping[str, Any] | float], **more: Any
) -> None:
    """Write a file of results (`benchmarks.figures`) if `--json` asks for it.

    `figures` are by row and column, or by row if there is one column, `value`. Numbers get four significant digits.
    """
    if not given.json:
        return
    about = machine(resolve_device(given.device))
    rows = {name: dict(each) if isinstance(each, Mapping) else {"value": each} for name, each in figures.items()}
    columns = {key: {"digits": "each"} for each in rows.values() for key in each}
    write(
        given.json,
        command=shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *sys.argv[1:]]),
        date=about["date"],
        machine=f"{about['device']}, threads: {about['threads']}, torch {about['torch'].partition('+')[0]}",
        commit=None if (at := commit()) is None else at[:7] + at[40:],  # with + if files differ from it
        row=row,
        columns=columns,
        **more,
        figures={name: {key: _round(value) for key, value in each.items()} for name, each in rows.items()},
    )


def _round(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    number = float(f"{value:.4g}")
    return int(number) if abs(number) >= 1000 else number


def class_names(given: argparse.Namespace) -> tuple[list[str], tuple[str, ...]]:
    """Names of the old and of the new classes."""
    return [f"old {i}" for i in range(given.classes - NEW_CLASSES)], tuple(f"new {i}" for i in range(NEW_CLASSES))


def make_batch(given: argparse.Namespace, count: int) -> Batch:
    device = resolve_device(given.device)
    images = torch.randn(count, 3, given.size, given.size, device=device)
    labels = (torch.rand(count, NEW_CLASSES, device=device) < 0.3).float()
    return Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), class_names(given)[1])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def images_per_second(steps: dict[str, Step], batch: Batch, per_turn: int) -> dict[str, float]:
    """Medians over turns of `per_turn` steps each. The steps take turns, so that a busy machine slows all of them."""
    device = batch.images.device
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(TURNS + 1):
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(per_turn):
                step(batch)
            synchronize(device)
            if turn:  # the first turn is for warm-up and recording
                seconds[name].append((time.perf_counter() - start) / per_turn)
    return {name: len(batch.images) / statistics.median(each) for name, each in seconds.items()}
