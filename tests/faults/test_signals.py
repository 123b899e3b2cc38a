"""Signals at random moments: the command ends in one line or goes on, and a resumed run has the same bytes."""

import os
import random
import signal
import time

import pytest
from faults import processes
from faults.processes import SECONDS_TO_END, begin, children, continue_run, files_of, finish, moment, wait_until
from faults.test_kills import OFTEN, SMALL

RUN = ("train", "--method", "er", *SMALL, *OFTEN, "--workers", "2")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of a run, and its seconds."""
    folder, started = tmp_path_factory.mktemp("signals") / "run", time.monotonic()
    continue_run(folder, (*RUN, "--out", folder))
    return files_of(folder), time.monotonic() - started


def begin_and_hit_child(folder, rng, number):
    """Begin a run, and send a signal to one of its child processes when it trains."""
    process = begin(*RUN, "--out", folder)
    assert wait_until(process, lambda: (folder / "history.jsonl").exists() and children(process.pid))
    os.kill(rng.choice(children(process.pid)), number)
    return process


def assert_line(errors):
    """At most one line after the one at once: a command that is stopped before it begins may print nothing."""
    assert "Traceback" not in errors and errors.count("\n") <= 1 + errors.count("stopping, saving a checkpoint"), errors


def assert_ends_well(process, folder, undisturbed, allowed):
    """The command ends with an allowed code, one line and no processes, and the run is continued to the same files.

    Returns the code, the errors and the seconds until it ended.
    """
    started = time.monotonic()
    code, _, errors = finish(process, 60)
    seconds = time.monotonic() - started
    assert code in allowed, (code, errors)
    assert_line(errors)
    processes.assert_none_left(process.pid)
    continue_run(folder, (*RUN, "--out", folder))
    assert files_of(folder) == undisturbed[0]
    return code, errors, seconds


def send(process, *numbers):
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.05)


SIGNALS = {
    "SIGTERM": (signal.SIGTERM,), "SIGINT": (signal.SIGINT,), "SIGHUP": (signal.SIGHUP,), "SIGPIPE": (signal.SIGPIPE,),
    "SIGINT twice": (signal.SIGINT, signal.SIGINT), "SIGTERM and SIGINT": (signal.SIGTERM, signal.SIGINT),
    "SIGSTOP and SIGCONT": (signal.SIGSTOP, signal.SIGCONT),
}  # fmt: skip
GOES_ON = ("SIGPIPE", "SIGSTOP and SIGCONT")


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_at_a_random_moment(name, undisturbed, tmp_path, size, seed, count):
    rng = random.Random(f"{seed} {name}")
    for repetition in range(size.signals):
        folder = tmp_path / str(repetition)
        process = begin(*RUN, "--out", folder)
        text, wait = moment(rng, folder, undisturbed[1])
        came = wait(process)
        send(process, *SIGNALS[name])
        allowed = {0} if name in GOES_ON else {0, 130, *(-number for number in SIGNALS[name])}
        _, _, seconds = assert_ends_well(process, folder, undisturbed, allowed)
        assert not came or name in GOES_ON or seconds < SECONDS_TO_END, text
        count(signals=len(SIGNALS[name]))


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)], ids=str)
def test_a_stopped_child_does_not_prevent_the_end(numbers, undisturbed, tmp_path, size, seed, count):
    rng = random.Random(f"{seed} {numbers}")
    for repetition in range(size.signals):
        folder = tmp_path / str(repetition)
        process = begin_and_hit_child(folder, rng, signal.SIGSTOP)
        time.sleep(rng.uniform(0, 0.5))
        send(process, *numbers)
        _, _, seconds = assert_ends_well(process, folder, undisturbed, {0, 130})
        assert seconds < SECONDS_TO_END
        count(signals=1 + len(numbers))


def test_a_killed_child_ends_the_run_in_one_line(undisturbed, tmp_path, size, seed, count):
    rng = random.Random(f"{seed} child")
    for repetition in range(2 * size.signals):
        folder = tmp_path / str(repetition)
        process = begin_and_hit_child(folder, rng, signal.SIGKILL)
        code, errors, _ = assert_ends_well(process, folder, undisturbed, {0, 2})  # 0: it had nothing left to do
        assert code == 0 or f"lifelabel train --resume {folder}" in errors, errors
        count(signals=1)
