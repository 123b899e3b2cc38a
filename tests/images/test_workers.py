"""Worker processes and the memory that they share."""

import os
import signal
import sys
import time

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.images.workers import SharedArrays, WorkerDied, Workers
from lifelabel.utils import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no fork server and no memfd")


@pytest.fixture(params=["fork", "forkserver"])
def method(request, monkeypatch):
    monkeypatch.setattr(processes, "start_method", lambda *needed: request.param)
    monkeypatch.setattr(processes, "_num_threads", lambda: 2)  # so that the fork server starts
    return request.param


class Square:
    """Squares numbers and writes them into shared memory. Some numbers are special."""

    def __init__(self, shared=None):
        self.shared = shared

    def __call__(self, number):
        if number == -1:
            raise UserError("a mistake")
        if number == -2:
            raise ZeroDivisionError("a defect")
        if number == -3:
            os.kill(os.getpid(), signal.SIGKILL)
        if number == -4:
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.shared:
            self.shared.arrays[number % self.shared.count] = number
        return number**2


@pytest.fixture
def workers(method):
    made = []

    def make(count=2, *args):
        made.append(Workers(count, Square, *args))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_results_are_in_the_order_of_the_items(workers):
    squares = workers(3)
    assert list(squares.map(range(20))) == [number**2 for number in range(20)]
    pids = [process.pid for process, _ in squares.children]
    started = squares.map(iter(range(20)))
    assert [next(started) for _ in range(3)] == [0, 1, 4]
    assert list(squares.map([5, 6])) == [25, 36]  # results of the pass that was not read to its end are left out
    assert list(squares.map([])) == []
    assert [process.pid for process, _ in squares.children] == pids


def test_errors_of_a_worker(workers):
    squares = workers()
    with pytest.raises(UserError, match=r"^a mistake$"):
        list(squares.map([1, -1, 2]))
    with pytest.raises(RuntimeError, match=r"in a worker process:\n(.*\n)*ZeroDivisionError: a defect"):
        list(squares.map([-2]))
    assert list(squares.map([3])) == [9]
    with pytest.raises(WorkerDied):
        list(squares.map([1, 2, -3]))


def test_a_stopped_worker_is_not_awaited(workers):
    squares, waits = workers(), []

    def on_wait():
        waits.append(time.monotonic())
        if len(waits) == 3:
            raise KeyError

    with pytest.raises(KeyError):
        list(squares.map([1, -4, 2], on_wait))
    assert 0.1 < waits[2] - waits[0] < 5
    pids = [process.pid for process, _ in squares.children]
    squares.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_shared_memory_needs_no_file(workers):
    before = {*os.listdir("/dev/shm")}
    shared = SharedArrays(6, (2, 3))  # two workers with two items each, the item in use, and the next one
    squares = workers(2, shared)
    for number, _ in zip(range(12), squares.map(range(12)), strict=True):
        assert np.array_equal(shared.arrays[number % 6], np.full((2, 3), number))
    assert {*os.listdir("/dev/shm")} == before


def test_shared_memory_is_freed():
    before = len(os.listdir("/proc/self/fd"))
    shared = SharedArrays(2, (5,))
    assert len(os.listdir("/proc/self/fd")) > before
    del shared
    assert len(os.listdir("/proc/self/fd")) == before


def test_too_little_memory_is_one_line():
    with pytest.raises(UserError, match=r"^no memory for 1000000 batches of images .*: give fewer workers$"):
        SharedArrays(10**6, (10**9,))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_limit_on_the_size_of_files_is_named():
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(UserError, match=r"^the limit on file sizes \(ulimit -f\) is too low for 2 batches"):
            SharedArrays(2, (1000,))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
