"""The speed of the image loader from tar shards, relative to the same files in a folder; the time of the index.

    python -m benchmarks.shards [--images 2000] [--width 640] [--size 224] [--batch 32] [--workers 0,2] [--json FILE]

The same JPEGs are in a folder and in ten shards. Both are loaded in random order, in turns, so that a busy machine
slows both, and by new processes every turn. The files are in the page cache of the system. Figures are medians over the
turns. The index is made of shards with --members small files: by reading all headers, and from the cache folder.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.common import Results, make_parser, medians
from benchmarks.loading import loader_rate, write_jpegs
from lifelabel.images.shards import find_images
from lifelabel.images.tar_index import read_index, stat_shards
from lifelabel.streams import Names

SHARDS = 10


def write_images(folder: Path, count: int, width: int) -> list[str]:
    """Write `count` JPEGs into `folder/files` and into shards in `folder/shards`. Returns their names."""
    for name in ("drawn", "files", "shards"):
        (folder / name).mkdir()
    drawn = write_jpegs(folder / "drawn", width)
    names = [f"{row:06}.jpg" for row in range(count)]
    with contextlib.ExitStack() as stack:
        tars = [stack.enter_context(tarfile.open(folder / "shards" / f"train-{n:06}.tar", "w")) for n in range(SHARDS)]
        for row, name in enumerate(names):
            (folder / "files" / name).write_bytes(drawn[row % len(drawn)].read_bytes())
            tars[row * SHARDS // count].add(folder / "files" / name, name)
    return names


def measure_loading(folder: Path, given: argparse.Namespace, results: Results) -> None:
    names = Names(write_images(folder, given.images, given.width))
    rows = np.random.default_rng(0).permutation(len(names))
    for workers in map(int, given.workers.split(",")):
        speed = medians({
            kind: functools.partial(loader_rate, find_images(folder / kind, names), rows, given, workers)
            for kind in ("files", "shards")
        })  # fmt: skip
        results.add(f"{workers} workers", {**speed, "ratio": speed["shards"] / speed["files"]})


def measure_index(folder: Path, members: int) -> dict[str, float]:
    """CPU seconds to read the headers of shards of 10,000 members, to load their index, and to find all names in it.

    They are per 100,000 members.
    """
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
    flags = {"images": 2000, "width": 640, "size": 224, "batch": 32, "workers": "0,2", "members": 100_000}
    given = make_parser(__doc__, **flags).parse_args()
    what = f"{given.images} images", f"{given.width} px JPEGs", f"{given.size} px", f"batch {given.batch}"
    results = Results(given, "", *what)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LIFELABEL_CACHE"] = str(folder / "empty")
        measure_loading(folder, given, results)
        os.environ["LIFELABEL_CACHE"] = str(folder / "cache")
        for kind, value in measure_index(folder, given.members).items():
            results.add(f"index, {kind}", value)


if __name__ == "__main__":
    main()
