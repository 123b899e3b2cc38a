"""Child processes (label server, image workers, runs of a comparison), and stop signals.

On Linux a child is forked only by a process with one thread: a fork copies no other thread, and would wait forever for
a lock that one of them holds. A process with several threads asks the fork server of `multiprocessing`, a process with
one thread that has imported what the children need. Elsewhere a child is a new interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from lifelabel.parallel.torchrun import under_torchrun
from lifelabel.utils.memory import keep_freed_memory

_END_SECONDS = 1.0
"""The time that a child has to end when its pipe is closed."""
_POLL_SECONDS = 0.2
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_parent_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""The ends of this process of the pipes to its children."""
_children: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_server: dict[str, int] = {}
"""The process number of the fork server, and of the process that has started it."""
_main_lock = threading.Lock()
_PR_SET_PDEATHSIG = 1
_KEPT_BY_CHILD = 256 << 20
"""Free bytes that a child process keeps: a large photograph must not occupy its memory for the rest of the run."""


def start_method(*needed: object) -> str:
    """How a child process starts that gets the objects `needed`: fork, forkserver, or (not on Linux) spawn.

    Objects that a new process cannot import, such as a class of a notebook, are only in a fork.
    """
    if sys.platform != "linux":
        return "spawn"
    return "fork" if _num_threads() == 1 or not _can_import(needed) else "forkserver"


def start_child(
    target: Callable[..., None], *args: Any, needed: tuple[Any, ...] = (), preload: str = "", daemon: bool = True
) -> tuple[BaseProcess, Connection]:
    """Start a process that calls `target(pipe, *args)`. Returns it, and the other end of the pipe.

    The environment, the current folder and `sys.path` are those of this process. The main module is not imported in
    the child: a script may train at its top level. `needed` are those of the arguments that code of the user may
    define. `preload` is a module for the fork server to import, if this starts the fork server.
    """
    method = start_method(*needed)
    context: Any = multiprocessing.get_context(method)
    pipe, child_end = context.Pipe()
    _parent_ends.add(pipe)
    arguments = (child_end, dict(os.environ), target, args)
    process = context.Process(target=_child_main, args=arguments, daemon=daemon)
    with starting(method, preload):
        process.start()
    _children.add(process)
    child_end.close()
    return process, pipe


@contextlib.contextmanager
def starting(method: str, preload: str = "") -> Iterator[None]:
    """The context in which a child process is started (see `start_child`). `init_child` undoes it in the child."""
    if method == "forkserver":
        start_fork_server(preload)
    elif method == "spawn":
        resource_tracker.ensure_running()  # it unblocks signals: not in the block below
    with _blocked_signals(), contextlib.nullcontext() if method == "fork" else _hidden_main_module():
        yield


def start_fork_server(preload: str) -> None:
    """Start the fork server, if it is not running. It imports the module `preload` once for all its children.

    A command calls it before its own imports, which take as long. A process that has one thread forks without it.
    """
    if sys.platform != "linux" or _num_threads() == 1:
        return
    from multiprocessing import forkserver

    # as in the process that decodes images for a server: the same packages, none of the current folder, one thread
    settings = {
        "OPENBLAS_NUM_THREADS": "1", "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in settings}
    forkserver.set_forkserver_preload([preload] if preload else [])
    resource_tracker.ensure_running()  # it unblocks signals: not in the block below
    os.environ.update(settings)
    try:
        with _blocked_signals(), _hidden_main_module():
            before_start = _fork_server_pid()
            forkserver.ensure_running()
            if (pid := _fork_server_pid()) and pid != before_start:
                _server.update(pid=pid, owner=os.getpid())
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _fork_server_pid() -> int | None:
    from multiprocessing import forkserver

    return getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)  # there is no public name


def receive(pipe: Connection, on_wait: Callable[[], None]) -> Any:
    """The next message of a child. `on_wait` is called several times per second until it is there.

    Raises EOFError if the child has ended, also while it sent the message.
    """
    while True:
        try:
            if pipe.poll(_POLL_SECONDS):
                return pipe.recv()
        except OSError:
            raise EOFError from None
        on_wait()


def end_child(process: BaseProcess, pipe: Connection) -> None:
    """Close the pipe, which ends the child. A child that does not end in time, perhaps a stopped one, is killed."""
    pipe.close()
    process.join(_END_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()


@atexit.register
def kill_children() -> None:
    """Kill all children, and the fork server if nothing else uses it.

    When Python exits, it would wait for a stopped child forever. The fork server would first finish its imports, and
    a program that reads the output of this process would wait for it.
    """
    for process in list(_children):
        if process.is_alive():
            process.kill()
            process.join(_END_SECONDS)
    if _server.get("owner") == os.getpid() and not multiprocessing.active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(_server["pid"], signal.SIGKILL)


def _child_main(
    pipe: Connection, environment: dict[str, str], target: Callable[..., None], args: tuple[Any, ...]
) -> None:
    """The main function of every child."""
    _reset_signals()
    for end in list(_parent_ends):  # a fork has copies of them, and no child would detect the end of its parent
        end.close()
    _parent_ends.clear()
    _children.clear()
    os.environ.clear()
    os.environ.update(environment)
    target(pipe, *args)


def _reset_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends Ctrl-C to every process of the group
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)


@contextlib.contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block stop signals while a process starts. It inherits this, and so does every child of the fork server."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _hidden_main_module() -> Iterator[None]:
    """Put an empty module in the place of the main module.

    `multiprocessing` would run the main module again in the child, and so a script that trains at its top level.
    """
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _can_import(objects: object) -> bool:
    """Whether a process that does not have the main module can load these objects."""
    try:
        with _hidden_main_module():
            pickle.dumps(objects)
    except Exception:  # the objects may be anything
        return False
    return True


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def init_child(*ignored: object) -> None:
    """Set up a child process: it ignores Ctrl-C, ends when its parent ends, and keeps some freed memory."""
    gc.freeze()  # inherited CUDA objects must not be collected here: that ends the process
    _reset_signals()
    keep_freed_memory(_KEPT_BY_CHILD)
    # Slurm and torchrun signal all processes of a job, and a checkpoint still needs this one
    if "SLURM_JOB_ID" in os.environ or under_torchrun():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)  # a fork has no thread pool: using it would block forever
    _end_with_parent()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():  # the fork server has forked this process
        import fcntl

        # The end of the parent closes the pipe `sentinel`. Then the system sends SIGIO, which ends this process. A
        # thread that waits for it would do the same, but a process with two threads could fork no children.
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, os.O_ASYNC)
        if wait([parent.sentinel], 0):  # it has ended before
            os._exit(1)
    elif sys.platform == "linux":
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
        for number, handler in before.items():  # None: it was not set by Python
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def num_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
