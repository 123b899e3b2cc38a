"""The speed of average precision, relative to a loop over the classes with scikit-learn.

    python -m benchmarks.metrics [--sizes 41146x81,1000000x100] [--device cpu] [--json FILE]

Scores are float32 logits, correlated with labels of which 3.6 % are positive, as in COCO. scikit-learn is timed on
a few classes, in turns with ours on all classes. Figures are medians over the turns.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.common import make_parser, print_header, write_json
from lifelabel.metrics.functions import average_precision
from lifelabel.nn.device import resolve_device

TURNS, FEW = 5, 8


def compare(images: int, classes: int, device: torch.device) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(images, classes, generator=generator) < 0.036
    scores = torch.randn(images, classes, generator=generator) + 1.5 * labels
    on_device, on_host = (scores.to(device), labels.to(device)), (scores.numpy(), labels.numpy())
    ours, loop = [], []
    for turn in range(TURNS + 1):
        start = time.perf_counter()
        ap = average_precision(*on_device).cpu().numpy()
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        expected = [average_precision_score(on_host[1][:, c], on_host[0][:, c]) for c in range(min(FEW, classes))]
        loop.append((time.perf_counter() - start) / len(expected) * classes)
        if not turn:  # the first turn is for warm-up
            ours, loop = [], []
            difference = float(np.abs(ap[: len(expected)] - expected).max())
    seconds, slow = statistics.median(ours), statistics.median(loop)
    return {
        "images": images, "classes": classes, "ours_s": seconds, "sklearn_s": slow, "ratio": slow / seconds,
        "difference": difference,
    }  # fmt: skip


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sizes", default="41146x81,1000000x100", help="imagesxclasses, …")
    given = parser.parse_args()
    device = resolve_device(given.device)
    print_header(given)
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
    columns = {"ours_s": "ours, s", "sklearn_s": "scikit-learn, s", "ratio": "ratio", "difference": "difference"}
    figures = {
        f"{row['images']:,} images, {row['classes']} classes": {name: row[key] for key, name in columns.items()}
        for row in rows
    }
    write_json(given, "", figures)


if __name__ == "__main__":
    main()
