"""Child processes (label server, image workers, runs of a comparison), their memory, and stop signals."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["START_METHOD", "catch_stop_signals", "init_child", "keep_freed_memory", "num_cores"]

START_METHOD = "fork" if sys.platform == "linux" else "spawn"
"""Fork starts at once. With spawn a new process imports everything again."""
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NO_LIMIT = -1
_KEPT_BY_CHILD = 256 << 20
"""Free bytes that a child process keeps: a large photograph must not occupy its memory for the rest of the run."""
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


def init_child(*ignored: object) -> None:
    """Set up a child process: it ignores Ctrl-C, ends when its parent dies, and keeps some freed memory."""
    gc.freeze()  # inherited CUDA objects must not be collected here: that ends the process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to every process of the group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    keep_freed_memory(_KEPT_BY_CHILD)
    if "SLURM_JOB_ID" in os.environ:  # Slurm signals all processes of a job, and a checkpoint still needs this one
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # a fork has no thread pool: using it would block forever
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # without prctl the child notices a closed pipe instead
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def catch_stop_signals(on_stop: Callable[[], None]) -> Iterator[None]:
    """Call `on_stop` on Ctrl-C and SIGTERM; restore the handlers afterwards. Only the main thread can set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: on_stop()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
