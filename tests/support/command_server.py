"""Commands in processes that are forked from one process, which has imported lifelabel and torch.

A new Python process takes seconds to import torch. A fork of a process that has imported it starts at once. Arguments,
environment, current folder, streams, signals and exit code are those of a command that `subprocess` starts. The server
is this file, run as a program. It has one thread and runs no operation of torch, so that a fork of it is safe.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

START = dict(os.environ)
"""The environment in which the server starts."""
READ_AT_START = (
    "PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_", "OMP_", "MKL_", "OPENBLAS_", "TORCH_", "PYTORCH_",
    "CUDA_", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "COLUMNS", "LINES", "TTY_", "GITHUB_ACTIONS",
    "JUPYTER_", "_TYPER", "MPL", "HF_",
)  # fmt: skip
"""The first letters of variables that Python, a library or lifelabel reads when it is loaded."""
_CAN_FORK = sys.platform == "linux" and not Path("/dev/nvidiactl").exists()
_STATUS = struct.Struct("i")
_lock = threading.Lock()
_server = None


def run(*args, code=None, fresh=False, input=None, timeout=None, check=False, capture_output=False, **more):
    """`subprocess.run` of `lifelabel ARGS`, or of `python -c CODE ARGS`. See `start`."""
    if input is not None:
        more["stdin"] = subprocess.PIPE
    if capture_output:
        more["stdout"] = more["stderr"] = subprocess.PIPE
    with start(*args, code=code, fresh=fresh, **more) as process:
        try:
            out, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def start(*args, code=None, fresh=False, **more):
    """`subprocess.Popen` of `lifelabel ARGS`, or of `python -c CODE ARGS`: a fork of the server.

    With `fresh` it is a new Python process: for tests of the start itself. So it is if the environment differs in a
    variable that is read at the start, if the output is a terminal, and on a machine with a GPU, where imports start
    threads.
    """
    words = [
        sys.executable,
        *(["-m", "lifelabel"] if code is None else ["-c", code]),
        *map(os.fspath, map(_word, args)),
    ]
    if fresh or not _CAN_FORK or _needs_start(**more):
        return subprocess.Popen(words, **more)
    return Command(words, **more)


def _word(arg):
    return arg if isinstance(arg, (str, os.PathLike)) else str(arg)


def _needs_start(env=None, stdout=None, stderr=None, **more):
    env = os.environ if env is None else env
    if any(START.get(name) != env.get(name) for name in {*START, *env} if name.startswith(READ_AT_START)):
        return True
    numbers = (_number(file, own) for own, file in ((1, stdout), (2, stderr)))
    return any(number >= 0 and os.isatty(number) for number in numbers)


def _number(file, own):
    """The file descriptor of a stream, `own` if it is inherited, or the negative constant of subprocess."""
    if file is None:
        return own
    return file if isinstance(file, int) else file.fileno()


class Command:
    """A process that the server has forked, with the interface of `subprocess.Popen`."""

    def __init__(
        self, args, stdin=None, stdout=None, stderr=None, cwd=None, env=None, text=False, encoding=None, errors=None,
        bufsize=-1, start_new_session=True,
    ):  # fmt: skip
        self.args, self.returncode = args, None
        self._mode = (encoding or ("utf-8" if text or errors else None), errors or "strict")
        with contextlib.ExitStack() as theirs:
            self.stdin, given = self._stream(stdin, 0, theirs, bufsize)
            self.stdout, out = self._stream(stdout, 1, theirs, bufsize)
            self.stderr, err = (None, out) if stderr == subprocess.STDOUT else self._stream(stderr, 2, theirs, bufsize)
            self._answers, other = socket.socketpair()
            with other, _lock:
                socket.send_fds(_control(), [b"+"], [other.fileno(), given, out, err])
        request = {
            "args": args[1:],
            "cwd": os.path.abspath(cwd or "."),
            "env": dict(os.environ if env is None else env),
        }
        self._answers.sendall(json.dumps(request).encode())
        self._answers.shutdown(socket.SHUT_WR)
        self.pid = self._answer(None)

    def _stream(self, file, own, theirs, bufsize):
        """The end of a pipe that this process keeps, if there is a pipe, and the file descriptor of the command."""
        number = _number(file, own)
        if number == subprocess.DEVNULL:
            number = os.open(os.devnull, os.O_RDWR)
            theirs.callback(os.close, number)
        if number != subprocess.PIPE:
            return None, number
        read, write = os.pipe()
        kept, given = (write, read) if own == 0 else (read, write)
        theirs.callback(os.close, given)
        encoding, errors = self._mode
        binary = open(kept, "wb" if own == 0 else "rb", -1 if bufsize == 1 else bufsize)
        if encoding is None:
            return binary, given
        return io.TextIOWrapper(binary, encoding, errors, line_buffering=bufsize == 1, write_through=True), given

    def _answer(self, timeout):
        """The next number from the server: the process id, then the exit code."""
        self._answers.settimeout(timeout)
        data = self._answers.recv(_STATUS.size)
        if not data:
            raise RuntimeError("the command server has ended")
        return _STATUS.unpack(data)[0]

    def poll(self):
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self.returncode = self._answer(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            try:
                self.returncode = self._answer(None if timeout is None else max(timeout, 1e-3))
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout) from None
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, input=None, timeout=None):
        """Write `input`, read all output, and wait for the end. After a TimeoutExpired, the output so far is lost."""
        end = None if timeout is None else time.monotonic() + timeout
        encoding, errors = self._mode
        data = memoryview((input or "").encode(encoding, errors) if encoding else input or b"")
        received = {stream: [] for stream in (self.stdout, self.stderr) if stream and not stream.closed}
        with selectors.DefaultSelector() as selector:
            for stream in received:
                selector.register(stream, selectors.EVENT_READ)
            if self.stdin and not self.stdin.closed:
                selector.register(self.stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                for key, _ in selector.select(left):
                    stream, finished = key.fileobj, False
                    if stream is self.stdin:
                        try:
                            data = data[os.write(key.fd, data[:4096]) :]  # a pipe that is ready takes that much
                        except BrokenPipeError:
                            data = data[:0]
                        finished = not data
                    else:
                        part = (stream.buffer if encoding else stream).read1()
                        received[stream].append(part)
                        finished = not part
                    if finished:
                        selector.unregister(stream)
                        stream.close()
        self.wait(None if end is None else max(end - time.monotonic(), 0))
        return self._text(received.get(self.stdout)), self._text(received.get(self.stderr))

    def _text(self, parts):
        encoding, errors = self._mode
        if parts is None or encoding is None:
            return None if parts is None else b"".join(parts)
        return io.IncrementalNewlineDecoder(None, True).decode(b"".join(parts).decode(encoding, errors), final=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self.wait()

    def __del__(self):
        if hasattr(self, "_answers"):
            self._answers.close()


def _control():
    """The socket of the server of this process, which starts with the first command and ends with this process."""
    global _server
    if _server is None or _server[0] != os.getpid():
        own, other = socket.socketpair()
        with other:
            words = [sys.executable, str(Path(__file__).resolve()), str(other.fileno())]
            process = subprocess.Popen(
                words, env=START, cwd="/", pass_fds=[other.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        _server = os.getpid(), own, process
    return _server[1]


# The server.


def serve(control):
    """Fork one process per request, and report its end. Returns in the processes: the request. Ends with `control`."""
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    _report_end(*key.data)
                    continue
                given = socket.recv_fds(control, 1, 4)[1]
                if not given:
                    _kill_all(selector)
                    sys.exit()
                request = _read_request(given)
                if pid := os.fork():
                    request["answers"].sendall(_STATUS.pack(pid))
                    for number in request["streams"]:
                        os.close(number)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, request["answers"]))
                    continue
                for other in selector.get_map().values():
                    os.close(other.fd)
                    if other.data:
                        other.data[1].close()
                request["answers"].close()
                control.detach()
                return request


def _read_request(given):
    answers = socket.socket(fileno=given[0])
    with answers.makefile("rb") as file:
        return {**json.load(file), "answers": answers, "streams": given[1:]}


def _report_end(pid, answers):
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with answers, contextlib.suppress(BrokenPipeError):
        answers.sendall(_STATUS.pack(code))


def _kill_all(selector):
    """Leave no process behind if the tests end early."""
    for key in selector.get_map().values():
        if key.data:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(key.data[0], signal.SIGKILL)


def become(request, variables):
    """Make this process what `python -m lifelabel` or `python -c` is at its start."""
    import numpy as np
    import torch

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, given in enumerate(request["streams"]):
        os.dup2(given, number)
    for given in {*request["streams"]} - {0, 1, 2}:
        os.close(given)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_stream(number, name)
    os.environ.clear()
    os.environ.update({**variables, **request["env"]})
    os.chdir(request["cwd"])
    sys.orig_argv = [sys.executable, *request["args"]]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    tempfile.tempdir = None
    np.random.seed()
    torch.default_generator.seed()


def _open_stream(number, name):
    old = getattr(sys, name)
    binary = open(number, "wb" if number else "rb", closefd=False)
    lines = number == 2 or binary.isatty()
    stream = io.TextIOWrapper(binary, old.encoding, old.errors, "\n", line_buffering=lines)
    stream.mode = old.mode
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def import_all():
    """Import what commands import, except what starts threads. Returns the variables that the imports set."""
    before = dict(os.environ)
    import lifelabel

    for module in pkgutil.walk_packages(lifelabel.__path__, "lifelabel."):
        if not module.name.endswith((".__main__", ".decoder")):
            importlib.import_module(module.name)
    for name in ("torchvision.transforms.v2", "jinja2", "safetensors.torch", "typer.rich_utils"):
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork of this process is not safe"
    gc.collect()
    gc.freeze()
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


class QuickExit:
    """The end of a process, after its threads and the functions of `atexit`, without deleting every module.

    Deleting takes half a second. It is left out only after `sys.exit(NUMBER)` and at the end of the code.
    """

    def __init__(self):
        self.code = None
        atexit.register(self._exit)  # the first one that is registered is called last

    def _exit(self):
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code & 255)

    @contextlib.contextmanager
    def note_code(self):
        try:
            yield
        except SystemExit as end:
            self.code = end.code if isinstance(end.code, int) else 0 if end.code is None else None
            raise
        self.code = 0


def main():
    sys.path.pop(0)  # the folder of this file
    end = QuickExit()
    variables = import_all()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    become(request, variables)
    with end.note_code():
        run_words(*request["args"])


def run_words(kind, what, *args):
    """Run what `python WORDS` runs."""
    sys.argv = [kind, *args]
    sys.path.insert(0, os.getcwd() if kind == "-m" else "")
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), module.__dict__)


if __name__ == "__main__":
    main()
