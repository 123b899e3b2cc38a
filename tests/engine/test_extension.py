"""Extending a finished run by new classes: the same bits as one stream, no old image, again and again."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from engine.small_runs import At, assert_same_files, error_of
from PIL import Image
from report.run_folders import edit_json
from support.extensions import (
    CLASSES,
    COMMON,
    assert_an_extension_equals_one_stream,
    extend,
    method_state,
    train,
    write_tables,
)
from support.methods import same
from support.run_files import snapshot

import lifelabel
from lifelabel.engine.checkpoint_file import load_checkpoint, save_checkpoint
from lifelabel.errors import Stopped, UserError
from lifelabel.images.hashes import hash_names
from lifelabel.report.score_figures import forgetting
from lifelabel.runs.finished import read_run
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.markdown import escape


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


@pytest.mark.parametrize("name", ["write_text", "write_checkpoint"])
def test_an_extension_that_is_killed_before_it_begins_can_be_started_again(tables, tmp_path, monkeypatch, name):
    def cut(self, *args):
        raise ConnectionAbortedError

    train(tables, "two", tmp_path / "two", "fine-tuning")
    with monkeypatch.context() as patch, pytest.raises(ConnectionAbortedError):
        patch.setattr(RunFolder, name, cut)
        extend(tables, tmp_path / "two", "three", tmp_path / "new")
    assert extend(tables, tmp_path / "two", "three", tmp_path / "new", overwrite=True).metrics["finished"]


@pytest.mark.parametrize("method", ["agcn", "er"])
def test_an_extension_equals_one_stream_if_labels_of_old_classes_are_hidden(tables, tmp_path, method):
    assert_an_extension_equals_one_stream(tables, tmp_path, method, labels="task")


@pytest.fixture(scope="module")
def two(tables, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two") / "run"
    train(tables, "two", folder, "agcn")
    return folder


def test_old_classes_are_scored_before_and_after_on_the_same_images(tables, two, tmp_path):
    metrics = extend(tables, two, "three", tmp_path / "x").metrics
    before, after = metrics["per_task"]
    assert (before["task"], after["task"]) == (2, 3) and metrics["tasks"] == [["a", "b"], ["c", "d"], ["e", "f"]]
    assert list(before["ap"]) == list("abcd") and list(after["ap"]) == list(CLASSES)
    model = lifelabel.load(two)
    rows = list(csv.DictReader(open(tables / "three.csv")))
    test = [row for row in rows if row["split"] == "test"]
    logits = model.logits(torch.stack([pixels_of(tables / row["image"]) for row in test]))
    labels = np.array([[name in row["labels"].split(";") for name in "abcd"] for row in test])
    expected = lifelabel.metrics.average_precision(logits, labels).tolist()
    got = [before["ap"][name] for name in "abcd"]
    np.testing.assert_allclose([np.nan if ap is None else ap for ap in got], expected, rtol=1e-6)
    assert metrics["by_task"]["mAP"][0] == [None, None, None] and metrics["final"]["forgetting"]["mAP"] is not None


def pixels_of(path):
    image = Image.open(path).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(image))


def test_old_classes_that_the_table_does_not_name_are_unknown(tables, two, tmp_path):
    metrics = extend(tables, two, "new", tmp_path / "x").metrics
    before = metrics["per_task"][0]
    assert set(before["ap"].values()) == {None} and before["seen"]["mAP"] is None
    assert metrics["final"]["ap"]["a"] is None and metrics["final"]["ap"]["e"] is not None
    task = extend(tables, two, "new", tmp_path / "y", labels="task").metrics
    assert task == metrics  # nothing is known of the old classes


def test_names_of_tasks_are_shown_and_kept(main, tables, tmp_path, tables_only):
    """Of months in the wrong order, and of an extension: in the output, the run folder, the model and its card."""
    names = {"1": "March", "2": "april", "3": "<b>may|"}
    for table in ("two", "three"):
        rows = list(csv.reader(open(tables / f"{table}.csv")))
        with open(tmp_path / f"{table}.csv", "w", newline="") as file:
            csv.writer(file).writerows([rows[0], *([*r[:2], names[r[2]], *r[3:]] for r in reversed(rows[1:]))])
    given = [text for name, value in COMMON.items() for text in (f"--{name.replace('_', '-')}", value)]
    given += ["--method", "fine-tuning", "--root", tables, "--stream", tmp_path / "two.csv", "--out", tmp_path / "two"]
    done = main("train", *given)
    assert "fine-tuning: tasks in this order: March, april\n" in done.stderr
    assert "fine-tuning: after april  mAP" in done.stderr
    extended = main("extend", tmp_path / "two", tmp_path / "three.csv", "--root", tables, "--out", tmp_path / "x")
    assert "after <b>may|  mAP" in extended.stderr and extended.returncode == 0
    metrics = RunFolder(tmp_path / "x").read_json("metrics.json")
    assert metrics["task_names"] == list(names.values()) and len(metrics["tasks"]) == 3
    card = (tmp_path / "x/model/README.md").read_text()
    assert "| april |" in card and f"| {escape(names['3'])} |" in card and "<b>" not in card
    assert lifelabel.load(tmp_path / "x").info.task_names == tuple(names.values())
    looked = main("data", "inspect", tmp_path / "two.csv", "--root", tables, "--out", tmp_path / "look", "--no-sheets")
    assert "March" in looked.stdout and "| april |" in (tmp_path / "look/report.md").read_text()
    written = main("data", "build", tmp_path / "two.csv", "--root", tables, "--out", tmp_path / "m.yaml")
    assert written.returncode == 0
    streams = [lifelabel.streams.build(str(tmp_path / name), {"root": str(tables)}) for name in ("m.yaml", "two.csv")]
    assert streams[0].tasks == streams[1].tasks and streams[0].tasks[1].text == "april"
    run = read_run(tmp_path / "x")
    spec = json.dumps(forgetting(run, "a").spec)
    assert run.task_names == list(names.values()) and '"taskCells", "value": ["March", "april"' in spec


def test_a_class_in_another_spelling_is_the_class_of_the_model(main, refused, tables, two, tmp_path):
    """In an extension, in the run that its config.yaml makes again, and in an evaluation."""
    names = ("--merge-case", "--alias", "f=A")
    assert main("extend", two, tables / "three.csv", "--out", tmp_path / "x", *names, "-q").returncode == 0
    assert RunFolder(tmp_path / "x").read_json("metrics.json")["tasks"] == [["a", "b"], ["c", "d"], ["e"]]
    options = yaml.safe_load((tmp_path / "x/config.yaml").read_text())["stream_options"]
    assert (options["merge_case"], options["alias"]) == (True, ["f=A"])
    evaluate = ("evaluate", two, tables / "three.csv", "--out", tmp_path / "e", "--alias", "f=A")
    assert "only in case, spaces, underscores or hyphens: a / A; give --merge-case" in refused(*evaluate)
    assert main(*evaluate, "--merge-case").returncode == 0
    evaluation = json.loads((tmp_path / "e/evaluation.json").read_text())
    assert evaluation["classes"]["ignored"] == ["e"]


def test_a_run_is_extended_again_and_again(tables, two, tmp_path):
    rows = list(csv.reader(open(tables / "three.csv")))
    for step, name in enumerate("ef", start=1):
        part = [[r[0], ";".join(set(r[1].split(";")) - set("ef") | {name}), *r[2:]] for r in rows[1:] if name in r[1]]
        with open(tmp_path / f"{name}.csv", "w", newline="") as file:
            csv.writer(file).writerows([rows[0], *part])
        source = two if step == 1 else tmp_path / "1"
        result = lifelabel.extend(source, tmp_path / f"{name}.csv", tmp_path / str(step), root=str(tables))
    assert result.metrics["tasks"] == [["a", "b"], ["c", "d"], ["e"], ["f"]]
    training = json.loads((tmp_path / "2" / "model" / "model.json").read_text())["training"]
    assert training["images"][:2] == [16, 16]
    assert training["extends"]["run"] == "1"
    new = [np.frombuffer((run / "model" / "training-images.bin").read_bytes(), "<u8") for run in (two, tmp_path / "2")]
    files = tables / "two.csv", tmp_path / "e.csv", tmp_path / "f.csv"
    images = {row[0] for file in files for row in csv.reader(open(file)) if row[3] == "train"}
    assert set(new[0].reshape(-1, 2)[:, 0].tolist()) < set(new[1].reshape(-1, 2)[:, 0].tolist())
    assert set(new[1].reshape(-1, 2)[:, 0].tolist()) == set(hash_names(images).tolist())


def test_a_model_folder_has_no_paths(tables, tmp_path, plugin_state):
    """Of weights, of plug-ins, or of the run that was extended."""
    (tmp_path / "my_plugin.py").write_text("")
    lifelabel.load_plugin(str(tmp_path / "my_plugin.py"))
    backbone = "torchvision/shufflenet_v2_x0_5"
    torch.save(lifelabel.backbones.build(backbone).state_dict(), tmp_path / "w.pth")
    train(tables, "two", tmp_path / "a", "fine-tuning", backbone=backbone, weights=str(tmp_path / "w.pth"))
    extend(tables, tmp_path / "a", "three", tmp_path / "b")
    for run in ("a", "b"):
        for name in ("model.json", "README.md"):
            text = (tmp_path / run / "model" / name).read_text()
            assert "file w.pth" in text and "my_plugin.py" in text.replace("\\", "") and str(tmp_path) not in text


def test_an_extension_that_was_stopped_resumes_to_the_same_bits(main, tables, two, tmp_path):
    extend(tables, two, "three", tmp_path / "straight")
    with pytest.raises(Stopped, match="resume with: lifelabel train --resume"):
        # after the old classes have been scored: the first batch still runs
        extend(tables, two, "three", tmp_path / "stopped", callback=At(task=2))
    done = main("train", "--resume", tmp_path / "stopped")
    head, line = done.stdout.splitlines()[1], done.stdout.splitlines()[-1]
    assert head.split("  ")[0].strip() == "class" and "AP before %" in head and "test images" in head
    assert line.startswith("agcn: 2 new classes, 6 in all; mAP of the new classes ") and " before and " in line
    assert same(method_state(tmp_path / "straight"), method_state(tmp_path / "stopped"))
    assert_same_files(tmp_path / "straight", tmp_path / "stopped", "metrics.json")


def test_no_old_image_is_needed(tables, two, tmp_path):
    for row in csv.DictReader(open(tables / "three.csv")):
        shutil.copy(tables / row["image"], tmp_path)
    result = lifelabel.extend(two, tables / "three.csv", tmp_path / "x", root=str(tmp_path))
    assert result.metrics["finished"] and not result.environment["images_missing"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"run": "nowhere"}, "nowhere is not a run folder"),
        ({"run": "two/model"}, "give its run folder, which has checkpoint.pt"),
        ({"table": "two.csv"}, "two.csv has no new class: the model knows "),
        ({"table": "scenes"}, "scenes is not a table"),
        ({"table": "no.csv"}, "there is no "),
        ({"out": "two"}, "is the run itself"),
        ({"options": {"method_options": {"mix": 0.5}}}, r"method\.mix cannot change when a run is extended"),
        ({"options": {"seed": 4}}, "seed cannot change when a run is extended"),
        ({"options": {"stream_options": {"learned": ["x"]}}}, "stream.learned is set by"),
        ({"options": {"stream_options": {"alias": ["e=A"]}}}, r"or from a class of the model\) only in case.*: a / A;"),
    ],
)
def test_mistakes_are_one_line_and_change_nothing(tables, two, tmp_path, monkeypatch, change, message):
    shutil.copytree(two, tmp_path / "two")
    monkeypatch.chdir(tmp_path)
    before = snapshot(tmp_path)
    given = {"run": "two", "table": tables / "three.csv", "out": "out", "options": {}, **change}
    table = tables / given["table"] if str(given["table"]).endswith(".csv") else given["table"]
    with pytest.raises(UserError, match=message):
        lifelabel.extend(given["run"], table, given["out"], given["options"], root=str(tables))
    assert snapshot(tmp_path) == before


def test_a_run_that_is_not_finished_is_refused(tables, two, tmp_path):
    shutil.copytree(two, tmp_path / "run")
    edit_json(tmp_path / "run/metrics.json", finished=False)
    with pytest.raises(UserError, match="is not finished: continue it with"):
        lifelabel.extend(tmp_path / "run", tables / "three.csv", tmp_path / "out", root=str(tables))


def test_an_extension_without_its_checkpoint_is_refused(tables, two, tmp_path):
    extend(tables, two, "three", tmp_path / "x")
    for name in ("checkpoint.pt", "checkpoint-previous.pt", "metrics.json"):
        (tmp_path / "x" / name).unlink()
    with pytest.raises(UserError, match="extends a run and has no checkpoint: use `lifelabel extend` again"):
        lifelabel.resume(tmp_path / "x")


def test_a_run_whose_last_checkpoint_is_damaged_is_resumed_before_it_is_extended(tables, two, tmp_path):
    """The checkpoint before it is from before the end of the last task."""
    folder = shutil.copytree(two, tmp_path / "run")
    (folder / "checkpoint.pt").write_bytes(b"damaged")
    line = error_of(extend, tables, folder, "three", tmp_path / "out")
    assert f"is damaged or missing: delete {folder}/metrics.json, continue with `lifelabel train" in line
    save_checkpoint(RunFolder(folder), {"task": -1})
    with pytest.raises(UserError, match=r"checkpoint.pt is not the checkpoint of a run"):
        extend(tables, folder, "three", tmp_path / "out")


def test_a_mistake_leaves_the_run_in_out_as_it_is(tables, two, tmp_path):
    """With --overwrite too: its files are deleted when everything has been checked."""
    shutil.copytree(two, tmp_path / "run")
    shutil.copytree(two, tmp_path / "out")
    before = snapshot(tmp_path / "out")
    edit_json(tmp_path / "run/model/model.json", image_size=64)
    with pytest.raises(UserError, match=r"model.json is damaged or was edited: copy the model again"):
        extend(tables, tmp_path / "run", "three", tmp_path / "out", overwrite=True)
    state = load_checkpoint(RunFolder(tmp_path / "run"))
    save_checkpoint(RunFolder(tmp_path / "run"), {**state, "weights": "other"})
    with pytest.raises(UserError, match=r"the initial weights of .* are not those of none"):
        extend(tables, tmp_path / "run", "three", tmp_path / "out", overwrite=True)
    assert snapshot(tmp_path / "out") == before
