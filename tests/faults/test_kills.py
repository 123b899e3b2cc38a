"""SIGKILL at random moments: a command that is started again until it ends writes the same bytes as one undisturbed."""

import random
import shutil
import time

import pytest
from faults.processes import assert_none_left, begin, complete, files_of, finish, moment, names_of, resume
from support.models import write_images

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


def repeat(folder, args):
    return args


def extend_again(folder, args):
    """An extension that has no checkpoint yet is refused by --resume: it begins again."""
    begun = (folder / "config.yaml").exists() and any(folder.glob("checkpoint*.pt"))
    return resume(folder, args) if begun else (*args, "--overwrite")


def storm(args, folder, again, rng, seconds, kills):
    """Start a command, kill it at random moments, and continue it, until it ends by itself. Returns the moments."""
    words, moments = args, []
    for _ in range(_MAX_STARTS):
        text, wait = moment(rng, folder, seconds) if len(moments) < kills else ("never", lambda process: False)
        process = begin(*words)
        killed = wait(process)
        if killed:
            process.kill()
        code, _, errors = finish(process)
        assert_none_left(process.pid)
        if not killed:
            assert code == 0, f"after {len(moments)} kills ({', '.join(moments[-5:])}): {errors}"
            return moments
        if code == -9:
            moments.append(text)
        words = again(folder, args)
    raise AssertionError(f"no end after {_MAX_STARTS} starts")


@pytest.fixture
def survive(tmp_path, size, seed, count):
    """Kills a command, in as many runs as it takes for all kills. `again` is how it is continued after a kill."""

    def kill(name, again, *args):
        whole, started = tmp_path / "undisturbed", time.monotonic()
        complete(*args, "--out", whole)
        seconds, rng = time.monotonic() - started, random.Random(f"{seed} {name}")
        kills = -(-size.kills // 10)  # three of ten parts are for other commands than the methods
        done = runs = 0
        try:
            while done < kills:
                folder = tmp_path / f"run-{runs}"
                moments = storm((*args, "--out", folder), folder, again, rng, seconds, kills - done)
                assert files_of(folder) == files_of(whole), f"other files after {moments}"
                assert names_of(folder) == names_of(whole), f"other names after {moments}"
                done, runs = done + len(moments), runs + 1
                shutil.rmtree(folder)
        finally:
            count(kills=kills, kills_survived=done, killed_runs=runs)

    return kill


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_training(method, survive, pytestconfig):
    if method in LIKE_OTHERS and pytestconfig.getoption("faults") != "full":
        pytest.skip("its state is like that of another method: only with --faults full")
    survive(method, resume, "train", "--method", method, *METHODS[method], *SMALL, *OFTEN)


def test_a_killed_training_with_workers_on_photographs(photographs, survive):
    survive("workers", resume, "train", "--method", "er", *stream_of(photographs), "--workers", "2")


def test_a_killed_comparison(survive):
    survive("compare", repeat, "compare", "--methods", "fine-tuning,er", "--seeds", "0", "--jobs", "2", *SMALL, *OFTEN)


def test_a_killed_extension(tmp_path, photographs, survive):
    complete("train", "--method", "agcn", *stream_of(photographs), "--out", tmp_path / "old")
    given = tmp_path / "old", photographs / "new.csv", "--root", photographs
    survive("extend", extend_again, "extend", *given, "-q")


def stream_of(photographs):
    return "--stream", photographs / "photos.csv", "--root", photographs, "--tasks", "2", *MODEL, *OFTEN


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """A folder with 40 photographs of four classes, photos.csv, and new.csv with two new classes."""
    folder = tmp_path_factory.mktemp("photographs")
    write_photographs(folder)
    return folder


def write_photographs(folder, number=40):
    write_images(folder, number, 40, ".jpg")
    lines, new = ["image,labels,split"], ["image,labels,split"]
    for n in range(number):
        part = "test" if n % 4 == 3 else "train"
        names, more = ("cat", "dog", "boat", "sky"), ("sea", "fish")
        lines.append(f"{n}.jpg,{names[n % 4]};{names[(n // 3) % 4]},{part}")
        new.append(f"{n}.jpg,{more[n % 2]};{names[n % 3]},{part}")
    (folder / "photos.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("\n".join(new) + "\n")
