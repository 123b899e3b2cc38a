"""CUDA graphs: the training step of a method is recorded once and replayed while its shapes stay the same."""

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

_Step = Callable[..., dict[str, Tensor]]

_EAGER_STEPS = 3
"""Steps of the same shapes that run before the recording, so that kernels are chosen and memory is allocated."""
_COMPILE_FROM = 8000
"""`--compile auto` compiles in runs of at least this many steps.

Compiling takes minutes, or seconds if the cache of torch has the result.
"""

static_shapes: ContextVar[bool] = ContextVar("static_shapes", default=False)
"""Whether the shapes of the current step will repeat, so that it is worth the time to compile for them."""


@contextlib.contextmanager
def set_static_shapes(value: bool) -> Iterator[None]:
    """Set `static_shapes` inside the context."""
    token = static_shapes.set(value)
    try:
        yield
    finally:
        static_shapes.reset(token)


@contextlib.contextmanager
def without_cudnn(disable: bool) -> Iterator[None]:
    """Disable cuDNN inside the context, if `disable`.

    This is for shapes that occur only once: cuDNN takes seconds to prepare depthwise bfloat16 kernels for a new shape.
    """
    enabled = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = enabled and not disable
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = enabled


def should_compile(choice: str, device: torch.device, steps: int) -> bool:
    """Whether a run of `steps` steps compiles the backbone, for `--compile` auto, on or off."""
    if choice == "off" or device.type != "cuda":
        return False
    missing = _missing_for_compile(device)
    if choice == "on" and missing:
        raise UserError(f"--compile on needs {missing}, which this machine does not have: use --compile auto")
    return not missing and (choice == "on" or steps >= _COMPILE_FROM)


def _missing_for_compile(device: torch.device) -> str | None:
    """What this machine lacks for `torch.compile`, which generates kernels with Triton; None if nothing."""
    if torch.cuda.get_device_capability(device) < (7, 0):
        return "a GPU of compute capability 7.0"
    if find_spec("triton") is None:
        return "Triton"
    if not any(map(which, filter(None, (os.environ.get("CC"), "gcc", "clang")))):
        return "a C compiler"
    if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        return "Python's headers (Python.h)"
    return None


class StepRecorder:
    """Runs the `learn` of a method. After three steps of the same shapes it records the step and replays it.

    A replay launches all kernels of a step with one call. `learn` must run the same kernels in every step. Values that
    change from step to step must be in the tensors that it receives, or in tensors that it updates in place. Batches
    that are smaller than a recorded one, such as the last batch of a task, are not recorded. On the CPU nothing is
    recorded.
    """

    def __init__(self, enabled: bool):
        self.enabled = enabled
        self.largest_batch = 0
        """Number of images of the largest recorded batch."""
        self.reset()

    def reset(self) -> None:
        """Remove all recordings, because the classes, the expert or the optimizer have changed."""
        self.steps: Counter[tuple[Any, ...]] = Counter()
        self.recorded: dict[tuple[Any, ...], _RecordedStep] = {}

    def __call__(self, learn: _Step, *inputs: Any, mode: Any = None) -> dict[str, Tensor]:
        """The result of `learn` for inputs that are dataclasses of tensors, or None.

        If the kernels of `learn` depend on more than the shapes of the inputs, `mode` must state it.
        """
        if not self.enabled:
            return learn(*inputs)
        key = (mode, *(None if each is None else tuple(t.shape for t in _tensors([each])) for each in inputs))
        if key not in self.recorded:
            images = len(_tensors(inputs)[0])
            self.steps[key] += images >= self.largest_batch
            if self.steps[key] <= _EAGER_STEPS:
                # the last eager step compiles: compiling is impossible during the recording
                with without_cudnn(images < self.largest_batch), set_static_shapes(self.steps[key] == _EAGER_STEPS):
                    return learn(*inputs)
            self.recorded[key], self.largest_batch = _RecordedStep(learn, inputs), images
        return self.recorded[key].replay(inputs)


class _RecordedStep:
    """One recorded step, with inputs and outputs at fixed addresses."""

    def __init__(self, learn: _Step, inputs: Sequence[Any]):
        static_inputs = [None if each is None else _with_copied_tensors(each) for each in inputs]
        self.inputs = _tensors(static_inputs)
        self.graph = torch.cuda.CUDAGraph()
        device = self.inputs[0].device
        current = torch.cuda.current_stream(device)
        try:
            # the device of the run may not be the current one; thread_local: another thread may copy a checkpoint
            with (
                set_static_shapes(True),
                torch.cuda.device(device),
                torch.cuda.graph(self.graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"),
            ):
                self.outputs = learn(*static_inputs)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            torch.cuda.set_stream(current)
            reason = str(error).partition("\n")[0]
            raise UserError(f"this step cannot be recorded as a CUDA graph ({reason}): use --compile off") from error

    def replay(self, inputs: Sequence[Any]) -> dict[str, Tensor]:
        torch._foreach_copy_(self.inputs, _tensors(inputs))
        self.graph.replay()
        return {name: output.clone() for name, output in self.outputs.items()}  # the next replay overwrites them


def _tensors(inputs: Sequence[Any]) -> list[Tensor]:
    """All tensors in the fields of some dataclasses, in order."""
    values = (getattr(each, field.name) for each in inputs if each is not None for field in dataclasses.fields(each))
    return [value for value in values if isinstance(value, Tensor)]


def _with_copied_tensors(inputs: Any) -> Any:
    """The same dataclass with copies of its tensors. Other optional fields are None."""
    copied: dict[str, Tensor | None] = {}
    for field in dataclasses.fields(inputs):
        value = getattr(inputs, field.name)
        if isinstance(value, Tensor):
            copied[field.name] = value.clone()
        elif field.default is None:
            copied[field.name] = None
    return dataclasses.replace(inputs, **copied)
