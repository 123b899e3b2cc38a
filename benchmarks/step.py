"""The speed of AGCN's training step, relative to a minimal step of the same networks and to straightforward loops.

    python -m benchmarks.step [--backbone tiny] [--size 64] [--batch 8] [--device cpu] [--json FILE]
    python -m benchmarks.step --backbone resnet101 --size 448 --batch 8,64 --device cuda

ours      AGCN's `observe` in its second task, as the engine calls it: student, expert, matrix, graph, losses, Adam.
bare      Student forward and backward, frozen expert forward, Adam, in the same precision, recorded and compiled in the
          same way; no labels, no matrix, no loss but a mean: the minimum for any method with an expert.
recorded  The same as ours, recorded as a CUDA graph but not compiled (GPU only).
eager     The same as ours, neither recorded nor compiled: bfloat16, channels-last (GPU only).
plain     Float32, one operation after the other. The matrix is counted image by image on the host and copied to the
          device at every step, as in the authors' code, without its files. TF32 is off.
tf32      The same with TF32 convolutions, which torch uses on a GPU by default.
"""

from __future__ import annotations

import argparse
import copy
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.common import NEW, STEP, Results, make_batch, make_method, make_parser, step_rates
from lifelabel.methods import Batch
from lifelabel.nn import losses
from lifelabel.nn.cuda_graphs import StepRecorder
from lifelabel.nn.device import resolve_device
from lifelabel.nn.expert import Expert
from lifelabel.nn.graph import GraphNetwork
from lifelabel.nn.learner import Learner, LinearHead

Step = Callable[[Batch], Any]


def agcn(given: argparse.Namespace, **options: Any) -> Any:
    options = {"precision": given.precision, "compile": given.compile, **options}
    more = {"backbone": given.backbone, "batch_norm": "frozen", "method_options": {"hidden": given.hidden}}
    return make_method("agcn", resolve_device(given.device), **more, **options)


def old_classes(given: argparse.Namespace) -> tuple[str, ...]:
    return tuple(f"old {number}" for number in range(given.classes - len(NEW)))


def ours(given: argparse.Namespace, compile: str | None = None) -> Step:
    method = agcn(given, compile=compile or given.compile)
    old = old_classes(given)
    method.begin_task(old)
    method.acm.update((torch.rand(64, len(old), device=method.setting.device) < 0.1).double())
    method.end_task()
    method.begin_task(NEW)
    return method.observe


def bare(given: argparse.Namespace) -> Step:
    s = agcn(given).setting
    learner = Learner(LinearHead(s.backbone.dim), s)
    expert = Expert(s.backbone, torch.randn(len(old_classes(given)), s.backbone.dim, device=s.device), s)
    learner.begin_task(first_task=False)
    recorder = StepRecorder(s.record)

    def learn(batch: Batch) -> dict[str, Tensor]:
        loss = learner.train_features(batch.images).mean()
        learner.step(loss)
        return {"loss": loss.detach(), "expert": expert.logits(batch.images).mean()}

    return lambda batch: recorder(learn, batch)


def plain(given: argparse.Namespace, tf32: bool) -> Step:
    s = agcn(given, precision="fp32", compile="off").setting
    old, new = old_classes(given), len(NEW)
    words = s.embed([*old, *NEW])
    backbone = s.backbone.to(s.device)
    backbone.set_training(freeze_statistics=True)
    graph = GraphNetwork(words.shape[1], given.hidden, backbone.dim).to(s.device)
    optimizer = torch.optim.Adam([*backbone.parameters(), *graph.parameters()], lr=1e-5)
    expert = copy.deepcopy(backbone).eval()
    expert_nodes = torch.randn(len(old), backbone.dim, device=s.device)
    pairs, hard_counts = np.zeros((new, new)), np.full(new, 1e-6)
    soft, soft_pairs = np.zeros(len(old)), np.zeros((len(old), new))
    matrix = np.eye(len(old) + new, dtype=np.float32)

    def step(batch: Batch) -> None:
        with torch.no_grad():
            expert_logits = expert(batch.images) @ expert_nodes.T
        for y, z in zip(batch.labels.cpu().numpy(), expert_logits.softmax(1).cpu().numpy(), strict=True):
            present = np.flatnonzero(y)
            soft[:] += z
            for j in present:
                hard_counts[j] += 1
                soft_pairs[:, j] += z
                for i in present:
                    pairs[i, j] += 1
        matrix[len(old) :, len(old) :] = pairs / hard_counts
        matrix[: len(old), len(old) :] = soft_pairs / hard_counts
        matrix[len(old) :, : len(old)] = (soft_pairs / np.maximum(soft, 1e-6)[:, None]).T
        np.fill_diagonal(matrix, 1)
        nodes = graph(torch.from_numpy(matrix).to(s.device), words)
        logits = backbone(batch.images) @ nodes.T
        cls = losses.classification(logits[:, len(old) :], batch.labels)
        dst = losses.distillation(logits[:, : len(old)], expert_logits.sigmoid())
        gph = losses.relationship(expert_nodes, nodes[: len(old)])
        optimizer.zero_grad()
        (0.3 * cls + 0.7 * dst + 1e3 * gph).backward()
        optimizer.step()
        cls.item(), dst.item(), gph.item()

    def with_tf32(batch: Batch) -> None:
        before = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = tf32
        step(batch)
        torch.backends.cudnn.allow_tf32 = before

    return with_tf32


def compare(given: argparse.Namespace, count: int) -> dict[str, dict[str, float | None]]:
    """Images/s of each path, and the speed of `ours` relative to it."""
    torch.compiler.reset()  # it holds a few shapes only
    steps = {"ours": ours(given), "bare": bare(given)}
    on_gpu = resolve_device(given.device).type == "cuda"
    if on_gpu:
        steps |= {"recorded": ours(given, "auto"), "eager": ours(given, "off")}
    steps["plain"] = plain(given, tf32=False)
    if on_gpu:
        steps["tf32"] = plain(given, tf32=True)
    speed = step_rates(steps, make_batch(given, count), given.steps)
    ratios = {name: None if name == "ours" else speed["ours"] / each for name, each in speed.items()}
    return {
        name: {f"images/s at batch {count}": each, f"ratio at batch {count}": ratios[name]}
        for name, each in speed.items()
    }


def main() -> None:
    given = make_parser(__doc__, **STEP, batch="8", classes=40).parse_args()
    what = f"{given.size} px", f"{given.classes} classes", given.precision
    results, found = Results(given, "", given.backbone, *what), defaultdict[str, dict[str, float | None]](dict)
    for count in map(int, given.batch.split(",")):
        for name, figures in compare(given, count).items():
            found[name] |= figures
    for name, row in found.items():
        results.add(name, row)


if __name__ == "__main__":
    main()
