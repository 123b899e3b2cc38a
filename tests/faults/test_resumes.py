"""Damaged files of an interrupted run: resuming it gives the same bytes, or an error of one line."""

import json
import shutil
import signal
from contextlib import contextmanager

import pytest
from faults.mutations import ODD_VALUES, damaged, json_lines, yaml_file
from faults.processes import assert_none_left, begin, complete, files_of, finish, wait_until
from faults.readers import checkpoint_file
from faults.settings import generate
from faults.test_kills import OFTEN
from hypothesis import given
from hypothesis import strategies as st

from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.runs.folder import RunFolder

SMALL = ("--set", "stream.train_images=40", "--set", "stream.test_images=40", "--tasks", "2", "--device", "cpu", "-q")
RUN = ("train", "--method", "fine-tuning", *SMALL, *OFTEN)
FILES = {
    "checkpoint.pt": checkpoint_file, "checkpoint-previous.pt": damaged, "history.jsonl": json_lines,
    "skipped.jsonl": damaged, "config.yaml": yaml_file, "details/task-1.npz": damaged,
}  # fmt: skip
OPTIONS = ("config.yaml",)
"""Files that a user may edit: another valid value gives another run, or is refused."""
STATE = (
    "format", "task", "step", "images", "seconds", "records", "learned", "bad_train", "bad_test", "history_bytes",
    "skipped_bytes", "config", "stream", "files", "words", "weights", "plugin_files", "random_state", "method",
    "extends", "trained", "digests", "changed_options", "resolved", "unknown",
)  # fmt: skip
"""Entries of a checkpoint."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of an interrupted run, and that of the same run undisturbed."""
    folder = tmp_path_factory.mktemp("resumes")
    complete(*RUN, "--out", folder / "whole")
    process = begin(*RUN, "--out", folder / "cut")
    # in the second task, so that there are two checkpoints
    assert wait_until(process, (folder / "cut/details/task-1.npz").exists)
    process.send_signal(signal.SIGKILL)
    finish(process)
    return folder / "cut", folder / "whole"


def resumed(folder):
    """Whether the run could be resumed. An error must be one line."""
    process = begin("train", "--resume", folder, "-q")
    code, _, errors = finish(process)
    assert_none_left(process.pid)
    assert code in (0, 2) and "Traceback" not in errors, errors
    assert code == 0 or (errors.startswith("error: ") and errors.count("\n") == 1), errors
    return code == 0


@contextmanager
def copied(run, folder):
    """A copy of a run, which is removed at the end: a test inside a test runs many times."""
    try:
        yield shutil.copytree(run, folder / "run")
    finally:
        shutil.rmtree(folder / "run")


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_of_an_interrupted_run(name, runs, tmp_path, size, seed, count):
    cut, whole = runs
    if not (cut / name).exists():
        pytest.skip(f"this run has no {name}")

    @generate(size.resumes, seed)
    @given(FILES[name]((cut / name).read_bytes()))
    def test(data):
        with copied(cut, tmp_path) as folder:
            (folder / name).write_bytes(data)
            if resumed(folder) and name not in OPTIONS:
                assert files_of(folder) == files_of(whole)
        count(inputs=1)

    test()


def test_a_checkpoint_with_other_values(runs, tmp_path, size, seed, count):
    """The digest of such a file is right: only the values are not."""
    cut, _ = runs

    @generate(size.resumes, seed)
    @given(st.dictionaries(st.sampled_from(STATE), st.sampled_from(ODD_VALUES), min_size=1, max_size=3))
    def test(values):
        with copied(cut, tmp_path) as folder:
            save_checkpoint(RunFolder(folder), {**load_checkpoint(RunFolder(folder)), **values})
            resumed(folder)
        count(inputs=1)

    test()


def test_no_file_but_the_checkpoint_and_the_options_is_needed(runs, tmp_path):
    """A missing metrics.json or environment.json is written again."""
    cut, whole = runs
    folder = shutil.copytree(cut, tmp_path / "run")
    for name in ("metrics.json", "environment.json"):
        (folder / name).unlink(missing_ok=True)
    assert resumed(folder)
    assert files_of(folder) == files_of(whole)
    assert json.loads((folder / "metrics.json").read_text())["finished"]
