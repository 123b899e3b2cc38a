"""A method's step on a GPU as one CUDA graph: recorded once, replayed as long as the shapes stay."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from importlib.util import find_spec
from shutil import which
from typing import Any

import torch
from torch import Tensor

from lifelabel.errors import UserError

Learn = Callable[..., dict[str, Tensor]]

COMPILERS = ("cc", "gcc", "clang")

IN_A_ROW = 3
"""Steps of the same shapes that are run before they are recorded: kernels are then chosen, and memory is there."""
steady: ContextVar[bool] = ContextVar("steady", default=False)
"""Whether the shapes of the running step are here to stay, so that it pays to compile for them."""

WORTH_COMPILING = 4000
"""Steps from which on it pays: compiling takes about a minute."""


@contextlib.contextmanager
def staying(shapes: bool) -> Iterator[None]:
    token = steady.set(shapes)
    try:
        yield
    finally:
        steady.reset(token)


def worth_compiling(choice: str, device: torch.device, steps: int) -> bool:
    """Whether a run of so many steps compiles the backbone, for `--compile` auto, on or off.

    It takes a GPU, Triton, which comes with torch on Linux, and a C compiler, with which Triton makes its launchers.
    """
    if choice == "off" or device.type != "cuda":
        return False
    lacks = "Triton" if find_spec("triton") is None else "a C compiler" if not any(map(which, COMPILERS)) else None
    if choice == "on" and lacks:
        raise UserError(f"--compile on needs {lacks}, which is not here: install it, or leave the flag out")
    return not lacks and (choice == "on" or steps >= WORTH_COMPILING)


class Recorder:
    """Runs a method's `learn`, from the third step of the same shapes on as a replay: one launch in place of thousands.

    What `learn` does must be the same on the device every time: what changes from step to step is in the tensors that
    it is given, or in tensors that it changes in place. Other shapes, as of a task's last batch, are run step by step,
    and so is everything without a GPU.
    """

    def __init__(self, wanted: bool):
        self.wanted = wanted
        self.forget()

    def forget(self) -> None:
        """What is recorded holds no more: classes, an expert or an optimiser are new."""
        self.last: tuple[Any, ...] = ()
        self.row = 0
        self.recorded: dict[tuple[Any, ...], Recording] = {}

    def __call__(self, learn: Learn, *given: Any, mode: Any = None) -> dict[str, Tensor]:
        """What `learn` returns for dataclasses of tensors; `mode` is whatever else its work depends on."""
        if not self.wanted:
            return learn(*given)
        kind = (mode, *(None if each is None else tuple(t.shape for t in tensors([each])) for each in given))
        self.row = self.row + 1 if kind == self.last else 1
        self.last = kind
        if kind not in self.recorded:
            if self.row <= IN_A_ROW:
                # the last before the recording compiles: that cannot be done while it is recorded
                with staying(self.row == IN_A_ROW):
                    return learn(*given)
            self.recorded[kind] = Recording(learn, given)
        return self.recorded[kind].replay(given)


class Recording:
    """One step, recorded with inputs and outputs at fixed places in memory."""

    def __init__(self, learn: Learn, given: Sequence[Any]):
        kept = [None if each is None else on_its_own(each) for each in given]
        self.inputs = tensors(kept)
        self.graph = torch.cuda.CUDAGraph()
        # a checkpoint may be on its way in another thread
        with staying(True), torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
            self.parts = learn(*kept)

    def replay(self, given: Sequence[Any]) -> dict[str, Tensor]:
        torch._foreach_copy_(self.inputs, tensors(given))
        self.graph.replay()
        return {name: part.clone() for name, part in self.parts.items()}  # the next replay writes to the same places


def tensors(given: Sequence[Any]) -> list[Tensor]:
    """All tensors of some dataclasses, in order."""
    values = (getattr(each, field.name) for each in given if each is not None for field in dataclasses.fields(each))
    return [value for value in values if isinstance(value, Tensor)]


def on_its_own(given: Any) -> Any:
    """The same with copies of its tensors, and nothing else that was only for one step."""
    fields = ((field.name, getattr(given, field.name)) for field in dataclasses.fields(given))
    return dataclasses.replace(given, **{name: value.clone() for name, value in fields if isinstance(value, Tensor)})
