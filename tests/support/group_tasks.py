"""What the processes of a group compute in tests, and their start."""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from benchmarks.float64 import use_float64
from lifelabel.errors import OtherProcess
from lifelabel.methods import METHODS
from lifelabel.parallel.group import Group
from lifelabel.parallel.passes import run_divided
from support import command_server
from support.methods import batch, calls_of, small


def in_processes(folder, size, task, *arguments):
    """The results of a function of this file in several processes, by rank."""
    folder = tempfile.mkdtemp(dir=folder)
    paths = [str(path) for path in Path(__file__).parents[1:3]]
    code = f"import sys; sys.path[:0] = {paths!r}; from support.group_tasks import main; main()"
    started = [command_server.start(folder, rank, size, task, *arguments, code=code) for rank in range(size)]
    assert [process.wait(120) for process in started] == [0] * size
    return [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(size)]


def learn_two_tasks(group):
    """The losses, scores and footprint of all registered methods in float64, by name."""
    use_float64()
    found = {}
    for name in METHODS:
        method = small(name, group=group)
        losses = [parts for call in calls_of(method, 2) if isinstance(parts := call(), dict)]
        scores = method.scores(batch(method, 1, 99).images).detach()
        footprint = method.footprint()
        found[name] = losses, scores, [footprint.images, footprint.bytes]
    return found


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()


def step(group, rows, whole=True, device="cpu"):
    """Two backward passes of a loss over the whole batch: features, gradients and running statistics."""
    body = network().train().to(device)
    torch.manual_seed(1)
    images = torch.randn(rows, 3, 9, 9, dtype=torch.float64).to(device)
    labels = torch.rand(rows, 6, dtype=torch.float64).to(device)
    features = run_divided(group, body, images, body if whole else None)
    loss = F.binary_cross_entropy_with_logits(features, labels)
    first = group.average(torch.autograd.grad(loss.exp(), list(body.parameters()), retain_graph=True))
    second = group.average(torch.autograd.grad(loss, list(body.parameters())))
    statistics = [value for name, value in body.state_dict().items() if "running" in name or "tracked" in name]
    return [tensor.detach().cpu() for tensor in (features, *first, *second, *statistics)]


def step_with_nccl(group, rows):
    """The same on a GPU. NCCL has one process per GPU: here it is one that sends everything to itself."""
    with tempfile.NamedTemporaryFile() as store:
        init = f"file://{store.name}"
        dist.init_process_group("cpu:gloo,cuda:nccl", init_method=init, rank=0, world_size=1)
        group.divides = True
        found = step(group, rows, device="cuda")
        dist.destroy_process_group()
    return found


def step_on_one_gpu(group, rows):
    """The same in several processes that share a GPU, with gloo."""
    return step(group, rows, device="cuda")


def draw_after_dropout(group):
    """Dropout draws numbers for the own rows only. Its output, and later numbers."""
    torch.manual_seed(3)
    dropout = nn.Sequential(nn.Dropout()).train()
    found = [run_divided(group, dropout, torch.ones(rows, 40), dropout).tolist() for rows in (1, 6)]
    return [found, torch.rand(4).tolist()]


def exchange(group):
    collected, first = group.collect(group.rank), group.to_first(group.rank)
    shared = group.share(lambda: ["of the first", group.share(lambda: group.rank)])
    try:
        group.share(lambda: 1 // 0)
    except (ZeroDivisionError, OtherProcess) as error:
        return [collected, first, shared, type(error).__name__]


def main():
    folder, rank, size, task, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    group = Group(int(rank), int(size))
    if group.size > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=group.rank, world_size=group.size)
    torch.save(globals()[task](group, *map(int, arguments)), f"{folder}/{rank}.pt")
    if group.size > 1:
        dist.destroy_process_group()
