"""How fast images come out of the loader, against a bare loop that only decodes them.

    python -m benchmarks.loading [--root DIR] [--images 2000] [--size 224] [--batch 32] [--workers 0,2] [--json FILE]

The bare loop opens each file with Pillow, converts it to RGB, resizes it and throws it away: no checks of hostile
files, no EXIF, no augmentation, no batches, nothing sent between processes; it runs in as many processes as the
loader has workers. The loader gives whole batches with the authors' augmentation (resize, flip), ready for a step. The
two run in turns over the same files, so that a busy machine slows both, and in new processes every turn, as decoding is
faster in one process than in the next by up to a quarter; figures are medians over the turns. Without
--root the files are 640 x 480 JPEGs of the embedded stream's pictures, made on the spot.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from lifelabel.environment import commit, processor
from lifelabel.loading import Job, Loader
from lifelabel.streams import Names, build
from lifelabel.streams.files import FileImages

TURNS = 5


def bare(paths: list[Path], size: int) -> int:
    """Decode, resize, forget."""
    for path in paths:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        np.asarray(rgb if rgb.size == (size, size) else rgb.resize((size, size), Image.Resampling.BILINEAR))
    return len(paths)


@contextlib.contextmanager
def photographs(root: Path | None, count: int) -> Iterator[FileImages]:
    """The first `count` JPEGs under `root`, or pictures made for the purpose."""
    if root is not None:
        found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))[:count]
        yield FileImages(root, Names(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        names = [path.name for path in draw(Path(folder))]
        yield FileImages(Path(folder), Names(names[row % len(names)] for row in range(count)))


def draw(folder: Path) -> list[Path]:
    """200 JPEGs of 640 x 480 in a folder, of the embedded stream's pictures."""
    drawn = build("scenes", {"train_images": 200, "test_images": 20, "size": 160}).train.images
    paths = [folder / f"{row}.jpg" for row in range(200)]
    for row, path in enumerate(paths):
        drawn.picture(row).resize((640, 480)).save(path, quality=90)
    return paths


def paths_of(source: FileImages) -> list[Path]:
    assert source.root is not None, "photographs lie under a root"
    return [source.root / source.found[row] for row in range(len(source))]


def measure(source: FileImages, size: int, batch: int, workers: int) -> tuple[float, float]:
    """Images/s of the bare loop and of the loader, each the median over the turns."""
    rates = [turn(source, size, batch, workers) for _ in range(TURNS)]
    bare_rate, ours = (statistics.median(column) for column in zip(*rates, strict=True))
    return bare_rate, ours


def turn(source: FileImages, size: int, batch: int, workers: int) -> tuple[float, float]:
    """Both once, in processes of their own: how fast one decodes differs from process to process."""
    rows = np.arange(len(source))
    paths = paths_of(source)
    jobs = [Job("train", rows[i : i + batch], "flip", (0, 0)) for i in range(0, len(rows), batch)]
    parts = [(paths[i : i + batch], size) for i in range(0, len(paths), batch)]
    loader = Loader({"train": source}, size, workers, batch)
    with contextlib.ExitStack() as stack:
        stack.callback(loader.close)
        pool = stack.enter_context(multiprocessing.get_context("fork").Pool(workers)) if workers else None

        def decode(parts: list[tuple[list[Path], int]]) -> int:
            return sum(pool.starmap(bare, parts, chunksize=1) if pool else (bare(*part) for part in parts))

        def load(jobs: list[Job]) -> int:
            return sum(len(loaded.good) for loaded in loader.batches(jobs))

        decode(parts[: 4 * max(workers, 1)])  # processes have started, files have been read once
        load(jobs[: 4 * max(workers, 1)])
        start = time.perf_counter()
        decoded = decode(parts) / (time.perf_counter() - start)
        start = time.perf_counter()
        return decoded, load(jobs) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, help="a folder of JPEGs; none: 640 x 480 pictures made on the spot")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", default="0,2", help="numbers of workers to try")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result: dict = {"commit": commit(), "cpu": processor(), "size": args.size, "batch": args.batch, "rows": []}
    with photographs(args.root, args.images) as source:
        print(f"{len(source)} images, {args.size} px, batch {args.batch}; {processor()}, commit {commit()}")
        print(f"{'workers':>7}  {'bare images/s':>13}  {'loader images/s':>15}  {'ratio':>5}")
        for workers in map(int, args.workers.split(",")):
            decode, ours = measure(source, args.size, args.batch, workers)
            print(f"{workers:>7}  {decode:>13.0f}  {ours:>15.0f}  {ours / decode:>5.2f}")
            result["rows"].append({"workers": workers, "bare": decode, "loader": ours, "ratio": ours / decode})
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
