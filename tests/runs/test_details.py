"""The details of a run, read from untrusted files."""

import numpy as np
import pytest
from report.run_folders import make_run

from lifelabel.errors import UserError
from lifelabel.runs.details import read_details


def last_task():
    return {
        "ap": np.array([0.5, 1, np.nan, 0.25], np.float32), "counts": np.ones((2, 2, 100), np.int64),
        "scores": np.full((3, 4), 0.5, np.float16), "precision": np.full((4, 101), 0.5, np.float32),
        "thresholds": np.full((4, 101), 0.25, np.float32),
    }  # fmt: skip


def examples():
    return {
        "chosen": np.array([2, 0]), "names": np.array(["a.jpg", "b.jpg"]), "labels": np.ones((2, 4), bool),
        "known": np.ones((2, 4), bool), "pictures": np.frombuffer(b"oneother", np.uint8),
        "picture_ends": np.array([3, 8]),
    }  # fmt: skip


def write(folder, last, stored):
    run = make_run(folder / "run", "agcn")
    details = folder / "run" / "details"
    details.mkdir()
    first = {"ap": np.array([0.5, 1], np.float32), "counts": np.ones((1, 2, 100), np.int64)}
    np.savez(details / "task-1.npz", **first, scores=np.full((3, 2), 0.5, np.float16))
    np.savez(details / "task-2.npz", **{**last_task(), **last})
    np.savez(details / "examples.npz", **{**examples(), **stored})
    return run


def test_details_are_read(tmp_path):
    found = read_details(write(tmp_path, {}, {}))
    assert [task.task for task in found.tasks] == [1, 2] and found.tasks[0].scores.shape == (3, 2)
    assert found.thresholds[3, 100] == 0.25
    assert [(e.index, e.name, e.jpeg) for e in found.examples] == [(2, "a.jpg", b"one"), (0, "b.jpg", b"other")]
    assert read_details(make_run(tmp_path / "without", "agcn")) is None


LAST = [
    {"ap": np.ones(3, np.float32)}, {"ap": np.full(4, 2.0, np.float32)}, {"counts": -np.ones((2, 2, 100), int)},
    {"counts": np.ones((2, 2, 99), int)}, {"scores": np.ones((3, 5), np.float16)}, {"scores": np.array(["x"])},
    {"precision": np.ones((4, 100), np.float32)}, {"thresholds": np.array(0.5)},
]  # fmt: skip
STORED = [
    {"chosen": np.array([2, 3])}, {"chosen": np.array([-1, 0])}, {"chosen": np.array([2])},
    {"names": np.array([1, 2])}, {"labels": np.ones((2, 4))}, {"known": np.ones((2, 3), bool)},
    {"pictures": np.ones(3)}, {"picture_ends": np.array([3.0, 8.0])},
]  # fmt: skip


@pytest.mark.parametrize(("last", "stored"), [*((each, {}) for each in LAST), *(({}, each) for each in STORED)])
def test_arrays_that_do_not_fit_are_one_line(tmp_path, last, stored):
    with pytest.raises(UserError, match="does not hold the details of this run"):
        read_details(write(tmp_path, last, stored))
