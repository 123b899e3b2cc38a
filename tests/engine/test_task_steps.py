"""Several passes over the images of each task: their order, what is counted once, and exact resume."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine.small_runs import At, Killed, assert_same_files, kill, read_lines
from support.methods import same

from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.engine.training import TaskPasses
from lifelabel.engine.verification import verify
from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.methods.er import ER
from lifelabel.parallel.group import Group
from lifelabel.streams.order import training_order

ROWS = np.arange(100, 130)


class View(SimpleNamespace):
    def __len__(self):
        return len(self.rows)


def passes(epochs=3, batch_size=8, seed=5, task=2):
    config = Config.make({"epochs": epochs, "batch_size": batch_size, "seed": seed, "augment": "crop-flip"})
    return TaskPasses(config, View(rows=ROWS), None, task)


def test_every_pass_has_each_image_once_in_an_order_of_its_own():
    made = passes()
    assert (made.steps, made.total) == (4, 12)
    orders = [np.concatenate([made.batch(4 * number + step) for step in range(4)]) for number in range(3)]
    assert all(sorted(order.tolist()) == list(range(30)) for order in orders)
    assert len({order.tobytes() for order in orders}) == 3
    assert [made.number(step) for step in (0, 3, 4, 11)] == [0, 0, 1, 2]
    assert np.array_equal(orders[0], training_order(ROWS, None, 5, 2))  # the first pass is that of a run of one pass


def test_the_jobs_from_any_step_are_the_rest_of_all_jobs():
    made, alone = passes(), Group()
    every = list(made.jobs(0, alone))
    assert [job.seed for job in every] == [(5, 2)] * 4 + [(5, 2, 1)] * 4 + [(5, 2, 2)] * 4
    assert {job.augment for job in every} == {"crop-flip"}
    assert all(np.array_equal(job.rows, ROWS[made.batch(step)]) for step, job in enumerate(every))
    rest = list(passes().jobs(6, alone))
    assert [(job.rows.tolist(), job.seed) for job in rest] == [(job.rows.tolist(), job.seed) for job in every[6:]]


def test_the_processes_of_a_run_divide_each_step():
    parts = [list(passes().jobs(0, Group(rank, 3))) for rank in range(3)]
    for step, whole in enumerate(passes().jobs(0, Group())):
        assert np.array_equal(np.concatenate([part[step].rows for part in parts]), whole.rows)


class Recorded(ER):
    """Records the position, the flag and the images of each step."""

    steps: list = []  # noqa: RUF012

    def observe(self, batch):
        colours = [round(x, 4) for x in batch.images[:, 0, 0, 0].tolist()]  # each image has another one
        self.steps.append((len(self.tasks), batch.first_pass, colours))
        return super().observe(batch)


def test_a_run_of_several_passes_its_files_and_exact_resume(photographs, monkeypatch, tmp_path):
    """One training image cannot be read: it is skipped in every pass, and counts once."""
    monkeypatch.setitem(METHODS._items, "recorded", Recorded)
    Recorded.steps = []
    options = {**photographs[0], "method": "recorded", "epochs": 2, "batch_size": 6, "augment": "flip"}
    done = engine.train(tmp_path / "run", {**options, "method_options": {"buffer_images": 500}})
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    learned = []
    for task in (1, 2):
        first, second = (
            [x for t, is_first, images in Recorded.steps if (t, is_first) == (task, flag) for x in images]
            for flag in (True, False)
        )
        assert len(set(first)) == len(first) > 10 and sorted(first) == sorted(second) and first != second
        learned.append(len(first))
    assert state["images"] == 2 * sum(learned) and len(state["method"]["buffer"]["offset"]) == sum(learned)
    assert done.metrics["skipped"] == {"train": 1, "test": 2}
    assert {record["skipped"]["train"] for record in done.metrics["per_task"]} <= {0, 1}
    lines = read_lines(tmp_path / "run" / "history.jsonl")
    for task in (1, 2):
        numbers = [line["pass"] for line in lines if line["task"] == task]
        assert numbers == [1] * (len(numbers) // 2) + [2] * (len(numbers) // 2)
        assert [line["step"] for line in lines if line["task"] == task] == list(range(1, len(numbers) + 1))
    assert lines[-1]["images"] == state["images"] and "epochs=2" in done.environment["label"]
    checked = {check.name: check.state for check in verify(tmp_path / "run").checks}
    assert set(checked.values()) == {"ok"}, checked

    saved = {"checkpoint_seconds": 0, "method_options": {"buffer_images": 500}}
    with pytest.raises(Killed):
        engine.train(tmp_path / "stopped", {**options, **saved}, callback=At(len(lines) - 1, kill))
    position = torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)
    assert (position["task"], position["step"]) == (1, lines[-1]["step"] - 2)  # inside the second pass
    assert engine.resume(tmp_path / "stopped").metrics == done.metrics
    assert same(torch.load(tmp_path / "stopped" / "checkpoint.pt", weights_only=True)["method"], state["method"])
    assert_same_files(tmp_path / "stopped", tmp_path / "run", "history.jsonl")


def test_several_passes_over_an_online_stream_are_refused(tmp_path):
    small = {"train_images": 40, "test_images": 20}
    with pytest.raises(UserError, match=r"^epochs=2: the tasks of scenes are an online stream, .* --epochs, "):
        engine.train(tmp_path / "run", {"epochs": 2, "stream_options": small, "device": "cpu"})
    assert not (tmp_path / "run").exists()
