"""Runs that several tests read: made once a session, by the real command. Tests that change one take a copy."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# Before torch is imported, here and in the commands that tests start: on a machine with other work, torch's threads
# spend most of their time waiting for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Commands run in folders of their own, where a relative path to the package would lead nowhere.
os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ.get("PYTHONPATH", "src").split(os.pathsep)))

SMALL = ("--set", "stream.train_images=60", "--set", "stream.test_images=60", "--device", "cpu")
"""Five tasks of 12 training images, two steps each; on the CPU, where the same seed gives the same bits."""


def command(*args, **more):
    """The real command, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lifelabel", *map(str, args)], capture_output=True, text=True, encoding="utf-8", **more
    )


@pytest.fixture(scope="session")
def small():
    return SMALL


@pytest.fixture(scope="session")
def lifelabel():
    return command


@pytest.fixture(scope="session")
def agcn_train(tmp_path_factory):
    """What `lifelabel train --method agcn` did, and the folder it made: (process, folder)."""
    folder = tmp_path_factory.mktemp("agcn") / "runs" / "a"
    done = command("train", "--method", "agcn", *SMALL, "--out", folder)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture(scope="session")
def agcn_run(agcn_train):
    """The folder of a small finished AGCN run; not to be changed."""
    return agcn_train[1]


@pytest.fixture
def agcn_copy(agcn_run, tmp_path):
    """The same run in a folder of the test's own."""
    return Path(shutil.copytree(agcn_run, tmp_path / "copy"))


@pytest.fixture
def main(monkeypatch, capsys):
    """`lifelabel ARGS` in this process: exit code, stdout, stderr."""
    from lifelabel import cli

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["lifelabel", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code or 0, stdout=captured.out, stderr=captured.err)

    return run


@pytest.fixture
def refused(main):
    """`lifelabel ARGS` that must fail as a user's mistake: the one line."""

    def run(*args):
        done = main(*args)
        assert done.returncode == 2, done
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr.removeprefix("error: ").rstrip("\n")

    return run
