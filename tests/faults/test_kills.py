"""SIGKILL at random moments: a command that is started again until it ends writes the same bytes as one undisturbed."""

import random
import shutil
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from faults.processes import assert_none_left, begin, complete, files_of, finish, moment, names_of
from PIL import Image

SMALL = (
    "--set", "stream.train_images=36", "--set", "stream.test_images=36", "--tasks", "3", "--device", "cpu", "-q",
)  # fmt: skip
MODEL = ("--backbone", "tiny", "--weights", "none", "--image-size", "32", "--device", "cpu", "--batch-size", "4", "-q")
OFTEN = ("--set", "checkpoint_seconds=0")
METHODS = {
    "agcn": ("--set", "method.hidden=64"), "weighted-ridge": ("--set", "method.directions=64"), "er": (), "prs": (),
    "ewc": (), "multi-task": (), "l3a": ("--set", "method.warm_up=4", "--set", "method.projection=64"),
}  # fmt: skip
LIKE_OTHERS = ("prs", "ewc", "multi-task", "l3a")
"""tests/methods has a test of each that it resumes exactly. The others have an expert, sums and stored images."""
_MAX_STARTS = 200


@dataclass
class Job:
    """A command, its folder of results, and how it is continued after a kill."""

    args: tuple
    folder: object
    again: object
    kills: int = 0
    moments: list = field(default_factory=list)


def undisturbed(job):
    """Run a command to its end: its files and its time."""
    started = time.monotonic()
    complete(*job.args)
    return files_of(job.folder), names_of(job.folder), time.monotonic() - started


def storm(job, rng, seconds, kills):
    """Start the command, kill it at a random moment, and continue it, until it ends by itself."""
    args = job.args
    for _ in range(_MAX_STARTS):
        text, wait = moment(rng, job.folder, seconds) if job.kills < kills else ("never", lambda process: False)
        process = begin(*args)
        if wait(process):
            process.kill()
            finish(process)
            assert_none_left(process.pid)
            if process.returncode == -9:
                job.kills += 1
                job.moments.append(text)
        else:
            finish_or_fail(process, job)
            return
        args = job.again(job)
    raise AssertionError(f"no end after {_MAX_STARTS} starts")


def finish_or_fail(process, job):
    code, _, errors = finish(process)
    assert code == 0, f"after {job.kills} kills ({', '.join(job.moments[-5:])}): {errors}"
    assert_none_left(process.pid)


def resume(job):
    """The command that continues a run: the same command if it had not begun."""
    return ("train", "--resume", job.folder, "-q") if (job.folder / "config.yaml").exists() else job.args


def repeat(job):
    return job.args


def extend_again(job):
    """An extension that has no checkpoint yet is refused by --resume: it begins again."""
    begun = (job.folder / "config.yaml").exists() and any(job.folder.glob("checkpoint*.pt"))
    return resume(job) if begun else (*job.args, "--overwrite")


def survive(make, tmp_path, rng, kills, count):
    """Kill the command that `make(folder)` describes, `kills` times in all, in as many runs as that takes."""
    files, names, seconds = undisturbed(make(tmp_path / "undisturbed"))
    done = runs = 0
    try:
        while done < kills:
            job = make(tmp_path / f"run-{runs}")
            storm(job, rng, seconds, kills - done)
            assert files_of(job.folder) == files, f"other files after {job.moments}"
            assert names_of(job.folder) == names, f"other names after {job.moments}"
            done, runs = done + job.kills, runs + 1
            shutil.rmtree(job.folder)
    finally:
        count(kills=kills, kills_survived=done, killed_runs=runs)


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_training(method, tmp_path, size, seed, count, pytestconfig):
    if method in LIKE_OTHERS and pytestconfig.getoption("faults") != "full":
        pytest.skip("its state is like that of another method: only with --faults full")

    def make(folder):
        args = ("train", "--method", method, *METHODS[method], *SMALL, *OFTEN, "--out", folder)
        return Job(args, folder, resume)

    kills = -(-size.kills // 10)  # three of ten parts are for the other commands
    survive(make, tmp_path, random.Random(f"{seed} {method}"), kills, count)


def test_a_killed_training_with_workers_on_photographs(tmp_path, photographs, size, seed, count):
    def make(folder):
        stream = ("--stream", photographs / "photos.csv", "--root", photographs, "--tasks", "2")
        args = ("train", "--method", "er", *stream, *MODEL, "--workers", "2", *OFTEN, "--out", folder)
        return Job(args, folder, resume)

    survive(make, tmp_path, random.Random(f"{seed} workers"), -(-size.kills // 10), count)


def test_a_killed_comparison(tmp_path, size, seed, count):
    def make(folder):
        methods = ("--methods", "fine-tuning,er", "--seeds", "0", "--jobs", "2")
        args = ("compare", *methods, *SMALL, *OFTEN, "--out", folder)
        return Job(args, folder, repeat)

    survive(make, tmp_path, random.Random(f"{seed} compare"), -(-size.kills // 10), count)


def test_a_killed_extension(tmp_path, photographs, size, seed, count):
    stream = ("--stream", photographs / "photos.csv", "--root", photographs, "--tasks", "2")
    complete("train", "--method", "agcn", *stream, *MODEL, *OFTEN, "--out", tmp_path / "old")

    def make(folder):
        args = ("extend", tmp_path / "old", photographs / "new.csv", "--root", photographs, "-q", "--out", folder)
        return Job(args, folder, extend_again)

    survive(make, tmp_path, random.Random(f"{seed} extend"), -(-size.kills // 10), count)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder with 40 photographs of four classes, photos.csv, and new.csv with two new classes."""
    folder = tmp_path_factory.mktemp("photographs")
    write_photographs(folder)
    return folder


def write_photographs(folder, number=40):
    rng = np.random.default_rng(0)
    lines, new = ["image,labels,split"], ["image,labels,split"]
    for n in range(number):
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(folder / f"{n}.jpg")
        part = "test" if n % 4 == 3 else "train"
        names, more = ("cat", "dog", "boat", "sky"), ("sea", "fish")
        lines.append(f"{n}.jpg,{names[n % 4]};{names[(n // 3) % 4]},{part}")
        new.append(f"{n}.jpg,{more[n % 2]};{names[n % 3]},{part}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("\n".join(new) + "\n")
