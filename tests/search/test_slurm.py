"""Runs as jobs of a Slurm cluster: a real cluster of one node, where its programs are installed.

`pytest -m slurm` runs only the tests on the cluster.
"""

import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from engine.small_runs import assert_same_files
from search.slurm_cluster import missing_programs, running_cluster

from lifelabel.engine import run as engine
from lifelabel.errors import Stopped, UserError
from lifelabel.methods import METHODS, FineTuning
from lifelabel.runs.folder import RunFolder
from lifelabel.search import slurm
from lifelabel.search.planned_run import PlannedRun
from lifelabel.search.scheduler import run_all
from lifelabel.search.slurm_job import TIME_LIMIT_SIGNAL, read_runs, read_state, run_job, write_runs
from lifelabel.utils.yaml_reader import read_yaml

TINY = {"classes": 4, "tasks": 2, "train_images": 24, "test_images": 16}
WAITING = """
import os
import time
from pathlib import Path
from lifelabel import FineTuning

FOLDER = Path(__file__).parent

class Waiting(FineTuning):
    \"\"\"Waits in the second task until the file `go` exists.\"\"\"

    def observe(self, batch):
        if len(self.tasks) == 2:
            restarts = os.environ.get("SLURM_RESTART_COUNT", 0)
            (FOLDER / f"waits-{os.environ.get('SLURM_ARRAY_TASK_ID', 0)}-{restarts}").touch()
            for _ in range(20):
                if not (FOLDER / "go").exists():
                    time.sleep(0.3)
        return super().observe(batch)
"""


def plan(folder, method="fine-tuning", seed=0, **more):
    values = {"method": method, "seed": seed, "device": "cpu", "stream_options": TINY, **more}
    return PlannedRun(f"{method}, seed {seed}", folder / f"{method}-{seed}", values)


# Without a cluster


@pytest.mark.parametrize(
    "given, device, expected",
    [
        ([], "auto", {"time": "60", "cpus-per-task": "2"}),
        ([], "cuda", {"gpus-per-node": "1", "cpus-per-task": "8"}),
        (["gres=gpu:a100:1"], "cuda", {"gres": "gpu:a100:1", "cpus-per-task": "8"}),
        (["gpus_per_node=2", "--cpus-per-task=3"], "auto", {"gpus-per-node": "2", "cpus-per-task": "3"}),
        (["time=1-00:00", "exclusive", "signal=B:USR2@600"], "cpu", {"time": "1-00:00", "exclusive": True}),
    ],
)
def test_options_of_sbatch(given, device, expected):
    options = slurm.job_options(given, device)
    assert {**options, **expected} == options
    assert ("gpus-per-node" in options) == ("gpus-per-node" in expected)


@pytest.mark.parametrize(
    "text, part",
    [
        ("time=", "takes NAME=VALUE"), ("p gpu", "takes NAME=VALUE"), ("comment=a\nrm -rf x", "takes NAME=VALUE"),
        ("array=0-3", "sets this option"), ("job_name=x", "sets this option"), ("signal=TERM@5", "only the seconds"),
    ],
)  # fmt: skip
def test_options_that_are_refused(text, part):
    with pytest.raises(UserError, match=part):
        slurm.job_options([text])


def test_the_dry_run_prints_the_script_and_writes_nothing(main, small, tmp_path):
    flags = ("--on", "slurm", "--slurm", "partition=gpu", "--slurm", "comment=a b", "--device", "cuda", "--dry-run")
    args = ("--methods", "er,lwf", "--seeds", "0-1", "--jobs", "3", *small[:-2], *flags, "--out", tmp_path / "out")
    done = main("compare", *args)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/bin/bash"
    options = {line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")}
    assert options >= {
        "array=0-3%3", "job-name=lifelabel-NEW", "partition=gpu", "comment='a b'", "gpus-per-node=1", "time=60",
        "requeue", "signal=B:USR2@120",
    }  # fmt: skip
    assert len({option.partition("=")[0] for option in options}) == len(options)
    assert [line.split(" → ")[0] for line in lines if line.startswith("# run")] == [
        "# run 0: lwf, seed 0", "# run 1: lwf, seed 1", "# run 2: er, seed 0", "# run 3: er, seed 1",
    ]  # fmt: skip
    done = main("tune", "--method", "er", *small[:-2], *flags, "--out", tmp_path / "out")
    runs = [line for line in done.stdout.splitlines() if line.startswith("# run")]
    assert [re.search(r"\((.*?)\)", run)[1] for run in runs] == ["start", "lr=0.0001", "lr=0.001", "lr=0.003"]
    assert not list(tmp_path.iterdir())


@pytest.fixture
def signals():
    """A job changes the handlers of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGCONT, TIME_LIMIT_SIGNAL)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run_in_this_process(folder, plan):
    """The end of a job, without the cluster."""
    folder.mkdir()
    write_runs(folder, [plan], [])
    run_job(str(folder), 0)
    return read_state(folder, 0)


def test_a_job_trains_its_run_as_train_does(tmp_path, signals):
    one = plan(tmp_path, method_options={}, lr=3e-4)
    state = run_in_this_process(tmp_path / "job", one)
    assert (state.end, state.tasks, state.images, state.total) == (("finished", ""), 2, 24, 24)
    assert read_runs(tmp_path / "job")[0][0].config == one.config
    single = engine.train(tmp_path / "single", one.values).folder
    assert_same_files(one.folder, single, "metrics.json", "config.yaml", "history.jsonl")


@pytest.mark.parametrize("function", ["__init__", "end_task"])
def test_a_job_without_progress_is_not_requeued(tmp_path, monkeypatch, signals, function):
    """The signal ahead of the time limit arrives in the set-up, or in an evaluation that was stopped before."""
    number = signal.SIGTERM

    def reaches_its_limit(self, *args):
        signal.raise_signal(number)
        getattr(FineTuning, function)(self, *args)

    monkeypatch.setitem(METHODS._items, "limited", type("Limited", (FineTuning,), {function: reaches_its_limit}))
    one = plan(tmp_path, "limited")
    if function == "end_task":
        with pytest.raises(Stopped):
            engine.train(one.folder, one.values)
    number = TIME_LIMIT_SIGNAL
    kind, text = run_in_this_process(tmp_path / "job", one).end
    assert kind != "finished"
    assert "time limit of its job: give a longer one (--slurm time=" in text


def test_a_job_reports_the_reason_of_a_failure(tmp_path, monkeypatch, signals):
    kind, text = run_in_this_process(tmp_path / "job", plan(tmp_path, backbone="tny")).end
    assert kind == "user error" and text.startswith("unknown backbone 'tny'")
    (tmp_path / "job" / "runs.json").write_text("{}")
    with pytest.raises(UserError, match="is damaged: delete"):
        read_runs(tmp_path / "job")


# On a cluster


@pytest.fixture(scope="module")
def cluster():
    """The environment of commands on a cluster with two cores."""
    if missing := missing_programs():
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    with running_cluster() as environment:
        yield environment


ON_SLURM = ("--on", "slurm", "--slurm", "cpus-per-task=1")


def start(cluster, *args):
    words = [sys.executable, "-m", "lifelabel", *map(str, args), *ON_SLURM]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(words, env=cluster, **pipes)


def on_cluster(monkeypatch, cluster):
    """Commands in this process use the cluster."""
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, cluster[name])


def end(process, code=0):
    """The output of a command that must end with an exit code."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err
    return out, err


def wait_for(condition, process, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timeout"
        assert process.poll() is None, process.communicate()
        time.sleep(0.2)


def jobs_in_queue(cluster, state="RUNNING,PENDING,COMPLETING"):
    command = ["squeue", "--me", "--array", "--noheader", f"--states={state}", "--format=%i"]
    return subprocess.run(command, env=cluster, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.slurm
def test_a_comparison_that_is_killed_continues_with_the_same_bits(cluster, main, monkeypatch, small, tmp_path):
    """The command is killed, then a running job and a waiting one are cancelled. All six runs are finished."""
    flags = ("compare", "--methods", "fine-tuning,er,agcn", "--seeds", "0-1", *small)
    names = [f"{method}-s{seed}" for method in ("fine-tuning", "er", "agcn") for seed in (0, 1)]
    out = tmp_path / "cluster"
    process = start(cluster, *flags, "--out", out)
    wait_for(lambda: any(RunFolder(out / name).is_finished for name in names), process)
    process.kill()
    process.wait()
    finished = {n: (out / n / "metrics.json").stat().st_mtime_ns for n in names if RunFolder(out / n).is_finished}
    running, waiting = (jobs_in_queue(cluster, state) for state in ("RUNNING", "PENDING"))
    assert waiting  # the jobs go on
    subprocess.run(["scancel", *running[:1], waiting[-1]], env=cluster, check=True)
    on_cluster(monkeypatch, cluster)
    done = main(*flags, *ON_SLURM, "--out", out)
    assert done.returncode == 0, done.stderr
    assert "runs are finished already" in done.stderr and "in the queue: " in done.stderr
    assert {name: (out / name / "metrics.json").stat().st_mtime_ns for name in finished} == finished
    plans = [PlannedRun(name, tmp_path / "local" / name, read_yaml(out / name / "config.yaml")) for name in names]
    assert not any(outcome.error for outcome in run_all(plans, 2))
    for local in plans:
        assert_same_files(out / local.name, local.folder, "metrics.json")


@pytest.mark.slurm
def test_a_time_limit_a_cancelled_job_and_a_stop(cluster, lifelabel, small, tmp_path):
    """Each lets the run write a checkpoint in its second task. The results are those of runs on this machine."""
    (tmp_path / "waiting.py").write_text(WAITING)
    flags = ("compare", "--methods", f"{tmp_path}/waiting.py:Waiting", "--seeds", "0-1", *small)
    flags = (*flags, "--workers", "1", "--set", "checkpoint_seconds=1000", "--set", "batch_size=1")
    out = tmp_path / "cluster"
    folders = [out / f"waiting-Waiting-s{seed}" for seed in (0, 1)]
    process = start(cluster, *flags, "--out", out)
    wait_for(lambda: (tmp_path / "waits-0-0").exists() and (tmp_path / "waits-1-0").exists(), process)
    first, last = sorted(jobs_in_queue(cluster))
    subprocess.run(["scancel", "--batch", "--signal=USR2", last], env=cluster, check=True)
    wait_for(lambda: (tmp_path / "waits-1-1").exists(), process)  # requeued
    assert sorted(jobs_in_queue(cluster)) == [first, last] and not (tmp_path / "waits-0-1").exists()
    subprocess.run(["scancel", first], env=cluster, check=True)  # SIGTERM to all processes of the job
    wait_for(lambda: jobs_in_queue(cluster) == [last], process)
    process.send_signal(signal.SIGINT)
    _, err = end(process, 130)
    assert err.count("seed 0: was stopped; the same command continues it") == 1
    assert "stopped; continue with: lifelabel compare" in err
    assert not jobs_in_queue(cluster)
    for folder in folders:
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        assert (saved["task"], saved["step"] > 0) == (1, True)
        assert len((folder / "history.jsonl").read_text().splitlines()) >= 12 + saved["step"]
    (tmp_path / "go").touch()
    end(start(cluster, *flags, "--out", out))
    local = lifelabel(*flags, "--jobs", "2", "--out", tmp_path / "local")
    assert local.returncode == 0, local.stderr
    for folder in folders:
        assert_same_files(folder, tmp_path / "local" / folder.name, "metrics.json")


@pytest.mark.slurm
def test_jobs_of_an_earlier_call(cluster, main, monkeypatch, small, tmp_path):
    flags = ("compare", "--methods", "er", "--seeds", "0", *small, *ON_SLURM, "--out", tmp_path / "out")
    submission = tmp_path / "out" / "slurm" / "0123abcd"
    submission.mkdir(parents=True)
    options = {"train_images": 60, "test_images": 60}
    values = {"method": "er", "seed": 0, "device": "cpu", "stream_options": options}
    write_runs(submission, [PlannedRun("er, seed 0", tmp_path / "out" / "er-s0", values)], [])
    on_cluster(monkeypatch, cluster)
    job = f"sleep 15; {sys.executable} -m lifelabel.search.slurm_job {submission}"
    command = ["sbatch", "--job-name=lifelabel-0123abcd", f"--output={tmp_path}/log", f"--wrap={job}"]
    subprocess.run(command, check=True, capture_output=True)
    done = main(*flags, "--lr", "0.5")
    assert done.returncode == 1 and re.search(r"job \d+ of an earlier call trains it with other options", done.stderr)
    done = main(*flags, "--lr", "0.5", "--overwrite")
    assert done.returncode == 2 and "jobs of an earlier call are active: cancel them (scancel " in done.stderr
    assert not (tmp_path / "out" / "er-s0").exists()
    done = main(*flags)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0] == "in the queue: 1 job of an earlier call"
    assert not any("submitted" in line for line in lines) and lines[-1].startswith("er, seed 0: mAP ")


@pytest.mark.slurm
def test_trials_run_on_the_cluster_and_errors_are_reported(cluster, main, monkeypatch, small, tmp_path):
    on_cluster(monkeypatch, cluster)
    search = ("--trials", "2", "--first-tasks", "2")
    done = main("tune", "--method", "er", *search, *small, *ON_SLURM, "--out", tmp_path / "tune")
    assert done.returncode == 0 and done.stdout.startswith("er: "), done.stderr
    assert done.stderr.count("2 jobs submitted: ") == 1
    assert len(list((tmp_path / "tune" / "trials").glob("*/metrics.json"))) == 2
    bad = ("compare", "--methods", "er", "--seeds", "0", *small, *ON_SLURM, "--out", tmp_path / "bad")
    done = main(*bad, "--backbone", "tny")
    assert done.returncode == 1 and "er, seed 0: unknown backbone 'tny'" in done.stderr
    done = main(*bad, "--slurm", "partition=none")
    line = r"error: sbatch: error: .*[Ii]nvalid partition.* \(change the options with --slurm\)\n"
    assert done.returncode == 2 and re.fullmatch(line, done.stderr)
