"""The speed of average precision, relative to a loop over the classes with scikit-learn.

    python -m benchmarks.metrics [--sizes 41146x81,1000000x100] [--device cpu] [--json FILE]

Scores are float32 logits, correlated with labels of which 3.6 % are positive, as in COCO. scikit-learn is timed on
a few classes, in turns with ours on all classes. Figures are medians over the turns.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from sklearn.metrics import average_precision_score

from benchmarks.common import Results, make_parser, medians, seconds
from lifelabel.metrics.functions import average_precision
from lifelabel.nn.device import resolve_device

FEW = 8


def compare(images: int, classes: int, device: torch.device) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.rand(images, classes, generator=generator) < 0.036
    scores = torch.randn(images, classes, generator=generator) + 1.5 * labels
    few, on_device = min(FEW, classes), (scores.to(device), labels.to(device))
    columns = list(zip(labels.numpy().T[:few], scores.numpy().T[:few], strict=True))

    def ours() -> np.ndarray:
        return average_precision(*on_device).cpu().numpy()

    def loop() -> list[float]:
        return [average_precision_score(*column) for column in columns]

    difference = float(np.abs(ours()[:few] - loop()).max())
    times = medians({"ours": functools.partial(seconds, ours), "loop": functools.partial(seconds, loop)})
    slow = times["loop"] / few * classes
    return {"ours, s": times["ours"], "scikit-learn, s": slow, "ratio": slow / times["ours"], "difference": difference}


def main() -> None:
    given = make_parser(__doc__, sizes="41146x81,1000000x100").parse_args()
    device, results = resolve_device(given.device), Results(given, "")
    for size in given.sizes.split(","):
        images, classes = map(int, size.split("x"))
        results.add(f"{images:,} images, {classes} classes", compare(images, classes, device))


if __name__ == "__main__":
    main()
