"""`lifelabel runs`: a list of run folders, finished, unfinished and damaged ones."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from report.run_folders import edit_json, forgetting, scores, write_run
from report.untrusted import HOSTILE
from support.run_files import read_json, snapshot

from lifelabel.runs.folder import RunFolder


def listed(main, *args):
    done = main("runs", *args, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return {run["folder"]: run for run in json.loads(done.stdout)}


def stop(folder, done=1):
    """Make a finished run one that stopped after `done` of its two tasks."""
    metrics = read_json(folder / "metrics.json")
    del metrics["final"]
    metrics |= {"finished": False, "per_task": metrics["per_task"][:done]}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    if not done:
        (folder / "metrics.json").unlink()
        (folder / "environment.json").rename(folder / "history.jsonl")
    return folder


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Five runs: two finished ones, one that stopped in task 2, one in task 1, and a damaged one."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs"
    write_run(folder / "a", seed=3, mAP=0.5, **forgetting(-0.04))
    write_run(folder / "deep" / "er" / "b", method="multi-task", joint=True, environment={"commit": None})
    stop(write_run(folder / "c", options={"lr": 0.5}))
    stop(write_run(folder / "d", method="er"), 0)
    (write_run(folder / "e") / "metrics.json").write_text("{")
    return folder


def test_all_runs_below_a_folder_with_everything_that_is_known(main, runs):
    found = listed(main)
    assert list(found) == ["a", "c", "d", "deep/er/b", "e"]
    assert found["a"] == {
        "folder": "a", "state": "finished", "reason": None, "task": 2, "tasks": 2, "task_name": None,
        "stream": "scenes", "label": "agcn", "seed": 3, "mAP": 0.5, "CF1": 0.25, "OF1": 0.125,
        "forgetting": -0.04, "seconds": 13.0, "date": "2024-05-06", "commit": "abc123",
    }  # fmt: skip
    joint = found["deep/er/b"]
    assert (joint["state"], joint["forgetting"], joint["commit"]) == ("finished", None, None)
    assert [found["c"][key] for key in ("state", "task", "tasks", "label", "mAP", "seconds")] == [
        "stopped", 2, 2, "agcn (lr=0.5)", None, 10.0,
    ]  # fmt: skip
    assert [found["d"][key] for key in ("state", "task", "tasks", "label", "seed", "date")] == [
        "stopped", 1, None, "er", 0, None,
    ]  # fmt: skip
    assert (found["e"]["state"], found["e"]["reason"]) == ("damaged", "metrics.json is not JSON")


def test_the_table_has_one_line_per_run(output, runs):
    text = output("runs")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    assert lines[0] == "folder stream method state seed mAP CF1 OF1 forgetting s date commit"
    assert lines[2:] == [
        "a scenes agcn finished 3 50.0 25.0 12.5 -4.0 13 2024-05-06 abc123",
        "c scenes agcn (lr=0.5) task 2/2 0 – – – – 10 2024-05-06 abc123",
        "d scenes er task 1 0 – – – – – – –",
        "deep/er/b scenes multi-task finished 0 50.0 25.0 12.5 – 10 2024-05-06 –",
        "e scenes agcn damaged: metrics.json is not JSON 0 – – – – – – –",
        "forgetting below 0: better than before",
    ]


def test_unfinished_runs_only(main, runs):
    assert list(listed(main, "--unfinished")) == ["c", "d", "e"]
    assert list(listed(main, runs / "deep", "--unfinished")) == []
    assert main("runs", "runs/deep", "--unfinished").stdout == "no unfinished runs in runs/deep\n"


def test_a_run_that_holds_its_lock_is_running(main, runs):
    with RunFolder(runs / "c").locked():
        assert listed(main)["c"]["state"] == "running"
        assert "running: task 2/2" in main("runs").stdout
    assert listed(main)["c"]["state"] == "stopped"


def test_a_listing_changes_no_file_and_leaves_no_lock(main, runs):
    with RunFolder(runs / "c").locked():
        pass
    before = snapshot(runs / "c")
    main("runs")
    assert snapshot(runs / "c") == before
    with RunFolder(runs / "c").locked():
        pass


def test_a_real_run(main, agcn_run):
    final = read_json(agcn_run / "metrics.json")["final"]
    (run,) = listed(main, agcn_run.parent).values()
    assert (run["folder"], run["state"], run["stream"]) == (agcn_run.name, "finished", "scenes")
    assert (run["mAP"], run["forgetting"]) == (final["mAP"], final["forgetting"]["mAP"])
    assert list(listed(main, agcn_run)) == ["."]


# What is not a run


def test_other_folders_and_links_are_not_listed(main, runs):
    (runs / "tool").mkdir()
    (runs / "tool" / "config.yaml").write_text("a: 1")  # a file of another program
    write_run(runs / "tool" / "inside")
    write_run(runs / "a" / "inside")  # a run folder is not searched
    os.symlink(runs, runs / "tool" / "cycle")
    assert list(listed(main)) == ["a", "c", "d", "deep/er/b", "e", "tool/inside"]
    os.symlink(runs, "link")
    assert len(listed(main, "link")) == 6


def test_a_folder_without_runs(main, tmp_path):
    done = main("runs", tmp_path)
    assert (done.returncode, done.stdout) == (0, f"no runs in {tmp_path}\n")
    assert main("runs", tmp_path, "--json").stdout == "[]\n"


def test_a_folder_that_does_not_exist(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused("runs") == "runs is not a folder: give the folder that contains the runs"
    (tmp_path / "file").touch()
    assert "file is not a folder" in refused("runs", tmp_path / "file")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions have no effect")
def test_a_folder_that_cannot_be_read_is_named(main, runs):
    (runs / "deep").chmod(0)
    done = main("runs", "--json")
    (runs / "deep").chmod(0o700)
    assert done.returncode == 0 and len(json.loads(done.stdout)) == 4
    assert done.stderr == "cannot read runs/deep: Permission denied\n"


# Damaged files


def other(**values):
    return lambda path: edit_json(path, **values)


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("config.yaml", lambda path: path.write_text("a: ["), "config.yaml, line 2, is not valid YAML: correct it"),
        ("config.yaml", lambda path: path.write_text(""), "config.yaml has other content than that of a run"),
        ("config.yaml", lambda path: path.write_bytes(b"\xff\xff"), "config.yaml cannot be read"),
        ("metrics.json", lambda path: path.write_text("[]"), "metrics.json is not a JSON object"),
        ("metrics.json", lambda path: path.write_text("[" * 10**5), "metrics.json is not JSON"),
        ("metrics.json", lambda path: path.write_text("{}"), "metrics.json has other content than that of a run"),
        ("metrics.json", other(seed="x"), "metrics.json has other content than that of a run"),
        ("metrics.json", other(final={"mAP": "high"}), "metrics.json has other content than that of a run"),
        ("metrics.json", other(final=scores(float("nan"))), "metrics.json has other content than that of a run"),
        ("environment.json", lambda path: path.unlink(), "environment.json is missing"),
        ("environment.json", lambda path: path.write_text("{"), "environment.json is not JSON"),
        ("environment.json", other(label=None), "environment.json has other content than that of a run"),
        ("metrics.json", lambda path: (path.unlink(), os.mkfifo(path)), "metrics.json cannot be read"),
        ("metrics.json", lambda path: path.rename("m") and path.symlink_to("../../m"), "metrics.json cannot be read"),
    ],
    ids=range(14),
)
def test_a_damaged_run_does_not_stop_the_listing(main, runs, name, damage, reason):
    damage(runs / "a" / name)
    found = listed(main)
    assert len(found) == 5
    assert (found["a"]["state"], found["a"]["reason"]) == ("damaged", reason)


def test_text_of_a_run_is_untrusted(main, output, runs):
    edit_json(runs / "a" / "environment.json", label=HOSTILE, date="[red]x")
    text = output("runs")
    assert "\x1b[2J" not in text and "[red]x" in text
    assert listed(main)["a"]["label"] == HOSTILE
    (runs / "a" / "config.yaml").write_text("a: &a [x, x]\nstream: *a\n")  # tests/utils has larger bombs
    assert listed(main)["a"]["reason"] == "config.yaml, line 1, has an anchor, an alias or a tag: correct it"


def test_many_runs_are_listed_without_torch(tmp_path):
    one = write_run(tmp_path / "0")
    for k in range(1, 200):
        shutil.copytree(one, tmp_path / f"{k % 10}-more" / str(k))
    code = "import sys; from lifelabel.cli.main import app; app(sys.argv[1:], standalone_mode=False); "
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code, "runs", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished") == 200
