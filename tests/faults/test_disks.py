"""Full and read-only disks, and photographs that vanish: one line, and the run can be finished with the same bytes."""

import random
import shutil
import subprocess
import time
from contextlib import contextmanager

import numpy as np
import pytest
from faults.processes import assert_none_left, begin, complete, continue_run, files_of, finish, names_of, wait_until
from faults.test_kills import OFTEN, SMALL, stream_of, write_photographs

RUN = ("train", "--method", "er", *SMALL, *OFTEN)


@contextmanager
def mounted(folder, *args):
    """A mount at a folder. Without the right to mount, the test is skipped."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *args, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def error_line(process):
    """The line of a command that must have failed because of the disk or the files."""
    code, out, errors = finish(process)
    assert code == 2, (code, out, errors)
    assert "Traceback" not in errors and errors.startswith("error: ") and errors.count("\n") == 1, errors
    assert_none_left(process.pid)
    return errors.removeprefix("error: ").rstrip("\n")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The files of a run, their names, and the bytes that the folder takes."""
    folder = tmp_path_factory.mktemp("disk") / "run"
    complete(*RUN, "--out", folder)
    return files_of(folder), names_of(folder), sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextmanager
def disk(folder, number):
    with mounted(folder, "-t", "tmpfs", "-o", f"size={number >> 10}k", "tmpfs"):
        yield folder


def test_a_full_disk(undisturbed, tmp_path, size, seed, count):
    """From a disk that holds nothing to one that holds all but the last file."""
    rng = random.Random(seed)
    files, names, whole = undisturbed
    sizes = [4 << 10, whole // 2, *(int(rng.uniform(0, 2.2) * whole) + (8 << 10) for _ in range(size.disks - 2))]
    for number in sizes:
        with disk(tmp_path / "disk", number) as folder:
            process = begin(*RUN, "--out", folder / "run")
            code, _, errors = finish(process)
            assert code in (0, 2), errors
            if code == 2:
                assert "Traceback" not in errors and errors.count("\n") == 1, errors
                assert "No space left" in errors or "disk" in errors, errors
            assert not list((folder / "run").glob(".*.new"))
            subprocess.run(["mount", "-o", f"remount,size={4 * whole}", str(folder)], check=True)
            continue_run(folder / "run", (*RUN, "--out", folder / "run"))
            assert files_of(folder / "run") == files and names_of(folder / "run") == names
        count(full_disks=1)


def test_a_disk_that_fills_up_while_a_run_trains(undisturbed, tmp_path, count):
    files, _, whole = undisturbed
    with disk(tmp_path / "disk", 8 * whole) as folder:
        process = begin(*RUN, "--out", folder / "run")
        assert wait_until(process, (folder / "run/checkpoint.pt").exists)
        fill(folder / "ballast")
        line = error_line(process)
        assert f"lifelabel train --resume {folder / 'run'}" in line
        (folder / "ballast").unlink()
        complete("train", "--resume", folder / "run", "-q")
        assert files_of(folder / "run") == files
    count(full_disks=1)


def fill(path):
    with pytest.raises(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def test_a_read_only_folder(tmp_path, agcn_run, count):
    (tmp_path / "place").mkdir()
    run = shutil.copytree(agcn_run, tmp_path / "place/run")
    np.savez(tmp_path / "scores.npz", labels=np.eye(3), scores=np.eye(3))
    path = run / "metrics.json"
    path.write_text(path.read_text().replace('"finished": true', '"finished": false'))
    with mounted(tmp_path / "place", "--bind", str(tmp_path / "place")) as place:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
        few = ("--set", "train_images=60", "--set", "test_images=60")
        commands = [
            (*RUN, "--out", place / "new"),
            ("train", "--resume", run),
            ("report", agcn_run, "--out", place / "report"),
            ("metrics", tmp_path / "scores.npz", "--json", place / "metrics.json"),
            ("data", "build", "scenes", "--out", place / "scenes.yaml"),
            ("data", "inspect", "scenes", *few, "--out", place / "look"),
            ("compare", "--methods", "fine-tuning", *SMALL, "--out", place / "compared"),
            ("export", agcn_run, "--format", "torch", "--out", place / "exported"),
        ]  # fmt: skip
        for args in commands:
            assert error_line(begin(*args)), args
    count(read_only_folders=len(commands))


# Photographs


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    write_photographs(folder, 120)
    return folder


def train_on(folder, out, *args):
    return "train", "--method", "fine-tuning", *stream_of(folder), *args, "--out", out


@pytest.mark.parametrize("workers", ["0", "2"])
def test_all_photographs_vanish(photographs, tmp_path, workers, count):
    """The run stops and keeps its checkpoint. When they are back, it ends with the same bytes."""
    complete(*train_on(photographs, tmp_path / "whole"))
    process = begin(*train_on(photographs, tmp_path / "run", "--workers", workers, "--max-skipped", "0"))
    assert wait_until(process, (tmp_path / "run/checkpoint.pt").exists)
    (tmp_path / "away").mkdir()
    for path in photographs.glob("*.jpg"):
        path.rename(tmp_path / "away" / path.name)
    line = error_line(process)
    assert f"lifelabel train --resume {tmp_path / 'run'}" in line
    for path in (tmp_path / "away").iterdir():
        path.rename(photographs / path.name)
    complete("train", "--resume", tmp_path / "run", "-q")
    same, other = files_of(tmp_path / "whole"), files_of(tmp_path / "run")
    assert {**other, "config.yaml": b""} == {**same, "config.yaml": b""}
    count(vanished_photographs=120)


def test_photographs_vanish_one_by_one(photographs, tmp_path, seed, count):
    """The run goes on without them and lists them, or stops with the command that resumes it."""
    rng, names = random.Random(seed), sorted(path.name for path in photographs.glob("*.jpg"))
    rng.shuffle(names)
    process = begin(*train_on(photographs, tmp_path / "run", "--workers", "2"))
    wait_until(process, (tmp_path / "run/history.jsonl").exists)
    removed = 0
    while process.poll() is None and removed < len(names):
        (photographs / names[removed]).unlink()
        removed += 1
        time.sleep(0.02)
    code, _, errors = finish(process)
    assert code in (0, 2) and "Traceback" not in errors, errors
    assert code == 0 or f"lifelabel train --resume {tmp_path / 'run'}" in errors
    if code == 0:
        listed = (tmp_path / "run/skipped.jsonl").read_text().splitlines()
        assert len(listed) <= removed
    assert_none_left(process.pid)
    count(vanished_photographs=removed)
