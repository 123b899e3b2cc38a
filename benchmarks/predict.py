"""The speed of a finished model on image files, relative to a bare loop over its network.

    python -m benchmarks.predict [--device cpu|cuda] [--images DIR] [--count 300] [--backbone …] [--size 352] [--json F]

bare    Open and resize each file with the functions of the package, then `network(network.backbone.normalize(pixels))`
        for each batch: no folded batch norm, no list of unreadable files, no labels. On a GPU a DataLoader of torch
        decodes in worker processes, and the network runs in bfloat16 and in channels-last format.
ours    `Model.score_files`, with the same number of workers and the same batch size.

The model is weighted-ridge with two views of each image, written to a folder and loaded. Both run in turns over the
same files, so that a busy machine slows both. Figures are medians over the turns. Without --images the files are
640 x 480 JPEGs of images of the embedded stream. Random weights take the same time as trained ones.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.common import make_parser, print_header, write_json
from benchmarks.loading import image_paths, photographs
from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.images.decode import open_image
from lifelabel.images.loader import default_workers
from lifelabel.methods import METHODS, Batch
from lifelabel.model import Model, ModelInfo, load, write_model
from lifelabel.nn.device import resolve_device
from lifelabel.utils.memory import keep_freed_memory
from lifelabel.utils.processes import init_child

TURNS = 5
TASKS, CLASSES = 4, 20
Score = Callable[[], int]


def make_model(given: argparse.Namespace, folder: Path) -> Model:
    """A model of 80 classes, trained on noise, written and loaded."""
    torch.manual_seed(0)
    options = {"backbone": given.backbone, "weights": given.weights, "batch_size": 8, "pool": "avg"}
    config = Config.make({"method": "weighted-ridge", "method_options": {"warm_up": 0}, **options})
    device = resolve_device(given.device)
    setting = make_setting(config, lambda labels: torch.zeros(len(labels), 1), device)
    method = METHODS[config.method](setting, config.method_options)
    for task in range(TASKS):
        names = tuple(f"class {task}-{number}" for number in range(CLASSES))
        method.begin_task(names)
        labels = (torch.rand(8, CLASSES, device=device) < 0.3).float()
        images = torch.randn(8, 3, given.size, given.size, device=device)
        method.observe(Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), names))
        method.end_task()
    network = method.network()
    assert network is not None
    parts = network.backbone.parts
    info = ModelInfo(
        classes=tuple(name for names in method.tasks for name in names),
        task_of_class=tuple(np.repeat(range(TASKS), CLASSES).tolist()),
        image_size=given.size, method=config.method, label=config.method, backbone=given.backbone, pool="avg",
        normalize=tuple({"mean": list(part.normalize.mean), "std": list(part.normalize.std)} for part in parts),
        provenance=network.backbone.provenance.to_dict(), network=network.describe(),
    )  # fmt: skip
    write_model(folder, network, info)
    return load(folder, given.device)


class Decoder:
    """Batches of pixels for a DataLoader."""

    def __init__(self, paths: list[Path], size: int, batch: int):
        self.parts = [paths[start : start + batch] for start in range(0, len(paths), batch)]
        self.size = size

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, index: int) -> Tensor:
        from torchvision.transforms.v2 import functional as F

        images = (open_image(path, self.size) for path in self.parts[index])
        return torch.from_numpy(np.stack([np.asarray(F.resize(image, [self.size, self.size])) for image in images]))


def bare(model: Model, paths: list[Path], batch: int, workers: int) -> Score:
    network, device = model.network, model.device
    options: dict[str, Any] = {"num_workers": workers, "worker_init_fn": init_child} if workers else {}

    @torch.no_grad()
    def score() -> int:
        done = 0
        with autocast(model):
            decoder: Any = Decoder(paths, model.info.image_size, batch)
            for pixels in DataLoader(decoder, batch_size=None, pin_memory=device.type == "cuda", **options):
                images = network.backbone.normalize(pixels)
                if device.type == "cuda":
                    images = images.contiguous(memory_format=torch.channels_last)
                done += len(network(images).float().sigmoid().cpu())
        return done

    return score


@contextlib.contextmanager
def autocast(model: Model) -> Iterator[None]:
    with torch.autocast(model.device.type, torch.bfloat16) if model.precision == "bf16" else contextlib.nullcontext():
        yield


def ours(model: Model, paths: list[Path], batch: int, workers: int) -> Score:
    return lambda: sum(not isinstance(found, str) for _, found in model.score_files(paths, batch, workers))


def measure(scores: dict[str, Score]) -> dict[str, float]:
    """Images/s of each path: the median over the turns."""
    rates: dict[str, list[float]] = {name: [] for name in scores}
    for turn in range(TURNS + 1):
        for name, score in scores.items():
            start = time.perf_counter()
            done = score()
            if turn:  # the first turn is for warm-up
                rates[name].append(done / (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in rates.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--images", type=Path, help="a folder of JPEGs; none: generated 640 x 480 images")
    parser.add_argument("--count", type=int, default=300, help="number of images")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--weights", default="none", help="none (random), imagenet, or a file")
    parser.add_argument("--size", type=int, default=352)
    parser.add_argument("--batch", type=int, help="images per batch; none: the default of the model")
    parser.add_argument("--workers", type=int, help="processes that decode; none: the default of the device")
    given = parser.parse_args()
    keep_freed_memory()
    with photographs(given.images, given.count) as source, tempfile.TemporaryDirectory() as folder:
        model, paths = make_model(given, Path(folder)), image_paths(source)
        batch = given.batch or model.batch_size
        workers = default_workers(model.device) if given.workers is None else given.workers
        what = f"{given.size} px", f"{len(paths)} images", f"batch {batch}", f"{workers} workers", model.precision
        print_header(given, given.backbone, *what)
        arguments = (model, paths, batch, workers)
        speed = measure({"bare": bare(*arguments), "ours": ours(*arguments)})
    ratio = speed["ours"] / speed["bare"]
    print(f"{'bare images/s':>13}  {'ours images/s':>13}  {'ratio':>5}")
    print(f"{speed['bare']:>13.1f}  {speed['ours']:>13.1f}  {ratio:>5.2f}", flush=True)
    write_json(given, "", {**{f"{name}, images/s": rate for name, rate in speed.items()}, "ratio": ratio})


if __name__ == "__main__":
    main()
