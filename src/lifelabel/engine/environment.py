"""The environment of a run: versions, commit, device, memory."""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from lifelabel.version import __version__


def machine(device: torch.device) -> dict[str, Any]:
    """Date, versions, commit and device, for environment.json."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "lifelabel": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **{name: _installed(name) for name in ("torchvision", "timm", "numpy", "pillow")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
    }


def memory(device: torch.device) -> dict[str, int | None]:
    """Peak memory of this process on the host and on the device, in bytes."""
    # reserved, not allocated: the memory of recorded steps is not counted as allocated
    on_device = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    return {"peak_memory_bytes": _peak_memory(), "peak_device_memory_bytes": on_device}


@functools.cache
def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory, if the system allows it. A process may train several times."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak_memory() -> int | None:
    """Peak memory of this process since `reset_peak_memory`, in bytes; None if the system does not report it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@functools.cache
def commit() -> str | None:
    """The git commit of this checkout of lifelabel, with + if files differ from it; None outside a checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # fails if lifelabel is installed inside the checkout of another project
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
