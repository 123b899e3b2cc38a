"""What the correlation matrix and the graph cost in a training step, and how the step grows with the classes.

    python -m benchmarks.step [--backbone tiny] [--size 64] [--batch 8] [--device cpu] [--json FILE]

"share" compares AGCN's step with the same step (student, expert, three losses, Adam) whose classifier is a plain
matrix of the same size: what is left out is the ACM, the adjacency and the graph network. The two are timed in turns,
step by step, so that a busy machine slows both; figures are medians over the turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from lifelabel import losses
from lifelabel.config import Config, resolve_device
from lifelabel.environment import commit
from lifelabel.graph import embed
from lifelabel.learner import Expert, Learner, Setting
from lifelabel.methods import Batch
from lifelabel.methods.agcn import AGCN

NEW = 4
TURNS = 300


def make_setting(backbone: str, device: torch.device) -> Setting:
    return Setting.of(
        Config.make({"backbone": backbone}), lambda labels: torch.from_numpy(embed(labels)[0]).to(device), device
    )


def second_task(setting: Setting, classes: int, batch: Batch) -> AGCN:
    """AGCN in its second task, with an expert: all but the last NEW classes are old."""
    method = AGCN(setting, AGCN.Options())
    method.begin_task([f"old {i}" for i in range(classes - NEW)])
    method.acm.update((torch.rand(64, classes - NEW, device=setting.device) < 0.1).double())
    method.end_task()
    method.begin_task([f"new {i}" for i in range(NEW)])
    method.observe(batch)
    return method


class PlainStep:
    """The same step without matrix and graph: the nodes are a parameter."""

    def __init__(self, setting: Setting, classes: int):
        self.head = nn.Module()
        self.head.nodes = nn.Parameter(torch.randn(classes, setting.backbone.dim) * 0.05)
        self.learner = Learner(self.head, setting)
        self.expert = Expert(setting.backbone, self.head.nodes[:-NEW], setting)
        self.learner.begin_task(first=False)
        self.old = classes - NEW

    def observe(self, batch: Batch) -> dict[str, Tensor]:
        z = self.expert.logits(batch.images)
        nodes = self.head.nodes
        y_hat = self.learner.features(batch.images) @ nodes.T
        cls = losses.classification(y_hat[:, self.old :], batch.labels)
        dst = losses.distillation(y_hat[:, : self.old], z.sigmoid())
        gph = losses.relationship(self.expert.nodes, nodes[: self.old])
        self.learner.step(0.3 * cls + 0.7 * dst + 1e3 * gph)
        return {"cls": cls.detach(), "dst": dst.detach(), "gph": gph.detach()}


def seconds(step: AGCN | PlainStep, batch: Batch, device: torch.device) -> float:
    """One step, with the device idle before and after."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    step.observe(batch)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def compare(backbone: str, size: int, count: int, classes: int, device: torch.device) -> dict[str, float]:
    torch.manual_seed(0)
    images = torch.randn(count, 3, size, size, device=device)
    labels = (torch.rand(count, NEW, device=device) < 0.3).float()
    batch = Batch(images, labels, torch.ones_like(labels, dtype=torch.bool), tuple(f"new {i}" for i in range(NEW)))
    agcn = second_task(make_setting(backbone, device), classes, batch)
    plain = PlainStep(make_setting(backbone, device), classes)
    for step in (agcn, plain):
        seconds(step, batch, device)
    turns = [(seconds(agcn, batch, device), seconds(plain, batch, device)) for _ in range(TURNS)]
    agcn_s, plain_s = (statistics.median(column) for column in zip(*turns, strict=True))
    return {
        "classes": classes,
        "agcn_ms": 1e3 * agcn_s,
        "plain_ms": 1e3 * plain_s,
        "share_of_acm_and_graph": 1 - plain_s / agcn_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="tiny")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--classes", default="20,200,2000")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = resolve_device(given.device)
    rows = [compare(given.backbone, given.size, given.batch, int(c), device) for c in given.classes.split(",")]
    threads = torch.get_num_threads()
    print(f"{given.backbone}, {given.size} px, batch {given.batch}, {device}, {threads} threads, commit {commit()}")
    print(f"{'classes':>8} {'AGCN ms':>9} {'plain ms':>9} {'ACM+graph share':>16} {'step / first row':>20}")
    for row in rows:
        print(
            f"{row['classes']:>8} {row['agcn_ms']:>9.2f} {row['plain_ms']:>9.2f} "
            f"{row['share_of_acm_and_graph']:>15.1%} {row['agcn_ms'] / rows[0]['agcn_ms']:>20.2f}"
        )
    if given.json:
        given.json.write_text(json.dumps({"commit": commit(), "device": str(device), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
