"""The speed of the image loader, relative to a bare loop that only decodes.

    python -m benchmarks.loading [--root DIR] [--images 2000] [--size 224] [--batch 32] [--workers 0,2] [--json FILE]

The bare loop opens each file with Pillow, converts it to RGB, resizes it and discards it: no checks of untrusted files,
no EXIF, no augmentation, no batches, no transfer between processes. It runs in as many processes as the loader has
workers. The loader yields whole batches with the authors' augmentation (resize, flip). Both run in turns over the same
files, so that a busy machine slows both, and in new processes every turn, because the speed of decoding differs between
processes by up to a quarter. Figures are medians over the turns. Without --root the files are 640 x 480 JPEGs of images
of the embedded stream.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common import make_parser, print_header, write_json
from lifelabel.images.loader import Job, Loader
from lifelabel.images.photographs import FileImages
from lifelabel.streams import Names, build

TURNS = 5


def bare(paths: list[Path], size: int) -> int:
    """Decode, resize, discard."""
    for path in paths:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        np.asarray(rgb if rgb.size == (size, size) else rgb.resize((size, size), Image.Resampling.BILINEAR))
    return len(paths)


@contextlib.contextmanager
def photographs(root: Path | None, count: int) -> Iterator[FileImages]:
    """The first `count` JPEGs under `root`, or generated images."""
    if root is not None:
        found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.jpg"))[:count]
        yield FileImages(root, Names(found))
        return
    with tempfile.TemporaryDirectory() as folder:
        names = [path.name for path in write_jpegs(Path(folder))]
        yield FileImages(Path(folder), Names(names[row % len(names)] for row in range(count)))


def write_jpegs(folder: Path) -> list[Path]:
    """Write 200 JPEGs of 640 x 480, of images of the embedded stream."""
    drawn = build("scenes", {"train_images": 200, "test_images": 20, "size": 160}).train.images
    paths = [folder / f"{row}.jpg" for row in range(200)]
    for row, path in enumerate(paths):
        drawn.read(row).resize((640, 480)).save(path, quality=90)
    return paths


def image_paths(source: FileImages) -> list[Path]:
    assert source.root is not None
    return [source.root / source.found[row] for row in range(len(source))]


def measure(source: FileImages, size: int, batch: int, workers: int) -> tuple[float, float]:
    """Images/s of the bare loop and of the loader, each the median over the turns."""
    rates = [turn(source, size, batch, workers) for _ in range(TURNS)]
    bare_rate, ours = (statistics.median(column) for column in zip(*rates, strict=True))
    return bare_rate, ours


def turn(source: FileImages, size: int, batch: int, workers: int) -> tuple[float, float]:
    """Both once, in new processes."""
    rows = np.arange(len(source))
    paths = image_paths(source)
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

        decode(parts[: 4 * max(workers, 1)])  # starts the processes, and reads the files once
        load(jobs[: 4 * max(workers, 1)])
        start = time.perf_counter()
        decoded = decode(parts) / (time.perf_counter() - start)
        start = time.perf_counter()
        return decoded, load(jobs) / (time.perf_counter() - start)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--root", type=Path, help="a folder of JPEGs; none: generated 640 x 480 images")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", default="0,2", help="numbers of workers to try")
    args = parser.parse_args()
    rows = []
    with photographs(args.root, args.images) as source:
        print_header(args, f"{len(source)} images", f"{args.size} px", f"batch {args.batch}")
        print(f"{'workers':>7}  {'bare images/s':>13}  {'loader images/s':>15}  {'ratio':>5}")
        for workers in map(int, args.workers.split(",")):
            decode, ours = measure(source, args.size, args.batch, workers)
            print(f"{workers:>7}  {decode:>13.0f}  {ours:>15.0f}  {ours / decode:>5.2f}")
            rows.append({"workers": workers, "bare": decode, "loader": ours, "ratio": ours / decode})
    write_json(args, "workers", {str(row.pop("workers")): row for row in rows})


if __name__ == "__main__":
    main()
