"""Processes beside the one that trains: the keeper of the labels, and workers that decode images."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

START = "fork" if sys.platform == "linux" else "spawn"
"""A fork starts at once; elsewhere a new process imports everything anew."""
_PR_SET_PDEATHSIG = 1


def settle_in(*ignored: object) -> None:
    """What such a process does first: leave Ctrl-C to the one that trains, and not outlive it."""
    gc.freeze()  # what it inherited is not its own to clear away: a GPU's things would take the process down
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches every process of the terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # after a fork its pool of threads is gone, and waiting for it would be for ever
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # without it, it notices within seconds all the same
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def asked_to_stop(ask: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call `ask`; the handlers before are put back. Only a main thread can have any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: ask()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
