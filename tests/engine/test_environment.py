"""The environment of a run: versions, the commit of the checkout, and peak memory."""

import datetime
import gc
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lifelabel.engine import environment
from lifelabel.engine.environment import commit, machine, memory, reset_peak_memory

CPU = torch.device("cpu")


def test_the_versions_and_the_processor():
    found = machine(CPU)
    assert found["numpy"] == np.__version__ and found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["threads"] == torch.get_num_threads() and found["device"] == found["device"].strip() != ""
    today = datetime.datetime.now(datetime.timezone.utc).date()
    assert today - datetime.date.fromisoformat(found["date"]) <= datetime.timedelta(days=1)
    assert found["commit"] == commit() and environment._installed("no-such-package-of-anybody") is None


# Memory


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not reset the peak memory")
def test_peak_memory_grows_and_can_be_reset():
    size = 200 << 20
    reset_peak_memory(torch.device("cpu"))
    before = memory(CPU)
    assert before["peak_device_memory_bytes"] is None
    block = mmap.mmap(-1, size)  # malloc may keep freed memory
    block.write(bytes(size))
    grown = memory(CPU)["peak_memory_bytes"]
    assert grown - before["peak_memory_bytes"] > size / 2
    block.close()
    gc.collect()
    assert memory(CPU)["peak_memory_bytes"] > grown - size / 2  # a peak does not fall by itself
    reset_peak_memory(torch.device("cpu"))
    assert memory(CPU)["peak_memory_bytes"] < grown - size / 2


@pytest.mark.gpu
def test_peak_memory_of_the_device():
    device = torch.device("cuda")
    torch.cuda.reset_peak_memory_stats(device)
    block = torch.ones(64 << 20, dtype=torch.uint8, device=device)
    assert memory(device)["peak_device_memory_bytes"] >= block.numel()
    assert machine(device)["device"] == torch.cuda.get_device_name(device)


# The commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git repository with one commit, of the file environment.py. `commit` uses the repository of that file."""
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "no config"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "environment.py").write_text("# as committed\n")
    monkeypatch.setattr(environment, "__file__", str(folder / "environment.py"))

    def git(*words):
        user = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", folder, *user, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", "environment.py")
    git("commit", "-q", "-m", "first")
    return folder, git("rev-parse", "HEAD")


def test_the_commit_has_a_plus_if_a_file_differs_from_it(checkout):
    folder, expected = checkout
    assert len(expected) == 40 and commit.__wrapped__() == expected
    (folder / "notes.txt").write_text("not part of the repository")
    assert commit.__wrapped__() == expected
    (folder / "environment.py").write_text("# changed\n")
    assert commit.__wrapped__() == f"{expected}+"


def test_there_is_no_commit_inside_the_checkout_of_another_project(checkout, monkeypatch):
    """As in a virtual environment that is inside a repository."""
    folder, _ = checkout
    installed = folder / "site-packages"
    installed.mkdir()
    (installed / "environment.py").touch()
    monkeypatch.setattr(environment, "__file__", str(installed / "environment.py"))
    assert commit.__wrapped__() is None


def test_there_is_no_commit_outside_a_checkout_and_without_git(checkout, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(environment, "__file__", str(tmp_path / "environment.py"))
        assert commit.__wrapped__() is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit.__wrapped__() is None
