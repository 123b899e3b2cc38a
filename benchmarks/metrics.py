"""How fast average precision is, against scikit-learn's loop over the classes.

    python -m benchmarks.metrics [--sizes 41146x81,1000000x100] [--device cpu] [--json FILE]

Scores are float32 logits that know something of labels of which 3.6 % are positive, as COCO's. scikit-learn is timed
on a few classes in turns with ours on all of them; figures are medians over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.step import write
from lifelabel.config import resolve_device
from lifelabel.environment import commit, machine
from lifelabel.metrics import average_precision

TURNS, FEW = 5, 8


def compare(images: int, classes: int, device: torch.device) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(images, classes, generator=generator) < 0.036
    scores = torch.randn(images, classes, generator=generator) + 1.5 * labels
    there, theirs = (scores.to(device), labels.to(device)), (scores.numpy(), labels.numpy())
    ours, loop = [], []
    for turn in range(TURNS + 1):
        start = time.perf_counter()
        ap = average_precision(*there).cpu().numpy()
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        expected = [average_precision_score(theirs[1][:, c], theirs[0][:, c]) for c in range(min(FEW, classes))]
        loop.append((time.perf_counter() - start) / len(expected) * classes)
        if not turn:  # the first warms up
            ours, loop = [], []
            difference = float(np.abs(ap[: len(expected)] - expected).max())
    seconds, slow = statistics.median(ours), statistics.median(loop)
    return {
        "images": images, "classes": classes, "ours_s": seconds, "sklearn_s": slow, "ratio": slow / seconds,
        "difference": difference,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="41146x81,1000000x100", help="imagesxclasses, …")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = resolve_device(given.device)
    about = machine(device)
    print(f"{about['device']}, torch {about['torch']}, {about['threads']} threads, commit {commit()}")
    print(f"{'images':>9} {'classes':>8} {'ours s':>8} {'sklearn s':>10} {'ratio':>7} {'difference':>11}")
    rows = []
    for size in given.sizes.split(","):
        images, classes = map(int, size.split("x"))
        rows.append(row := compare(images, classes, device))
        print(
            f"{row['images']:>9,} {row['classes']:>8} {row['ours_s']:>8.3f} {row['sklearn_s']:>10.3f} "
            f"{row['ratio']:>7.1f} {row['difference']:>11.1e}",
            flush=True,
        )
    write(given, threads=about["threads"], rows=rows)


if __name__ == "__main__":
    main()
