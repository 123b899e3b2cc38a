"""Exported models in ONNX Runtime, relative to the same networks in torch: the difference and the speed, on the CPU.

    python -m benchmarks.export [--backbone efficientnet-lite0] [--size 224,352] [--methods all] [--root DIR]

Each method learns two small tasks. Its network, with batch norm folded, computes the probabilities of batches of 8
images in torch (eager, channels-last) and as an exported ONNX model in ONNX Runtime, in turns, so that a busy machine
slows both. Figures are medians over the turns. The difference is the largest one of a probability. Without --root the
images are generated.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import make_parser, print_header, write_json
from benchmarks.loading import photographs
from lifelabel.config.config import Config
from lifelabel.engine.setup import make_setting
from lifelabel.images.photographs import FileImages
from lifelabel.images.transforms import load_batch
from lifelabel.methods import METHODS, Batch, HostBatch
from lifelabel.model.export_content import ProbabilityNetwork, onnx_program
from lifelabel.nn.inference import InferenceNetwork
from lifelabel.nn.onnx_runtime import open_session
from lifelabel.utils.memory import keep_freed_memory

BATCH, TURNS = 8, 5
TASKS = [tuple(f"class {task}.{number}" for number in range(40)) for task in range(2)]


def pixels_of(source: FileImages, size: int) -> Tensor:
    return torch.from_numpy(load_batch(source, np.arange(len(source)), size, "none", None)[0])


def learned(name: str, given: argparse.Namespace, pixels: Tensor) -> InferenceNetwork:
    """The network of a method after two tasks."""
    torch.manual_seed(0)
    options = {"backbone": given.backbone, "weights": given.weights, "batch_size": BATCH}
    own = {"warm_up": 0} if any(field.name == "warm_up" for field in fields(METHODS[name].Options)) else {}
    config = Config.make({"method": name, "method_options": own, **options})
    setting = make_setting(config, lambda labels: torch.randn(len(labels), 300), torch.device("cpu"))
    method = METHODS[name](setting, config.method_options)
    for classes in TASKS:
        method.begin_task(classes)
        for part in pixels.split(BATCH):
            labels = torch.rand(len(part), len(classes)) < 0.3
            known = torch.ones_like(labels)
            host = HostBatch(part, labels.numpy(), known.numpy())
            method.observe(Batch(setting.backbone.normalize(part), labels.float(), known, classes, host))
        method.end_task()
    network = method.network()
    assert network is not None, name
    return network


def compare(network: InferenceNetwork, pixels: Tensor, size: int) -> tuple[float, float, float]:
    """The largest difference of a probability, and images/s in torch and in ONNX Runtime."""
    probabilities = ProbabilityNetwork(network)
    images = network.backbone.normalize(pixels)
    session = open_session(onnx_program(probabilities, size).model_proto.SerializeToString())
    runs: list[Callable[[Tensor], Tensor]] = [
        probabilities,
        lambda part: torch.from_numpy(session.run(None, {"images": part.numpy()})[0]),
    ]
    seconds: list[list[float]] = [[], []]
    with torch.no_grad():
        for _ in range(TURNS + 1):
            found = []
            for run, times in zip(runs, seconds, strict=True):
                start = time.perf_counter()
                found.append(torch.cat([run(part) for part in images.split(BATCH)]))
                times.append(time.perf_counter() - start)
    rates = [len(images) / statistics.median(times[1:]) for times in seconds]  # the first turn is for warm-up
    return float((found[0] - found[1]).abs().max()), rates[0], rates[1]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--root", type=Path, help="a folder of JPEGs; none: generated images of 640 x 480")
    parser.add_argument("--backbone", default="efficientnet-lite0")
    parser.add_argument("--weights", default="imagenet", help="none (random), imagenet, or a file")
    parser.add_argument("--size", default="224,352", help="pixels of a side, separated by commas")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--methods", default="all")
    given = parser.parse_args()
    given.device = "cpu"
    keep_freed_memory()
    names = list(METHODS) if given.methods == "all" else given.methods.split(",")
    rows = {}
    with photographs(given.root, given.images) as source:
        print_header(given, given.backbone, f"{len(source)} images", f"batch {BATCH}")
        print("| method | pixels | difference | torch images/s | ONNX Runtime images/s | ratio |")
        print("|---|---:|---:|---:|---:|---:|")
        sizes = [int(size) for size in given.size.split(",")]
        for name in names:
            network = learned(name, given, pixels_of(source, min(sizes)))
            for size in sizes:
                difference, in_torch, in_onnx = compare(network, pixels_of(source, size), size)
                ratio = in_onnx / in_torch
                rows[f"{name}, {size}"] = {"difference": difference, "torch": in_torch, "onnx": in_onnx, "ratio": ratio}
                row = (name, f"{size}", f"{difference:.1e}", f"{in_torch:.1f}", f"{in_onnx:.1f}", f"{ratio:.2f}")
                print(f"| {' | '.join(row)} |", flush=True)
    write_json(given, "method and pixels", rows)


if __name__ == "__main__":
    main()
