"""Child processes (label server, image workers, runs of a comparison) and stop signals."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["START_METHOD", "catch_stop_signals", "init_child", "num_cores"]

START_METHOD = "fork" if sys.platform == "linux" else "spawn"
"""Fork starts at once. With spawn a new process imports everything again."""
_PR_SET_PDEATHSIG = 1


def init_child(*ignored: object) -> None:
    """Set up a child process: it ignores Ctrl-C and ends when its parent dies."""
    gc.freeze()  # inherited CUDA objects must not be collected here: that ends the process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to every process of the group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
