"""Whether two versions of lifelabel compute the same results: the SHA-256 of the files of small runs.

Run it in both checkouts on one machine and compare the two files:

    OMP_NUM_THREADS=1 python -m benchmarks.same_results --json before.json
    diff before.json after.json

Every registered method is trained on scenes. With `--photographs TABLE --root DIR`, five methods are trained on the
first 300 rows of a table as well. Only the public API is used, so that the same file runs on both versions.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

import lifelabel

FILES = ("metrics.json", "history.jsonl", "acm.npz", "model/model.safetensors")
ON_PHOTOGRAPHS = ("agcn", "lwf", "er", "l3a", "weighted-ridge")
SCENES: dict[str, Any] = {"tasks": 3, "stream_options": {"train_images": 60, "test_images": 40}}
OPTIONS = {"l3a": {"warm_up": 8}, "weighted-ridge": {"warm_up": 8}}
"""Options of methods: the warm-up must leave some images of the first task."""


def digests(**options: Any) -> dict[str, str]:
    """The SHA-256 of the files of a run, and the fingerprint of its stream."""
    with tempfile.TemporaryDirectory() as folder:
        run = lifelabel.train(Path(folder) / "run", device="cpu", **options)
        found = {"stream": run.environment["stream_fingerprint"]}
        for name in FILES:
            if (file := run.folder / name).is_file():
                found[name] = hashlib.sha256(file.read_bytes()).hexdigest()
        return found


def small_table(table: Path, folder: str, rows: int) -> Path:
    """The first images of each split of a table, as a table of their own: four fifths for training."""
    with open(table, newline="", encoding="utf-8") as file:
        every = list(csv.DictReader(file))
    count = {"train": rows * 4 // 5, "test": rows // 5}
    chosen = [row for split, n in count.items() for row in [r for r in every if r["split"] == split][:n]]
    small = Path(folder) / "table.csv"
    with open(small, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "split", "labels"))
        writer.writerows((row["file_name"], row["split"], row["labels"]) for row in chosen)
    return small


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", help="names with commas; without it all registered methods")
    parser.add_argument(
        "--photographs", type=Path, metavar="TABLE", help="a table with columns file_name, split, labels"
    )
    parser.add_argument("--root", type=Path, help="the folder of its images")
    parser.add_argument("--json", type=Path, help="write the digests to this file too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, str]] = {}
    for method in given.methods.split(",") if given.methods else sorted(lifelabel.METHODS):
        found[f"scenes {method}"] = digests(method=method, method_options=OPTIONS.get(method, {}), **SCENES)
        print(f"scenes {method}", *(f"{k} {v[:12]}" for k, v in found[f"scenes {method}"].items()), flush=True)
    if given.photographs:
        with tempfile.TemporaryDirectory() as folder:
            stream = str(small_table(given.photographs, folder, 300))
            for method in ON_PHOTOGRAPHS:
                name = f"photographs {method}"
                found[name] = digests(stream=stream, root=str(given.root), tasks=3, method=method)
                print(name, *(f"{k} {v[:12]}" for k, v in found[name].items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
