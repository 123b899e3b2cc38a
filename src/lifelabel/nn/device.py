"""The device and the precision of a run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from lifelabel.errors import UserError

_NAMES = "give auto, cpu, cuda, cuda:N or mps"


def resolve_device(name: str, float64: bool = False) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda`, `cuda:N` or `mps`, the GPU of an Apple computer.

    `auto` is CUDA if torch has it, else the CPU. It is never mps, which has no float64: several methods need that.
    `float64` says that the caller needs it. Raises a `UserError` if the machine does not have the device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}': {_NAMES}") from None
    if device.type not in ("cpu", "cuda", "mps"):
        raise UserError(f"device '{name}' is not supported: {_NAMES}")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device '{name}' does not exist: torch reports {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    if device.type == "mps" and (device.index or not torch.backends.mps.is_available()):
        raise UserError(f"device '{name}' does not exist: torch reports no such Apple GPU; use cpu")
    if device.type == "mps" and float64:
        raise UserError("device 'mps' has no float64 numbers, which this method needs: use cpu, or another method")
    return device


def resolve_precision(precision: str, device: torch.device) -> str:
    """The precision of a run, `fp32` or `bf16`. `auto` is bf16 on a GPU that supports it, and fp32 elsewhere.

    >>> resolve_precision("auto", torch.device("cpu"))
    'fp32'
    """
    if precision != "auto":
        return precision
    if device.type != "cuda":
        return "fp32"
    with torch.cuda.device(device):
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"


@contextlib.contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Let cuDNN use only kernels that add in a fixed order: two runs with the same seed on one GPU are then bit-equal.

    benchmarks.step measures no loss of speed by it.
    """
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before
