"""Asynchronous checkpoints: a step waits neither for the copy to the host nor for the disk."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from lifelabel.utils.transfer import record_event

__all__ = ["AsyncSaver", "all_finite"]


class AsyncSaver:
    """Writes states in a thread, one at a time. Training continues when a copy of the state is made on its device."""

    def __init__(self, write: Callable[[dict[str, Any]], None], device: torch.device):
        self.write, self.device = write, device
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        # of another priority: streams of one pool are reused, and a step may be recorded on one of them
        self.stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self.writing: Future[None] | None = None

    @property
    def busy(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def save(self, state: dict[str, Any]) -> None:
        self.wait()
        held, copied = [_map_tensors(state, Tensor.clone)], record_event(self.device)
        self.writing = self.thread.submit(self._copy_and_write, held, copied)

    def _copy_and_write(self, held: list[dict[str, Any]], copied: torch.cuda.Event | None) -> None:
        """Copy the state in `held` to the host and write it. Popping it frees the copy on the device."""
        state = held.pop()
        if self.stream is not None and copied is not None:
            with torch.cuda.stream(self.stream):
                self.stream.wait_event(copied)
                state = _map_tensors(state, Tensor.cpu)
        self.write(state)

    def wait(self) -> None:
        """Wait until the last state is written. An error of the thread is raised here."""
        writing, self.writing = self.writing, None
        try:
            if writing is not None:
                writing.result()
        finally:
            del writing  # it holds the error, and the traceback of the error holds this frame

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self.thread.shutdown()


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Nested dicts and lists with every tensor changed."""
    if isinstance(value, dict):
        same = copy.copy(value)  # the state dict of a module has a version attribute
        same.update({key: _map_tensors(each, change) for key, each in value.items()})
        return same
    if isinstance(value, (list, tuple)):
        return type(value)(_map_tensors(each, change) for each in value)
    return change(value) if isinstance(value, Tensor) else value


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested dicts and lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, Tensor):
        yield value


def all_finite(value: Any) -> bool:
    """Whether all floating-point tensors in nested dicts and lists are finite. Waits once for each device."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in _tensors(value):
        if tensor.is_floating_point():
            by_device.setdefault(tensor.device, []).append(torch.isfinite(tensor).all())
    return all(bool(torch.stack(each).all()) for each in by_device.values())
