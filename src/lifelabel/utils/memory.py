"""The memory of this machine, and what the C library does with memory that is freed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import sys
from pathlib import Path

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NO_LIMIT = -1
_NO_MEMORY = (
    "can't allocate memory", "not enough memory", "MemoryError", "bad_alloc", "failed to map segment",
    "cannot allocate memory", "can't start new thread",
)  # fmt: skip
"""Parts of the messages of torch, of a child process, and of the loader of libraries."""
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


def out_of_memory(error: BaseException) -> bool:
    """Whether memory has run out: in Python, in torch on the CPU or a GPU, in a child process, or for a library.

    >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), out_of_memory(RuntimeError("shape"))
    (True, False)
    """
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM and error.filename is None
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(sign in str(error) for sign in _NO_MEMORY)


def available_memory() -> int:
    """The bytes that this process can still take: of the machine, of its control group, and of `ulimit -v`.

    2**63 if the system does not state it.
    """
    found = [2**63]
    with contextlib.suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError):  # "max" is no number
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found.append(limit - used)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            found.append(limit - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize())
    return max(min(found), 0)


def total_memory() -> int:
    """The bytes of memory of this machine; 2**63 if the system does not state it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on Windows
        return 2**63
