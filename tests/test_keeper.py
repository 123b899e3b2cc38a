"""The label firewall, attacked by a method that tries to cheat."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lifelabel.errors import HiddenLabel, UserError
from lifelabel.keeper import Keeper
from lifelabel.streams import build

SMALL = {"train_images": 60, "test_images": 30, "size": 32}


@pytest.fixture
def keeper():
    keeper = Keeper("scenes", SMALL)
    yield keeper
    keeper.close()


def cheat(*args):
    script = Path(__file__).with_name("cheating.py")
    command = [sys.executable, script, *args]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("stream", ["scenes", "photographs"])
def test_a_method_that_cheats_finds_no_hidden_label(stream):
    found = cheat(stream)
    by_name, other_task, all_tasks, matrix, *rest = found["errors"]
    names = {"scenes": ("sun", "sky, boat, house, cup", "sun, road, lamp, flower")}
    hidden, shown, others = names.get(stream, ("i", "a, b, c, d", "i, j, k, l"))
    assert by_name == f"the label '{hidden}' is hidden: this task shows {shown} alone"
    assert other_task == f"the labels of task 3 ({others}) are hidden: task 1 is open"
    assert "labels of all tasks together are hidden" in all_tasks
    assert "true matrix is hidden" in matrix
    assert [error.split(":")[0] for error in rest] == [
        "a run begins once",
        "earlier test sets are scored again after the last task",
        "task 2 cannot be judged now",
        "answered",  # judging the open task: the run itself then cannot
    ]
    assert found["ended"] == "task 1 cannot be judged now: each task is judged once, when it ends"
    assert found["kinds"] == ["Labels"] and found["hidden"] == 0  # the labels of its own task: it did look


@pytest.mark.parametrize("stream", ["scenes", "photographs"])
def test_the_search_finds_a_stream_that_is_in_the_process(stream):
    found = cheat(stream, "control")
    assert "Stream" in found["kinds"] and found["hidden"] > 0


def test_the_outline_says_what_everyone_may_know(keeper):
    stream, outline = build("scenes", SMALL), keeper.outline
    assert outline.tasks == stream.tasks and outline.classes == stream.classes
    assert outline.sizes == tuple(len(rows) for rows in stream.train.rows)
    assert (outline.joint_size, len(outline.test_rows), outline.missing) == (60, 30, (0, 0))
    assert outline.fingerprint == stream.fingerprint


def test_tasks_open_one_after_the_other(keeper):
    stream = build("scenes", SMALL)
    with pytest.raises(HiddenLabel, match=r"labels of task 1 .* are hidden: no task is open"):
        keeper.view(0)
    keeper.begin(0)
    for index in (0, 0):  # the open task may be asked for again
        assert keeper.view(index).labels == stream.train_view(index).labels
    for later in (1, 4):
        with pytest.raises(HiddenLabel, match=f"labels of task {later + 1} .* are hidden: task 1 is open"):
            keeper.view(later)
    scores = np.zeros((30, 4), np.float32)
    for done in (0, 2, 5):
        with pytest.raises(HiddenLabel, match=f"task {done} cannot be judged now"):
            keeper.judge(done, keeper.outline.test_rows, scores, None, [4])
    assert keeper.judge(1, keeper.outline.test_rows, scores, None, [4])["task"] == 1
    assert keeper.view(1).task == stream.tasks[1]
    with pytest.raises(HiddenLabel, match="labels of task 1 "):
        keeper.view(0)
    with pytest.raises(HiddenLabel, match="task 1 cannot be judged now"):  # a second time, with other scores
        keeper.judge(1, keeper.outline.test_rows[:1], scores[:1], None, [4])
    with pytest.raises(HiddenLabel, match="a run begins once"):
        keeper.begin(4)


def test_all_labels_go_only_to_a_joint_method(keeper):
    with pytest.raises(HiddenLabel, match="joint alone"):
        keeper.joint_view()
    joint = Keeper("scenes", SMALL, joint=True)
    try:
        joint.begin(0)
        assert joint.joint_view().labels == build("scenes", SMALL).train.labels
        with pytest.raises(HiddenLabel):
            joint.view(0)
    finally:
        joint.close()


def test_a_mistake_in_the_stream_is_one_line():
    with pytest.raises(UserError, match=r"^unknown option of stream scenes 'sizes'"):
        Keeper("scenes", {"sizes": 3})
    with pytest.raises(UserError, match="there is no"):
        Keeper("nowhere.csv", {})


def test_a_keeper_that_was_killed_is_one_line(keeper):
    os.kill(keeper.process.pid, signal.SIGKILL)
    keeper.process.join()
    with pytest.raises(UserError, match=r"the process that holds the labels is gone \(exit code -9\)"):
        keeper.view(0)


def test_a_bug_in_the_keeper_is_shown_whole(keeper):
    with pytest.raises(RuntimeError, match=r"in the process that holds the labels:\nTraceback[\s\S]*IndexError"):
        keeper.view(99)


def test_closing_ends_the_process(keeper):
    keeper.close()
    assert not keeper.process.is_alive() and keeper.process.exitcode == 0
