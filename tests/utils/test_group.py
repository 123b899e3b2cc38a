"""Passes of the network that are divided among processes: the same numbers as in one process."""

import multiprocessing

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from lifelabel.errors import OtherProcess
from lifelabel.nn.parallel import run_divided
from lifelabel.utils.group import ALONE, Group


def _run(rank, size, store, task, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    results.put((rank, task(Group(rank, size))))
    dist.destroy_process_group()


@pytest.fixture
def in_processes(tmp_path):
    """The results of a function of a `Group` in several processes, by rank."""

    def call(size, task):
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        arguments = (size, tmp_path / f"store-{size}", task, results)
        processes = [context.Process(target=_run, args=(rank, *arguments)) for rank in range(size)]
        for process in processes:
            process.start()
        found = dict(results.get(timeout=120) for _ in processes)
        for process in processes:
            process.join()
            assert process.exitcode == 0
        return [found[rank] for rank in range(size)]

    return call


def network():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()


def step(group, rows):
    """Two backward passes of a loss over the whole batch: features, gradients and running statistics."""
    body = network().train()
    torch.manual_seed(1)
    images, labels = torch.randn(rows, 3, 9, 9, dtype=torch.float64), torch.rand(rows, 6, dtype=torch.float64)
    features = run_divided(group, body, images, training=True)
    loss = F.binary_cross_entropy_with_logits(features, labels)
    first = group.average(torch.autograd.grad(loss.exp(), list(body.parameters()), retain_graph=True))
    second = group.average(torch.autograd.grad(loss, list(body.parameters())))
    statistics = [value for name, value in body.state_dict().items() if "running" in name or "tracked" in name]
    return [tensor.detach().numpy() for tensor in (features, *first, *second, *statistics)]


def values(found):
    return [torch.from_numpy(array) for array in found]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rows", [7, 2])
def test_features_gradients_and_statistics_are_those_of_one_process(in_processes, size, rows):
    """Also if the rows cannot be divided evenly, and if a process has none."""
    alone = values(step(ALONE, rows))
    for found in in_processes(size, lambda group: step(group, rows)):
        for expected, value in zip(alone, values(found), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-11, atol=1e-13)


def test_batch_norm_of_own_rows_would_differ(in_processes):
    """The check above can fail: without the statistics of the whole batch the features differ."""

    def own(group):
        return run_divided(group, network().train(), torch.randn(6, 3, 9, 9).double(), training=False).detach().numpy()

    torch.manual_seed(0)
    alone = torch.from_numpy(step(ALONE, 6)[0])
    assert (torch.from_numpy(in_processes(2, own)[0]) - alone).abs().max() > 1e-3


def dropped(group):
    """Dropout draws numbers for the own rows only; the generators stay the same in all processes."""
    torch.manual_seed(3)
    run_divided(group, nn.Dropout().train(), torch.ones(5, 4), training=True)
    return torch.rand(4).tolist()


def test_random_numbers_after_dropout_are_the_same_in_all_processes(in_processes):
    first, *others = in_processes(3, dropped)
    assert others == [first, first]


def exchanged(group):
    collected = group.collect(group.rank)
    first = group.to_first(group.rank)
    shared = group.share(lambda: ("of the first", group.share(lambda: group.rank)))
    try:
        group.share(lambda: 1 // 0)
    except (ZeroDivisionError, OtherProcess) as error:
        return collected, first, shared, type(error).__name__


def test_the_first_process_shares_results_and_failures(in_processes):
    found = in_processes(3, exchanged)
    assert [each[0] for each in found] == [[0, 1, 2]] * 3
    assert [each[1] for each in found] == [[0, 1, 2], None, None]
    assert [each[2] for each in found] == [("of the first", 0)] * 3
    assert [each[3] for each in found] == ["ZeroDivisionError", "OtherProcess", "OtherProcess"]


@pytest.mark.parametrize("count", [0, 1, 5, 7, 24])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_every_row_belongs_to_one_process(count, size):
    parts = [list(range(count)[Group(rank, size).rows(count)]) for rank in range(size)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
