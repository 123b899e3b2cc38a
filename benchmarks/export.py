"""Exported models in ONNX Runtime, relative to the same networks in torch: the difference and the speed, on the CPU.

    python -m benchmarks.export [--backbone efficientnet-lite0] [--size 224,352] [--methods all] [--root DIR]

Each method learns two small tasks. Its network, with batch norm folded, computes the probabilities of batches of 8
images in torch (eager, channels-last) and as an exported ONNX model in ONNX Runtime, in turns, so that a busy machine
slows both. Figures are medians over the turns. The difference is the largest one of a probability. Without --root the
images are generated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import Results, learn, make_method, make_parser, rates
from benchmarks.loading import photographs
from lifelabel.images.photographs import FileImages
from lifelabel.images.transforms import load_batch
from lifelabel.methods import METHODS
from lifelabel.model.exporter import ProbabilityNetwork, onnx_program
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.onnx_runtime import open_session
from lifelabel.utils.memory import keep_freed_memory

BATCH = 8
TASKS = [tuple(f"class {task}.{number}" for number in range(40)) for task in range(2)]


def pixels_of(source: FileImages, size: int) -> Tensor:
    return torch.from_numpy(load_batch(source, np.arange(len(source)), size, "none", None)[0])


@torch.no_grad()
def compare(network: InferenceNetwork, pixels: Tensor, size: int) -> dict[str, float]:
    """The largest difference of a probability, images/s in torch and in ONNX Runtime, and their ratio."""
    probabilities = ProbabilityNetwork(network)
    session = open_session(onnx_program(probabilities, size).model_proto.SerializeToString())
    parts = network.backbone.normalize(pixels).split(BATCH)

    def in_onnx(part: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"images": part.numpy()})[0])

    def run(forward: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.cat([forward(part) for part in parts])

    difference = float((run(probabilities) - run(in_onnx)).abs().max())
    runs = {"torch": functools.partial(run, probabilities), "onnx": functools.partial(run, in_onnx)}
    speed = rates(runs, len(pixels))
    return {"difference": difference, **speed, "ratio": speed["onnx"] / speed["torch"]}


def main() -> None:
    flags = {"root": Path, "backbone": "efficientnet-lite0", "weights": "imagenet"}
    given = make_parser(__doc__, device="cpu", **flags, size="224,352", images=16, methods="all").parse_args()
    keep_freed_memory()
    sizes = [int(size) for size in given.size.split(",")]
    with photographs(given.root, given.images) as source:
        results = Results(given, "method and pixels", given.backbone, f"{len(source)} images", f"batch {BATCH}")
        for name in METHODS if given.methods == "all" else given.methods.split(","):
            own = {"warm_up": 0} if any(field.name == "warm_up" for field in fields(METHODS[name].Options)) else {}
            options = {"backbone": given.backbone, "weights": given.weights, "batch_size": BATCH}
            method = make_method(name, torch.device("cpu"), method_options=own, **options)
            learn(method, TASKS, pixels_of(source, min(sizes)))
            for size in sizes:
                results.add(f"{name}, {size}", compare(method.network(), pixels_of(source, size), size))


if __name__ == "__main__":
    main()
