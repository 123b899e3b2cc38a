"""The commands of tests are forked from a process that has imported torch, and are what a new process would be."""

import os
import subprocess
import sys

import pytest
from support import command_server

import lifelabel.cli.main  # sets variables, which must not make every command a new process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the command server needs Linux")
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
STATE = """
import os, random, signal, sys, tempfile, threading
print(sys.argv, sys.path, sys.orig_argv, sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors)
print(__name__, hasattr(sys.modules["__main__"], "__file__"), os.getcwd(), tempfile.gettempdir(), sys.stdin.read())
set_by_imports = ("GOMP_", "KMP_", "TORCHINDUCTOR_")
print({name: value for name, value in os.environ.items() if not name.startswith(set_by_imports)})
print(sorted((number, str(signal.getsignal(number))) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)))
print(sorted(os.listdir("/proc/self/fd")), threading.active_count())
"""


def run(code, *args, **more):
    return command_server.run(*args, code=code, capture_output=True, text=True, timeout=60, **more)


def test_a_forked_command_has_the_state_of_a_new_process(tmp_path):
    more = {"cwd": tmp_path, "env": {**os.environ, "TMPDIR": str(tmp_path), "MINE": "é"}, "input": "given"}
    forked, new = (run(STATE, "a", "b c", fresh=fresh, **more) for fresh in (False, True))
    assert (forked.returncode, forked.stderr) == (0, "")
    assert forked.stdout.splitlines() == new.stdout.splitlines()


@pytest.mark.parametrize(
    "code",
    [
        "import sys; print('x'); sys.exit(7)",
        "import sys; sys.exit('a message')",
        "import atexit; atexit.register(print, 'at the end'); print('first')",
        "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
        "1 / 0",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import os; os._exit(300)",
    ],
)
def test_a_forked_command_ends_as_a_new_process(code):
    forked, new = (run(code, fresh=fresh) for fresh in (False, True))
    assert (forked.returncode, forked.stdout) == (new.returncode, new.stdout)
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_commands_are_forked_unless_the_start_matters():
    with command_server.start("--version", **PIPES) as process:
        assert isinstance(process, command_server.Command)
        assert process.communicate() == (f"lifelabel {lifelabel.__version__}\n", "")
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for more in ({"fresh": True}, {"env": env}):
        with command_server.start("--version", **PIPES, **more) as process:
            assert isinstance(process, subprocess.Popen)


def test_a_forked_command_has_one_thread_and_a_process_group_of_its_own():
    code = "import os; print(len(os.listdir('/proc/self/task')), os.getpgid(0) - os.getpid())"
    assert run(code).stdout == "1 0\n"


def test_random_numbers_of_two_commands_differ():
    code = "import numpy, random, torch; print(numpy.random.rand(), random.random(), torch.rand(1).item())"
    for one, other in zip(run(code).stdout.split(), run(code).stdout.split(), strict=True):
        assert one != other


def test_a_command_that_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        command_server.run(code="import time; time.sleep(60)", timeout=0.2, **PIPES)


def test_much_output_and_much_input():
    done = run(
        "import sys; data = sys.stdin.read(); print(data); print(data[::-1], file=sys.stderr)", input="ab" * 300_000
    )
    assert (done.stdout, done.stderr) == ("ab" * 300_000 + "\n", "ba" * 300_000 + "\n")
