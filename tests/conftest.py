"""Fixtures of several tests: the command line, and small runs. A test that changes a run uses a copy of it."""

import multiprocessing
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

# Before torch is imported, here and in the commands that tests start: on a busy machine, torch's threads wait for each
# other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Commands run in other folders, where a relative path does not lead to the package.
os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, os.environ.get("PYTHONPATH", "src").split(os.pathsep)))

# Only the plug-ins of a test are loaded.
os.environ.pop("LIFELABEL_PLUGINS", None)

from support import command_server

SMALL = ("--set", "stream.train_images=60", "--set", "stream.test_images=60", "--device", "cpu")
"""Five tasks of 12 training images, two steps each. On the CPU the same seed gives the same bits."""


def pytest_addoption(parser):
    group = parser.getgroup("faults", "the fault suite, tests/faults")
    group.addoption("--faults", choices=("small", "full"), default="small", help="a small part, or the whole suite")
    group.addoption("--faults-seed", type=int, default=0, help="the seed of the random moments and inputs")
    group.addoption("--faults-json", metavar="FILE", help="write the figures of the suite to this file")


def pytest_collection_modifyitems(items):
    """The longest tests first: at the end, no worker runs one of them alone."""
    items.sort(key=lambda item: item.path.name not in ("test_readme.py", "test_tutorial.py"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skip the tests with the mark gpu on a machine without one."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


def command(*args, **more):
    """Run the real command in its own process: with `fresh` a new Python process, else a fork of the command server."""
    return command_server.run(*args, capture_output=True, encoding="utf-8", **more)


def line_of_error(done):
    """The line of a command that must have failed because of a mistake of the user: one line and exit code 2."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.endswith("\n"), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("error: ").removesuffix("\n")


@pytest.fixture(scope="session")
def small():
    return SMALL


@pytest.fixture(scope="session")
def lifelabel():
    """`lifelabel ARGS` in its own process."""
    return command


@pytest.fixture(scope="session")
def error_line():
    return line_of_error


@pytest.fixture(scope="session")
def agcn_train(tmp_path_factory):
    """The result of `lifelabel train --method agcn`: (process, run folder)."""
    folder = tmp_path_factory.mktemp("agcn") / "runs" / "a"
    done = command("train", "--method", "agcn", *SMALL, "--out", folder)
    assert done.returncode == 0, done.stderr
    return done, folder


@pytest.fixture(scope="session")
def agcn_run(agcn_train):
    """The folder of a small finished AGCN run. It must not be changed."""
    return agcn_train[1]


@pytest.fixture
def agcn_copy(agcn_run, tmp_path):
    """A copy of the same run, which the test may change."""
    return Path(shutil.copytree(agcn_run, tmp_path / "copy"))


@pytest.fixture
def main(monkeypatch, capsys):
    """`lifelabel ARGS` in this process: exit code, stdout, stderr."""
    from lifelabel.cli import main as cli

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["lifelabel", *map(str, args)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        captured = capsys.readouterr()
        return SimpleNamespace(returncode=end.value.code or 0, stdout=captured.out, stderr=captured.err)

    return run


@pytest.fixture
def output(main):
    """`lifelabel ARGS` that must succeed without a message on stderr: its output."""

    def run(*args):
        done = main(*args)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


@pytest.fixture
def refused(main):
    """`lifelabel ARGS` that must fail because of a mistake of the user: the line."""
    return lambda *args: line_of_error(main(*args))


@pytest.fixture
def tables_only(monkeypatch):
    """Commands in this process write tables and no report with figures, which takes seconds."""
    monkeypatch.setattr("lifelabel.report.vega.chart_obstacle", lambda: "is not made here")


@pytest.fixture
def forked(monkeypatch):
    """Child processes are forks: they have what the test changes in this process."""
    from lifelabel.utils import processes

    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("the system does not fork")
    monkeypatch.setattr(processes, "start_method", lambda *needed: "fork")


@pytest.fixture
def plugin_state(tmp_path, tmp_path_factory, monkeypatch):
    """An empty folder and no plug-ins. Undoes what plug-ins change: sys.path, sys.modules, environment, registries."""
    from lifelabel import registry
    from lifelabel.methods import METHODS
    from lifelabel.metrics import METRICS
    from lifelabel.nn.backbones import BACKBONES
    from lifelabel.streams import STREAMS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_plugins", {})
    monkeypatch.setenv("LIFELABEL_PLUGINS", "")  # recorded, so that the value that plug-ins set is undone
    monkeypatch.delenv("LIFELABEL_PLUGINS")
    for each in (METHODS, STREAMS, BACKBONES, METRICS):
        monkeypatch.setattr(each, "_items", dict(each._items))
        monkeypatch.setattr(each, "_entry_points", None)
    yield
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path_factory.getbasetemp()):
            del sys.modules[name]
