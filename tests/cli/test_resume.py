"""`lifelabel train --resume`: stopped, damaged and diverged runs."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch
import yaml
from report.run_folders import edit_json
from support.run_files import SendSignal, read_json, snapshot

from lifelabel.cli import train
from lifelabel.engine import run


@pytest.fixture
def agcn_copy(agcn_copy):
    """A copy of a run that is not marked as finished."""
    edit_json(agcn_copy / "metrics.json", finished=False)
    return agcn_copy


@pytest.mark.parametrize("quiet", [(), ("-q",)])
def test_resume_of_a_finished_run_reports_what_to_do_next_and_changes_nothing(
    output, agcn_run, tmp_path, monkeypatch, quiet
):
    folder = shutil.copytree(agcn_run, tmp_path / "my run")
    monkeypatch.setattr(run, "resume", None)
    before = snapshot(folder), {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    score = read_json(agcn_run / "metrics.json")["final"]["mAP"]
    assert output("train", "--resume", folder, *quiet) == (
        f"{folder} is finished (mAP {100 * score:.2f}): nothing to resume; predict labels with `lifelabel predict "
        f"'{folder}' IMAGES`, or add classes with `lifelabel extend '{folder}' TABLE --root DIR --out NEW`\n"
    )
    assert before == (snapshot(folder), {path.name: path.stat().st_mtime_ns for path in folder.iterdir()})


def test_resume_of_a_finished_run_that_is_damaged(refused, agcn_run, tmp_path):
    folder = shutil.copytree(agcn_run, tmp_path / "run")
    (folder / "environment.json").write_text("{")
    assert refused("train", "--resume", folder) == f"{folder / 'environment.json'} is damaged: not JSON"


def test_resume_of_a_folder_without_a_run(refused, tmp_path):
    assert f"{tmp_path} is not a run folder" in refused("train", "--resume", tmp_path)
    assert "is not a run folder" in refused("train", "--resume", tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert "is not a run folder" in refused("train", "--resume", tmp_path / "file")


@pytest.mark.parametrize(
    "more",
    [("--seed", "3"), ("--out", "x"), ("--config", "x.yaml"), ("--overwrite",), ("--tasks", "3"),
     ("--set", "lr=1"), ("--strict",), ("--print-config",)],
    ids=lambda more: more[0],
)  # fmt: skip
def test_resume_takes_no_options(refused, agcn_copy, more):
    before = snapshot(agcn_copy)
    assert refused("train", "--resume", agcn_copy, *more) == (
        "--resume takes its options from the run's own config.yaml: give only --plugin with it"
    )
    assert snapshot(agcn_copy) == before


@pytest.mark.parametrize("text", ["stream: [", "mehod: agcn"])
def test_a_damaged_config(refused, agcn_copy, text):
    (agcn_copy / "config.yaml").write_text(text)
    assert str(agcn_copy / "config.yaml") in refused("train", "--resume", agcn_copy)


@pytest.mark.parametrize("name", ["details/task-1.npz", "model-task-1/README.md"])
def test_a_damaged_file_that_is_written_once(refused, diverged, tmp_path, name):
    folder = shutil.copytree(diverged[1], tmp_path / "run")
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    assert refused("train", "--resume", folder) == (
        f"{folder / name} is not as the run wrote it (another SHA-256): restore it from a copy, or run again with "
        "--config and --overwrite"
    )
    (folder / name).unlink()
    assert f"{folder / name} is not as the run wrote it (missing): " in refused("train", "--resume", folder)


def test_a_config_with_other_bytes_is_written_again(main, agcn_copy):
    path = agcn_copy / "config.yaml"
    text = path.read_text()
    for other in (text.replace("# learning rate", "# learning late"), text.replace("lr: 0.0003", "lr: 0.009")):
        path.write_text(other)  # all steps are done: another learning rate has no effect
        done = main("train", "--resume", agcn_copy)
        assert f"{path} is not as the run wrote it: it is written again with the options of the run\n" in done.stderr
        assert path.read_text() == text
        edit_json(agcn_copy / "metrics.json", finished=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_reports_how_to_resume_and_has_the_same_results(
    main, output, refused, monkeypatch, agcn_run, small, tmp_path, number
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(train, "make_callback", lambda quiet: SendSignal(2, number))
        done = main("train", *small, "--set", "checkpoint_seconds=0", "--out", folder)
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == f"stopped; resume with: lifelabel train --resume {folder}\n"
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert (state["task"], state["step"]) == (2, 1)
    assert "is not finished" in refused("report", folder, "--out", tmp_path / "report")
    output("train", "--resume", folder, "-q")
    assert (folder / "metrics.json").read_bytes() == (agcn_run / "metrics.json").read_bytes()
    assert (folder / "history.jsonl").read_bytes() == (agcn_run / "history.jsonl").read_bytes()


# Divergence


def test_divergence_before_any_checkpoint(refused, tmp_path, small):
    """After a step of this size the products of weights overflow: batch norm subtracts infinity from infinity."""
    folder = tmp_path / "run"
    line = refused("train", *small, "--lr", "1e30", "--backbone-lr", "1e30", "--out", folder, "-q")
    assert line == (
        "task 1, step 2: the loss 'cls' is nan; stopped, there was no checkpoint yet. Lower lr, backbone_lr or "
        f"later_backbone_lr in {folder / 'config.yaml'} and continue with --resume, or start again"
    )
    assert not (folder / "checkpoint.pt").exists()
    assert "is not finished" in refused("report", folder, "--out", tmp_path / "report")


@pytest.fixture(scope="module")
def diverged(lifelabel, small, tmp_path_factory):
    """A run that learns the first task and diverges in the second: (process, folder)."""
    folder = tmp_path_factory.mktemp("diverged") / "run"
    return lifelabel("train", *small, "--later-backbone-lr", "1e30", "--keep-tasks", "--out", folder, "-q"), folder


def test_divergence_keeps_the_last_good_checkpoint(diverged, error_line):
    done, folder = diverged
    line = error_line(done)
    assert line.startswith("task 2, step ")
    assert str(folder / "checkpoint.pt") in line
    state = torch.load(folder / "checkpoint.pt", weights_only=True, map_location="cpu")
    assert (state["task"], state["step"]) == (1, 0)

    def finite(value):
        if isinstance(value, dict):
            return all(map(finite, value.values()))
        if isinstance(value, (list, tuple)):
            return all(map(finite, value))
        return not isinstance(value, torch.Tensor) or bool(torch.isfinite(value.double()).all())

    assert finite(state["method"])
    history = [json.loads(row) for row in (folder / "history.jsonl").read_text().splitlines()]
    assert all(np.isfinite(list(row["losses"].values())).all() for row in history)
    metrics = read_json(folder / "metrics.json")
    assert metrics["finished"] is False
    assert len(metrics["per_task"]) == 1


def test_a_diverged_run_resumes_with_another_learning_rate(main, diverged, tmp_path, tables_only):
    folder = shutil.copytree(diverged[1], tmp_path / "run")
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values |= {"later_backbone_lr": 6e-4, "workers": 0}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    done = main("train", "--resume", folder)
    changed = "later_backbone_lr changed from 1e+30 to 0.0006 before task 2"
    assert done.returncode == 0 and f"{changed}\n" in done.stderr
    assert "workers changed from none to 0 before task 2\n" in done.stderr
    assert read_json(folder / "metrics.json")["finished"] is True
    record = {"option": "later_backbone_lr", "before": 1e30, "after": 6e-4, "task": 2, "step": 0}
    assert read_json(folder / "environment.json")["changed_options"] == [record]
    assert (
        "During the training, later_backbone_lr changed from 1e+30 to 0.0006 before task 2."
        in (folder / "model/README.md").read_text()
    )
    assert f"are those of checkpoint.pt; {changed}\n" in main("verify", folder, "--no-score").stdout
    main("report", folder, "--out", tmp_path / "report")
    assert f"NOT the same options in all steps: run: {changed}." in (tmp_path / "report/table.md").read_text()
