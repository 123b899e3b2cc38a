"""The memory of this machine, and what the C library does with memory that is freed."""

from __future__ import annotations

import ctypes
import os
import platform
import sys

__all__ = ["keep_freed_memory", "release_freed_memory", "total_memory"]

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NO_LIMIT = -1
_HEAP_STEP = 64 << 20
"""Bytes by which the heap grows. From this size on, the heaps of other threads are kept too."""


def keep_freed_memory(limit: int = _NO_LIMIT) -> None:
    """Let glibc keep freed memory, up to `limit` bytes of it, in this process and in those that it forks.

    Without it the memory of every large tensor is returned to the system and requested again in the next step, which
    can take half of the time of a step on the CPU. Settings of the user (MALLOC_* in the environment) are not changed.
    """
    own = any(name.startswith("MALLOC_") for name in os.environ)
    if own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((_M_MMAP_MAX, 0), (_M_TOP_PAD, _HEAP_STEP), (_M_TRIM_THRESHOLD, limit)):
        mallopt(parameter, value)


def release_freed_memory() -> None:
    """Return freed memory of this process to the system, if the C library can do so (glibc).

    A run keeps freed memory from step to step (`keep_freed_memory`). An evaluation needs more memory than a step: what
    it has freed would otherwise stay resident, in other places of the heap after every task.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def total_memory() -> int:
    """The bytes of memory of this machine; 2**63 if the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return 2**63
