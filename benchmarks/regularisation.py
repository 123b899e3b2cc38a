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

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import make_parser, print_header, write_json
from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
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


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--weights", default="imagenet")
    parser.add_argument("--size", type=int, default=352)
    parser.add_argument("--seed", type=int, default=0, help="of the tables that are drawn")
    given = parser.parse_args()
    found = table.read(given.table, given.root)
    train, test = found.train.labels.dense(), found.test.labels.dense()
    drawn = [draw(train, images, tasks, given.seed) for images, tasks in TABLES]
    used = np.unique(np.concatenate([rows for rows, _, _ in drawn]))
    options = {"backbone": given.backbone, "weights": given.weights, "method_options": {"warm_up": 0}}
    config = Config.make({"method": "weighted-ridge", "precision": "fp32", **options})
    setting = make_setting(config, lambda labels: torch.zeros(len(labels), 1), resolve_device(given.device))
    make = lambda: WeightedRidge(setting, config.method_options)  # noqa: E731
    print_header(given, f"{given.backbone}, {given.size} px", f"{len(used)} training images, {len(test)} test images")
    extract = make().extract
    of_train = extract_all(extract, setting, found.root, found.train, used, given.size)
    of_test = extract_all(extract, setting, found.root, found.test, np.arange(len(test)), given.size)
    print("".join(f"{name:>9}" for name in ("images", "tasks", "auto", "chosen", "best", "at", "loss")))
    results = []
    for (images, tasks), (rows, parts, of_row) in zip(TABLES, drawn, strict=True):
        method = make()
        method.extract = Lookup(extract, of_train[np.searchsorted(used, rows)])  # type: ignore[assignment]
        learn(method, train[rows], parts, of_row)
        columns = np.concatenate(parts)
        shown = test[:, columns].any(1)
        method.extract = Lookup(extract, of_test[torch.from_numpy(shown).to(of_test.device)])  # type: ignore[assignment]
        phi = method.features(torch.arange(int(shown.sum()), device=setting.device))

        def score(
            ridge: float, method: WeightedRidge = method, phi: Tensor = phi, y: np.ndarray = test[shown][:, columns]
        ) -> float:
            method.solve(ridge)
            return 100 * mean_average_precision(method.logits(phi).cpu(), y)

        chosen = method.ridge
        auto, fixed = score(chosen), [score(ridge) for ridge in FIXED]
        best = int(np.argmax(fixed))
        row = {"images": images, "tasks": tasks, "auto": auto, "chosen": chosen, "best": fixed[best], "at": FIXED[best]}
        results.append({**row, "loss": fixed[best] - auto, "fixed": fixed})
        print("".join(f"{value:>9.4g}" for value in (*row.values(), fixed[best] - auto)), flush=True)
    losses = [row["loss"] for row in results]
    print(f"loss: mean {np.mean(losses):.2f}, largest {max(losses):.2f}")
    worst = max(results, key=lambda row: row["loss"])
    of = f"{worst['images']} images, {worst['tasks']} task{'s' if worst['tasks'] > 1 else ''}"
    figures = {"mean loss": float(np.mean(losses)), "largest loss": worst["loss"], "of": of}
    write_json(given, "seed of the tables", {str(given.seed): figures})


if __name__ == "__main__":
    main()
