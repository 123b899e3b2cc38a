"""The run folder: its files, its lock, and damaged files."""

import contextlib
import json
import os
import subprocess

import numpy as np
import pytest
import torch
from support import command_server
from support.run_files import sign_checkpoint

from lifelabel.engine.checkpoint_file import _FORMAT, load_checkpoint, save_checkpoint
from lifelabel.errors import UserError
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.lines import JsonLines
from lifelabel.utils.files import partial_name


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


@pytest.fixture
def made(folder):
    folder.path.mkdir()
    folder.write_text("config.yaml", "seed: 1\n")
    return folder


def names(folder):
    return sorted(entry.name for entry in folder.path.iterdir())


def test_a_new_folder_is_made_with_its_parents_and_held(tmp_path):
    folder = RunFolder(tmp_path / "a" / "b" / "c")
    for _ in range(2):  # one that is empty will do
        with folder.new(overwrite=False):
            assert names(folder) == [".lock"]
            with pytest.raises(UserError, match="in use"), RunFolder(folder.path).new(overwrite=False):
                pytest.fail("the folder was held twice")
    assert not folder.is_run


def test_a_run_that_is_there_is_refused(made):
    made.write_text("metrics.json", "{}")
    with pytest.raises(UserError, match="holds a run: continue it with --resume"), made.new(overwrite=False):
        pytest.fail("the run was taken")
    assert names(made) == ["config.yaml", "metrics.json"]


def test_overwrite_takes_a_runs_files_and_no_others(made):
    made.write_text("metrics.json", "{}")
    (made / "notes.txt").write_text("mine")
    (made / "sub").mkdir()
    with made.new(overwrite=True):
        assert {"notes.txt", "sub"} <= set(names(made))
        assert not {"metrics.json", "config.yaml"} & set(names(made))


def test_overwrite_of_a_run_in_use_takes_nothing(made):
    made.write_text("metrics.json", "{}")
    with (
        RunFolder(made.path).locked(),
        pytest.raises(UserError, match="in use by another process"),
        made.new(overwrite=True),
    ):
        pytest.fail("the run was taken")
    assert {"config.yaml", "metrics.json"} <= set(names(made))


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_run_is_left_alone(folder, overwrite):
    folder.path.mkdir()
    (folder / "metrics.json").write_text("mine")
    with pytest.raises(UserError, match="holds no run"), folder.new(overwrite):
        pytest.fail("the folder was taken")
    assert (folder / "metrics.json").read_text() == "mine"


def test_a_folder_under_a_file(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="cannot write to"), RunFolder(path).new(overwrite=True):
            pytest.fail("there is no such folder")


def test_a_failed_json_leaves_the_old_one(made):
    made.write_json("metrics.json", {"mAP": 0.5})
    with pytest.raises(ValueError, match="JSON"):
        made.write_json("metrics.json", {"mAP": float("nan")})
    assert made.read_json("metrics.json") == {"mAP": 0.5}
    assert names(made) == ["config.yaml", "metrics.json"]


@pytest.mark.parametrize("data", [b"", b'{"mAP": 0.', b"\x00\xff\xfe", b"mAP: 1"])
def test_missing_and_damaged_json(made, data):
    with pytest.raises(UserError, match=r"cannot read .*metrics.json: No such file"):
        made.read_json("metrics.json")
    (made / "metrics.json").write_bytes(data)
    with pytest.raises(UserError, match=r"metrics.json is damaged"):
        made.read_json("metrics.json")


def test_a_holder_in_another_process_is_seen_and_its_death_lets_go(made):
    code = (
        "import sys, time; from lifelabel.runs.folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked():\n"
        "    print('held', flush=True); time.sleep(600)"
    )
    with command_server.start(made.path, code=code, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(UserError, match="in use"), made.locked():
                pytest.fail("the folder was held twice")
        finally:
            other.kill()
    with made.locked():
        pass


def test_a_history_shorter_than_the_checkpoint_says(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text("{}\n")
    with pytest.raises(UserError, match=r"history.jsonl is shorter than when the checkpoint was written"):
        JsonLines(path, 100)
    assert path.read_text() == "{}\n"


def test_the_history_is_cut_to_the_checkpoint_and_a_change_before_it_is_found(tmp_path):
    path = tmp_path / "history.jsonl"
    history = JsonLines(path)
    history.write({"step": 1})
    history.write({"step": 2})
    kept = history.sync(), history.sha256
    history.write({"step": 3})
    history.close()
    again = JsonLines(path, *kept)
    assert again.sha256 == kept[1]
    again.write({"step": 30})
    assert again.sync() == path.stat().st_size
    again.close()
    JsonLines(path, path.stat().st_size, again.sha256).close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 30]
    path.write_text(path.read_text().replace('"step": 2', '"step": 7'))
    with pytest.raises(UserError, match=r"history.jsonl is not as it was when the checkpoint was written: restore it"):
        JsonLines(path, *kept)
    assert len(path.read_text().splitlines()) == 3
    with pytest.raises(UserError, match="cannot write"):
        JsonLines(tmp_path, 0)


def test_matrices(made):
    matrix, truth = np.arange(25.0).reshape(5, 5), np.ones((7, 7))
    made.write_matrices(matrix, (2, 3), list("abcde"), truth)
    with np.load(made / "acm.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"task_1", "task_2", "classes", "truth"}
        assert np.array_equal(archive["task_1"], matrix[:2, :2])
        assert np.array_equal(archive["task_2"], matrix)
        assert archive["classes"].tolist() == list("abcde")
        assert archive["truth"].shape == (5, 5)
    made.write_matrices(matrix, (5,), list("abcde"), None)
    with np.load(made / "acm.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"task_1", "classes"}


def load_with_notes(path):
    """Through a new object, as a run that resumes."""
    notes = []
    return load_checkpoint(RunFolder(path), notes.append)["task"], notes


def test_the_checkpoint_before_is_kept_and_used_if_the_last_one_is_damaged(made):
    assert load_checkpoint(made) is None
    for task in range(3):
        save_checkpoint(made, {"task": task})
    assert names(made) == ["checkpoint-previous.pt", "checkpoint.pt", "config.yaml"]
    last, previous = made / "checkpoint.pt", made / "checkpoint-previous.pt"
    assert load_with_notes(made.path) == (2, [])
    last.write_bytes(last.read_bytes().replace(b"task", b"tusk"))
    end = f"{previous}, the checkpoint before it, is used"
    assert load_with_notes(made.path) == (1, [f"{last} is damaged or cut short: its SHA-256 is another one: {end}"])
    folder = RunFolder(made.path)
    assert load_checkpoint(folder)["task"] == 1
    save_checkpoint(folder, {"task": 3})  # the damaged one does not replace the good one
    assert load_with_notes(made.path) == (3, [])
    last.unlink()
    assert load_with_notes(made.path) == (1, [f"{last} is missing: {end}"])
    previous.write_bytes(b"")
    with pytest.raises(
        UserError, match=r"checkpoint.pt is missing, and .*checkpoint-previous.pt is damaged or cut short"
    ):
        load_checkpoint(made)


@pytest.mark.parametrize("call", range(1, 5))
def test_a_kill_while_a_checkpoint_is_written_leaves_a_good_one(made, monkeypatch, call):
    """Before the file is flushed, and before and after each of the two renames."""
    save_checkpoint(made, {"task": 0})
    save_checkpoint(made, {"task": 1})
    calls = iter(range(1, 10))

    def kill_at(name):
        real = getattr(os, name)

        def stop(*arguments):
            if next(calls) == call:
                raise KeyboardInterrupt
            real(*arguments)

        monkeypatch.setattr(os, name, stop)

    for name in ("fsync", "replace"):
        kill_at(name)
    with contextlib.suppress(KeyboardInterrupt):
        save_checkpoint(made, {"task": 2})
    assert load_with_notes(made.path)[0] == (1 if call < 4 else 2)


@pytest.mark.parametrize("state", [{"format": _FORMAT + 1}, {}, [1, 2], torch.zeros(2)], ids=str)
def test_a_checkpoint_of_another_make(made, state):
    torch.save(state, made / "checkpoint.pt")
    sign_checkpoint(made / "checkpoint.pt")
    with pytest.raises(UserError, match="is not a checkpoint of this version"):
        load_checkpoint(made)


def test_a_link_in_place_of_a_temporary_file(tmp_path):
    """tests/cli/test_links.py has other links."""
    outside, folder = tmp_path / "outside", RunFolder(tmp_path)
    outside.write_text("kept")
    (tmp_path / partial_name("metrics.json")).symlink_to(outside)
    with pytest.raises(UserError, match="is a link, which is not followed"):
        folder.write_json("metrics.json", {})
    assert outside.read_text() == "kept"
