"""The end of a command on Ctrl-C: after the current step, or at once."""

from __future__ import annotations

import os
import signal
import sys
import threading

from lifelabel.cli.console import err
from lifelabel.parallel.torchrun import under_torchrun
from lifelabel.utils.processes import kill_children

_CAN_RESUME = (["train"], ["extend"], ["tune"], ["compare"], ["study"], ["demo"], ["leaderboard"])
_SECONDS = 8.0
"""The time for the current step and its checkpoint. Python cannot interrupt a backward pass."""
_lock = threading.RLock()  # a handler may run within its own block
_ending = threading.Lock()
"""Held from the time when a thread prints the last line."""
_timers: list[threading.Timer] = []
_watchers: list[tuple[threading.Thread, int]] = []
"""The thread that reads the numbers of signals, and the pipe to which Python writes them."""


def stopped_line() -> str:
    """The last line of a command that did not write its state."""
    hint = "; if the run folder exists, continue with --resume" if sys.argv[1:2] in _CAN_RESUME else ""
    return f"stopped at once{hint}"


def claim_last_line() -> bool:
    """Whether the caller prints the last line of the command. True once: two threads may end it at the same time."""
    return _ending.acquire(blocking=False)


def release_last_line() -> None:
    """The command has ended. Another one may begin in this process."""
    if _ending.locked():
        _ending.release()


def exit_at_once(*_: object) -> None:
    """End this process and its children. The main thread and the thread of `watch_signals` may do so together."""
    if claim_last_line():
        show_cursor = "\x1b[?25h" if err.is_terminal else ""  # a progress bar hides it
        os.write(2, f"{show_cursor}{stopped_line()}\n".encode())
    kill_children()
    os._exit(130)


def begin_stop() -> None:
    """Tell the user that the run ends after its step. It ends at once if that takes too long."""
    with _lock:
        if _timers:
            return
        _timers.append(threading.Timer(_SECONDS, exit_at_once))
    clear = "\r\x1b[2K" if err.is_terminal else ""
    # not through a console: a signal may have come while it prints
    os.write(2, f"{clear}stopping, saving a checkpoint; Ctrl-C again stops at once\n".encode())
    if not under_torchrun():  # it ends all processes of a run
        _timers[0].daemon = True
        _timers[0].start()


def watch_signals() -> None:
    """Call `begin_stop` when a signal comes, also in the middle of a backward pass: Python handles it only after that.

    This starts a thread. Processes that are forked, which need a process without threads, must have started.
    """
    if _watchers or os.name != "posix" or threading.current_thread() is not threading.main_thread():
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch, args=(read,), daemon=True)
    thread.start()
    _watchers.append((thread, write))


def _watch(read: int) -> None:
    while number := os.read(read, 1):
        if _timers and number[0] == signal.SIGINT and not under_torchrun():
            exit_at_once()
        elif number[0] in (signal.SIGINT, signal.SIGTERM):
            begin_stop()
    os.close(read)


def end_watch() -> None:
    """The training has ended in time. If it is being ended at once, this does not return: one last line is enough."""
    while _watchers:
        thread, write = _watchers.pop()
        signal.set_wakeup_fd(-1)
        os.close(write)
        thread.join()
    while _timers:
        timer = _timers.pop()
        timer.cancel()
        if timer.is_alive():
            timer.join()
