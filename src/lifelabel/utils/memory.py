"""Memory of the C library."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["release_freed_memory"]


def release_freed_memory() -> None:
    """Return freed memory of this process to the system, if the C library can do so (glibc).

    A run keeps freed memory from step to step (`keep_freed_memory`). An evaluation needs more memory than a step: what
    it has freed would otherwise stay resident, in other places of the heap after every task.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
