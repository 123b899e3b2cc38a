"""Asynchronous copies between host and device."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to the device. On a GPU the copy is asynchronous, from pinned memory."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class HostCopy:
    """A copy of a device tensor to the host, asynchronous on CUDA. `wait` returns it when it has arrived."""

    def __init__(self, source: Tensor):
        if source.device.type == "cuda":
            self.tensor = torch.empty_like(source, device="cpu", pin_memory=True).copy_(source, non_blocking=True)
        else:
            self.tensor = source.cpu()  # the same tensor on the CPU; a copy that waits on mps
        self.arrived = record_event(source.device)

    def wait(self) -> Tensor:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tensor


def record_event(device: torch.device) -> torch.cuda.Event | None:
    """An event after the work queued on a CUDA device so far. None on others: their copies wait."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event
