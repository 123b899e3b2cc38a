"""Asynchronous checkpoints: a state is written as it was when `save` was called."""

import threading

import pytest
import torch
from torch import nn

from lifelabel.engine.checkpoint import AsyncSaver, _map_tensors, all_finite

CPU = torch.device("cpu")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
devices = pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=gpu)])


@devices
def test_a_state_is_written_as_it_was_when_it_was_saved(device):
    written, proceed = [], threading.Event()
    saver = AsyncSaver(lambda state: (proceed.wait(10), written.append(state)), device)
    weights = torch.zeros(3, device=device)
    state = {"weights": [weights], "step": 1}
    saver.save(state)
    weights += 1
    assert saver.busy and not written
    proceed.set()
    saver.close()
    assert not saver.busy and written[0]["step"] == 1
    assert written[0]["weights"][0].device == CPU and written[0]["weights"][0].tolist() == [0, 0, 0]


def test_states_are_written_one_after_the_other():
    order, first, second = [], threading.Event(), threading.Event()

    def write(state):
        assert (first if state["step"] == 1 else second).wait(10)
        order.append(state["step"])

    saver = AsyncSaver(write, CPU)
    saver.save({"step": 1})
    threading.Timer(0.05, first.set).start()
    saver.save({"step": 2})  # waits until the first state is written
    assert order == [1] and saver.busy
    second.set()
    saver.close()
    assert order == [1, 2]


def test_an_error_of_the_thread_is_raised_once_by_the_next_wait():
    def full(state):
        raise OSError("no space")

    saver = AsyncSaver(full, CPU)
    saver.save({})
    with pytest.raises(OSError, match="no space"):
        saver.wait()
    saver.close()


def test_a_state_keeps_its_kind():
    state = nn.BatchNorm2d(2).state_dict()
    same = _map_tensors(state, torch.Tensor.clone)
    assert type(same) is type(state) and same._metadata == state._metadata
    state["weight"].zero_()
    assert same["weight"].tolist() == [1, 1]
    assert _map_tensors({"a": (1, [torch.ones(1)])}, lambda t: t + 1) == {"a": (1, [2])}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_all_finite(value):
    state = {"a": [torch.ones(2), {"b": torch.arange(3)}], "c": "text"}
    assert all_finite(state) and all_finite({})
    state["a"][1]["d"] = torch.tensor([0.0, value])
    assert not all_finite(state)
