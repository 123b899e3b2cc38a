"""Child processes and stop signals."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time

import pytest

from lifelabel.utils import processes
from lifelabel.utils.memory import keep_freed_memory
from lifelabel.utils.processes import catch_stop_signals, num_cores, start_method

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def handlers():
    """Handlers of a caller, which are neither those of Python nor those of pytest."""
    before = {number: signal.signal(number, lambda *_: pytest.fail("the handler of the caller")) for number in NUMBERS}
    yield {number: signal.getsignal(number) for number in NUMBERS}
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_stop_signal_is_caught_and_the_code_continues(number, handlers):
    calls = []
    with catch_stop_signals(lambda: calls.append(number)):
        signal.raise_signal(number)
        assert calls == [number]
        signal.raise_signal(number)
    assert calls == [number, number]
    assert {each: signal.getsignal(each) for each in NUMBERS} == handlers


def test_the_handlers_are_restored_after_an_error(handlers):
    with pytest.raises(KeyError), catch_stop_signals(lambda: None):
        raise KeyError
    assert {each: signal.getsignal(each) for each in NUMBERS} == handlers


def test_a_handler_that_the_code_sets_is_replaced_by_that_of_the_caller(handlers):
    """A run sets the default handler after the first Ctrl-C: a second one stops at once."""
    with catch_stop_signals(lambda: signal.signal(signal.SIGINT, signal.default_int_handler)):
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handlers[signal.SIGINT]


def test_in_another_thread_the_handlers_are_not_changed(handlers):
    """Only the main thread can set handlers. The code runs in the other thread too."""
    found = []

    def run():
        with catch_stop_signals(lambda: None):
            found.append({each: signal.getsignal(each) for each in NUMBERS})

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [handlers]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_only_the_cores_of_this_process_count():
    code = """
import os
from lifelabel.utils.processes import num_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(num_cores())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "1\n"
    assert num_cores() == len(os.sched_getaffinity(0))


def test_without_affinity_all_cores_count(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert num_cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert num_cores() == 1


# Child processes

CHILD = """
import signal, sys, time
from lifelabel.utils.processes import init_child

def stop(*_):
    sys.exit(7)

signal.signal(signal.SIGTERM, stop)  # a handler that a fork inherits
init_child()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_child_ignores_ctrl_c_and_ends_at_sigterm_without_the_handler_of_its_parent(child):
    child.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    child.terminate()
    assert child.wait(10) == -signal.SIGTERM


@linux
def test_a_child_ends_when_its_parent_is_killed():
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait()
    start = time.monotonic()
    assert parent.stdout.read() == ""  # the pipe closes when the child, which also holds it, has ended
    parent.stdout.close()
    assert time.monotonic() - start < 30


@linux
def test_a_fork_can_use_torch_after_the_threads_of_its_parent():
    """A product of this size uses the thread pool, which a fork does not have: it would wait for ever."""
    code = """
import multiprocessing, torch
from lifelabel.utils.processes import init_child

def product():
    init_child()
    assert torch.get_num_threads() == 1
    torch.ones(600, 600) @ torch.ones(600, 600)

torch.set_num_threads(2)
torch.ones(600, 600) @ torch.ones(600, 600)
child = multiprocessing.get_context("fork").Process(target=product)
child.start()
child.join(60)
print(child.exitcode)
child.kill()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


class Local:
    pass


@linux
def test_a_process_with_threads_forks_only_for_objects_that_cannot_be_imported(monkeypatch):
    monkeypatch.setattr(processes, "_num_threads", lambda: 1)
    assert start_method(os.getpid) == "fork"
    monkeypatch.setattr(processes, "_num_threads", lambda: 2)
    assert start_method(os.getpid, Local, Local()) == "forkserver"
    assert start_method(lambda: None) == "fork"
    monkeypatch.setattr(Local, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Local", Local, raising=False)
    assert start_method(Local()) == "fork"  # a script, or a notebook
    assert sys.modules["__main__"].Local is Local


SCRIPT = """
import os, sys, threading, time
from lifelabel.utils.processes import init_child, start_child
import child

print("the script runs", flush=True)
threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
os.environ["GIVEN"] = "later"
process, pipe = start_child(child.main, "an argument")
print(*pipe.recv(), flush=True)
time.sleep(100)
"""
MODULE = """
import os, time
from lifelabel.utils.processes import init_child

def main(pipe, argument):
    init_child()
    pipe.send((argument, os.environ["GIVEN"], os.getcwd(), os.getppid()))
    time.sleep(100)
"""


@linux
def test_a_script_without_a_main_guard_starts_a_child_that_ends_with_it(tmp_path):
    """The child is forked by the fork server, which is another process. The system does not end it with the script."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "child.py").write_text(MODULE)
    (tmp_path / "PIL.py").write_text("raise SystemError('a file of the current folder was imported')")
    command = [sys.executable, "-W", "error::DeprecationWarning", "script.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    script = subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, **pipes)
    assert script.stdout.readline() == "the script runs\n"
    argument, given, folder, server = script.stdout.readline().rsplit(maxsplit=3)
    assert (argument, given, folder) == ("an argument", "later", str(tmp_path))
    assert int(server) != script.pid
    os.killpg(script.pid, signal.SIGINT)  # as a terminal does: only the script ends
    assert script.wait(20) != 0
    assert script.stdout.read() == ""  # closed: the child has ended too
    assert script.stderr.read().count("KeyboardInterrupt") == 1  # that of the script
    for pipe in (script.stdout, script.stderr):
        pipe.close()


# Freed memory

FAULTS = """
import ctypes, multiprocessing, resource
from lifelabel.utils.memory import keep_freed_memory
from lifelabel.utils.processes import init_child

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes, libc.memset.argtypes = (
    ctypes.c_void_p, [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t])

def faults(megabytes):
    for turn in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = libc.malloc(megabytes << 20)
        libc.memset(block, 1, megabytes << 20)
        libc.free(block)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, flush=True)

def in_child(megabytes):
    init_child()
    faults(megabytes)

def fork(target, *args):
    child = multiprocessing.get_context("fork").Process(target=target, args=args)
    child.start()
    child.join(60)
"""
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the system does not use glibc")
FEW, MANY = 50, 2000  # 100 MB have 25,600 pages of 4 KiB; a page fault may map several


def page_faults(code, **environment):
    """The page faults of the fourth use of a block of memory, one number per call of `faults`."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", FAULTS + code]
    done = subprocess.run(command, env=own | environment, capture_output=True, text=True, check=True, timeout=120)
    return [int(line) for line in done.stdout.split()]


@glibc
def test_freed_memory_is_kept_also_in_forked_processes():
    before, after, in_fork = page_faults("faults(100); keep_freed_memory(); faults(100); fork(faults, 100)")
    assert before > MANY and after < FEW and in_fork < FEW


@glibc
def test_a_child_keeps_memory_up_to_a_limit():
    small, large = page_faults("fork(in_child, 100); fork(in_child, 600)")
    assert small < FEW and large > MANY


@glibc
@pytest.mark.parametrize(
    "environment",
    [{"MALLOC_ARENA_MAX": "2"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=2"}],
    ids=lambda e: next(iter(e)),
)
def test_memory_settings_of_the_user_are_not_changed(environment):
    assert page_faults("keep_freed_memory(); faults(100)", **environment)[0] > MANY


def test_without_glibc_nothing_is_set(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.setattr(processes.ctypes, "CDLL", lambda name: pytest.fail("no library may be used"))
    keep_freed_memory()
