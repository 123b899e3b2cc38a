"""Copies between host and device."""

import pytest
import torch

from lifelabel.utils.transfer import HostCopy, record_event, to_device

CPU = torch.device("cpu")
devices = pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)], ids=str)


@devices
def test_a_tensor_is_copied_to_the_device_and_back(device):
    numbers = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    moved = to_device(numbers, device)
    assert moved.device.type == device.type
    copy = HostCopy(moved)
    arrived = copy.wait()
    assert arrived.device == CPU and torch.equal(arrived, numbers)
    assert copy.wait() is arrived  # again: nothing is copied


@pytest.mark.gpu
def test_a_host_copy_has_the_values_of_its_start():
    numbers = torch.zeros(1000, device="cuda")
    copy = HostCopy(numbers)
    numbers += 1
    assert copy.wait().sum() == 0


def test_the_cpu_has_no_events():
    assert record_event(CPU) is None
