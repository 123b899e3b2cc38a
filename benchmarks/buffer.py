"""Whether a replay step grows slower with the images that have passed, and what images cost to keep.

    python -m benchmarks.buffer [--methods er] [--offered 100000] [--images 2000] [--size 64] [--batch 8] [--json FILE]

Two learners of each method stand side by side, both with a full buffer: one has just filled it, the other has been
offered many more images, by the method's own `remember`, without training. Then both learn the same batches in turns,
step by step, so that a busy machine slows both; figures are medians over the turns. A ratio over 1 means slower after
many images. It is below 1 where an early buffer still lets many images in, each of which has to be encoded. All methods
that keep images can be asked for: er, agem, der++, prs, ocdm.

"encode" and "decode" are one kept image, in one thread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from lifelabel.buffer import decode, encode
from lifelabel.config import Config, resolve_device
from lifelabel.environment import commit, processor
from lifelabel.learner import Setting
from lifelabel.methods import METHODS, Batch
from lifelabel.methods.base import Host

OLD, NEW = 16, 4
TURNS, WARM = 200, 5


def pictures(count: int, size: int) -> np.ndarray:
    """Smooth blots with some noise: their JPEGs are about as large as those of photographs."""
    rng = np.random.default_rng(0)
    blots = rng.integers(0, 256, (count, max(2, size // 8), max(2, size // 8), 3), np.uint8)
    smooth = [np.asarray(Image.fromarray(blot).resize((size, size), Image.Resampling.BICUBIC)) for blot in blots]
    return np.clip(np.stack(smooth) + rng.normal(0, 4, (count, size, size, 3)), 0, 255).astype(np.uint8)


def batches(setting: Setting, classes: tuple[str, ...], size: int, count: int) -> list[Batch]:
    """A few different batches as the engine makes them; every image shows a class."""
    made = []
    for seed, pixels in enumerate(np.array_split(pictures(8 * count, size), 8)):
        rng = np.random.default_rng(seed)
        labels = rng.random((count, len(classes))) < 0.15
        labels[np.arange(count), rng.integers(len(classes), size=count)] = True
        known, host = np.ones_like(labels), torch.from_numpy(pixels)
        y, mask = (torch.from_numpy(array).to(setting.device) for array in (labels, known))
        made.append(Batch(setting.backbone.to_input(host), y.float(), mask, classes, Host(host, labels, known)))
    return made


def make(name: str, backbone: str, images: int, device: torch.device) -> Any:
    """A method that keeps images, with the same first weights every time."""
    torch.manual_seed(0)
    config = Config.make({"method": name, "backbone": backbone, "method_options": {"buffer_images": images}})
    setting = Setting.of(config, lambda labels: torch.zeros(len(labels), 4, device=device), device)
    method = METHODS[name](setting, config.method_options)
    if not hasattr(method, "remember"):
        raise SystemExit(f"{name} keeps no images")
    return method


def second_task(name: str, given: argparse.Namespace, offered: int, device: torch.device) -> tuple[Any, list[Batch]]:
    """A method with `offered` images behind it, and the batches that it learns next."""
    method = make(name, given.backbone, given.images, device)
    old, new = tuple(f"old {i}" for i in range(OLD)), tuple(f"new {i}" for i in range(NEW))
    method.begin_task(old)
    passing = batches(method.setting, old, given.size, given.batch)
    step = 0
    while step * given.batch < offered or method.kept().images < given.images:
        method.remember(passing[step % len(passing)])
        step += 1
    method.end_task()
    method.begin_task(new)
    return method, batches(method.setting, new, given.size, given.batch)


def seconds(method: Any, batch: Batch, device: torch.device) -> float:
    """One step: on a GPU by the clock, with the device idle before and after; else the time of this process alone."""
    if device.type == "cpu":
        start = time.process_time()
        method.observe(batch)
        return time.process_time() - start
    torch.cuda.synchronize(device)
    start = time.perf_counter()
    method.observe(batch)
    torch.cuda.synchronize(device)
    return time.perf_counter() - start


def compare(name: str, given: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    early = second_task(name, given, 0, device)
    start = time.perf_counter()
    late = second_task(name, given, given.offered, device)
    passed = time.perf_counter() - start
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(given.turns + WARM):
        order = (0, 1) if turn % 2 else (1, 0)  # going first must be no advantage
        for side in order:
            method, learned = (early, late)[side]
            times[side].append(seconds(method, learned[turn % len(learned)], device))
    early_s, late_s = (statistics.median(column[WARM:]) for column in times)
    return {
        "method": name,
        "early_ms": 1e3 * early_s,
        "late_ms": 1e3 * late_s,
        "ratio": late_s / early_s,
        "offer_us": 1e6 * passed / given.offered,
        "kept": late[0].kept().images,
        "bytes": late[0].kept().bytes,
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

    images = list(pictures(64, size))
    jpegs, out = [encode(image) for image in images], np.empty_like(images[0])
    return median(encode, images), median(lambda jpeg: decode(jpeg, out), jpegs), statistics.mean(map(len, jpegs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="er", help="names of methods that keep images, with commas between")
    parser.add_argument("--offered", type=int, default=100_000, help="images that have passed")
    parser.add_argument("--images", type=int, default=2000, help="images kept")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = resolve_device(given.device)
    to, back, bytes = coding(given.size)
    print(f"{given.backbone}, {given.size} px, batch {given.batch}, {device}, {processor()}, commit {commit()}")
    print(f"encode {to:.3f} ms, decode {back:.3f} ms, {bytes:.0f} bytes an image")
    print(f"{'method':>8} {'kept':>6} {'full ms':>9} {f'{given.offered:,} ms':>11} {'ratio':>6} {'offer us/image':>15}")
    rows = []
    for name in given.methods.split(","):
        row = compare(name, given, device)
        print(
            f"{name:>8} {row['kept']:>6} {row['early_ms']:>9.2f} {row['late_ms']:>11.2f} {row['ratio']:>6.3f} "
            f"{row['offer_us']:>15.1f}"
        )
        rows.append(row)
    result = {"commit": commit(), "device": str(device), "encode_ms": to, "decode_ms": back, "rows": rows}
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
