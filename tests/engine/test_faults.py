"""Faults of the machine during a run: a full disk, a killed process, images that vanish; and what a run leaves."""

import contextlib
import gc
import multiprocessing
import os
import signal

import pytest
from engine.small_runs import At, Killed, assert_same_files, edit_config, error_of, kill, options, read_lines

import lifelabel
from lifelabel.engine import run as engine
from lifelabel.engine.checkpoint_file import load_checkpoint
from lifelabel.errors import Diverged, UserError
from lifelabel.methods import Method
from lifelabel.runs.lines import JsonLines

resource = pytest.importorskip("resource")

GIVEN = options(method="fine-tuning", checkpoint_seconds=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run without a fault."""
    return engine.train(tmp_path_factory.mktemp("faults") / "whole", GIVEN).folder


def assert_resumes(folder, whole):
    engine.resume(folder)
    assert_same_files(folder, whole, "metrics.json", "history.jsonl", "skipped.jsonl")


# A full disk


@pytest.fixture
def limit_files():
    """Limits the size of the files that this process writes: the error is that of a full disk, "File too large"."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one(tmp_path, whole, limit_files):
    folder = tmp_path / "run"
    expected = (
        rf"^cannot write {folder}/checkpoint.pt: File too large; raise the limit on the size of a file "
        r"\(ulimit -f\) and resume with: lifelabel train --re"
    )
    with pytest.raises(UserError, match=expected):
        engine.train(folder, GIVEN, callback=At(3, lambda: limit_files(100_000)))
    limit_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    assert not list(folder.rglob("*.new")) and not list(folder.rglob(".*.new"))
    state = load_checkpoint(engine.RunFolder(folder))
    assert (state["task"], state["step"]) == (0, 2)
    assert_resumes(folder, whole)


def test_other_files_that_cannot_be_written(tmp_path, limit_files):
    lines = JsonLines(tmp_path / "history.jsonl")
    limit_files(100)
    with pytest.raises(UserError, match=rf"^cannot write {tmp_path}/config.yaml: File too large; raise .*, or ch"):
        engine.RunFolder(tmp_path).write_text("config.yaml", 200 * "a")
    lines.write({"text": 200 * "a"})
    for call in (lines.sync, lines.close):
        with pytest.raises(
            UserError, match=rf"^cannot write {tmp_path}/history.jsonl: File too large; raise the limit .*, or ch"
        ):
            call()


# A folder that is moved


@pytest.mark.parametrize("replaced", [True, False])
def test_a_run_whose_folder_is_moved_stops(tmp_path, whole, replaced):
    folder, moved = tmp_path / "run", tmp_path / "moved"

    def move():
        folder.rename(moved)
        if replaced:
            folder.mkdir()

    error = error_of(engine.train, folder, GIVEN, callback=At(3, move))
    line = f"{folder} was moved while its run was active, so the run has stopped: its files are in {moved}; resume with"
    assert error == f"{line}: lifelabel train --resume {moved}"
    assert not replaced or not any(folder.iterdir())
    assert_resumes(moved, whole)


# Killed processes


def test_a_killed_label_process_is_reported_with_the_command_that_resumes(photographs, tmp_path):
    def kill():
        (server,) = multiprocessing.active_children()
        os.kill(server.pid, signal.SIGKILL)

    given, folder = {**photographs[0], "method": "fine-tuning", "checkpoint_seconds": 0}, tmp_path / "run"
    assert error_of(engine.train, folder, given, callback=At(2, kill)) == (
        "the label process ended (exit code -9); free memory if it was short and resume with: lifelabel train --resume "
        f"{folder}"
    )
    assert engine.resume(folder).metrics["finished"]


# Images that vanish


def vanish(root, split):
    for path in root.iterdir():
        if (int(path.stem) % 4 == 0) == (split == "test"):
            path.rename(root.parent / "gone" / path.name)


@pytest.mark.parametrize(("split", "position", "skipped"), [("train", (0, 3), 5), ("test", (0, 9), 1)])
def test_a_run_stops_if_too_many_images_vanish_and_resumes(split, position, skipped, photographs, tmp_path):
    """Before it stops, it skips one batch of four training images. Three images are bad from the start."""
    given = {**photographs[0], "method": "fine-tuning", "checkpoint_seconds": 0, "max_skipped": 0.2}
    root, folder = tmp_path / "photos", tmp_path / "run"
    (tmp_path / "gone").mkdir()
    error = error_of(engine.train, folder, given, callback=At(2, lambda: vanish(root, split)))
    words = "training" if split == "train" else "test"
    assert f" {words} images cannot be read, more than max_skipped 0.2 allows: " in error
    assert error.endswith(f", and resume with: lifelabel train --resume {folder}")
    listed = [(line["split"], line["reason"]) for line in read_lines(folder / "skipped.jsonl")]
    assert listed.count((split, "no such file")) > 2
    state = load_checkpoint(engine.RunFolder(folder))
    assert (state["task"], state["step"]) == position
    for path in (tmp_path / "gone").iterdir():
        path.rename(root / path.name)
    metrics = engine.resume(folder).metrics
    assert metrics["finished"] and metrics["skipped"] == {"train": skipped, "test": 2}


def test_max_skipped_may_be_raised_to_resume(photographs, tmp_path):
    given = {**photographs[0], "method": "fine-tuning", "max_skipped": 0.1}
    line = error_of(engine.train, tmp_path / "run", given)
    assert line.startswith("task 1: 2 of 14 test images cannot be read, more than max_skipped 0.1 allows")
    edit_config(tmp_path / "run", max_skipped=0.5)
    metrics = engine.resume(tmp_path / "run").metrics
    assert metrics["skipped"] == {"train": 1, "test": 2}
    assert [record["skipped"]["test"] for record in metrics["per_task"]] == [2, 2]
    assert sum(record["skipped"]["train"] for record in metrics["per_task"]) in (1, 2)  # a task has the image, or both


# What a run leaves behind


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of descriptors")
def test_a_run_leaves_no_object_and_no_descriptor_without_the_garbage_collector(tmp_path):
    small = {**GIVEN, "stream_options": {**GIVEN["stream_options"], "train_images": 24, "test_images": 20, "tasks": 1}}
    engine.train(tmp_path / "first", small)  # modules that are imported now open files
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        lifelabel.train(tmp_path / "finished", small)
        with contextlib.suppress(Diverged):
            lifelabel.train(tmp_path / "diverged", {**small, "lr": 1e30, "backbone_lr": 1e30})
        with contextlib.suppress(Killed):
            lifelabel.train(tmp_path / "failed", small, callback=At(1, kill))
        left = [type(each) for each in gc.get_objects() if issubclass(type(each), engine.Run | Method)]
        assert not left and len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()
