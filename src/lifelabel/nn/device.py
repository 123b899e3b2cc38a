"""The device and the precision of a run."""

from __future__ import annotations

import torch

from lifelabel.errors import UserError

__all__ = ["resolve_device", "resolve_precision"]


def resolve_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:N`. Raises a `UserError` if the machine does not have it."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}': give auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported: give auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"device '{name}' does not exist: torch reports {torch.cuda.device_count()} CUDA devices; use cpu"
        )
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
