"""Many runs side by side: what is redone and what is not, and what becomes of a run that fails, dies or is stopped."""

import io
import json
import os
import signal
import threading
import time

import pytest
import torch
from rich.console import Console

from lifelabel import engine, processes, runner
from lifelabel.config import Config
from lifelabel.errors import Stopped, UserError
from lifelabel.methods import METHODS
from lifelabel.methods.fine_tuning import FineTuning
from lifelabel.runner import Outcome, Planned, Staff, default_jobs, error_file, run_all

TINY = {"classes": 4, "tasks": 2, "train_images": 24, "test_images": 16}

pytestmark = pytest.mark.skipif(processes.START != "fork", reason="methods made here reach other processes by a fork")


def plan(folder, method="fine-tuning", seed=0, **more):
    values = {"method": method, "seed": seed, "device": "cpu", "stream_options": TINY, **more}
    return Planned(f"{method}, seed {seed}", folder / f"{method}-{seed}", values)


def state(folder):
    """Every file of a run with its content and when it was written."""
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.iterdir()) if p.name != ".lock"}


def method(monkeypatch, name, **verbs):
    """A method `name`: fine-tuning with other verbs. A fork knows it too."""
    monkeypatch.setitem(METHODS, name, type(name, (FineTuning,), verbs))


def gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_run_is_the_one_that_train_makes_and_is_made_once(tmp_path, monkeypatch):
    plans = [plan(tmp_path, seed=seed) for seed in (0, 1)]
    said = io.StringIO()
    assert run_all(plans, 2, console=Console(file=said, width=60)) == [Outcome(p, None, fresh=True) for p in plans]
    alone = engine.train(tmp_path / "alone", plans[1].values)
    for name in ("metrics.json", "history.jsonl", "config.yaml"):
        assert (plans[1].folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes()
    scores = "  ".join(f"{name} {100 * alone.metrics['final'][name]:.1f}" for name in ("mAP", "CF1", "OF1"))
    lines = sorted(said.getvalue().splitlines())
    assert len(lines) == 2  # no terminal: a line a run and no more
    assert lines[1].startswith(f"fine-tuning, seed 1: {scores}  ")
    before = [state(p.folder) for p in plans]
    monkeypatch.setattr(runner.Job, "start", lambda *_: pytest.fail("a process was started"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a GPU was asked for"))
    assert run_all(plans, 2) == [Outcome(p, None, fresh=False) for p in plans]
    elsewhere = Planned("x", plans[0].folder, {**plans[0].values, "device": "auto", "workers": 1})
    assert run_all([elsewhere]) == [Outcome(elsewhere)]  # where it ran makes it no other run
    assert [state(p.folder) for p in plans] == before


def test_a_run_killed_between_its_last_files_is_ended_properly(tmp_path, monkeypatch):
    def write_results(self):
        self.folder.write_json("metrics.json", self.summary())
        os.kill(os.getpid(), signal.SIGKILL)

    one = plan(tmp_path, "multi-task")
    with monkeypatch.context() as patch:
        patch.setattr(engine.Run, "write_results", write_results)
        assert run_all([one])[0].error
    half = state(one.folder)
    assert json.loads(half["metrics.json"][0])["finished"]
    assert "environment.json" not in half
    assert run_all([one]) == [Outcome(one, None, fresh=True)]
    assert (one.folder / "metrics.json").read_bytes() == half["metrics.json"][0]
    assert (one.folder / "environment.json").exists()
    (one.folder / "checkpoint.pt").unlink()  # by someone who needs the room
    assert run_all([one]) == [Outcome(one)]


def test_another_run_in_the_folder_is_that_runs_error(tmp_path):
    first, other = plan(tmp_path), plan(tmp_path, seed=1)
    run_all([first])
    before = state(first.folder)
    changed = Planned("changed", first.folder, {**first.values, "lr": 0.5})
    bad, good = run_all([changed, other])
    lr = Config.make(first.values).lr
    assert bad.error.startswith(f"{first.folder} holds a run with other options (lr {lr}, not 0.5): ")
    assert "--overwrite" in bad.error
    assert good == Outcome(other, None, fresh=True)
    assert state(first.folder) == before
    assert run_all([changed], overwrite=True) == [Outcome(changed, None, fresh=True)]
    assert Config.make(engine.read_yaml(first.folder / "config.yaml")).lr == 0.5


def test_a_run_that_fails_or_dies_stops_nothing_else(tmp_path, monkeypatch):
    def fails(self):
        return {}[f"task {len(self.tasks)}"]

    def dies(self):
        os.kill(os.getpid(), signal.SIGKILL)

    method(monkeypatch, "failing", end_task=fails)
    method(monkeypatch, "dying", end_task=dies)
    diverging = plan(tmp_path, "fine-tuning", 7, lr=1e30, backbone_lr=1e30)
    method(monkeypatch, "well")
    plans = [plan(tmp_path, "failing"), plan(tmp_path, "dying"), diverging, plan(tmp_path, "well")]
    failing, dying, diverged, good = run_all(plans, 2)
    assert failing.error.startswith("KeyError: 'task 1' (test_runner.py:")
    whole = error_file(plans[0].folder)
    assert str(whole) in failing.error
    assert whole.read_text().startswith("Traceback")
    assert whole.read_text().endswith("KeyError: 'task 1'\n")
    assert "killed (SIGKILL): was there enough memory?" in dying.error
    assert diverged.error.startswith("task 1, step ")
    assert good == Outcome(plans[3], None, fresh=True)
    method(monkeypatch, "failing")  # mended: it goes on from its checkpoint
    method(monkeypatch, "dying")
    assert run_all(plans[:2], 2) == [Outcome(p, None, fresh=True) for p in plans[:2]]
    assert not whole.exists()
    expected = json.loads((plans[3].folder / "metrics.json").read_text())["final"]
    for mended in plans[:2]:
        assert json.loads((mended.folder / "metrics.json").read_text())["final"] == expected


def test_a_process_that_made_a_gpu_ready_goes_on_with_the_next_run(tmp_path, monkeypatch):
    """As on a GPU, here on the CPU: two processes for five runs, and a new one after a run that failed or died."""

    def observe(self, batch):
        if self.setting.lr == 0.5:
            raise ValueError("an odd batch")
        if self.setting.lr == 0.25:
            os.kill(os.getpid(), signal.SIGKILL)
        return FineTuning.observe(self, batch)

    def begin_task(self, classes):
        (tmp_path / "pids").open("a").write(f"{os.getpid()}\n")
        FineTuning.begin_task(self, classes)

    method(monkeypatch, "noted", observe=observe, begin_task=begin_task)
    monkeypatch.setattr(runner, "lasts", lambda plan: True)
    rates = [1e-3, 1e-3, 0.5, 0.25, 1e-3, 1e-3, 1e-3]
    plans = [plan(tmp_path, "noted", seed, lr=lr) for seed, lr in enumerate(rates)]
    outcomes = run_all(plans, 2)
    assert [bool(outcome.error) for outcome in outcomes] == [lr > 1e-3 for lr in rates]
    pids = set(map(int, (tmp_path / "pids").read_text().split()))
    assert 2 <= len(pids) <= 4 and all(map(gone, pids))
    (tmp_path / "pids").unlink()
    with Staff() as staff:
        for seed in (10, 11, 12):
            assert not run_all([plan(tmp_path, "noted", seed)], staff=staff)[0].error
        pids = set(map(int, (tmp_path / "pids").read_text().split()))
        assert len(pids) == 1 and not any(map(gone, pids))
    assert all(map(gone, pids))
    alone = engine.train(tmp_path / "alone", plans[-1].values)
    assert (plans[-1].folder / "metrics.json").read_bytes() == (alone.folder / "metrics.json").read_bytes()


def test_a_mistake_of_all_is_raised_and_one_of_a_single_run_is_not(tmp_path):
    plans = [plan(tmp_path, seed=seed, backbone="tny") for seed in range(9)]
    with pytest.raises(UserError, match="unknown backbone 'tny'"):
        run_all(plans, 2)
    assert not tmp_path.exists() or not list(tmp_path.iterdir())
    first, second = plan(tmp_path), plan(tmp_path, seed=1)
    run_all([first])
    (first.folder / "checkpoint.pt").write_bytes(b"cut short")
    (first.folder / "metrics.json").unlink()
    bad, good = run_all([first, second])
    assert "is damaged or cut short" in bad.error
    assert not good.error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_checkpoints_and_no_process(tmp_path, monkeypatch, number):
    """Both runs wait in their second task until the signal has come; they then go on to the same end."""
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
    with pytest.raises(Stopped, match=r"^stopped; go on with: the same again$"):
        run_all(plans, 2, again="the same again")
    assert all(gone(int(pid.name)) for pid in pids.iterdir())
    assert not plans[2].folder.exists()
    for p in plans[:2]:
        saved = torch.load(p.folder / "checkpoint.pt", weights_only=True)
        assert (saved["task"], saved["step"] > 0) == (1, True)
    method(monkeypatch, "waiting")
    plans = [Planned(p.name, p.folder, {**p.values, "checkpoint_seconds": 30, "strict": True}) for p in plans]
    assert [outcome.fresh for outcome in run_all(plans, 2)] == [True] * 3
    assert Config.make(engine.read_yaml(plans[0].folder / "config.yaml")).strict  # it goes on as it is asked now
    expected = engine.train(tmp_path / "alone", plans[0].values).metrics
    assert json.loads((plans[0].folder / "metrics.json").read_text()) == expected


def test_the_second_time_is_at_once(tmp_path, monkeypatch):
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
    with pytest.raises(Stopped, match=r"^stopped at once; go on with: x$"):
        run_all([plan(tmp_path, "stuck")], again="x")
    assert gone(int((tmp_path / "pid").read_text()))


def test_what_a_terminal_shows(tmp_path, monkeypatch):
    def observe(self, batch):
        time.sleep(0.15)
        return FineTuning.observe(self, batch)

    method(monkeypatch, "slow", observe=observe)
    monkeypatch.setattr(engine, "READ_EVERY", 1)
    screen = io.StringIO()
    run_all([plan(tmp_path), plan(tmp_path, "slow", batch_size=3)], console=Console(file=screen, force_terminal=True))
    shown = screen.getvalue()
    for part in ("1/2 runs", " left", "slow, seed 0", "task 2/2", "/24 images", " img/s", "fine-tuning, seed 0: mAP "):
        assert part in shown


def test_what_several_runs_say_alike_is_said_once(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("sky 1 2 3\n")
    said = io.StringIO()
    run_all([plan(tmp_path, seed=s, words=str(words)) for s in (0, 1)], console=Console(file=said, width=500))
    assert said.getvalue().count("3 label words are not in") == 1


def test_every_slot_has_its_gpu_and_its_share_of_the_cores(tmp_path, monkeypatch):
    """Two GPUs that are only said to be there: what each process would see of them."""

    def observe(self, batch):
        (tmp_path / f"seen {os.environ['CUDA_VISIBLE_DEVICES']} {torch.get_num_threads()}").touch()
        return {"cls": torch.zeros(())}

    def scores(self, images):
        return torch.zeros(len(images), sum(self.sizes))

    method(monkeypatch, "looking", observe=observe, scores=scores)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(processes, "cores", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (default_jobs(), default_jobs("cuda"), default_jobs("cuda:1"), default_jobs("cpu")) == (2, 2, 1, 4)
    run_all([plan(tmp_path, "looking", s, device="auto") for s in range(3)], 2)
    assert {path.name for path in tmp_path.glob("seen *")} == {"seen 0 2", "seen 1 2"}
    assert [runner._gpu(device, 3) for device in ("auto", "cuda", "cuda:0", "cpu")] == ["1", "1", None, None]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 3")
    assert [runner._gpu("auto", slot) for slot in range(3)] == ["5", "3", "5"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert runner._gpu("auto", 1) is None
