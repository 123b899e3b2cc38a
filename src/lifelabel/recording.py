"""A method's step on a GPU as one CUDA graph: recorded once, replayed as long as the shapes stay."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import torch
from torch import Tensor

from lifelabel.errors import UserError

Learn = Callable[..., dict[str, Tensor]]

UNRECORDED = 3
"""Steps of the same shapes that are run before they are recorded: kernels are then chosen, and memory is there."""
steady: ContextVar[bool] = ContextVar("steady", default=False)
"""Whether the shapes of the running step are here to stay, so that it pays to compile for them."""
WORTH_COMPILING = 8000
"""Steps from which on it pays: compiling takes minutes once, and seconds when torch's cache has it."""


@contextlib.contextmanager
def staying(shapes: bool) -> Iterator[None]:
    token = steady.set(shapes)
    try:
        yield
    finally:
        steady.reset(token)


@contextlib.contextmanager
def in_passing(shape: bool) -> Iterator[None]:
    """Convolutions in here are torch's own if theirs is a `shape` that comes once: cuDNN takes seconds to prepare
    depthwise kernels for each shape in bfloat16."""
    cudnn = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = cudnn and not shape
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = cudnn


def worth_compiling(choice: str, device: torch.device, steps: int) -> bool:
    """Whether a run of so many steps compiles the backbone, for `--compile` auto, on or off."""
    if choice == "off" or device.type != "cuda":
        return False
    lacks = lacks_for_compiling(device)
    if choice == "on" and lacks:
        raise UserError(f"--compile on needs {lacks}, which is not here: install it, or leave the flag out")
    return not lacks and (choice == "on" or steps >= WORTH_COMPILING)


def lacks_for_compiling(device: torch.device) -> str | None:
    """What Triton, which makes the kernels, lacks here; it comes with torch on Linux, and builds its launchers in C."""
    if torch.cuda.get_device_capability(device) < (7, 0):
        return "a GPU of compute capability 7.0"
    if find_spec("triton") is None:
        return "Triton"
    if not any(map(which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return "a C compiler"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Python's headers (Python.h)"
    return None


class Recorder:
    """Runs a method's `learn`, after three steps of the same shapes as a replay: one launch in place of thousands.

    What `learn` does must be the same on the device every time: what changes from step to step is in the tensors that
    it is given, or in tensors that it changes in place. Smaller batches, as a task's last, are run step by step, in
    passing, and so is everything without a GPU.
    """

    def __init__(self, wanted: bool):
        self.wanted = wanted
        self.most = 0
        """Images of the largest batch that was recorded."""
        self.forget()

    def forget(self) -> None:
        """What is recorded holds no more: classes, an expert or an optimiser are new."""
        self.steps: Counter[tuple[Any, ...]] = Counter()
        self.recorded: dict[tuple[Any, ...], Recording] = {}

    def __call__(self, learn: Learn, *given: Any, mode: Any = None) -> dict[str, Tensor]:
        """What `learn` returns for dataclasses of tensors; `mode` is whatever else its work depends on."""
        if not self.wanted:
            return learn(*given)
        kind = (mode, *(None if each is None else tuple(t.shape for t in tensors([each])) for each in given))
        if kind not in self.recorded:
            images = len(tensors(given)[0])
            self.steps[kind] += images >= self.most
            if self.steps[kind] <= UNRECORDED:
                # the last before the recording compiles: that cannot be done while it is recorded
                with in_passing(images < self.most), staying(self.steps[kind] == UNRECORDED):
                    return learn(*given)
            self.recorded[kind], self.most = Recording(learn, given), images
        return self.recorded[kind].replay(given)


class Recording:
    """One step, recorded with inputs and outputs at fixed places in memory."""

    def __init__(self, learn: Learn, given: Sequence[Any]):
        kept = [None if each is None else on_its_own(each) for each in given]
        self.inputs = tensors(kept)
        self.graph = torch.cuda.CUDAGraph()
        device = self.inputs[0].device
        here = torch.cuda.current_stream(device)
        try:
            # on the device of the run, whichever is the current one; a checkpoint may be on its way in another thread
            with (
                staying(True),
                torch.cuda.device(device),
                torch.cuda.graph(self.graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"),
            ):
                self.parts = learn(*kept)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            torch.cuda.set_stream(here)
            reason = str(error).partition("\n")[0]
            raise UserError(f"this step cannot be recorded as a CUDA graph: give --compile off ({reason})") from error

    def replay(self, given: Sequence[Any]) -> dict[str, Tensor]:
        torch._foreach_copy_(self.inputs, tensors(given))
        self.graph.replay()
        return {name: part.clone() for name, part in self.parts.items()}  # the next replay writes to the same places


def tensors(given: Sequence[Any]) -> list[Tensor]:
    """All tensors of some dataclasses, in order."""
    values = (getattr(each, field.name) for each in given if each is not None for field in dataclasses.fields(each))
    return [value for value in values if isinstance(value, Tensor)]


def on_its_own(given: Any) -> Any:
    """The same with copies of its tensors, without what need not be there."""
    own: dict[str, Tensor | None] = {}
    for field in dataclasses.fields(given):
        value = getattr(given, field.name)
        if isinstance(value, Tensor):
            own[field.name] = value.clone()
        elif field.default is None:
            own[field.name] = None
    return dataclasses.replace(given, **own)
