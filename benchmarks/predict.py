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
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.common import Results, learn, make_method, make_parser, rates
from benchmarks.loading import image_paths, photographs
from lifelabel.images.decode import open_image
from lifelabel.images.loader import default_workers
from lifelabel.model import Model, ModelInfo, load, write_model
from lifelabel.nn.device import resolve_device
from lifelabel.utils.memory import keep_freed_memory
from lifelabel.utils.processes import init_child

TASKS = [tuple(f"class {task}-{number}" for number in range(20)) for task in range(4)]


def make_model(given: argparse.Namespace, folder: Path) -> Model:
    """A model of 80 classes, trained on noise, written and loaded."""
    options = {"backbone": given.backbone, "weights": given.weights, "batch_size": 8, "pool": "avg"}
    device, own = resolve_device(given.device), {"warm_up": 0}
    method = make_method("weighted-ridge", device, method_options=own, **options)
    learn(method, TASKS, torch.randint(256, (8, given.size, given.size, 3), dtype=torch.uint8))
    network = method.network()
    info = ModelInfo(
        classes=sum(TASKS, ()), task_of_class=tuple(task for task, names in enumerate(TASKS) for _ in names),
        image_size=given.size, method="weighted-ridge", label="weighted-ridge", backbone=given.backbone, pool="avg",
        normalize=tuple(
            {"mean": list(part.normalize.mean), "std": list(part.normalize.std)} for part in network.backbone.parts
        ),
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


def bare(model: Model, paths: list[Path], batch: int, workers: int) -> Callable[[], None]:
    network, device = model.network, model.device
    options: dict[str, Any] = {"num_workers": workers, "worker_init_fn": init_child} if workers else {}

    @torch.no_grad()
    def score() -> None:
        decoder: Any = Decoder(paths, model.info.image_size, batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=model.precision == "bf16"):
            for pixels in DataLoader(decoder, batch_size=None, pin_memory=device.type == "cuda", **options):
                images = network.backbone.normalize(pixels)
                if device.type == "cuda":
                    images = images.contiguous(memory_format=torch.channels_last)
                network(images).float().sigmoid().cpu()

    return score


def ours(model: Model, paths: list[Path], batch: int, workers: int) -> Callable[[], None]:
    def score() -> None:
        assert not any(isinstance(found, str) for _, found in model.score_files(paths, batch, workers))

    return score


def main() -> None:
    flags = {"images": Path, "count": 300, "backbone": "efficientnet-lite0", "weights": "none", "size": 352}
    given = make_parser(__doc__, **flags, batch=int, workers=int).parse_args()
    keep_freed_memory()
    with photographs(given.images, given.count) as source, tempfile.TemporaryDirectory() as folder:
        model, paths = make_model(given, Path(folder)), image_paths(source)
        batch = given.batch or model.batch_size
        workers = default_workers(model.device) if given.workers is None else given.workers
        what = f"{given.size} px", f"{len(paths)} images", f"batch {batch}", f"{workers} workers", model.precision
        results = Results(given, "", given.backbone, *what)
        arguments = (model, paths, batch, workers)
        speed = rates({"bare": bare(*arguments), "ours": ours(*arguments)}, len(paths))
    for name, rate in speed.items():
        results.add(f"{name}, images/s", rate)
    results.add("ratio", speed["ours"] / speed["bare"])


if __name__ == "__main__":
    main()
