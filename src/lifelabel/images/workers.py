"""Worker processes that call one function on many items, and memory that they share with the process that uses them.

Only pipes and anonymous memory files are used. Queues and semaphores need /dev/shm, which is small in some containers.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.utils.processes import end_child, init_child, receive, start_child

AHEAD = 2
"""Items that each worker process gets ahead."""


class WorkerDied(Exception):
    """A worker process has ended. It was killed, or there was too little memory."""


class Workers:
    """`count` processes that call `work(item)`. Each of them makes `work = make(*args)` once.

    The processes get the items in turn, up to `AHEAD` items each, and the results are in the order of the items. They
    start with the first pass, run until `close`, and import the module `preload`.
    """

    def __init__(
        self, count: int, make: Callable[..., Callable[[Any], Any]], *args: Any, needed: tuple = (), preload: str = ""
    ):
        self.count = count
        self._start = lambda: start_child(_work, make, args, needed=needed, preload=preload or __name__)
        self.children: list[tuple[BaseProcess, Connection]] = []
        self._pending: deque[int] = deque()
        """The workers whose results are to be read, in the order of the items."""

    def map(self, items: Iterable[Any], on_wait: Callable[[], None] = lambda: None) -> Iterator[Any]:
        """The results. `on_wait` is called several times per second while the next result is awaited.

        Raises `WorkerDied` if a worker has ended.
        """
        while len(self.children) < self.count:
            self.children.append(self._start())
        while self._pending:  # of a pass that was not read to its end
            self._receive(on_wait)
        numbered = enumerate(items)
        for _ in range(self.count * AHEAD):
            self._send_next(numbered)
        while self._pending:
            kind, value = self._receive(on_wait)
            if kind == "user error":
                raise UserError(value)
            if kind == "failure":
                raise RuntimeError(f"in a worker process:\n{value}")
            self._send_next(numbered)
            yield value

    def close(self) -> None:
        """End the processes."""
        for process, _ in self.children:
            process.kill()  # at once: they have no state to save, and a stopped one ends no other way
        for child in self.children:
            end_child(*child)
        self.children.clear()
        self._pending.clear()

    def _send_next(self, numbered: Iterator[tuple[int, Any]]) -> None:
        for number, item in numbered:
            worker = number % self.count
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # _receive reports it
                self.children[worker][1].send(item)
            self._pending.append(worker)
            return

    def _receive(self, on_wait: Callable[[], None]) -> tuple[str, Any]:
        try:
            answer = receive(self.children[self._pending[0]][1], on_wait)
        except EOFError:
            raise WorkerDied from None
        self._pending.popleft()
        return answer


def _work(pipe: Connection, make: Callable[..., Callable[[Any], Any]], args: tuple[Any, ...]) -> None:
    """The main function of a worker."""
    init_child()
    work = make(*args)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the other process has ended
        while True:
            item = pipe.recv()
            try:
                answer = "result", work(item)
            except UserError as error:
                answer = "user error", str(error)
            except Exception:
                answer = "failure", traceback.format_exc()
            pipe.send(answer)


class SharedArrays:
    """`count` arrays of bytes of the same shape, in memory that is shared with child processes.

    The memory is an anonymous file (memfd): it is freed when the last process that has it ends, also if it is killed.
    """

    def __init__(self, count: int, shape: tuple[int, ...], file: int | None = None):
        self.count, self.shape = count, shape
        size = count * int(np.prod(shape))
        try:
            self._file = os.memfd_create("lifelabel") if file is None else file
            if file is None:
                os.ftruncate(self._file, size)
            memory = mmap.mmap(self._file, size)
        except OSError as error:
            what = "no memory" if error.errno != errno.EFBIG else "the limit on file sizes (ulimit -f) is too low"
            raise UserError(f"{what} for {count} batches of images ({error.strerror}): give fewer workers") from None
        self.arrays = np.frombuffer(memory, np.uint8).reshape(count, *shape)

    def __reduce__(self) -> Any:
        return _open_shared, (self.count, self.shape, reduction.DupFd(self._file))

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def _open_shared(count: int, shape: tuple[int, ...], file: Any) -> SharedArrays:
    return SharedArrays(count, shape, file.detach())
