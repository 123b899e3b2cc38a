"""Damaged files for one reader, in a process of its own that is limited in memory and time."""

import multiprocessing
import os
import resource
import signal
import sys
import traceback

from faults.settings import generate
from hypothesis import Phase, given

from lifelabel.errors import UserError

LIMIT_SECONDS = 10
"""CPU time for one input."""
LIMIT_WAITING = 60
"""Time for one input, also if it only waits."""
LIMIT_BYTES = 2 << 30
"""Memory that one reader may take, in addition to that of the process when it begins."""
MAX_LINE = 4000
"""Characters of a message."""


class Late(BaseException):
    """An input took too long."""


def fuzz(reader, folder, run, inputs, first_seed):
    """Read `inputs` damaged files. Returns (number of inputs, number of refused ones, texts of failures)."""
    reader.write(folder, run)
    try:
        limit = 2 * LIMIT_WAITING + inputs * reader.cost
        return in_child(lambda: _fuzz(reader, folder, inputs, first_seed), limit)
    except ChildFailed as error:
        return 0, 0, [str(error)]


class ChildFailed(AssertionError):
    """A process crashed or took too long."""


def in_child(function, seconds):
    """The result of a function in a fork of this process, limited in memory and time.

    A reader that crashes, blocks or fills the memory does not end the tests.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, sending))
    process.start()
    sending.close()
    try:
        if not receiving.poll(seconds):
            process.kill()
        result, error = receiving.recv()
    except EOFError:
        process.join()
        raise ChildFailed(f"the process ended with {process.exitcode}; with -9: after {seconds} s") from None
    process.join(seconds)
    if process.is_alive():  # a thread of the reader does not end
        process.kill()
        raise ChildFailed(f"the process did not end in {seconds} s")
    if error:
        raise ChildFailed(error)
    return result


def _call(function, sending):
    _limit()
    try:
        outcome = function(), ""
    except BaseException as error:
        outcome = None, _text(error)
    sending.send(outcome)


def _limit():
    limit = _data_bytes() + LIMIT_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, _late)
    sys.stderr = open(os.devnull, "w")


def _fuzz(reader, folder, inputs, first_seed):
    path, counts = folder / reader.file, [0, 0]
    valid = path.read_bytes()
    try:
        reader.read(folder)
    except BaseException as error:
        return 0, 0, [f"the valid file: {_text(error)}"]

    @generate(inputs, first_seed, Phase.shrink)
    @given(data=reader.changed(valid))
    def test(data):
        counts[0] += 1
        try:
            counts[1] += _is_refused(reader, folder, path, data)
        except BaseException as error:
            error.data = data
            raise

    try:
        test()
    except BaseException as error:
        failures = getattr(error, "exceptions", [error])  # Hypothesis raises a group if there are several
        return *counts, [_failure(each, folder / f"failure-{n}") for n, each in enumerate(failures)]
    return *counts, []


def _is_refused(reader, folder, path, data):
    path.write_bytes(data)
    _set_timers(LIMIT_SECONDS, LIMIT_WAITING)
    try:
        if reader.repair:
            reader.repair(folder)
        reader.read(folder)
    except UserError as error:
        line = str(error)
        assert line and line.isprintable() and len(line) <= MAX_LINE, f"not a line: {line[:300]!r}"
        return True
    finally:
        _set_timers(0, 0)
    return False


def _set_timers(computing, waiting):
    signal.setitimer(signal.ITIMER_PROF, computing)
    signal.setitimer(signal.ITIMER_REAL, waiting)


def _late(*_):
    raise Late


def _data_bytes():
    """Private writable memory of this process. Other mappings, such as those that V8 reserves, take none."""
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmData"))
    return int(line.split()[1]) << 10


def _failure(error, path):
    """The exception and the smallest input that raises it, which is written to `path`."""
    data = getattr(error, "data", b"")
    path.write_bytes(data)
    shown = data if len(data) <= 300 else data[:300] + b" ..."
    return f"{_text(error)}\ninput of {len(data)} bytes, in {path}: {shown!r}"


def _text(error):
    error.__notes__ = []  # Hypothesis adds the whole input
    return "".join(traceback.format_exception(error))[-3000:]
