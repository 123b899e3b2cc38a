"""`lifelabel compare`, `lifelabel study` and `lifelabel demo`: their tables, stops, failures and mistakes."""

import hashlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import time

import pytest
import yaml
from PIL import Image
from report.run_folders import table_of
from support import command_server

from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.runs.folder import RunFolder
from lifelabel.search.planned_run import Outcome
from lifelabel.search.studies import STUDIES

TINY = [f"stream.{name}" for name in ("classes=6", "tasks=3", "train_images=24", "test_images=12")]
SMALL = [*(word for setting in TINY for word in ("--set", setting)), "--device", "cpu"]
FILES = ("table.md", "table.csv", "table.tex", "table.json", "report.html", "figures")


def read(folder, name="table.json"):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def snapshot(folder):
    """The content of every file of a run, and the time when it was written."""
    files = [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"]
    return {str(p.relative_to(folder)): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


@pytest.fixture(scope="module")
def compared(lifelabel, tmp_path_factory):
    """Three methods, two seeds, two task orders: (process, folder)."""
    out = tmp_path_factory.mktemp("compare") / "out"
    args = ("--methods", "frozen,fine-tuning,multi-task", "--seeds", "0-1", "--orders", "2", "--jobs", "2")
    done = lifelabel("compare", *args, *SMALL, "--out", out)
    assert done.returncode == 0, done.stderr
    return done, out


ROWS = ("multi-task", "fine-tuning", "frozen")
"""The rows of the table. They are in the order of `lifelabel list methods`, not in that of --methods."""


def test_every_run_and_every_file(compared):
    done, out = compared
    runs = {f"{m}{order}-s{seed}" for m in ROWS for order in ("", "-o1") for seed in (0, 1)}
    assert {path.name for path in out.iterdir()} == {*runs, *FILES}
    assert len(done.stderr.splitlines()) == 12
    for name in runs:
        config = yaml.safe_load((out / name / "config.yaml").read_text())
        order = int("-o1" in name)
        assert name == f"{config['method']}{'-o1' if order else ''}-s{config['seed']}"
        assert config["task_order"] == order
    with Image.open(out / "figures" / "learning-curves-mAP.png") as figure:
        figure.load()


def test_the_table_has_mean_and_standard_deviation_over_seeds_and_orders(compared):
    """tests/report has the other columns and formats."""
    done, out = compared
    written = table_of((out / "table.md").read_text(encoding="utf-8"))
    by_order = written.index(["method", "order 0", "order 1", "mean", "sd", "smallest", "largest"])
    assert [line[0] for line in written[by_order + 2 :]] == ["multi-task", "fine-tuning", "frozen"]
    lines, name = {}, ""
    for line in written[2:by_order]:  # a line of forgetting belongs to the line above it
        name = f"{name}, forgetting" if line[0] == "Forgetting ↓" else line[0]
        lines[name] = line
    assert list(lines) == ["multi-task", "fine-tuning", "fine-tuning, forgetting", "frozen", "frozen, forgetting"]
    for method in ROWS:
        runs = [out / f"{method}{order}-s{seed}" for order in ("", "-o1") for seed in (0, 1)]
        finals = [read(run, "metrics.json")["final"] for run in runs]
        figures = {method: [100 * final["mAP"] for final in finals]}
        if method != "multi-task":
            figures[f"{method}, forgetting"] = [100 * final["forgetting"]["mAP"] for final in finals]
        for name, values in figures.items():
            assert lines[name][1].strip("*") == f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
        assert f" {method} " in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()[:9]) <= 100


def test_the_table_states_what_is_equal(compared):
    done, out = compared
    table = read(out)
    prints = {}
    for run in out.glob("*-s*"):
        order = yaml.safe_load((run / "config.yaml").read_text())["task_order"]
        prints.setdefault(str(order), set()).add(read(run, "environment.json")["stream_fingerprint"])
    assert {order: set(found) for order, found in table["fingerprints"].items()} == prints
    assert len(prints["0"]) == len(prints["1"]) == 1
    assert prints["0"] != prints["1"]
    assert "All 12 runs are on the same stream" in done.stdout
    assert "Equal for all: batch_size 8, augment flip, backbone tiny, weights none, image_size default, " in done.stdout
    assert table["failures"] == []
    tasks = [read(out / f"frozen{order}-s0", "metrics.json")["tasks"] for order in ("", "-o1")]
    assert sorted(tasks[0]) == sorted(tasks[1])


def test_the_same_command_repeats_nothing_and_fewer_methods_make_a_smaller_table(main, monkeypatch, compared, tmp_path):
    done, out = compared
    runs = {path: snapshot(path) for path in out.glob("*-s?")}
    tables = {name: (out / name).read_bytes() for name in FILES[:4]}
    args = ("--methods", "multi-task,fine-tuning,frozen", "--seeds", "0,1,1", "--orders", "2")
    again = main("compare", *args, *SMALL, "--set", "workers=0", "--out", out)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert again.stderr == "12 of 12 runs are finished already\n"
    assert {name: (out / name).read_bytes() for name in FILES[:4]} == tables
    copy = shutil.copytree(out, tmp_path / "copy")
    monkeypatch.setattr("lifelabel.report.vega.chart_obstacle", lambda: "is not made here")  # it takes seconds
    part = main(
        "compare", "--methods", "frozen", "--seeds", "0", "--convention", "authors", *SMALL, "--out", copy, "-q"
    )
    assert (part.returncode, part.stderr) == (0, "")
    assert read(copy)["convention"] == "authors" and "CF1, mean over test sets ↑" in (copy / "table.md").read_text()
    assert [(row["name"], len(row["runs"])) for row in read(copy)["rows"]] == [("frozen", 1)]
    assert {path: snapshot(path) for path in out.glob("*-s?")} == runs


# Stops


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def group_is_gone(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_after_a_stop_no_finished_run_is_repeated_and_the_others_resume(main, tmp_path):
    """The command is killed, then all its processes, then it gets Ctrl-C. No step is learned twice."""
    out = tmp_path / "out"
    names = [f"{method}-s{seed}" for method in ("multi-task", "fine-tuning") for seed in (0, 1)]
    args = ["compare", "--methods", "multi-task,fine-tuning", "--seeds", "0-1", "--jobs", "2", *SMALL]
    args += ["--set", "stream.train_images=100", "--set", "checkpoint_seconds=0", "--out", str(out)]

    def is_finished(name):
        path = out / name / "metrics.json"
        return path.exists() and json.loads(path.read_text())["finished"]

    def active():
        started = (n for n in names if (out / n / "checkpoint.pt").exists() and not is_finished(n))
        return [n for n in started if len((out / n / "history.jsonl").read_bytes().splitlines()) > 1]

    def learned():
        return sum((out / n / "history.jsonl").stat().st_size for n in names if (out / n / "history.jsonl").exists())

    finished, marks, before = {}, {}, 0
    for how in ("kill the parent", "kill all", "Ctrl-C"):
        process = command_server.start(
            *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        wait_for(lambda before=before: any(map(is_finished, names)) and active() and learned() > before + 200)
        if how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            (os.killpg if how == "kill all" else os.kill)(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=60)
        wait_for(lambda process=process: group_is_gone(process.pid))
        finished |= {name: snapshot(out / name) for name in names if is_finished(name) and name not in finished}
        for name in set(active()) - set(marks):
            history = out / name / "history.jsonl"
            marked = history.read_bytes().replace(b'"cls"', b'"CLS"', 1)  # a step that is learned again has "cls"
            history.write_bytes(marked)
            marks[name] = marked.splitlines()[0]
            folder = RunFolder(out / name)
            state = load_checkpoint(folder)
            digest = hashlib.sha256(marked[: state["history_bytes"]]).hexdigest()
            save_checkpoint(folder, {**state, "history_sha256": digest})
        before = learned()
    assert finished and marks
    assert process.returncode == 130
    assert stdout == ""
    line = stderr.splitlines()[-1]
    assert line.startswith("stopped; continue with: lifelabel compare ")
    again = shlex.split(line.partition("continue with: ")[2])[1:]
    assert again == args
    assert main(*again).returncode == 0
    assert {name: snapshot(out / name) for name in finished} == finished
    for name, line in marks.items():
        assert (out / name / "history.jsonl").read_bytes().splitlines()[0] == line
    assert [len(row["runs"]) for row in read(out)["rows"]] == [2, 2]


# Failures


def test_a_run_that_fails_is_listed_and_the_others_are_in_the_table(main, tables_only, tmp_path):
    out = tmp_path / "out"
    args = ("compare", "--methods", "multi-task,fine-tuning", "--seeds", "0", *SMALL, "--out", out)
    done = main(*args, "--set", "later_backbone_lr=1e30", "--jobs", "2")
    assert done.returncode == 1
    (failed,) = read(out)["failures"]
    assert failed["run"] == "fine-tuning, seed 0"
    assert failed["folder"] == str(out / "fine-tuning-s0")
    assert failed["reason"].startswith("task 2, step ")
    assert f"not finished: fine-tuning, seed 0: {failed['reason']}" in done.stdout
    table = (out / "table.md").read_text(encoding="utf-8")
    assert f"- fine-tuning, seed 0: {failed['reason']}" in table
    lines = table_of(table)
    assert lines[3][:4] == ["fine-tuning", "–", "–", "–"]
    assert lines[2][1] == f"{100 * read(out / 'multi-task-s0', 'metrics.json')['final']['mAP']:.2f}"
    assert "| 0/1 |" in table
    # other options are another run: the folder is not changed, and this is reported
    before = snapshot(out / "multi-task-s0")
    done = main(*args, "--set", "later_backbone_lr=1e-3", "-q")
    assert done.returncode == 1
    assert "holds a run with other options (later_backbone_lr 1e+30, not 0.001)" in done.stdout
    assert "written to" not in done.stdout  # no run is finished
    assert snapshot(out / "multi-task-s0") == before


# Options


def test_options_from_a_file(main, refused, tables_only, tmp_path):
    (tmp_path / "mine.yaml").write_text("lr: 0.002\nstream_options: {train_images: 30}\nmethod_options: {mix: 0.1}\n")
    (tmp_path / "one.yaml").write_text("method: agcn\nlr: 0.002\n")
    args = ("compare", "--methods", "frozen,agcn", "--seeds", "3", *SMALL, "-q", "--out", tmp_path / "out")
    assert main(*args, "--config", tmp_path / "mine.yaml").returncode == 0
    config = yaml.safe_load((tmp_path / "out" / "agcn-s3" / "config.yaml").read_text())
    assert (config["lr"], config["method_options"]["mix"]) == (0.002, 0.1)
    assert config["stream_options"]["train_images"] == 24  # the flag wins
    assert "--methods" in refused(*args, "--config", tmp_path / "one.yaml")


def test_an_out_folder_that_is_a_file(refused, tmp_path):
    (tmp_path / "file").touch()
    assert "cannot write to" in refused("compare", "--methods", "frozen", *SMALL, "--out", tmp_path / "file")


# Studies


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(output, tables_only, tmp_path, pytestconfig, name):
    if name in ("weighted-ridge", "lambdas") and pytestconfig.getoption("faults") != "full":
        pytest.skip("it has 20 runs, or does nothing that the study of acm does not: only with --faults full")
    out = tmp_path / "out"
    text = output("study", name, "--seeds", "0", "--jobs", "2", *SMALL, "--set", "first_tasks=2", "--out", out, "-q")
    table = read(out)
    study = STUDIES[name]
    assert [tuple(row["cells"].values()) for row in table["rows"]] == [cells for cells, _ in study.rows]
    written = table_of((out / "table.md").read_text(encoding="utf-8"))
    costs = ["stored images", "stored MB", "seconds", "images/s", "peak GB"] if study.costs else []
    assert written[0] == [*study.head, "mAP, final ↑", "CF1, final ↑", "OF1, final ↑", "n", *costs]
    for number, (row, (cells, options)) in enumerate(zip(table["rows"], study.rows, strict=True), start=1):
        run = out / f"{name}-{number}-s0"
        config = yaml.safe_load((run / "config.yaml").read_text())
        assert config["method"] == study.method
        for option, value in options.items():
            chosen = {**config, **config["method_options"]}[option]
            assert (tuple(chosen) if isinstance(chosen, list) else chosen) == value
        final = read(run, "metrics.json")["final"]
        assert row["figures"]["mAP"]["mean"] == pytest.approx(100 * final["mAP"])
        last = len(cells)
        assert [*cells, f"{100 * final['mAP']:.2f}"] in [[*line[:last], line[last].strip("*")] for line in written]
        error = [f"{final['acm_error'][block]:.3f}" for block in ("all", "intra", "old_new", "new_old")]
        assert ([*cells, *error] in written) == study.errors
    assert sum("Forgetting ↓" in line for line in written) == (len(study.rows) if study.forgetting else 0)
    assert ("error of the matrix" in text) == study.errors
    assert max(len(line) for line in text.splitlines()[:12]) <= 100


# The demo


def test_the_demo_makes_the_table_of_three_methods(output, monkeypatch, agcn_run, tmp_path):
    """Copies of a small run stand for its three runs, which take a minute. Other tests draw its figures."""
    monkeypatch.setattr("lifelabel.report.vega.write_figure", lambda figure, folder: [])
    planned = []

    def run_all(plans, **more):
        planned.extend(plans)
        for plan in plans:
            shutil.copytree(agcn_run, plan.folder)
        return [Outcome(plan, new=True) for plan in plans]

    monkeypatch.setattr("lifelabel.search.scheduler.run_all", run_all)
    text = output("demo", "--out", tmp_path / "demo", "-q")
    assert [plan.folder.name for plan in planned] == ["multi-task-s0", "fine-tuning-s0", "agcn-s0"]
    assert [plan.values for plan in planned] == [
        {"method": plan.values["method"], "method_options": {}, "seed": 0, "task_order": 0} for plan in planned
    ]
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {*FILES, *(plan.folder.name for plan in planned)}
    assert f"{tmp_path / 'demo' / 'report.html'}: open it in a browser\n" in text
    rows = table_of((tmp_path / "demo" / "table.md").read_text(encoding="utf-8"))
    assert [row[0] for row in rows if row[0] in ("multi-task", "fine-tuning", "agcn")][:3] == [
        "multi-task", "fine-tuning", "agcn",
    ]  # fmt: skip
    assert "error of the matrix" in text
