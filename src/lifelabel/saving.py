"""What leaves the device beside the run: checkpoints and losses. A step waits neither for the host nor for the disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class Saver:
    """Writes states in a thread of its own, one at a time: the run goes on when a copy is on its own device."""

    def __init__(self, write: Callable[[dict[str, Any]], None], device: torch.device):
        self.write, self.device = write, device
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        # of another priority: those of one pool are handed out in turn, and a step may be recorded on one
        self.beside = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def save(self, state: dict[str, Any]) -> None:
        self.wait()
        kept, copied = [mapped(state, Tensor.clone)], mark(self.device)
        self.writing = self.thread.submit(self.bring_and_write, kept, copied)

    def bring_and_write(self, kept: list[dict[str, Any]], copied: torch.cuda.Event | None) -> None:
        """Write the state in `kept`, which is taken out of it: the copy on the device goes when it is on the host."""
        state = kept.pop()
        if self.beside is not None and copied is not None:
            with torch.cuda.stream(self.beside):
                self.beside.wait_event(copied)
                state = mapped(state, Tensor.cpu)
        self.write(state)

    def wait(self) -> None:
        """Until the last state is written; what went wrong is raised here."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self.thread.shutdown()


class Sent:
    """Numbers on their way to the host."""

    def __init__(self, numbers: Tensor):
        self.there = numbers
        if numbers.device.type == "cuda":
            self.there = torch.empty_like(numbers, device="cpu", pin_memory=True).copy_(numbers, non_blocking=True)
        self.arrived = mark(numbers.device)

    def read(self) -> Tensor:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.there


def mark(device: torch.device) -> torch.cuda.Event | None:
    """A mark in the device's work so far; None where work is done when it is asked for."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same dicts and lists with every tensor changed."""
    if isinstance(value, dict):
        same = copy.copy(value)  # a module's state knows its version besides
        same.update({key: mapped(each, change) for key, each in value.items()})
        return same
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(each, change) for each in value)
    return change(value) if isinstance(value, Tensor) else value


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from tensors(each)
    elif isinstance(value, Tensor):
        yield value


def all_finite(value: Any) -> bool:
    """Whether every floating-point tensor in nested dicts and lists is finite; asks each device once."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors(value):
        if tensor.is_floating_point():
            by_device.setdefault(tensor.device, []).append(torch.isfinite(tensor).all())
    return all(bool(torch.stack(each).all()) for each in by_device.values())
