"""The label server, also with a method that tries to get hidden labels."""

import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import command_server

import lifelabel
from lifelabel.engine.label_server import LabelServer, _answer
from lifelabel.errors import HiddenLabel, UserError
from lifelabel.streams import build
from lifelabel.streams.subsets import Part

SMALL = {"train_images": 60, "test_images": 30, "size": 32}


@pytest.fixture
def label_server():
    with closing(LabelServer("scenes", SMALL)) as server:
        yield server


def cheat(*args):
    code = Path(__file__).with_name("cheating.py").read_text(encoding="utf-8")
    done = command_server.run(*args, code=code, capture_output=True, encoding="utf-8", timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "given", ["scenes task", "scenes known", "photographs task", "photographs known", "photographs blurry"]
)
def test_a_method_that_cheats_finds_no_hidden_label(given):
    stream, labels = given.split()
    found = cheat(stream, labels)
    by_name, other_task, all_tasks, matrix, *rest = found["errors"]
    names = {"scenes": ("sun", "sky, boat, house, cup", "sun, road, lamp, flower")}
    hidden, visible, others = names.get(stream, ("i", "a, b, c, d", "i, j, k, l"))
    assert by_name == f"the label '{hidden}' is hidden: the visible classes are {visible}"
    assert other_task == f"the labels of task 3 ({others}) are hidden: task 1 is open"
    assert "labels of all tasks together are hidden" in all_tasks
    assert "true matrix is hidden" in matrix
    assert [error.split(":")[0] for error in rest] == [
        "the label server has no request '__getattribute__'",
        "the label server has no request '__setattr__'",
        "the run has begun already",
        "the scores of earlier test sets cannot be submitted before the last task",
        "task 2 cannot be judged now",
        "answered",  # judging the open task: the run itself then cannot
    ]
    assert found["ended"] == "task 1 cannot be judged now: each task is judged once, when it ends"
    assert found["kinds"] == ["Labels"] and found["hidden"] == 0  # the labels of its own task: it did look


@pytest.mark.parametrize("stream", ["scenes", "photographs"])
def test_the_search_finds_a_stream_that_is_in_the_process(stream):
    found = cheat(stream, "task", "control")
    assert "Stream" in found["kinds"] and found["hidden"] > 0


def test_tasks_open_one_after_the_other(label_server):
    stream = build("scenes", SMALL)
    with pytest.raises(HiddenLabel, match=r"labels of task 1 .* are hidden: no task is open"):
        label_server.view(0)
    label_server.begin(0)
    for index in (0, 0):  # the open task may be asked for again
        assert label_server.view(index).labels == stream.train_view(index).labels
    for later in (1, 4):
        with pytest.raises(HiddenLabel, match=f"labels of task {later + 1} .* are hidden: task 1 is open"):
            label_server.view(later)
    scores = np.zeros((30, 4), np.float32)
    for done in (0, 2, 5):
        with pytest.raises(HiddenLabel, match=f"task {done} cannot be judged now"):
            label_server.judge(done, label_server.info.test_rows, scores, None)
    assert label_server.judge(1, label_server.info.test_rows, scores, None)[0]["task"] == 1
    assert label_server.view(1).task == stream.tasks[1]
    with pytest.raises(HiddenLabel, match="labels of task 1 "):
        label_server.view(0)
    with pytest.raises(HiddenLabel, match="task 1 cannot be judged now"):  # a second time, with other scores
        label_server.judge(1, label_server.info.test_rows[:1], scores[:1], None)
    with pytest.raises(HiddenLabel, match=r"^the run has begun already: the open task cannot be changed$"):
        label_server.begin(4)


def test_with_known_labels_the_labels_of_later_classes_stay_hidden():
    stream = build("scenes", SMALL)
    with closing(LabelServer("scenes", {**SMALL, "labels": "known"})) as server:
        server.begin(0)
        for index, task in enumerate(stream.tasks):
            view = server.view(index)
            rows = stream.train.rows[index]
            assert view.classes == stream.classes[: task.end] and view.known(np.arange(len(rows))) is None
            assert np.array_equal(view.labels.dense(), stream.train.labels.take(rows).dense(slice(0, task.end)))
            for other in {0, 1, 4} - {index}:
                with pytest.raises(HiddenLabel, match=f"labels of task {other + 1} .* are hidden"):
                    server.view(other)
            if index < len(stream.tasks) - 1:
                scores = np.zeros((30, task.end), np.float32)
                server.judge(index + 1, server.info.test_rows, scores, None)
        with pytest.raises(HiddenLabel, match="test labels are hidden"):
            server.test_labels(server.info.test_rows)


def test_all_labels_go_only_to_a_joint_method(label_server):
    with pytest.raises(HiddenLabel, match="only a joint method gets them"):
        label_server.joint_view()
    with closing(LabelServer("scenes", SMALL, joint=True)) as joint:
        joint.begin(0)
        assert joint.joint_view().labels == build("scenes", SMALL).train.labels
        with pytest.raises(HiddenLabel):
            joint.view(0)


def test_a_mistake_in_the_stream_is_one_line():
    with pytest.raises(UserError, match=r"^unknown option of stream scenes 'sizes'"):
        LabelServer("scenes", {"sizes": 3})
    with pytest.raises(UserError, match="there is no"):
        LabelServer("nowhere.csv", {})


def test_a_label_process_that_was_killed_is_one_line(label_server):
    os.kill(label_server.process.pid, signal.SIGKILL)
    label_server.process.join()
    with pytest.raises(UserError, match=r"the label process ended \(exit code -9\)"):
        label_server.view(0)


def test_an_error_of_the_label_process_is_raised_with_its_traceback(label_server):
    with pytest.raises(RuntimeError, match=r"in the label process:\nTraceback[\s\S]*IndexError"):
        label_server.view(99)


def test_closing_ends_the_process(label_server):
    label_server.close()
    assert not label_server.process.is_alive() and label_server.process.exitcode == 0


def test_it_ends_without_a_message_if_its_client_is_killed(capfd):
    """Also while an answer is on its way: then the pipe is not closed but reset."""
    server = LabelServer("scenes", SMALL)
    server.pipe.send(("begin", 0))
    assert server.pipe.poll(60)
    server.pipe.close()
    server.process.join(60)
    assert server.process.exitcode == 0 and capfd.readouterr().err == ""


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError])
def test_an_error_of_a_stream_is_not_taken_for_the_end_of_the_client(error):
    def build():
        raise error("the network share is gone")

    ours, theirs = multiprocessing.Pipe()
    assert not _answer(theirs, build)
    kind, text = ours.recv()
    assert kind == "failure" and text.endswith(f"{error.__name__}: the network share is gone\n")


def test_only_requests_of_the_gate_are_answered(label_server):
    for name in ("__getattribute__", "stream", "_serve", ""):
        with pytest.raises(HiddenLabel, match=f"^the label server has no request '{name}'$"):
            label_server._request(name, "stream")
    label_server.begin(0)  # the server continues


def test_scores_of_earlier_tasks_are_submitted_once(label_server):
    rows, last = label_server.info.test_rows, len(label_server.info.tasks) - 1
    scores = np.zeros((len(rows), 20), np.float32)
    label_server.begin(last)
    label_server.submit_earlier(0, rows, scores[:, :4])
    for index in (0, last):
        expected = (
            f"^the scores of task {index + 1} cannot be submitted: only those of earlier tasks can, once per task$"
        )
        with pytest.raises(HiddenLabel, match=expected):
            label_server.submit_earlier(index, rows, scores)


# What the program itself has registered

OWN = """
from dataclasses import dataclass, replace
from lifelabel import METRICS, STREAMS, option, streams
from lifelabel.metrics import Metric

@dataclass(frozen=True)
class Options:
    images: int = option(40, "number of training images", low=4)

def build(options):
    return replace(streams.build("scenes", {"train_images": options.images, "test_images": 20}), name="own")

def always_one(scored):
    return 1.0

STREAMS.register("own", streams.Source("scenes", Options, build))
METRICS.register("one", Metric("a test", "always 1", always_one))
"""


@pytest.mark.parametrize("importable", [True, False])
def test_the_label_process_has_the_streams_and_metrics_of_the_program(importable, plugin_state, tmp_path):
    """A process with several threads. Code that cannot be imported, as that of a notebook, is in a fork."""
    if importable:
        (tmp_path / "own_code.py").write_text(OWN)
        sys.path.append(str(tmp_path))
        importlib.import_module("own_code")
    else:
        exec(compile(OWN, "<notebook>", "exec"), {"__name__": "notebook"})
    ended = threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    server = LabelServer("own", {"images": 24}, joint=True)
    try:
        assert server.info.name == "own" and sum(server.info.sizes) == 24
        in_fork = isinstance(server.process, multiprocessing.get_context("fork").Process)
        assert in_fork is not importable
        server.begin(0)
        rows, (*earlier, last) = server.info.test_rows, server.info.tasks
        for task in earlier:
            server.submit_earlier(task.index, rows, np.zeros((len(rows), task.end), np.float32))
        scores = np.zeros((len(rows), last.end), np.float32)
        record, _ = server.judge(len(server.info.tasks), rows, scores, None)
        assert record["conventions"]["one"] == 1.0
    finally:
        server.close()
        ended.set()
        thread.join()


def test_labels_of_validation_images_are_those_of_the_open_task(tmp_path):
    """Before and after other parts of a table: an order of tasks, the first tasks, and images sorted by name."""
    rows = [
        "image,labels,split",
        *(f"{k}.png,{'abcd'[k % 4]};{'bcda'[k % 3]},{['train', 'test', 'val'][k % 3]}" for k in range(24)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    for k in range(24):
        if k != 5:
            Image.new("RGB", (8, 8)).save(tmp_path / f"{k}.png")
    table = {"file": str(tmp_path / "t.csv"), "tasks": 2}
    for part in (Part(), Part(task_order=1), Part(first_tasks=1)):
        with closing(LabelServer("table", table, part=part)) as label_server:
            info = label_server.info
            names = [info.val.name(row) for row in info.val_rows.tolist()]
            assert names == sorted(f"{k}.png" for k in range(2, 24, 3) if k != 5)
            label_server.begin(0)
            labels, known = label_server.val_labels(0, info.val_rows)
            for name, row in zip(names, labels.tolist(), strict=True):
                k = int(name.removesuffix(".png"))
                assert row == [each in ("abcd"[k % 4], "bcda"[k % 3]) for each in info.tasks[0].classes]
            assert known.all() and known.shape == labels.shape
            with pytest.raises(HiddenLabel, match="validation images for task 2 are hidden"):
                label_server.val_labels(1, info.val_rows)


def test_a_run_uses_validation_images(tmp_path):
    """The regularisation is chosen by them, and an unreadable one is left out."""
    rng = np.random.default_rng(0)
    rows = {"train": [], "test": [], "val": []}
    for k in range(48):
        labels = [name for name in "abcd" if rng.random() < 0.4] or ["a"]
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(tmp_path / f"{k}.png")
        rows[("train", "train", "test", "val")[k % 4]].append(f"{k}.png,{';'.join(labels)}")
    (tmp_path / "47.png").write_text("no image")
    errors = []
    for name, splits in (("with", ("train", "test", "val")), ("without", ("train", "test"))):
        lines = [f"{row},{split}" for split in splits for row in rows[split]]
        (tmp_path / f"{name}.csv").write_text("\n".join(["image,labels,split", *lines]) + "\n")
        lifelabel.train(
            tmp_path / name, stream=str(tmp_path / f"{name}.csv"), tasks=2, method="weighted-ridge", backbone="tiny",
            image_size=32, weights="none", device="cpu", method_options={"directions": 16, "warm_up": 0},
        )  # fmt: skip
        errors.append(torch.load(tmp_path / name / "checkpoint.pt", weights_only=True)["method"]["errors"])
    used, left_out = errors
    assert used.shape == left_out.shape == (2, 8) and not torch.isclose(used, left_out).all(1).any()
    assert (used.min(1).values == 1).all()
