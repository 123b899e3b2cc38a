"""What a run ran on: versions, commit, device, memory."""

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
        **{name: installed(name) for name in ("torchvision", "timm", "numpy", "pillow")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "threads": torch.get_num_threads(),
    }


def memory(device: torch.device) -> dict[str, int | None]:
    """The most memory this process has held, here and on the device, in bytes."""
    # reserved: what a recorded step uses lies in memory that is allocated to nobody
    of_device = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
    return {"peak_memory_bytes": peak_memory(), "peak_device_memory_bytes": of_device}


def installed(name: str) -> str | None:
    """The version of a package, or None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """The CPU's name as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def forget_peak() -> None:
    """Begin to look for the most memory anew, where the system lets one: a process may train several times."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int | None:
    """The most memory this process has held since `forget_peak`, in bytes; None where the system does not say."""
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
    """The git commit of the lifelabel that runs, with + where files differ from it; None outside its checkout."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # installed inside somebody else's checkout: not ours
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
