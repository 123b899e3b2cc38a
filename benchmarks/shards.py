"""The speed of the image loader from tar shards, relative to the same files in a folder; the time of the index.

    python -m benchmarks.shards [--images 2000] [--width 640] [--size 224] [--batch 32] [--workers 0,2] [--json FILE]

The same JPEGs are in a folder and in ten shards. Both are loaded in random order, in turns, so that a busy machine
slows both, and by new processes every turn. The files are in the page cache of the system. Figures are medians over the
turns. The index is made of shards with --members small files: by reading all headers, and from the cache folder.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.common import make_parser, print_header, write_json
from benchmarks.loading import write_jpegs
from lifelabel.images.loader import Job, Loader
from lifelabel.images.shards import find_images
from lifelabel.images.source import ImageSource
from lifelabel.images.tar_index import read_index, stat_shards
from lifelabel.streams import Names

TURNS, SHARDS = 5, 10


def write_images(folder: Path, count: int, width: int) -> list[str]:
    """Write `count` JPEGs into `folder/files` and into shards in `folder/shards`. Returns their names."""
    for name in ("drawn", "files", "shards"):
        (folder / name).mkdir()
    drawn = write_jpegs(folder / "drawn")
    for path in drawn if width != 640 else ():
        Image.open(path).resize((width, width * 3 // 4)).save(path, quality=90)
    names = [f"{row:06}.jpg" for row in range(count)]
    with contextlib.ExitStack() as stack:
        tars = [stack.enter_context(tarfile.open(folder / "shards" / f"train-{n:06}.tar", "w")) for n in range(SHARDS)]
        for row, name in enumerate(names):
            (folder / "files" / name).write_bytes(drawn[row % len(drawn)].read_bytes())
            tars[row * SHARDS // count].add(folder / "files" / name, name)
    return names


def rate(source: ImageSource, size: int, batch: int, workers: int) -> float:
    """Images/s of a new loader, in random order."""
    rows = np.random.default_rng(0).permutation(len(source))
    jobs = [Job("train", rows[i : i + batch], "flip", (0, 0)) for i in range(0, len(rows), batch)]
    loader = Loader({"train": source}, size, workers, batch)
    with contextlib.closing(loader):
        for _ in loader.batches(jobs[: 4 * max(workers, 1)]):  # starts the processes
            pass
        start = time.perf_counter()
        loaded = sum(len(each.good) for each in loader.batches(jobs))
        return loaded / (time.perf_counter() - start)


def measure_loading(folder: Path, args: Any) -> list[dict[str, float]]:
    names = Names(write_images(folder, args.images, args.width))
    sources = {kind: find_images(folder / kind, names) for kind in ("files", "shards")}
    print(f"{'workers':>7}  {'files/s':>9}  {'shards/s':>9}  {'ratio':>5}")
    rows = []
    for workers in map(int, args.workers.split(",")):
        turns = [[rate(each, args.size, args.batch, workers) for each in sources.values()] for _ in range(TURNS)]
        files, shards = (statistics.median(column) for column in zip(*turns, strict=True))
        print(f"{workers:>7}  {files:>9.0f}  {shards:>9.0f}  {shards / files:>5.2f}", flush=True)
        rows.append({"workers": workers, "files": files, "shards": shards, "ratio": shards / files})
    return rows


def measure_index(folder: Path, members: int) -> dict[str, float]:
    """CPU seconds to read the headers of shards of 10,000 members, to load their index, and to find all names in it."""
    per_shard = 10_000
    names = [f"{number // per_shard:04}/{number:09}.jpg" for number in range(members)]
    (folder / "index").mkdir()
    for start in range(0, members, per_shard):
        with tarfile.open(folder / "index" / f"{start:09}.tar", "w") as tar:
            for name in names[start : start + per_shard]:
                info = tarfile.TarInfo(name)
                info.size = 400
                tar.addfile(info, io.BytesIO(bytes(400)))
    shards = stat_shards(sorted((folder / "index").iterdir()))
    seconds = {}
    for kind in ("headers", "cache"):
        begin = time.process_time()
        index = read_index(folder / "index", shards)
        seconds[kind] = time.process_time() - begin
    begin = time.process_time()
    assert (index.find(names) >= 0).all()
    seconds["find"] = time.process_time() - begin
    stored = sum(path.stat().st_size for path in (folder / "cache").iterdir()) / members
    return {**{kind: each * 100_000 / members for kind, each in seconds.items()}, "bytes_per_member": stored}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--width", type=int, default=640, help="width of the JPEGs in pixels")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", default="0,2", help="numbers of workers to try")
    parser.add_argument("--members", type=int, default=100_000, help="members of the shards of the index")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LIFELABEL_CACHE"] = str(folder / "empty")
        print_header(args, f"{args.images} images", f"{args.width} px JPEGs", f"{args.size} px", f"batch {args.batch}")
        rows = measure_loading(folder, args)
        os.environ["LIFELABEL_CACHE"] = str(folder / "cache")
        index = measure_index(folder, args.members)
        seconds = ", ".join(f"{kind} {index[kind]:.2f} s" for kind in ("headers", "cache", "find"))
        print(f"index, CPU time per 100,000 members: {seconds}; {index['bytes_per_member']:.1f} bytes per member")
    figures: dict[str, Any] = {f"{row.pop('workers')} workers": row for row in rows}
    write_json(args, "", figures | {f"index, {name}": value for name, value in index.items()})


if __name__ == "__main__":
    main()
