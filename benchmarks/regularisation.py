"""How much mAP the automatic regularisation of weighted-ridge loses on small tables, relative to the best fixed one.

    python -m benchmarks.regularisation photos.csv [--root DIR] [--weights imagenet] [--size 352] [--seed 0]

The table must have complete labels. Its test rows score every result. Ten small tables are drawn from its training
rows: 50 to 900 images that show one of the 16 most frequent classes, in 1, 2 or 5 tasks. An image goes to one of the
tasks that own one of its labels, and has the labels of that task only.

auto    mAP in % with the regularisation that the method chooses, `chosen`.
best    mAP in % with the best fixed `method.ridge` of a list, `at`.
loss    best - auto. The last line has the mean and the largest loss.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Results, make_method, make_parser
from lifelabel.images.loader import SCORING_BYTES, Loader, default_workers
from lifelabel.images.shards import find_images
from lifelabel.methods import Batch
from lifelabel.methods.weighted_ridge import WeightedRidge
from lifelabel.metrics import mean_average_precision
from lifelabel.nn.device import resolve_device
from lifelabel.nn.frozen_features import FrozenFeatures
from lifelabel.nn.method_setting import Setting
from lifelabel.streams import table
from lifelabel.streams.collection import Pool

TABLES = ((50, 1), (100, 1), (200, 1), (400, 1), (900, 1), (100, 2), (200, 2), (900, 2), (400, 5), (900, 5))
"""Images and tasks."""
CLASSES = 16
FIXED = tuple(round(0.05 * 2**power, 4) for power in range(12))


class Lookup:
    """Features that were computed before, in place of `FrozenFeatures`. An image is its row in `features`."""

    def __init__(self, extract: FrozenFeatures, features: Tensor):
        self.dim, self.standardised, self.features = extract.dim, extract.standardised, features

    def __call__(self, rows: Tensor) -> Tensor:
        return self.features[rows.long()].float()


def extract_all(
    extract: FrozenFeatures, setting: Setting, root: Path, pool: Pool, rows: np.ndarray, size: int
) -> Tensor:
    """The features of the images `rows` of a pool. Every image must be readable."""
    device = setting.device
    source = find_images(root, pool.names)
    loader = Loader({"train": source}, size, default_workers(device), scoring_bytes=SCORING_BYTES[device.type])
    found = []
    try:
        for loaded in loader.batches(loader.scoring_jobs("train", rows)):
            assert not loaded.bad, f"{len(loaded.bad)} images cannot be read, such as {loaded.bad[0]}"
            found.append(extract(setting.backbone.normalize(loaded.pixels)))
    finally:
        loader.close()
    return torch.cat(found)


def draw(labels: np.ndarray, images: int, tasks: int, seed: int) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """The rows of a small table, the columns of each task, and the task of each row."""
    rng = np.random.default_rng([seed, images, tasks])
    columns = rng.permutation(np.argsort(-labels.sum(0), kind="stable")[:CLASSES])
    rows = rng.permutation(np.flatnonzero(labels[:, columns].any(1)))[:images]
    parts = np.array_split(columns, tasks)
    owns = np.stack([labels[rows][:, part].any(1) for part in parts], 1)
    return rows, parts, np.array([rng.choice(np.flatnonzero(each)) for each in owns])


def learn(method: WeightedRidge, labels: np.ndarray, parts: list[np.ndarray], of_row: np.ndarray) -> None:
    for task, part in enumerate(parts):
        names = tuple(map(str, part))
        method.begin_task(names)
        own = np.flatnonzero(of_row == task)
        shown = torch.from_numpy(labels[own][:, part]).float().to(method.setting.device)
        rows = torch.from_numpy(own).to(shown.device)
        method.observe(Batch(rows, shown, torch.ones_like(shown, dtype=torch.bool), names))
        method.end_task()


def scorer(method: WeightedRidge, rows: Tensor, labels: np.ndarray) -> Callable[[float], float]:
    """A function from the strength of regularisation to the mAP in % on some images."""
    phi = method.features(rows)

    def score(ridge: float) -> float:
        method.solve(ridge)
        return 100 * mean_average_precision(method.logits(phi).cpu(), labels)

    return score


def main() -> None:
    flags = {"root": Path, "backbone": "efficientnet-lite0", "weights": "imagenet", "size": 352, "seed": 0}
    given = make_parser(__doc__, "table", **flags).parse_args()
    found = table.read(given.table, given.root)
    train, test = found.train.labels.dense(), found.test.labels.dense()
    drawn = [draw(train, images, tasks, given.seed) for images, tasks in TABLES]
    used = np.unique(np.concatenate([rows for rows, _, _ in drawn]))
    options = {"backbone": given.backbone, "weights": given.weights, "precision": "fp32"}
    device = resolve_device(given.device)
    make = functools.partial(make_method, "weighted-ridge", device, method_options={"warm_up": 0}, **options)
    what = f"{given.backbone}, {given.size} px", f"{len(used)} training images, {len(test)} test images"
    results = Results(given, "seed of the tables", *what)
    first = make()
    extract, setting = first.extract, first.setting
    of_train = extract_all(extract, setting, found.root, found.train, used, given.size)
    of_test = extract_all(extract, setting, found.root, found.test, np.arange(len(test)), given.size)
    print("".join(f"{name:>9}" for name in ("images", "tasks", "auto", "chosen", "best", "at", "loss")))
    losses = {}
    for (images, tasks), (rows, parts, of_row) in zip(TABLES, drawn, strict=True):
        method = make()
        method.extract = Lookup(extract, of_train[np.searchsorted(used, rows)])
        learn(method, train[rows], parts, of_row)
        columns, chosen = np.concatenate(parts), method.ridge
        shown = np.flatnonzero(test[:, columns].any(1))
        method.extract = Lookup(extract, of_test)
        score = scorer(method, torch.from_numpy(shown).to(device), test[shown][:, columns])
        auto, fixed = score(chosen), [score(ridge) for ridge in FIXED]
        best = int(np.argmax(fixed))
        loss = losses[f"{images} images, {tasks} task{'s' if tasks > 1 else ''}"] = fixed[best] - auto
        row = images, tasks, auto, chosen, fixed[best], FIXED[best], loss
        print("".join(f"{value:>9.4g}" for value in row), flush=True)
    of, largest = max(losses.items(), key=lambda each: each[1])
    mean = float(np.mean([*losses.values()]))
    results.add(f"{given.seed}", {"mean loss": mean, "largest loss": largest, "of": of})


if __name__ == "__main__":
    main()
