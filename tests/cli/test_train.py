"""`lifelabel train`: the files of a run, existing folders, and wrong options."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import yaml
from report.run_folders import edit_json
from support.run_files import read_json, snapshot

import lifelabel
from lifelabel.config.config import Config
from lifelabel.metrics import METRICS
from lifelabel.runs.folder import RunFolder
from lifelabel.version import __version__

FILES = [
    "acm.npz", "checkpoint-previous.pt", "checkpoint.pt", "config.yaml", "details", "environment.json", "history.jsonl",
    "metrics.json", "model", "skipped.jsonl",
]  # fmt: skip


# The files of a run


def test_train_prints_its_result_on_the_last_line_and_writes_every_file(agcn_train):
    done, folder = agcn_train
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == FILES
    line = done.stdout.splitlines()[-1]
    final = read_json(folder / "metrics.json")["final"]
    assert line.startswith("agcn: ")
    assert f"mAP {100 * final['mAP']:.2f}" in line
    assert str(folder) in line
    assert [text.split("  ")[0] for text in done.stderr.splitlines() if text] == [
        f"agcn: after task {t}" for t in range(1, 6)
    ]


def test_train_prints_the_ap_and_the_test_images_of_every_class(agcn_train):
    done, folder = agcn_train
    metrics = read_json(folder / "metrics.json")
    rows = [line.split() for line in done.stdout.splitlines()[:-1] if line.strip()]
    assert rows[0] == ["class", "task", "AP", "%", "test", "images"]
    test = lifelabel.streams.build("scenes", {"train_images": 60, "test_images": 60}).test
    positives = dict(zip(metrics["classes"], test.labels.dense().sum(0).tolist(), strict=True))
    assert {name: int(images) for name, _, _, images in rows[2:]} == positives == metrics["final"]["positives"]
    printed = {name: (int(task), float(ap)) for name, task, ap, _ in rows[2:]}
    assert {name: task for name, (task, _) in printed.items()} == {
        name: number for number, task in enumerate(metrics["tasks"], 1) for name in task
    }
    assert {name: ap for name, (_, ap) in printed.items()} == {
        name: round(100 * ap, 1) for name, ap in metrics["final"]["ap"].items()
    }
    assert [ap for _, ap in printed.values()] == sorted((ap for _, ap in printed.values()), reverse=True)


def test_config_yaml_has_every_option_with_the_given_values(agcn_run):
    values = yaml.safe_load((agcn_run / "config.yaml").read_text())
    assert list(values) == [field.name for field in dataclasses.fields(Config)]
    given = {"stream": "scenes", "method": "agcn", "fidelity": "tuned", "seed": 0, "device": "cpu", "plugins": []}
    assert {name: values[name] for name in given} == given
    assert values["stream_options"] == {
        "classes": 20, "tasks": 5, "train_images": 60, "test_images": 60, "size": 64, "seed": 0, "labels": "task",
        "blurry": 0.0,
    }  # fmt: skip
    assert {"lambdas", "mix", "hidden"} < values["method_options"].keys()


def test_metrics_json(agcn_run):
    metrics = read_json(agcn_run / "metrics.json")
    given = {"stream": "scenes", "method": "agcn", "fidelity": "tuned", "seed": 0}
    assert {name: metrics[name] for name in given} == given
    assert metrics["finished"] is True
    assert [len(task) for task in metrics["tasks"]] == [4] * 5
    assert [name for task in metrics["tasks"] for name in task] == metrics["classes"]
    assert [record["task"] for record in metrics["per_task"]] == [1, 2, 3, 4, 5]
    for name in ("mAP", "CF1", "OF1"):
        for t, row in enumerate(metrics["by_task"][name]):
            assert all(0 <= value <= 1 for value in row[: t + 1])
            assert row[t + 1 :] == [None] * (4 - t)
        assert metrics["final"][name] == metrics["per_task"][-1]["seen"][name]
        assert set(metrics["final"]["forgetting"]) == {"mAP", "CF1", "OF1"}
    assert set(metrics["final"]["conventions"]) == set(METRICS)
    assert set(metrics["final"]["ap"]) == set(metrics["classes"])


def test_history_has_one_line_per_step(agcn_run):
    history = [json.loads(line) for line in (agcn_run / "history.jsonl").read_text().splitlines()]
    for t in range(1, 6):
        steps = [row for row in history if row["task"] == t]
        assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
        assert set(steps[-1]["losses"]) == ({"cls"} if t == 1 else {"cls", "dst", "gph"})
    images = [row["images"] for row in history]
    assert images == sorted(set(images))
    assert images[-1] == 60
    # the images of a task are in batches of 8, and the last batch is smaller
    ends = [max(row["images"] for row in history if row["task"] == t) for t in range(1, 6)]
    assert len(history) == sum(-(-count // 8) for count in np.diff([0, *ends]))


def test_environment_json(agcn_run):
    environment = read_json(agcn_run / "environment.json")
    assert environment["lifelabel"] == __version__
    assert environment["torch"] == torch.__version__
    assert environment["seconds"] > 0
    assert environment["images_per_second"] > 0
    assert [environment[key] for key in ("precision", "recorded", "compiled")] == ["fp32", False, False]


def test_the_saved_config_makes_the_same_run_again(main, agcn_run, tmp_path):
    done = main("train", "--config", agcn_run / "config.yaml", "--out", tmp_path / "b", "--quiet")
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    assert (tmp_path / "b" / "metrics.json").read_bytes() == (agcn_run / "metrics.json").read_bytes()
    assert (tmp_path / "b" / "config.yaml").read_bytes() == (agcn_run / "config.yaml").read_bytes()
    assert (tmp_path / "b" / "history.jsonl").read_bytes() == (agcn_run / "history.jsonl").read_bytes()


def test_print_config_prints_the_options_and_trains_nothing(main, agcn_run, tmp_path):
    settings = ("method.lambdas=1,2,3", "method.mix=0.2", "stream.classes=10", "batch_size=4")
    given = ("--config", agcn_run / "config.yaml", "--seed", "7", *(f"--set={text}" for text in settings))
    done = main("train", *given, "--out", tmp_path / "none", "--print-config")
    config = Config.make(yaml.safe_load(done.stdout))
    assert (config.seed, config.batch_size) == (7, 4)
    assert config.method_options.lambdas == (1, 2, 3)
    assert config.method_options.mix == 0.2
    assert (config.stream_options.classes, config.stream_options.train_images) == (10, 60)
    assert not (tmp_path / "none").exists()


# Existing folders


def test_an_existing_run_is_refused_and_not_changed(refused, agcn_copy, small):
    before = snapshot(agcn_copy)
    line = refused("train", *small, "--out", agcn_copy)
    assert str(agcn_copy) in line
    assert f"--resume {agcn_copy}" in line
    assert "--overwrite" in line
    assert snapshot(agcn_copy) == before


def test_overwrite_replaces_the_run(output, agcn_copy, small):
    (agcn_copy / "notes.txt").write_text("mine")
    output("train", "--method", "fine-tuning", *small, "--out", agcn_copy, "--overwrite", "-q")
    assert read_json(agcn_copy / "metrics.json")["method"] == "fine-tuning"
    assert not (agcn_copy / "acm.npz").exists()  # a file of the replaced run
    assert (agcn_copy / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("bad", [("--backbone", "tny"), ("--words", "/nowhere/glove.txt"), ("--method", "acgn")])
def test_a_mistake_does_not_delete_the_existing_run(refused, agcn_copy, small, bad):
    before = snapshot(agcn_copy)
    refused("train", *small, *bad, "--out", agcn_copy, "--overwrite")
    assert snapshot(agcn_copy) == before


@pytest.mark.parametrize("how", [("--overwrite", "--out"), ("--resume",)])
def test_a_run_in_use_is_refused_and_not_changed(refused, agcn_copy, small, how):
    edit_json(agcn_copy / "metrics.json", finished=False)
    with RunFolder(agcn_copy).locked():
        before = snapshot(agcn_copy)
        assert "in use by another process" in refused("train", *(small if "--out" in how else ()), *how, agcn_copy)
        assert snapshot(agcn_copy) == before


def test_without_a_run_folder(refused):
    assert refused("train") == "no run folder: give --out FOLDER (or --resume FOLDER, or --print-config)"


def test_a_fidelity_that_the_options_of_a_file_override_is_refused(main, refused, tmp_path):
    saved = tmp_path / "tuned.yaml"
    saved.write_text(main("train", "--print-config").stdout)
    assert "which override --fidelity" in refused("train", "--config", saved, "--fidelity", "paper", "--print-config")
    saved.write_text("seed: 3\n")
    done = main("train", "--config", saved, "--fidelity", "paper", "--print-config")
    assert yaml.safe_load(done.stdout)["fidelity"] == "paper"
