"""How fast AGCN's step is: against the best bare step of the same networks, and against a loop written the obvious way.

    python -m benchmarks.step [--backbone tiny] [--size 64] [--batch 8] [--device cpu] [--json FILE]
    python -m benchmarks.step --backbone resnet101 --size 448 --batch 8,64 --device cuda

ours   AGCN's `observe` in its second task, as the engine calls it: student, expert, matrix, graph, three losses, Adam.
bare   student forward and backward, frozen expert forward, Adam, in the same precision and recorded in the same way; no
       label, no matrix, no loss but a mean: the least that any method with an expert must do.
plain  float32, one operation after the other; the matrix is counted image by image on the host and sent to the device
       at every step, as the authors' code does it, without its files.
tf32   the same with convolutions in TF32 on a GPU, where torch does so unless told otherwise.

They take turns of a few steps each, so that a busy machine slows all; figures are medians over the turns.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lifelabel import losses
from lifelabel.config import Config, resolve_device
from lifelabel.environment import commit, machine
from lifelabel.graph import GraphNetwork, embed
from lifelabel.learner import Expert, Learner, LinearHead, Setting
from lifelabel.methods import Batch
from lifelabel.methods.agcn import AGCN
from lifelabel.recording import Recorder

NEW, TURNS = 4, 15
Step = Callable[[Batch], Any]


def setting(given: argparse.Namespace, precision: str, compile: str) -> Setting:
    torch.manual_seed(0)
    options = {"backbone": given.backbone, "precision": precision, "compile": compile, "batch_norm": "frozen"}
    device = resolve_device(given.device)
    return Setting.of(Config.make(options), lambda labels: torch.from_numpy(embed(labels)[0]).to(device), device)


def classes(given: argparse.Namespace) -> tuple[list[str], tuple[str, ...]]:
    """Names of the old and of the new classes."""
    return [f"old {i}" for i in range(given.classes - NEW)], tuple(f"new {i}" for i in range(NEW))


def ours(given: argparse.Namespace) -> Step:
    method = AGCN(setting(given, given.precision, given.compile), AGCN.Options(hidden=given.hidden))
    old, new = classes(given)
    method.begin_task(old)
    method.acm.update((torch.rand(64, len(old), device=method.setting.device) < 0.1).double())
    method.end_task()
    method.begin_task(new)
    return method.observe


def bare(given: argparse.Namespace) -> Step:
    s = setting(given, given.precision, given.compile)
    learner = Learner(LinearHead(s.backbone.dim), s)
    expert = Expert(s.backbone, torch.randn(given.classes - NEW, s.backbone.dim, device=s.device), s)
    learner.begin_task(first=False)
    recorder = Recorder(s.record)

    def learn(batch: Batch) -> dict[str, Tensor]:
        loss = learner.features(batch.images).mean()
        learner.step(loss)
        return {"loss": loss.detach(), "expert": expert.logits(batch.images).mean()}

    return lambda batch: recorder(learn, batch)


def plain(given: argparse.Namespace, tf32: bool) -> Step:
    s = setting(given, "fp32", "off")
    old, new = classes(given)
    words = s.embed([*old, *new])
    backbone = s.backbone.to(s.device)
    backbone.set_training(freeze_statistics=True)
    graph = GraphNetwork(words.shape[1], given.hidden, backbone.dim).to(s.device)
    optimizer = torch.optim.Adam([*backbone.parameters(), *graph.parameters()], lr=1e-5)
    expert = copy.deepcopy(backbone).eval()
    expert_nodes = torch.randn(len(old), backbone.dim, device=s.device)
    count, seen = len(old) + NEW, np.full(NEW, 1e-6)
    pairs, soft, soft_pairs = np.zeros((NEW, NEW)), np.zeros(len(old)), np.zeros((len(old), NEW))
    matrix = np.eye(count, dtype=np.float32)

    def step(batch: Batch) -> None:
        with torch.no_grad():
            z = expert(batch.images) @ expert_nodes.T
        for y, belief in zip(batch.labels.cpu().numpy(), z.softmax(1).cpu().numpy(), strict=True):
            shown = np.flatnonzero(y)
            soft[:] += belief
            for j in shown:
                seen[j] += 1
                soft_pairs[:, j] += belief
                for i in shown:
                    pairs[i, j] += 1
        matrix[len(old) :, len(old) :] = pairs / seen
        matrix[: len(old), len(old) :] = soft_pairs / seen
        matrix[len(old) :, : len(old)] = (soft_pairs / np.maximum(soft, 1e-6)[:, None]).T
        np.fill_diagonal(matrix, 1)
        nodes = graph(torch.from_numpy(matrix).to(s.device), words)
        logits = backbone(batch.images) @ nodes.T
        cls = losses.classification(logits[:, len(old) :], batch.labels)
        dst = losses.distillation(logits[:, : len(old)], z.sigmoid())
        gph = losses.relationship(expert_nodes, nodes[: len(old)])
        optimizer.zero_grad()
        (0.3 * cls + 0.7 * dst + 1e3 * gph).backward()
        optimizer.step()
        cls.item(), dst.item(), gph.item()

    def with_or_without(batch: Batch) -> None:
        usual = torch.backends.cudnn.allow_tf32
        torch.backends.cudnn.allow_tf32 = tf32
        step(batch)
        torch.backends.cudnn.allow_tf32 = usual

    return with_or_without


def images_per_second(steps: dict[str, Step], batch: Batch, per_turn: int) -> dict[str, float]:
    """Medians over turns; a turn ends when the device has done its last step."""
    device = batch.images.device
    turns: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(TURNS + 1):
        for name, step in steps.items():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            start = time.perf_counter()
            for _ in range(per_turn):
                step(batch)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn:  # the first warms up, and records
                turns[name].append((time.perf_counter() - start) / per_turn)
    return {name: len(batch.images) / statistics.median(seconds) for name, seconds in turns.items()}


def batch_of(given: argparse.Namespace, count: int) -> Batch:
    device = resolve_device(given.device)
    images = torch.randn(count, 3, given.size, given.size, device=device)
    labels = (torch.rand(count, NEW, device=device) < 0.3).float()
    return Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), classes(given)[1])


def compare(given: argparse.Namespace, count: int) -> dict[str, float]:
    torch.compiler.reset()  # it keeps a few shapes only
    steps = {"ours": ours(given), "bare": bare(given), "plain": plain(given, tf32=False)}
    if resolve_device(given.device).type == "cuda":
        steps["tf32"] = plain(given, tf32=True)
    speed = images_per_second(steps, batch_of(given, count), given.steps)
    return {"batch": count, **speed, **{f"of_{name}": speed["ours"] / speed[name] for name in speed if name != "ours"}}


def asking(description: str | None) -> argparse.ArgumentParser:
    """What every benchmark of steps can be asked."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto", choices=("auto", "fp32", "bf16"))
    parser.add_argument("--compile", default="on", choices=("auto", "on", "off"))
    parser.add_argument("--steps", type=int, default=10, help="steps a turn")
    parser.add_argument("--json", type=Path)
    return parser


def write(given: argparse.Namespace, **figures: Any) -> None:
    """Figures, with what they are of, to the file that was asked for."""
    if given.json:
        about = machine(resolve_device(given.device))
        asked = {name: str(value) for name, value in vars(given).items()}
        told = {"date": about["date"], "device": about["device"], "commit": commit(), "asked": asked, **figures}
        given.json.write_text(json.dumps(told, indent=1) + "\n")


def main() -> None:
    parser = asking(__doc__)
    parser.add_argument("--batch", default="8")
    parser.add_argument("--classes", type=int, default=40)
    given = parser.parse_args()
    about = machine(resolve_device(given.device))
    print(
        f"{given.backbone}, {given.size} px, {given.classes} classes, {given.precision}; {about['device']}, "
        f"torch {about['torch']}, {about['threads']} threads, commit {commit()}"
    )
    rows = []
    for count in map(int, given.batch.split(",")):
        rows.append(row := compare(given, count))
        if len(rows) == 1:
            print("".join(f"{name.replace('of_', 'ours / '):>{max(9, len(name) + 6)}}" for name in row))
        print("".join(f"{value:>{max(9, len(name) + 6)}.5g}" for name, value in row.items()), flush=True)
    write(given, rows=rows)


if __name__ == "__main__":
    main()
