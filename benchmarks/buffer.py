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
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.common import make_parser, print_header, synchronize, write_json
from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.methods.buffer import decode, encode
from lifelabel.nn.device import resolve_device
from lifelabel.nn.method_setting import Setting

OLD, NEW = 16, 4
TURNS, WARM_UP = 200, 5


def images(count: int, size: int) -> np.ndarray:
    """Smooth spots with some noise: their JPEGs have about the size of those of photographs."""
    rng = np.random.default_rng(0)
    spots = rng.integers(0, 256, (count, max(2, size // 8), max(2, size // 8), 3), np.uint8)
    smooth = [np.asarray(Image.fromarray(spot).resize((size, size), Image.Resampling.BICUBIC)) for spot in spots]
    return np.clip(np.stack(smooth) + rng.normal(0, 4, (count, size, size, 3)), 0, 255).astype(np.uint8)


def batches(setting: Setting, classes: tuple[str, ...], size: int, count: int) -> list[Batch]:
    """A few different batches as the engine makes them. Every image has a class."""
    made = []
    for seed, pixels in enumerate(np.array_split(images(8 * count, size), 8)):
        rng = np.random.default_rng(seed)
        labels = rng.random((count, len(classes))) < 0.15
        labels[np.arange(count), rng.integers(len(classes), size=count)] = True
        known, host = np.ones_like(labels), torch.from_numpy(pixels)
        y, mask = (torch.from_numpy(array).to(setting.device) for array in (labels, known))
        batch = setting.backbone.normalize(host), y.float(), mask, classes, HostBatch(host, labels, known)
        made.append(Batch(*batch))
    return made


def make_method(name: str, backbone: str, count: int, device: torch.device) -> Any:
    """A method with a buffer of `count` images, with the same initial weights every time."""
    torch.manual_seed(0)
    config = Config.make({"method": name, "backbone": backbone, "method_options": {"buffer_images": count}})
    setting = make_setting(config, lambda labels: torch.zeros(len(labels), 4, device=device), device)
    method = METHODS[name](setting, config.method_options)
    if not hasattr(method, "store"):
        raise SystemExit(f"{name} stores no images")
    return method


def second_task(name: str, given: argparse.Namespace, offered: int, device: torch.device) -> tuple[Any, list[Batch]]:
    """A method that was offered `offered` images, and the batches that it learns next."""
    method = make_method(name, given.backbone, given.images, device)
    old, new = tuple(f"old {i}" for i in range(OLD)), tuple(f"new {i}" for i in range(NEW))
    method.begin_task(old)
    stored = batches(method.setting, old, given.size, given.batch)
    step = 0
    while step * given.batch < offered or method.footprint().images < given.images:
        method.store(stored[step % len(stored)])
        step += 1
    method.end_task()
    method.begin_task(new)
    return method, batches(method.setting, new, given.size, given.batch)


def seconds(method: Any, batch: Batch, device: torch.device) -> float:
    """The time of one step: wall-clock time on a GPU, the CPU time of this process otherwise."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    synchronize(device)
    start = clock()
    method.observe(batch)
    synchronize(device)
    return clock() - start


def compare(name: str, given: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    early = second_task(name, given, 0, device)
    start = time.perf_counter()
    late = second_task(name, given, given.offered, device)
    elapsed = time.perf_counter() - start
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(given.turns + WARM_UP):
        order = (0, 1) if turn % 2 else (1, 0)  # the first in a turn must have no advantage
        for side in order:
            method, learned = (early, late)[side]
            times[side].append(seconds(method, learned[turn % len(learned)], device))
    early_s, late_s = (statistics.median(column[WARM_UP:]) for column in times)
    return {
        "method": name,
        "early_ms": 1e3 * early_s,
        "late_ms": 1e3 * late_s,
        "ratio": late_s / early_s,
        "offer_us": 1e6 * elapsed / given.offered,
        "stored": late[0].footprint().images,
        "bytes": late[0].footprint().bytes,
    }


def coding(size: int) -> tuple[float, float, float]:
    """Milliseconds to encode and to decode an image, and its bytes, in one thread."""

    def median(work: Callable[[Any], Any], parts: list[Any]) -> float:
        times = []
        for part in parts:
            start = time.perf_counter()
            work(part)
            times.append(time.perf_counter() - start)
        return 1e3 * statistics.median(times)

    pixels = list(images(64, size))
    jpegs, out = [encode(image) for image in pixels], np.empty_like(pixels[0])
    return median(encode, pixels), median(lambda jpeg: decode(jpeg, out), jpegs), statistics.mean(map(len, jpegs))


def main() -> None:
    parser = make_parser(__doc__)
    parser.set_defaults(device="cpu")
    parser.add_argument("--methods", default="er", help="names of methods that store images, separated by commas")
    parser.add_argument("--offered", type=int, default=100_000, help="number of offered images")
    parser.add_argument("--images", type=int, default=2000, help="size of the buffer")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    device = resolve_device(given.device)
    encode_ms, decode_ms, size = coding(given.size)
    print_header(given, given.backbone, f"{given.size} px", f"batch {given.batch}")
    print(f"encode {encode_ms:.3f} ms, decode {decode_ms:.3f} ms, {size:.0f} bytes per image")
    late = f"{given.offered:,} ms"
    print(f"{'method':>8} {'stored':>6} {'full ms':>9} {late:>11} {'ratio':>6} {'offer us/image':>15}")
    rows = {}
    for name in given.methods.split(","):
        row = compare(name, given, device)
        print(
            f"{name:>8} {row['stored']:>6} {row['early_ms']:>9.2f} {row['late_ms']:>11.2f} {row['ratio']:>6.3f} "
            f"{row['offer_us']:>15.1f}"
        )
        rows[name] = {key: value for key, value in row.items() if key != "method"}
    stored = {"encode, ms": encode_ms, "decode, ms": decode_ms, "bytes per image": size}
    write_json(given, "method", rows | {name: {"value": value} for name, value in stored.items()})


if __name__ == "__main__":
    main()
