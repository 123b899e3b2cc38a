"""Checkpoints: their content, runs that resume after a kill, and checkpoints that do not fit their run."""

import json
import signal
import threading

import pytest
import torch
from engine.small_runs import BAD, SMALL, Notes, assert_same_files, copy_unfinished, edit_config, options
from support import command_server
from support.methods import same
from torch import nn

from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback
from lifelabel.engine.checkpoint import AsyncSaver, _map_tensors, all_finite
from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.engine.progress import Progress
from lifelabel.errors import Diverged
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning


def test_progress_is_restored_from_plain_values(tmp_path):
    progress = Progress(1, 2, 30, 4.5, [{"task": 1, "seen": {}, "by_task": [{}]}], 14, {7, 3}, {9}, 5)
    state = progress.to_dict()
    assert (state["bad_train"], state["bad_test"]) == ([3, 7], [9])
    torch.save(state, tmp_path / "state.pt")
    assert Progress.from_dict({**torch.load(tmp_path / "state.pt", weights_only=True), "more": 1}) == progress


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("task", -1), ("task", 1.0), ("task", True), ("step", -5), ("step", None), ("images", "3"), ("learned", -1),
        ("skipped", []), ("seconds", float("nan")), ("seconds", "1"), ("seconds", -1.0), ("records", {}),
        ("records", [{}]), ("records", [{"task": 2, "seen": {}, "by_task": [{}]}]), ("bad_train", 3),
        ("bad_test", [-1]), ("bad_test", ["a"]),
    ],
)  # fmt: skip
def test_a_progress_that_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=f"^{name} cannot be "):
        Progress.from_dict({**Progress().to_dict(), name: value})


@pytest.mark.parametrize(("task", "step", "records"), [(4, 0, 4), (0, 0, 0), (2, 11, 1), (3, 1, 2), (2, 0, 2)])
def test_a_position_outside_the_run_is_refused(task, step, records):
    progress = Progress(task, step, records=[{}] * records)
    with pytest.raises(ValueError, match="cannot be"):
        progress.check(3, 1, [10, 10, 10])
    Progress(2, 10, records=[{}]).check(3, 1, [10, 10, 10])


CHILD = """
import json, os, sys
import torch
from lifelabel.engine import evaluator
from lifelabel.engine import run as engine
from lifelabel.engine.callback import Callback

folder, options, event, count, number = sys.argv[1:]
left = int(count)

def killing(name, function):
    def call(*arguments):
        global left
        left -= name == event
        if name == event and left == 0:
            if name == "saving":
                arguments[1].write(b"half a checkpoint")
            os.kill(os.getpid(), int(number))
        return function(*arguments)
    return call

Callback.steps = killing("step", Callback.steps)
Callback.evaluated = killing("evaluated", Callback.evaluated)
evaluator.compute_scores = killing("evaluating", evaluator.compute_scores)
torch.save = killing("saving", torch.save)
engine.train(folder, json.loads(options))
"""
KILLS = [
    ("agcn", "saving", 3, signal.SIGKILL, 1000),  # the history is longer than at the last checkpoint
    ("agcn", "step", 2, signal.SIGKILL, 0),  # in the first task
    ("agcn", "step", 7, signal.SIGKILL, 0),  # in the second, with an expert
    ("agcn", "saving", 6, signal.SIGKILL, 0),  # while a checkpoint is written
    ("agcn", "evaluating", 2, signal.SIGKILL, 0),  # between the last step and the score of a task
    ("agcn", "evaluated", 1, signal.SIGKILL, 0),  # between two tasks
    ("agcn", "step", 8, signal.SIGINT, 0),  # Ctrl-C
    ("fine-tuning", "step", 6, signal.SIGTERM, 0),
    ("multi-task", "step", 5, signal.SIGKILL, 0),
    ("weighted-ridge", "step", 2, signal.SIGKILL, 0),  # in the warm-up
    ("weighted-ridge", "step", 7, signal.SIGINT, 0),  # in the second task
    ("weighted-ridge", "evaluated", 2, signal.SIGKILL, 0),  # with features of the test images in memory
]


def options_of(method, **more):
    return options(method=method, method_options={"directions": 32} if method == "weighted-ridge" else {}, **more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Runs that were not interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    more = {"checkpoint_seconds": 0}
    methods = ("agcn", "fine-tuning", "multi-task", "weighted-ridge")
    return {m: engine.train(folder / m, options_of(m, **more)) for m in methods}


@pytest.mark.parametrize(("method", "event", "count", "number", "seconds"), KILLS)
def test_a_killed_run_resumes_inside_the_task_and_ends_the_same(method, event, count, number, seconds, whole, tmp_path):
    folder = tmp_path / "run"
    given = json.dumps(options_of(method, checkpoint_seconds=seconds))
    args = (folder, given, event, count, int(number))
    child = command_server.run(*args, code=CHILD, capture_output=True, text=True, timeout=120)
    assert child.returncode == (-9 if number == signal.SIGKILL else 1), child.stderr
    if number != signal.SIGKILL:
        assert "stopped; resume with: lifelabel train --resume" in child.stderr
    before = load_checkpoint(engine.RunFolder(folder))
    assert before["images"] < SMALL["train_images"]
    engine.resume(folder)
    expected = whole[method].folder
    assert_same_files(folder, expected, "metrics.json", "history.jsonl")
    got, wanted = (torch.load(f / "checkpoint.pt", weights_only=True) for f in (folder, expected))
    assert same(got["method"], wanted["method"])
    assert not list(folder.glob("*.new"))


def test_a_killed_run_on_photographs_resumes_with_another_folder(photographs, tmp_path):
    given = {**photographs[0], "method": "fine-tuning", "checkpoint_seconds": 0}
    whole, folder = engine.train(tmp_path / "whole", given).folder, tmp_path / "run"
    child = {**given, "workers": 1}
    args = (folder, json.dumps(child), "step", 14, int(signal.SIGKILL))
    assert command_server.run(*args, code=CHILD, capture_output=True, timeout=120).returncode == -9
    moved = (tmp_path / "photos").rename(tmp_path / "moved")
    edit_config(folder, stream_options={"root": str(moved)})
    assert load_checkpoint(engine.RunFolder(folder))["task"] == 1
    engine.resume(folder)
    assert_same_files(folder, whole, "metrics.json", "history.jsonl", "skipped.jsonl")
    used = next(i for i in range(60) if i % 4 and f"{i}.png" not in BAD and photographs[1][i].any())
    (moved / f"{used}.png").unlink()
    (folder / "metrics.json").unlink()  # a finished run is not built again
    with pytest.raises(engine.UserError, match="when other images had a file"):
        engine.resume(folder)


def test_a_finished_run_is_not_run_again(whole):
    before = whole["agcn"].folder.joinpath("history.jsonl").read_bytes()
    again = engine.resume(whole["agcn"].folder)
    assert again.metrics == whole["agcn"].metrics
    assert whole["agcn"].folder.joinpath("history.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("method_options", {"mix": 0.5}, r"another method\.mix than .*config.yaml has: 0.05$"),
        ("stream_options", {"seed": 1}, "another stream"),
        ("word_norm", 3.0, "other word vectors"),
    ],
)
def test_a_run_does_not_resume_as_another_one(name, value, message, whole, tmp_path):
    """tests/config/test_roles.py has all options."""
    folder = copy_unfinished(whole["agcn"].folder, tmp_path / "run")
    edit_config(folder, **{name: value})
    with pytest.raises(engine.UserError, match=message):
        engine.resume(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("stream"),
        lambda state: state.update(method={}),
        lambda state: state["method"].update(acm=None),
        lambda state: state.update(random_state=3),
        lambda state: state.update(history_bytes="x"),
        lambda state: state.update(step=-5),
        lambda state: state.update(step=1),  # all tasks are done
        lambda state: state.update(records=state["records"][1:]),
        lambda state: state.update(extends={"run": 3}),
        lambda state: state.update(skipped_bytes=-1),
    ],
)
def test_an_incomplete_checkpoint_is_one_line(change, whole, tmp_path):
    folder = copy_unfinished(whole["agcn"].folder, tmp_path / "run")
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    change(state)
    save_checkpoint(engine.RunFolder(folder), state)
    with pytest.raises(engine.UserError, match="does not fit"):
        engine.resume(folder)


def test_a_run_with_a_damaged_checkpoint_resumes_from_the_one_before(whole, tmp_path):
    folder, notes = copy_unfinished(whole["fine-tuning"].folder, tmp_path / "run"), Notes()
    path = folder / "checkpoint.pt"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    engine.resume(folder, notes)
    used = [line for line in notes.lines if "checkpoint-previous.pt, the checkpoint before it, is used" in line]
    assert used and used == notes.lines[-1:]
    assert_same_files(folder, whole["fine-tuning"].folder, "metrics.json", "history.jsonl")


@pytest.mark.parametrize("name", ["history.jsonl", "skipped.jsonl"])
def test_an_edit_of_a_file_that_grows_is_found(name, photographs, tmp_path):
    one_task = {**photographs[0]["stream_options"], "tasks": 1}
    given = {**photographs[0], "method": "fine-tuning", "stream_options": one_task}
    folder = engine.train(tmp_path / "run", given).folder
    (folder / "metrics.json").unlink()
    state = load_checkpoint(engine.RunFolder(folder))
    save_checkpoint(engine.RunFolder(folder), {**state, "task": 0, "step": 11, "records": []})
    text = (folder / name).read_text()
    (folder / name).write_text(text[:-3] + "0" + text[-2:])
    with pytest.raises(engine.UserError, match=f"{name} is not as it was when the checkpoint was written"):
        engine.resume(folder)


@pytest.mark.parametrize(("method", "lr"), [("agcn", 1e19), ("fine-tuning", 1e30)])
def test_divergence_of_the_scores_leaves_the_last_good_checkpoint(method, lr, tmp_path):
    """With one step per task, the loss of the step that makes the weights useless is still finite."""
    first = {"lr": 1e-4, "backbone_lr": 1e-3, "later_backbone_lr": lr}
    given = options(method=method, batch_size=90, checkpoint_seconds=0, **first)
    with pytest.raises(Diverged, match=r"^task 2, step 1: the scores are not finite; stopped, the last good "):
        engine.train(tmp_path / "run", given)
    state = load_checkpoint(engine.RunFolder(tmp_path / "run"))
    assert (state["task"], state["step"]) == (1, 0)
    edit_config(tmp_path / "run", later_backbone_lr=1e-4)
    assert engine.resume(tmp_path / "run").metrics["finished"]


def test_a_state_that_is_not_finite_is_not_saved(monkeypatch, tmp_path):
    """Also if the scores are finite."""

    class Overflowing(FineTuning):
        def state_dict(self):
            value = float("inf") if len(self.tasks) == 2 else 1.0
            return {**super().state_dict(), "more": torch.tensor([1.0, value])}

    monkeypatch.setitem(METHODS._items, "overflowing", Overflowing)
    with pytest.raises(Diverged, match=r"^task 2, step 1: the weights are not finite; stopped, the last good "):
        engine.train(tmp_path / "run", options(method="overflowing", checkpoint_seconds=0))
    state = load_checkpoint(engine.RunFolder(tmp_path / "run"))
    assert (state["task"], state["step"], state["method"]["more"].tolist()) == (1, 0, [1, 1])


def test_the_callback_ends_also_if_the_last_checkpoint_cannot_be_written(tmp_path, monkeypatch):
    def full(folder, write):
        raise OSError("no space left")

    callback, ended = Callback(), []
    callback.end = lambda: ended.append(True)
    monkeypatch.setattr(engine.RunFolder, "write_checkpoint", full)
    with pytest.raises(OSError, match="no space left"):
        engine.train(tmp_path / "run", options(method="fine-tuning"), callback=callback)
    assert ended == [True]


# Asynchronous checkpoints: a state is written as it was when `save` was called

CPU = torch.device("cpu")


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)])
def test_a_state_is_written_as_it_was_when_it_was_saved(device):
    written, proceed = [], threading.Event()
    saver = AsyncSaver(lambda state: (proceed.wait(10), written.append(state)), device)
    weights = torch.zeros(3, device=device)
    state = {"weights": [weights], "step": 1}
    saver.save(state)
    weights += 1
    assert saver.busy and not written
    proceed.set()
    saver.close()
    assert not saver.busy and written[0]["step"] == 1
    assert written[0]["weights"][0].device == CPU and written[0]["weights"][0].tolist() == [0, 0, 0]


def test_states_are_written_one_after_the_other():
    order, first, second = [], threading.Event(), threading.Event()

    def write(state):
        assert (first if state["step"] == 1 else second).wait(10)
        order.append(state["step"])

    saver = AsyncSaver(write, CPU)
    saver.save({"step": 1})
    threading.Timer(0.05, first.set).start()
    saver.save({"step": 2})  # waits until the first state is written
    assert order == [1] and saver.busy
    second.set()
    saver.close()
    assert order == [1, 2]


def test_an_error_of_the_thread_is_raised_once_by_the_next_wait():
    def full(state):
        raise OSError("no space")

    saver = AsyncSaver(full, CPU)
    saver.save({})
    with pytest.raises(OSError, match="no space"):
        saver.wait()
    saver.close()


def test_a_state_keeps_its_kind():
    state = nn.BatchNorm2d(2).state_dict()
    same = _map_tensors(state, torch.Tensor.clone)
    assert type(same) is type(state) and same._metadata == state._metadata
    state["weight"].zero_()
    assert same["weight"].tolist() == [1, 1]
    assert _map_tensors({"a": (1, [torch.ones(1)])}, lambda t: t + 1) == {"a": (1, [2])}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_all_finite(value):
    state = {"a": [torch.ones(2), {"b": torch.arange(3)}], "c": "text"}
    assert all_finite(state) and all_finite({})
    state["a"][1]["d"] = torch.tensor([0.0, value])
    assert not all_finite(state)
