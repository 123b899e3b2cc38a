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

import argparse
import contextlib
import functools
import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.common import Results, make_jobs, make_parser, medians, seconds
from lifelabel.images.loader import Job, Loader
from lifelabel.images.photographs import FileImages
from lifelabel.images.source import ImageSource
from lifelabel.streams import Names, build


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


def write_jpegs(folder: Path, width: int = 640) -> list[Path]:
    """Write 200 JPEGs, of images of the embedded stream."""
    drawn = build("scenes", {"train_images": 200, "test_images": 20, "size": 160}).train.images
    paths = [folder / f"{row}.jpg" for row in range(200)]
    for row, path in enumerate(paths):
        drawn.read(row).resize((width, width * 3 // 4)).save(path, quality=90)
    return paths


def image_paths(source: FileImages) -> list[Path]:
    assert source.root is not None
    return [source.root / source.found[row] for row in range(len(source))]


def decode(paths: list[Path], size: int) -> None:
    """Decode, resize, discard."""
    for path in paths:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
        np.asarray(rgb if rgb.size == (size, size) else rgb.resize((size, size), Image.Resampling.BILINEAR))


def bare_rate(source: FileImages, given: argparse.Namespace, workers: int) -> float:
    """Images/s of the bare loop, in new processes."""
    paths = image_paths(source)
    parts = [(paths[start : start + given.batch], given.size) for start in range(0, len(paths), given.batch)]
    with multiprocessing.get_context("fork").Pool(workers) if workers else contextlib.nullcontext() as pool:

        def run(parts: list[tuple[list[Path], int]]) -> None:
            if pool:
                pool.starmap(decode, parts, chunksize=1)
            else:
                for part in parts:
                    decode(*part)

        run(parts[: 4 * max(workers, 1)])  # starts the processes, and reads the files once
        return len(paths) / seconds(lambda: run(parts))


def loader_rate(source: ImageSource, rows: np.ndarray, given: argparse.Namespace, workers: int) -> float:
    """Images/s of a new loader."""
    jobs = make_jobs(rows, given.batch, "flip")
    with contextlib.closing(Loader({"train": source}, given.size, workers, given.batch)) as loader:

        def run(jobs: list[Job]) -> None:
            for loaded in loader.batches(jobs):
                assert not loaded.bad

        run(jobs[: 4 * max(workers, 1)])  # starts the processes
        return len(rows) / seconds(lambda: run(jobs))


def main() -> None:
    given = make_parser(__doc__, root=Path, images=2000, size=224, batch=32, workers="0,2").parse_args()
    with photographs(given.root, given.images) as source:
        what = f"{len(source)} images", f"{given.size} px", f"batch {given.batch}"
        results, rows = Results(given, "workers", *what), np.arange(len(source))
        for workers in map(int, given.workers.split(",")):
            bare = functools.partial(bare_rate, source, given, workers)
            ours = functools.partial(loader_rate, source, rows, given, workers)
            speed = medians({"bare": bare, "loader": ours})
            results.add(f"{workers}", {**speed, "ratio": speed["loader"] / speed["bare"]})


if __name__ == "__main__":
    main()
