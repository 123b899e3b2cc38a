"""The command `lifelabel`."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Annotated

import typer

from lifelabel.cli.commands import app
from lifelabel.cli.console import discard_output, err, prepare_streams, print_line
from lifelabel.cli.stopping import claim_last_line, end_watch, exit_at_once, release_last_line, stopped_line
from lifelabel.errors import OtherProcess, Stopped, UserError, reason
from lifelabel.parallel.torchrun import is_first_process, under_torchrun
from lifelabel.utils.memory import out_of_memory
from lifelabel.version import __version__

__all__ = ["app", "main"]

_COMMANDS = (
    "train", "predict", "evaluate", "calibrate", "extend", "export", "compare", "leaderboard", "reproduce", "tune",
    "report", "runs", "verify", "serve", "metrics", "data",
)  # fmt: skip
"""The modules that add a command, in the order of the help."""
_broken = ""
"""Why there are no commands but `doctor`: a package is missing or cannot be loaded."""
try:
    for _name in _COMMANDS:
        importlib.import_module(f"lifelabel.cli.{_name}")
except ImportError as _error:
    if (_error.name or "").startswith("lifelabel"):
        raise
    _broken = str(_error)
importlib.import_module("lifelabel.cli.doctor")  # it needs no other package

_LESS_MEMORY = "lower batch_size, image_size or workers, end other programs, or raise ulimit -v if it is set"
_OUTPUT_ONLY = ("predict", "runs", "verify", "metrics", "list", "doctor")
"""Commands whose result is their output. The others write files, and continue if their output is closed."""
_CANNOT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def _version(show: bool) -> None:
    if show:
        print(f"lifelabel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    return None


def main() -> None:
    """Run a command. A mistake of the user is one line and exit code 2, a stop one line and exit code 130.

    The first Ctrl-C ends processes and closes files. The second one exits at once.

    If the output has been closed, as by `| head -1`, a command that only prints ends without a line and with
    exit code 0. A command that writes files continues to its end.
    """
    with _catch_interrupts():
        try:
            _main()
        finally:
            end_watch()
            release_last_line()


def _main() -> None:
    prepare_streams(keep_going=not {*sys.argv[1:2]} <= {*_OUTPUT_ONLY})
    if _broken and sys.argv[1:2] != ["doctor"]:
        _fail(f"error: {_broken}; `lifelabel doctor` checks the installation", 2)
    if under_torchrun() and sys.argv[1:2] not in (["train"], ["extend"]):
        _fail("error: torchrun starts several processes, which is for train and extend only: leave torchrun out", 2)
    code = None
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as end:  # rich and click raise SystemExit in place of BrokenPipeError
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        discard_output(sys.stdout.fileno())  # Python flushes stdout when it exits
    except UserError as error:
        _fail(f"error: {error}", 2)
    except OtherProcess:
        sys.exit(1)
    except Stopped as stop:
        _fail(str(stop), 130)
    except KeyboardInterrupt:
        code = 130
    except (MemoryError, RuntimeError, ImportError, OSError) as error:
        if out_of_memory(error):
            _fail(f"error: out of memory ({reason(error)}); {_LESS_MEMORY}", 2)
        if not isinstance(error, OSError):
            raise
        if error.filename is None and error.errno in _CANNOT_WRITE:
            discard_output(sys.stdout.fileno())
            _fail(f"error: cannot write: {error.strerror}; free some space, or write to another place", 2)
        if error.filename is None:
            raise
        _fail(f"error: {os.fsdecode(error.filename)}: {error.strerror}; check the path", 2)
    except Exception as error:
        if type(error).__name__ == "Abort":
            code = 130
        elif hasattr(error, "format_message"):  # wrong usage, raised by the click that typer contains
            _fail(f"error: {error.format_message().rstrip('.')}; see --help", 2)
        else:
            raise
    if code == 130:
        if not claim_last_line():  # the thread that watches signals has printed it
            exit_at_once()
        _fail(stopped_line(), 130)
    sys.exit(code or 0)


@contextlib.contextmanager
def _catch_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first Ctrl-C, and exit at once at the second one."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(*_: object) -> None:
        signal.signal(signal.SIGINT, exit_at_once)
        raise KeyboardInterrupt

    report = sys.unraisablehook
    # raised in a finalizer, it would be printed and ignored: the command stops already
    sys.unraisablehook = lambda event: None if event.exc_type is KeyboardInterrupt else report(event)
    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        sys.unraisablehook = report


def _fail(line: str, code: int) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one line only
        end_watch()
    if is_first_process() or line.startswith("error: process "):  # of several processes that fail alike, one reports it
        print_line(" ".join(line.split()), "red" if code == 2 else None, err)
    sys.exit(code)
