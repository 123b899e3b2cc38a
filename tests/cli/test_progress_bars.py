"""Progress of runs: lines without a terminal, and bars in a terminal."""

import io
import json
import threading
import time

import pytest
from rich.console import Console

from lifelabel.cli.progress_bars import ProgressBar, RunsDisplay
from lifelabel.engine import run as engine
from lifelabel.engine import training
from lifelabel.methods import METHODS, FineTuning
from lifelabel.report.tables import one_line
from lifelabel.runs.finished import read_run
from lifelabel.search.planned_run import PlannedRun
from lifelabel.search.scheduler import run_all
from lifelabel.streams import Task

TINY = {"classes": 4, "tasks": 2, "train_images": 24, "test_images": 16}


def plan(folder, method="fine-tuning", seed=0, **more):
    values = {"method": method, "seed": seed, "device": "cpu", "stream_options": TINY, **more}
    return PlannedRun(f"{method}, seed {seed}", folder / f"{method}-{seed}", values)


def test_one_line_per_run_without_a_terminal(tmp_path):
    output = io.StringIO()
    plans = [plan(tmp_path, seed=seed) for seed in (0, 1)]
    run_all(plans, 2, display=RunsDisplay(Console(file=output, width=60)))
    lines = sorted(output.getvalue().splitlines())
    assert len(lines) == 2
    for line, each in zip(lines, plans, strict=True):
        assert line.startswith(f"{each.name}: {one_line(read_run(each.folder))}  ")
        assert line.endswith(" s")


def test_finished_runs_and_errors_are_reported_at_the_start(tmp_path):
    first, second = plan(tmp_path), plan(tmp_path, seed=1)
    run_all([first])
    changed = PlannedRun("changed", first.folder, {**first.values, "lr": 0.5})
    output = io.StringIO()
    run_all([first, changed, second], display=RunsDisplay(Console(file=output, width=500)))
    lines = output.getvalue().splitlines()
    assert lines[0] == "1 of 3 runs are finished already"
    assert lines[1].startswith(f"changed: {first.folder} holds a run with other options (lr ")
    assert lines[2].startswith("fine-tuning, seed 1: mAP ") and len(lines) == 3


def test_bars_in_a_terminal(tmp_path, monkeypatch, forked):
    def observe(self, batch):
        time.sleep(0.15)
        return FineTuning.observe(self, batch)

    monkeypatch.setitem(METHODS._items, "slow", type("Slow", (FineTuning,), {"observe": observe}))
    monkeypatch.setattr(training, "_INTERVAL", 1)
    screen = io.StringIO()
    display = RunsDisplay(Console(file=screen, force_terminal=True))
    run_all([plan(tmp_path), plan(tmp_path, "slow", batch_size=3)], display=display)
    text = screen.getvalue()
    for part in ("1/2 runs", " left", "slow, seed 0", "task 2/2", "/24 images", " img/s", "fine-tuning, seed 0: mAP "):
        assert part in text


def test_jobs_of_a_cluster_are_counted():
    screen = io.StringIO()
    display = RunsDisplay(Console(file=screen, force_terminal=True))
    display.begin([None] * 5)
    display.queue(3, 2)
    display.update([])
    display.end()
    assert "0/5 runs" in screen.getvalue() and "jobs: 3 waiting, 2 running" in screen.getvalue()


def test_a_note_of_several_runs_is_printed_once(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("sky 1 2 3\n")
    output = io.StringIO()
    plans = [plan(tmp_path, seed=seed, words=str(words)) for seed in (0, 1)]
    run_all(plans, display=RunsDisplay(Console(file=output, width=500)))
    assert output.getvalue().count("3 label words are not in") == 1


def test_one_line_per_task_of_one_run(tmp_path):
    output = io.StringIO()
    one = plan(tmp_path)
    threads = threading.active_count()
    engine.train(one.folder, one.values, callback=ProgressBar(Console(file=output, width=80)))
    assert threading.active_count() == threads  # none waits for signals any more
    records = json.loads((one.folder / "metrics.json").read_text())["per_task"]
    expected = [
        f"fine-tuning: after task {task}  "
        + "  ".join(f"{name} {100 * record['seen'][name]:5.1f}" for name in ("mAP", "CF1", "OF1"))
        for task, record in enumerate(records, start=1)
    ]
    assert output.getvalue().splitlines() == expected


@pytest.mark.parametrize(("width", "has_names"), [(70, False), (150, True)])
def test_the_bar_of_one_run_fits_the_terminal(tmp_path, width, has_names):
    screen = io.StringIO()
    one = plan(tmp_path)
    console = Console(file=screen, force_terminal=True, width=width)
    engine.train(one.folder, one.values, callback=ProgressBar(console))
    assert "fine-tuning task 1/2" in screen.getvalue()
    assert ("(sky, boat)" in screen.getvalue()) == has_names


def test_names_in_the_bar_have_no_control_characters():
    bar = ProgressBar(Console(file=io.StringIO(), force_terminal=True, width=150))
    bar.method, bar.tasks = "m\x1b[2J", [Task(0, ("a\x1b[31m", "b\u202e"), 0)]
    assert bar._describe(0) == "m�[2J task 1/1 (a�[31m, b�)"
