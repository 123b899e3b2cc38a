"""The command `lifelabel`: help, version and wrong usage."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys

import pytest
import typer
from support import command_server

from lifelabel.cli.completion import method_names
from lifelabel.cli.main import app
from lifelabel.version import __version__

COMMANDS = (
    "train", "compare", "study", "demo", "tune", "report", "list", "metrics", "data inspect", "data build",
    "data convert", "runs", "predict", "evaluate", "calibrate", "extend", "export", "doctor", "serve", "verify",
    "leaderboard", "reproduce",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples(output, name):
    for flag in ("--help", "-h"):
        assert f"lifelabel {name}" in output(*name.split(), flag).partition("Example")[2]


def test_these_are_all_commands():
    group = typer.main.get_command(app)
    assert sorted(group.commands) == sorted({name.split()[0] for name in COMMANDS})
    assert sorted(group.commands["data"].commands) == ["build", "convert", "inspect"]


def test_help_imports_neither_torch_nor_vega():
    """Of every command, in one new process."""
    code = f"""
import sys
from lifelabel.cli.main import app
for name in {COMMANDS}:
    try:
        app([*name.split(), "--help"], standalone_mode=False)
    except SystemExit:
        pass
    print("loaded:", [name for name in ("torch", "vl_convert") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(COMMANDS)
    loaded = [line for line in done.stdout.splitlines() if line.startswith("loaded:")]
    assert loaded == ["loaded: []"] * len(COMMANDS)


def test_help_names_every_command_and_is_printed_without_arguments(main):
    for done in (main("--help"), main()):
        assert (done.returncode, done.stderr) == (0, "")
        for name in (*(name.split()[0] for name in COMMANDS), "--version"):
            assert f" {name} " in done.stdout


def test_version_in_its_own_process(lifelabel):
    done = lifelabel("--version", fresh=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lifelabel {__version__}\n", "")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["list", "metrcs"], "metrics"),
        (["list"], "methods"),
        (["lst"], "lst"),
        (["train", "--mehtod", "agcn"], "--method"),
        (["train", "--lr"], "--lr"),
        (["report"], "runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line(refused, args, part):
    assert part in refused(*args)


def test_a_mistake_in_its_own_process(lifelabel, error_line, tmp_path):
    done = lifelabel("train", "--method", "acgn", "--out", tmp_path / "run")
    known = ", ".join(sorted(method_names()))
    assert error_line(done) == f"unknown method 'acgn': did you mean 'agcn'? (known: {known})"
    assert done.stdout == ""
    assert not (tmp_path / "run").exists()


@pytest.fixture
def closed_pipe():
    """The end of a pipe whose reader has ended."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("words", [["--version"], ["list", "methods"], ["--help"]])
def test_a_reader_that_ends_is_no_error(words, closed_pipe):
    done = command_server.run(*words, stdout=closed_pipe, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_goes_on_if_nobody_reads_its_output(closed_pipe, small, tmp_path):
    words = ["train", "--method", "fine-tuning", *small, "--out", str(tmp_path / "run")]
    with open("/dev/full", "w") as full:
        done = command_server.run(*words, stdout=closed_pipe, stderr=full)
    assert done.returncode == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["finished"]


def test_closed_streams_are_replaced(tmp_path):
    """No file gets the number of stdout or stderr."""
    code = "import os; from lifelabel.cli.console import prepare_streams; prepare_streams(True); print('x'); "
    code += f"os.write(os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY), b'y')"
    command = shlex.join([sys.executable, "-c", code])
    assert subprocess.run(f"{command} <&- >&- 2>&-", shell=True).returncode == 0
    assert (tmp_path / "file").read_bytes() == b"y"


def test_output_that_cannot_be_written_is_one_line(error_line):
    with open("/dev/full", "w") as full:
        done = command_server.run("list", "streams", stdout=full, stderr=subprocess.PIPE, text=True)
    done.stdout = ""
    assert error_line(done).startswith("cannot write: No space left on device; ")


@pytest.mark.parametrize(
    "words",
    ["predict {} a.png", "evaluate {} t.csv", "runs {}", "export {} --out a", "verify {}"],
)
def test_a_path_that_the_system_refuses_is_one_line(refused, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").touch()
    name = "n" * 300
    assert name in refused(*words.format(name).split())


def test_errors_of_the_system_name_the_file(refused, main, monkeypatch):
    def fail(error):
        def run(*_, **__):
            raise error

        monkeypatch.setattr("lifelabel.cli.main.app", run)

    fail(PermissionError(errno.EACCES, "Permission denied", "secret/x"))
    assert refused("runs", "secret/x") == "secret/x: Permission denied; check the path"
    fail(OSError(errno.EINVAL, "Invalid argument"))
    with pytest.raises(OSError, match="Invalid argument"):
        main("runs")
    loading = ImportError("libtorch_cuda.so: failed to map segment from shared object")
    for error in (OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError(), loading):
        fail(error)
        line = refused("runs")
        assert line.startswith("out of memory (") and "lower batch_size, image_size or workers" in line


def test_memory_that_torch_cannot_have_is_one_line(refused, monkeypatch):
    import torch

    monkeypatch.setattr("lifelabel.cli.main.app", lambda *_, **__: torch.empty(1 << 62, dtype=torch.uint8))
    assert "can't allocate memory" in refused("train")


@pytest.mark.parametrize(
    ("command", "resumes"), [("train", True), ("study", True), ("predict", False), ("runs", False)]
)
def test_a_stop_names_resume_if_the_command_has_it(main, monkeypatch, command, resumes):
    monkeypatch.setattr("lifelabel.cli.main.app", lambda *_, **__: 130)
    done = main(command)
    assert done.returncode == 130 and ("--resume" in done.stderr) == resumes


# Ctrl-C

DURING_IMPORTS = """
import signal, sys

class Interrupt:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from lifelabel.__main__ import main
main()
"""
TWICE = """
import os, signal, sys, time
from lifelabel.cli import main
from lifelabel.utils.processes import start_child

def sleep(pipe):
    os.kill(os.getpid(), signal.SIGSTOP)

def command(*args, **more):
    child = start_child(sleep, needed=(sleep,))
    print("started", flush=True)
    try:
        signal.raise_signal(signal.SIGINT)
    finally:  # what a command does when it ends takes long
        time.sleep(0.2)
        signal.raise_signal(signal.SIGINT)
        time.sleep(100)

main.app = command
sys.argv = ["lifelabel", "train"]
main.main()
"""


BUSY = """
import hashlib, sys
from lifelabel.cli import main, stopping

def command(*args, **more):
    stopping.watch_signals()
    print("started", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # like a backward pass: handlers of Python run after it

stopping._SECONDS = 0.3
main.app = command
sys.argv = ["lifelabel", "train"]
main.main()
"""


def catch_ctrl_c():
    """A shell without job control lets its background processes, and so the tests, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def run_with_interrupts(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=catch_ctrl_c)


def test_the_end_of_a_command_does_not_wait_for_the_garbage_collector():
    code = "import atexit, gc; atexit.register(lambda: print('objects', gc.get_freeze_count())); "
    code += "from lifelabel.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert int(done.stdout.split()[-1]) > 10_000  # those that it does not visit


@pytest.mark.skipif(os.name != "posix", reason="other systems end a process in another way")
def test_ctrl_c_during_imports_prints_no_traceback():
    done = run_with_interrupts(DURING_IMPORTS)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="other systems have no SIGSTOP")
def test_a_second_ctrl_c_exits_at_once_and_leaves_no_process():
    """The child is stopped. It has the pipe of stdout, so that `subprocess.run` waits until it has ended."""
    done = run_with_interrupts(TWICE)
    assert done.returncode == 130 and done.stdout == "started\n"
    assert done.stderr == "stopped at once; if the run folder exists, continue with --resume\n"


@pytest.mark.skipif(os.name != "posix", reason="other systems end a process in another way")
def test_ctrl_c_in_a_long_operation_is_confirmed_at_once_and_ends_it():
    command, pipe = [sys.executable, "-c", BUSY], subprocess.PIPE
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=catch_ctrl_c)
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "stopping, saving a checkpoint; Ctrl-C again stops at once\n"
    assert process.communicate(timeout=60)[1] == "stopped at once; if the run folder exists, continue with --resume\n"
    assert process.returncode == 130
