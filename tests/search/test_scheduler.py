"""The scheduler: which runs are repeated, and runs that fail, are killed or are stopped."""

import os
import signal
import threading
import time

import pytest
import torch
from engine.small_runs import assert_same_files

from lifelabel.config.config import Config
from lifelabel.engine import run as engine
from lifelabel.errors import Diverged, Stopped, UserError
from lifelabel.methods import METHODS, FineTuning
from lifelabel.runs.finished import read_run
from lifelabel.runs.folder import RunFolder
from lifelabel.search import local_runs
from lifelabel.search.local_runs import LocalRuns, default_jobs
from lifelabel.search.planned_run import Outcome, PlannedRun
from lifelabel.search.scheduler import run_all
from lifelabel.utils.yaml_reader import read_yaml

TINY = {"classes": 4, "tasks": 2, "train_images": 24, "test_images": 16}

pytestmark = pytest.mark.usefixtures("forked")


def plan(folder, method="fine-tuning", seed=0, **more):
    values = {"method": method, "seed": seed, "device": "cpu", "stream_options": TINY, **more}
    return PlannedRun(f"{method}, seed {seed}", folder / f"{method}-{seed}", values)


def state(folder):
    """The content of every file of a run, and the time when it was written."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def method(monkeypatch, name, **functions):
    """Register a method: fine-tuning with other functions. A forked process has it too."""
    monkeypatch.setitem(METHODS._items, name, type(name, (FineTuning,), functions))


def has_ended(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_run_is_the_same_as_that_of_train_and_is_not_repeated(tmp_path, monkeypatch):
    plans = [plan(tmp_path, seed=seed) for seed in (0, 1)]
    assert run_all(plans, 2) == [Outcome(p, None, new=True) for p in plans]
    single = engine.train(tmp_path / "single", plans[1].values).folder
    assert_same_files(plans[1].folder, single, "metrics.json", "history.jsonl", "config.yaml")
    before = [state(p.folder) for p in plans]
    monkeypatch.setattr(local_runs.RunProcess, "start", lambda *_: pytest.fail("a process was started"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a GPU was initialised"))
    assert run_all(plans, 2) == [Outcome(p, None, new=False) for p in plans]
    other = PlannedRun("x", plans[0].folder, {**plans[0].values, "device": "auto", "workers": 1})
    assert run_all([other]) == [Outcome(other)]  # free options do not make it another run
    assert [state(p.folder) for p in plans] == before


def test_a_run_that_is_killed_between_its_last_files_is_completed(tmp_path, monkeypatch):
    """metrics.json is written last, after the last checkpoint."""
    write_json = RunFolder.write_json

    def kill_at_the_end(self, name, value):
        if name == "metrics.json" and value["finished"]:
            os.kill(os.getpid(), signal.SIGKILL)
        write_json(self, name, value)

    one = plan(tmp_path, "multi-task")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "write_json", kill_at_the_end)
        assert run_all([one])[0].error
    half = state(one.folder)
    assert "metrics.json" not in half and "model/model.json" in half
    assert run_all([one]) == [Outcome(one, None, new=True)]
    assert half.items() <= state(one.folder).items()  # nothing was trained again
    assert RunFolder(one.folder).is_finished
    (one.folder / "checkpoint.pt").unlink()  # a user may delete it to save disk space
    assert run_all([one]) == [Outcome(one)]


def test_a_folder_with_another_run_is_an_error_of_one_run(tmp_path):
    first, other = plan(tmp_path, lr=0.25), plan(tmp_path, seed=1)
    run_all([first])
    before = state(first.folder)
    changed = PlannedRun("changed", first.folder, {**first.values, "lr": 0.5})
    bad, good = run_all([changed, other])
    assert bad.error.startswith(f"{first.folder} holds a run with other options (lr 0.25, not 0.5): ")
    assert "--overwrite" in bad.error
    assert good == Outcome(other, None, new=True)
    assert state(first.folder) == before
    assert run_all([changed], overwrite=True) == [Outcome(changed, None, new=True)]
    assert Config.make(read_yaml(first.folder / "config.yaml")).lr == 0.5


def test_a_run_that_fails_or_is_killed_does_not_stop_the_others(tmp_path, monkeypatch):
    def fails(self):
        return {}[f"task {len(self.tasks)}"]

    def is_killed(self):
        os.kill(os.getpid(), signal.SIGKILL)

    method(monkeypatch, "failing", end_task=fails)
    method(monkeypatch, "killed", end_task=is_killed)
    diverging = plan(tmp_path, "fine-tuning", 7, lr=1e30, backbone_lr=1e30)
    method(monkeypatch, "good")
    plans = [plan(tmp_path, "failing"), plan(tmp_path, "killed"), diverging, plan(tmp_path, "good")]
    failing, killed, diverged, good = run_all(plans, 2)
    path = plans[0].error_file
    assert failing.error.startswith("KeyError: 'task 1' (test_scheduler.py:") and str(path) in failing.error
    assert path.read_text().startswith("Traceback") and path.read_text().endswith("KeyError: 'task 1'\n")
    assert "killed (SIGKILL): was there enough memory?" in killed.error
    assert diverged.error.startswith("task 1, step ")
    assert [outcome.diverged for outcome in (failing, killed, diverged, good)] == [False, False, True, False]
    assert good == Outcome(plans[3], None, new=True)
    method(monkeypatch, "failing")  # repaired: it resumes from its checkpoint
    method(monkeypatch, "killed")
    assert run_all(plans[:2], 2) == [Outcome(p, None, new=True) for p in plans[:2]]
    assert not path.exists()
    expected = read_run(plans[3].folder).metrics["final"]
    assert [read_run(repaired.folder).metrics["final"] for repaired in plans[:2]] == [expected] * 2


def test_a_diverged_run_is_recognised_by_its_exception(tmp_path, monkeypatch):
    """The text of an error has no effect on it."""
    text = "the label file changed. Lower lr, backbone_lr or later_backbone_lr in config.yaml"

    def fails(error):
        def observe(self, batch):
            raise error

        return observe

    method(monkeypatch, "good")
    method(monkeypatch, "user-error", observe=fails(UserError(text)))
    method(monkeypatch, "diverged", observe=fails(Diverged("no common words")))
    plans = [plan(tmp_path, name) for name in ("good", "user-error", "diverged")]
    assert run_all(plans) == [
        Outcome(plans[0], new=True), Outcome(plans[1], text), Outcome(plans[2], "no common words", diverged=True),
    ]  # fmt: skip


def test_a_process_with_an_initialised_gpu_trains_the_next_run_too(tmp_path, monkeypatch):
    """As on a GPU, but here on the CPU: two processes for five runs, and a new one after a failed or killed run."""

    def observe(self, batch):
        if self.setting.lr == 0.5:
            raise ValueError("a bad batch")
        if self.setting.lr == 0.25:
            os.kill(os.getpid(), signal.SIGKILL)
        return FineTuning.observe(self, batch)

    def begin_task(self, classes):
        (tmp_path / "pids").open("a").write(f"{os.getpid()}\n")
        FineTuning.begin_task(self, classes)

    method(monkeypatch, "noted", observe=observe, begin_task=begin_task)
    monkeypatch.setattr(local_runs, "_is_reusable", lambda plan: True)
    rates = [1e-3, 1e-3, 0.5, 0.25, 1e-3, 1e-3, 1e-3]
    plans = [plan(tmp_path, "noted", seed, lr=lr) for seed, lr in enumerate(rates)]
    outcomes = run_all(plans, 2)
    assert [bool(outcome.error) for outcome in outcomes] == [lr > 1e-3 for lr in rates]
    pids = set(map(int, (tmp_path / "pids").read_text().split()))
    assert 2 <= len(pids) <= 4 and all(map(has_ended, pids))
    (tmp_path / "pids").unlink()
    with LocalRuns() as backend:
        for seed in (10, 11, 12):
            assert not run_all([plan(tmp_path, "noted", seed)], backend=backend)[0].error
        pids = set(map(int, (tmp_path / "pids").read_text().split()))
        assert len(pids) == 1 and not any(map(has_ended, pids))
    assert all(map(has_ended, pids))
    assert_same_files(engine.train(tmp_path / "single", plans[-1].values).folder, plans[-1].folder, "metrics.json")


def test_a_mistake_in_the_options_of_all_runs_is_raised_and_that_of_one_run_is_not(tmp_path):
    plans = [plan(tmp_path, seed=seed, backbone="tny") for seed in range(9)]
    with pytest.raises(UserError, match="unknown backbone 'tny'"):
        run_all(plans, 2)
    assert not list(tmp_path.iterdir())  # no run folder was made
    first, second = plan(tmp_path), plan(tmp_path, seed=1)
    run_all([first])
    for name in ("checkpoint.pt", "checkpoint-previous.pt"):
        (first.folder / name).write_bytes(b"cut short")
    (first.folder / "metrics.json").unlink()
    bad, good = run_all([first, second])
    assert "is damaged or cut short" in bad.error
    assert not good.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_writes_checkpoints_and_ends_all_processes(tmp_path, monkeypatch, number):
    """Two runs wait in their second task for the signal. They resume with the same results."""
    pids = tmp_path / "pids"
    pids.mkdir()

    def observe(self, batch):
        if len(self.tasks) == 2:
            (pids / str(os.getpid())).touch()
            signal.sigtimedwait([], 0.3)  # returns early at a signal
        return FineTuning.observe(self, batch)

    def stop():
        while len(list(pids.iterdir())) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    method(monkeypatch, "waiting", observe=observe)
    plans = [plan(tmp_path, "waiting", seed, checkpoint_seconds=1000) for seed in (0, 1, 2)]
    threading.Thread(target=stop).start()
    with pytest.raises(Stopped, match=r"^stopped; continue with: the same command$"):
        run_all(plans, 2, command="the same command")
    assert all(has_ended(int(pid.name)) for pid in pids.iterdir())
    assert not plans[2].folder.exists()
    for p in plans[:2]:
        saved = torch.load(p.folder / "checkpoint.pt", weights_only=True)
        assert (saved["task"], saved["step"] > 0) == (1, True)
    method(monkeypatch, "waiting")
    plans = [PlannedRun(p.name, p.folder, {**p.values, "checkpoint_seconds": 30, "strict": True}) for p in plans]
    assert [outcome.new for outcome in run_all(plans, 2)] == [True] * 3
    assert Config.make(read_yaml(plans[0].folder / "config.yaml")).strict  # with the new value of a free option
    assert_same_files(engine.train(tmp_path / "single", plans[0].values).folder, plans[0].folder, "metrics.json")


def test_the_second_signal_stops_at_once(tmp_path, monkeypatch):
    def observe(self, batch):
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(100)

    def stop():
        while not (tmp_path / "pid").exists():
            time.sleep(0.02)
        for _ in range(2):
            time.sleep(0.4)
            os.kill(os.getpid(), signal.SIGINT)

    method(monkeypatch, "stuck", observe=observe)
    threading.Thread(target=stop).start()
    with pytest.raises(Stopped, match=r"^stopped at once; continue with: x$"):
        run_all([plan(tmp_path, "stuck")], command="x")
    assert has_ended(int((tmp_path / "pid").read_text()))


def test_every_slot_has_its_gpu_and_its_part_of_the_cores(tmp_path, monkeypatch):
    """Two simulated GPUs: the one that each process would use."""

    def observe(self, batch):
        (tmp_path / f"uses {os.environ['CUDA_VISIBLE_DEVICES']} {torch.get_num_threads()}").touch()
        return {"cls": torch.zeros(())}

    def scores(self, images):
        return torch.zeros(len(images), sum(self.sizes))

    method(monkeypatch, "recording", observe=observe, scores=scores)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(local_runs, "num_cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (default_jobs(), default_jobs("cuda"), default_jobs("cuda:1"), default_jobs("cpu")) == (2, 2, 1, 4)
    run_all([plan(tmp_path, "recording", s, device="auto") for s in range(3)], 2)
    assert {path.name for path in tmp_path.glob("uses *")} == {"uses 0 2", "uses 1 2"}
    visible = [local_runs._visible_gpu(device, 3) for device in ("auto", "cuda", "cuda:0", "cpu")]
    assert visible == ["1", "1", None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 3")
    assert [local_runs._visible_gpu("auto", slot) for slot in range(3)] == ["5", "3", "5"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert local_runs._visible_gpu("auto", 1) is None
