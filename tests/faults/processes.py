"""Commands that are disturbed at random moments: killed, stopped, sent signals."""

import os
import signal
import time
from pathlib import Path
from subprocess import PIPE

from support import command_server
from support.run_files import snapshot

SECONDS_TO_END = 10
"""The processes of a killed command, and a command that is asked to stop, end within this time."""
LIMIT_SECONDS = 300
"""A command that takes longer blocks."""
_POLL = 0.002
_NOT_COMPARED = (
    "environment.json", "checkpoint", "README.md", "model.json", ".lock", "table.", "report.html", "figures/",
)  # fmt: skip
"""Files that have times, dates or paths, and what is made of them."""


def files_of(folder):
    """The files of a run that are a function of its options: content by name."""
    found = snapshot(folder)
    return {name: data for name, data in found.items() if not any(part in name for part in _NOT_COMPARED)}


def names_of(folder):
    return set(snapshot(folder))


def begin(*args):
    """Start `lifelabel ARGS`, in a session of its own."""
    # imports of this process have changed its environment
    return command_server.start(*args, stdout=PIPE, stderr=PIPE, text=True, env=command_server.START)


def finish(process, seconds=LIMIT_SECONDS):
    """(exit code, stdout, stderr) of a command."""
    out, errors = process.communicate(timeout=seconds)
    return process.returncode, out, errors


def complete(*args):
    """Run `lifelabel ARGS`, which must succeed."""
    code, _, errors = finish(begin(*args))
    assert code == 0, errors


def resume(folder, args):
    """The command that continues the run of `lifelabel ARGS` in a folder: the same command if it had not begun."""
    return ("train", "--resume", folder, "-q") if (folder / "config.yaml").exists() else args


def continue_run(folder, args):
    complete(*resume(folder, args))


def session(pid):
    """The processes of the session of a command."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(int(entry.name))
    return sorted(found)


def children(pid):
    return [each for each in session(pid) if each != pid]


def assert_none_left(pid):
    """The processes that a command started end with it."""
    end = time.monotonic() + SECONDS_TO_END
    while left := session(pid):
        if time.monotonic() > end:
            names = [Path(f"/proc/{each}/cmdline").read_bytes() for each in left if Path(f"/proc/{each}").exists()]
            for each in left:
                os.kill(each, signal.SIGKILL)
            raise AssertionError(f"processes of a killed command are left: {left} {names}")
        time.sleep(0.01)


def wait_until(process, happened, seconds=LIMIT_SECONDS):
    """Wait for an event. False if the command ended before it."""
    end = time.monotonic() + seconds
    while not happened():
        if process.poll() is not None:
            return False
        assert time.monotonic() < end, "a command blocks"
        time.sleep(_POLL)
    return True


def moment(rng, folder, seconds):
    """A random moment in a run: a description, and a function that waits for it and returns whether it came.

    Half of the moments are a time after the start. The others are when a file is written, and a few milliseconds later.
    """
    partial = {
        "a checkpoint": (".checkpoint.pt.new",),
        "the end of a task": ("details/.task-*.npz.new", "details/task-*.npz"),
        "the model folder": ("model/.*.new", ".acm.npz.new"),
        "metrics.json": (".metrics.json.new", ".environment.json.new"),
        "the history": ("history.jsonl",),
    }
    if rng.random() < 0.5:
        delay = rng.uniform(0, seconds)
        return f"{delay:.3f} s after the start", lambda process: _sleep(process, delay)
    name = rng.choice(list(partial))
    delay = rng.choice((0, 0, 0.001, 0.003, 0.01, 0.03))
    before = _states(folder, partial[name])

    def wait(process):
        came = wait_until(process, lambda: _states(folder, partial[name]) - before)
        return came and _sleep(process, delay)

    return f"{delay:.3f} s after {name} is written", wait


def _states(folder, patterns):
    """What is there: (name, size, time) of files."""
    found = set()
    for pattern in patterns:
        for path in folder.glob(pattern):
            try:
                status = path.stat()
            except OSError:
                continue
            found.add((path.name, status.st_size, status.st_mtime_ns))
    return found


def _sleep(process, seconds):
    """Wait. False if the command ended before."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if process.poll() is not None:
            return False
        time.sleep(min(left, 0.02))
    return process.poll() is None
