"""The command `lifelabel`, as a user meets it: what it makes, what it says, how it ends."""

import json
import shutil
import signal

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from lifelabel import cli
from lifelabel.backbones import BACKBONES, FAMILIES
from lifelabel.config import Config
from lifelabel.engine import Watcher
from lifelabel.methods import METHODS
from lifelabel.metrics import CONVENTIONS
from lifelabel.runfolder import RunFolder
from lifelabel.streams import STREAMS
from lifelabel.version import __version__

FILES = [
    "acm.npz",
    "checkpoint.pt",
    "config.yaml",
    "environment.json",
    "history.jsonl",
    "metrics.json",
    "skipped.jsonl",
]


@pytest.fixture
def refused(main):
    """`lifelabel ARGS` that must fail as a user's mistake: the one line."""
    return lambda *args: the_line(main(*args))


def the_line(done):
    assert done.returncode == 2, done
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.endswith("\n")
    return done.stderr.removeprefix("error: ").removesuffix("\n")


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


# Help, version, lists


@pytest.mark.parametrize("name", ["train", "demo", "report", "list"])
def test_help_has_examples(main, name):
    for flag in ("--help", "-h"):
        done = main(name, flag)
        assert done.returncode == 0
        assert "Example" in done.stdout
        examples = done.stdout.partition("Example")[2]
        assert f"lifelabel {name}" in examples
        assert done.stderr == ""


def test_help_names_every_command_and_no_arguments_is_help(main):
    for done in (main("--help"), main()):
        for name in ("train", "demo", "report", "list", "--version"):
            assert name in done.stdout
        assert "Traceback" not in done.stderr


def test_help_lists_every_flag_of_train(main):
    text = main("train", "--help").stdout
    flags = (
        "out resume config stream method fidelity seed batch-size lr backbone-lr later-backbone-lr batch-norm lambdas"
    )
    for flag in f"{flags} backbone words device precision set print-config overwrite quiet".split():
        assert f"--{flag} " in text


def test_version(main):
    done = main("--version")
    assert (done.returncode, done.stdout) == (0, f"lifelabel {__version__}\n")


def test_version_in_a_process_of_its_own(lifelabel):
    done = lifelabel("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"lifelabel {__version__}\n", "")


@pytest.mark.parametrize(
    ("what", "known"),
    [("methods", METHODS), ("streams", STREAMS), ("backbones", [*BACKBONES, *FAMILIES]), ("metrics", CONVENTIONS)],
)
def test_list(main, what, known):
    done = main("list", what)
    assert done.returncode == 0
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == list(known)
    assert all(len(text) > 10 for _, text in lines)


# Training


def test_train_prints_one_result_and_makes_every_file(agcn_train):
    done, folder = agcn_train
    assert sorted(path.name for path in folder.iterdir() if path.name != ".lock") == FILES
    (line,) = done.stdout.splitlines()
    final = read_json(folder / "metrics.json")["final"]
    assert line.startswith("agcn: ")
    assert f"mAP {100 * final['mAP']:.2f}" in line
    assert str(folder) in line
    assert [text.split("  ")[0] for text in done.stderr.splitlines() if text] == [
        f"agcn: after task {t}" for t in range(1, 6)
    ]


def test_config_yaml_is_complete_and_the_run_that_was_asked_for(agcn_run):
    values = yaml.safe_load((agcn_run / "config.yaml").read_text())
    asked = {"method": "agcn", "device": "cpu", "stream_options": {"train_images": 60, "test_images": 60}}
    expected = Config.make(asked)
    assert values == expected.to_dict()


def test_metrics_json(agcn_run):
    metrics = read_json(agcn_run / "metrics.json")
    assert (metrics["stream"], metrics["method"], metrics["fidelity"], metrics["seed"]) == (
        "scenes",
        "agcn",
        "tuned",
        0,
    )
    assert metrics["finished"] is True
    assert [len(task) for task in metrics["tasks"]] == [4] * 5
    assert [name for task in metrics["tasks"] for name in task] == metrics["classes"]
    assert [record["task"] for record in metrics["per_task"]] == [1, 2, 3, 4, 5]
    for name in ("mAP", "CF1", "OF1"):
        matrix = metrics["by_task"][name]
        assert [len(row) for row in matrix] == [5] * 5
        for t, row in enumerate(matrix):
            assert all(0 <= value <= 1 for value in row[: t + 1])
            assert row[t + 1 :] == [None] * (4 - t)
        assert metrics["final"][name] == metrics["per_task"][-1]["seen"][name]
        assert set(metrics["final"]["forgetting"]) == {"mAP", "CF1", "OF1"}
    assert set(metrics["final"]["conventions"]) == set(CONVENTIONS)
    assert set(metrics["final"]["ap"]) == set(metrics["classes"])


def test_matrices(agcn_run):
    with np.load(agcn_run / "acm.npz", allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    assert set(arrays) == {*(f"task_{t}" for t in range(1, 6)), "classes", "truth"}
    last = arrays["task_5"]
    for t in range(1, 6):
        assert arrays[f"task_{t}"].shape == (4 * t, 4 * t)
        assert np.array_equal(arrays[f"task_{t}"], last[: 4 * t, : 4 * t])
    assert np.isfinite(last).all()
    assert (last != np.eye(20)).any()
    assert arrays["classes"].tolist() == read_json(agcn_run / "metrics.json")["classes"]
    assert arrays["truth"].shape == (20, 20)


def test_checkpoint_is_data_alone(agcn_run):
    state = torch.load(agcn_run / "checkpoint.pt", weights_only=True, map_location="cpu")
    assert (state["task"], state["step"], state["images"]) == (5, 0, 60)
    assert state["config"]["method"] == "agcn"
    assert state["history_bytes"] == (agcn_run / "history.jsonl").stat().st_size


def test_history_has_a_line_for_every_step(agcn_run):
    history = [json.loads(line) for line in (agcn_run / "history.jsonl").read_text().splitlines()]
    for t in range(1, 6):
        steps = [row for row in history if row["task"] == t]
        assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
        assert set(steps[-1]["losses"]) == ({"cls"} if t == 1 else {"cls", "dst", "gph"})
    images = [row["images"] for row in history]
    assert images == sorted(set(images))
    assert images[-1] == 60
    # each task's images, in batches of 8, the last one smaller
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
    assert (tmp_path / "b" / "metrics.json").read_bytes() == (agcn_run / "metrics.json").read_bytes()
    assert (tmp_path / "b" / "config.yaml").read_bytes() == (agcn_run / "config.yaml").read_bytes()
    assert (tmp_path / "b" / "history.jsonl").read_bytes() == (agcn_run / "history.jsonl").read_bytes()


def test_print_config_shows_what_would_run_and_runs_nothing(main, agcn_run, tmp_path):
    done = main(
        "train", "--config", agcn_run / "config.yaml", "--seed", "7", "--lambdas", "1,2,3", "--set", "method.mix=0.2",
        "--set", "stream.classes=10", "--set", "batch_size=4", "--out", tmp_path / "none", "--print-config",
    )  # fmt: skip
    config = Config.make(yaml.safe_load(done.stdout))
    assert (config.seed, config.batch_size) == (7, 4)
    assert config.method_options.lambdas == (1, 2, 3)
    assert config.method_options.mix == 0.2
    assert (config.stream_options.classes, config.stream_options.train_images) == (10, 60)
    assert not (tmp_path / "none").exists()


def test_fidelity_of_a_flag(main):
    config = Config.make(yaml.safe_load(main("train", "--fidelity", "paper", "--print-config").stdout))
    assert config == Config.make({"fidelity": "paper"})


@pytest.mark.parametrize("method", ["fine-tuning", "multi-task"])
def test_methods_without_a_matrix_leave_no_matrix_file(main, small, tmp_path, method):
    done = main("train", "--method", method, *small, "--out", tmp_path / "run", "-q")
    assert done.returncode == 0
    assert done.stdout.startswith(f"{method}: mAP ")
    assert not (tmp_path / "run" / "acm.npz").exists()
    assert len(read_json(tmp_path / "run" / "metrics.json")["per_task"]) == (1 if method == "multi-task" else 5)


# A folder that is there already


def test_an_existing_run_is_refused_and_untouched(refused, agcn_copy, small):
    before = snapshot(agcn_copy)
    line = refused("train", *small, "--out", agcn_copy)
    assert str(agcn_copy) in line
    assert f"--resume {agcn_copy}" in line
    assert "--overwrite" in line
    assert snapshot(agcn_copy) == before


def test_overwrite_makes_the_run_anew(main, agcn_copy, small):
    (agcn_copy / "notes.txt").write_text("mine")
    done = main("train", "--method", "fine-tuning", *small, "--out", agcn_copy, "--overwrite", "-q")
    assert done.returncode == 0
    assert read_json(agcn_copy / "metrics.json")["method"] == "fine-tuning"
    assert not (agcn_copy / "acm.npz").exists()  # the old run's
    assert (agcn_copy / "notes.txt").read_text() == "mine"


def test_overwrite_of_what_is_no_run_is_refused(refused, tmp_path, small):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "metrics.json").write_text("mine")
    before = snapshot(tmp_path / "precious")
    assert "holds no run" in refused("train", *small, "--out", tmp_path / "precious", "--overwrite")
    assert snapshot(tmp_path / "precious") == before


@pytest.mark.parametrize("bad", [("--backbone", "tny"), ("--words", "/nowhere/glove.txt"), ("--method", "acgn")])
def test_a_mistake_costs_no_old_run(refused, agcn_copy, small, bad):
    before = snapshot(agcn_copy)
    refused("train", *small, *bad, "--out", agcn_copy, "--overwrite")
    assert snapshot(agcn_copy) == before


@pytest.mark.parametrize("bad", [("--backbone", "tny"), ("--words", "/nowhere/glove.txt"), ("--method", "acgn")])
def test_a_mistake_leaves_no_run_in_the_way_of_the_next_try(refused, tmp_path, small, bad):
    refused("train", *small, *bad, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("how", [("--overwrite", "--out"), ("--resume",)])
def test_a_run_in_use_is_refused_and_untouched(refused, agcn_copy, small, how):
    with RunFolder(agcn_copy).locked():
        before = snapshot(agcn_copy)
        assert "in use by another process" in refused("train", *(small if "--out" in how else ()), *how, agcn_copy)
        assert snapshot(agcn_copy) == before


def test_out_under_a_file(refused, tmp_path, small):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file" / "run", tmp_path / "file"):
        line = refused("train", *small, "--out", out)
        assert f"cannot write to {out}" in line
        assert "--out" in line
    assert (tmp_path / "file").read_text() == "mine"


# Going on


def test_resume_of_a_finished_run_prints_the_result(main, agcn_train, agcn_copy):
    before = snapshot(agcn_copy)
    done = main("train", "--resume", agcn_copy, "-q")
    assert done.returncode == 0
    assert done.stdout.replace(str(agcn_copy), "") == agcn_train[0].stdout.replace(str(agcn_train[1]), "")
    assert {name: data for name, data in snapshot(agcn_copy).items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }


def test_resume_of_a_finished_run_does_not_count_past_the_last_task(main, agcn_copy):
    assert "6/5" not in main("train", "--resume", agcn_copy).stderr


def test_resume_of_what_is_no_run(refused, tmp_path):
    assert f"{tmp_path} is not a run folder" in refused("train", "--resume", tmp_path)
    assert "is not a run folder" in refused("train", "--resume", tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert "is not a run folder" in refused("train", "--resume", tmp_path / "file")


@pytest.mark.parametrize(
    "more",
    [("--seed", "3"), ("--out", "x"), ("--config", "x.yaml"), ("--overwrite",), ("--lambdas", "1,1,1"),
     ("--set", "lr=1"), ("--print-config",)],
    ids=lambda more: more[0],
)  # fmt: skip
def test_resume_is_given_alone(refused, agcn_copy, more):
    before = snapshot(agcn_copy)
    assert "--resume" in refused("train", "--resume", agcn_copy, *more)
    assert snapshot(agcn_copy) == before


def test_a_checkpoint_cut_short(lifelabel, agcn_copy):
    path = agcn_copy / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    line = the_line(lifelabel("train", "--resume", agcn_copy))
    assert str(path) in line
    assert "damaged or cut short" in line


def test_a_checkpoint_of_another_stream(refused, agcn_copy):
    values = yaml.safe_load((agcn_copy / "config.yaml").read_text())
    values["stream_options"]["seed"] = 1
    (agcn_copy / "config.yaml").write_text(yaml.safe_dump(values))
    line = refused("train", "--resume", agcn_copy)
    assert str(agcn_copy / "checkpoint.pt") in line
    assert "another stream" in line


def test_a_checkpoint_of_another_method(refused, agcn_copy):
    values = yaml.safe_load((agcn_copy / "config.yaml").read_text())
    values |= {"method": "fine-tuning", "method_options": {}}
    (agcn_copy / "config.yaml").write_text(yaml.safe_dump(values))
    line = refused("train", "--resume", agcn_copy)
    assert "another method than" in line
    assert line.endswith(": agcn")


def test_a_checkpoint_of_another_shape(refused, agcn_copy):
    values = yaml.safe_load((agcn_copy / "config.yaml").read_text())
    values["method_options"]["hidden"] = 100
    (agcn_copy / "config.yaml").write_text(yaml.safe_dump(values))
    assert "another method_options than" in refused("train", "--resume", agcn_copy)


def test_a_damaged_history(refused, diverged, tmp_path):
    folder = shutil.copytree(diverged[1], tmp_path / "run")
    (folder / "history.jsonl").write_text("")
    assert "history.jsonl is shorter" in refused("train", "--resume", folder)


def test_a_damaged_config(refused, agcn_copy):
    (agcn_copy / "config.yaml").write_text("stream: [")
    assert str(agcn_copy / "config.yaml") in refused("train", "--resume", agcn_copy)


class CtrlC(Watcher):
    """Sends this process the signal of Ctrl-C when the losses of the given step are read."""

    def __init__(self, task, number):
        self.task, self.number = task, number

    def steps(self, task, images, losses):
        if task == self.task:
            signal.raise_signal(self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_says_how_to_go_on_and_goes_on_to_the_same_end(
    main, refused, monkeypatch, agcn_run, small, tmp_path, number
):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(cli, "watcher", lambda quiet: CtrlC(2, number))
        done = main("train", *small, "--set", "checkpoint_seconds=0", "--out", folder)
    assert done.returncode == 130
    assert done.stdout == ""
    assert done.stderr == f"stopped; go on with: lifelabel train --resume {folder}\n"
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert (state["task"], state["step"]) == (2, 1)
    assert "is not finished" in refused("report", folder, "--out", tmp_path / "report")
    done = main("train", "--resume", folder, "-q")
    assert done.returncode == 0
    assert (folder / "metrics.json").read_bytes() == (agcn_run / "metrics.json").read_bytes()
    assert (folder / "history.jsonl").read_bytes() == (agcn_run / "history.jsonl").read_bytes()


# Names and values that are wrong


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--stream", "scenez"], ["unknown stream 'scenez'", "did you mean 'scenes'?"]),
        (["--method", "acgn"], ["unknown method 'acgn'", "did you mean 'agcn'?", "known: agcn, agem, der++, er, ewc"]),
        (["--method", "finetuning"], ["did you mean 'fine-tuning'?"]),
        (["--backbone", "tny"], ["unknown backbone 'tny'", "did you mean 'tiny'?"]),
        (["--backbone", "resnet102"], ["did you mean 'resnet101'?"]),
        (["--backbone", "timm/resnet8"], ["unknown timm model 'resnet8'", "resnet"]),
        (["--fidelity", "papr"], ["unknown fidelity 'papr'", "did you mean 'paper'?"]),
        (["--batch-norm", "froze"], ["batch_norm", "did you mean 'frozen'?"]),
        (["--precision", "fp16"], ["precision", "bf16, fp32"]),
        (["--seed", "x"], ["seed must be a whole number, not 'x'"]),
        (["--seed", "1.5"], ["seed must be a whole number, not '1.5'"]),
        (["--seed", "-1"], ["seed must be at least 0, not -1"]),
        (["--seed", ""], ["seed must be a whole number"]),
        (["--batch-size", "0"], ["batch_size must be at least 1, not 0"]),
        (["--batch-size", "many"], ["batch_size must be a whole number, not 'many'"]),
        (["--lr", "fast"], ["lr must be a number, not 'fast'"]),
        (["--lr", "0"], ["lr must be more than 0"]),
        (["--lr", "-1e-3"], ["lr must be more than 0"]),
        (["--lr", "nan"], ["lr must be a finite number"]),
        (["--backbone-lr", "inf"], ["backbone_lr must be a finite number"]),
        (["--later-backbone-lr", "-1"], ["later_backbone_lr must be at least 0"]),
        (["--lambdas", "1,2"], ["lambdas takes 3 values, not 2"]),
        (["--lambdas", "1,2,x"], ["lambdas must be a number, not 'x'"]),
        (["--lambdas", "1,-2,3"], ["lambdas must be at least 0, not -2"]),
        (["--lambdas", "1,nan,3"], ["lambdas must be a finite number"]),
        (["--method", "fine-tuning", "--lambdas", "1,1,1"], ["'lambdas'"]),
        (["--device", "gpu"], ["unknown device 'gpu'", "cuda:N"]),
        (["--device", "cuda:99"], ["'cuda:99' is not there"]),
        (["--words", "/nowhere/glove.txt"], ["cannot read the word vectors /nowhere/glove.txt"]),
        (["--config", "/nowhere/a.yaml"], ["cannot read the configuration /nowhere/a.yaml"]),
        (["--set", "lr"], ["--set takes NAME=VALUE, not 'lr'"]),
        (["--set", "lr=[1"], ["--set lr", "[1"]),
        (["--set", "lr=2020-99-99"], ["lr", "2020-99-99"]),
        (["--set", "larning_rate=1"], ["'larning_rate'"]),
        (["--set", "batchsize=1"], ["did you mean 'batch_size'?"]),
        (["--set", "stream.clases=3"], ["'clases'", "did you mean 'classes'?"]),
        (["--set", "method.lamdas=3"], ["'lamdas'", "did you mean 'lambdas'?"]),
        (["--set", "stream.classes=99"], ["30 classes", "99"]),
        (["--set", "stream.tasks=21"], ["21 tasks"]),
        (["--set", "stream.train_images=2"], ["2 training images"]),
        (["--set", "stream_options=3"], ["stream_options"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0].startswith("--") else "",
)
def test_wrong_names_and_values(refused, tmp_path, small, args, says):
    line = refused("train", *small, "--out", tmp_path / "run", *args)
    for part in says:
        assert part in line


def test_no_folder_at_all(refused):
    assert "--out" in refused("train")


@pytest.mark.parametrize("seeds", ["x", "3-1", "", "1,,2", "-1", "0-999999999999"])
def test_wrong_seeds_of_the_demo(refused, tmp_path, seeds):
    assert "--seeds" in refused("demo", "--seeds", seeds, "--out", tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["list", "metrcs"], "metrics"),
        (["list"], "methods"),
        (["lst"], "lst"),
        (["train", "--mehtod", "agcn"], "--method"),
        (["train", "--lr"], "--lr"),
        (["report"], "runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_too(refused, args, says):
    assert says in refused(*args)


def test_a_mistake_in_a_process_of_its_own(lifelabel, tmp_path):
    done = lifelabel("train", "--method", "acgn", "--out", tmp_path / "run")
    known = ", ".join(sorted(METHODS))
    assert the_line(done) == f"unknown method 'acgn': did you mean 'agcn'? (known: {known})"
    assert done.stdout == ""
    assert not (tmp_path / "run").exists()


# Divergence


def test_divergence_before_any_checkpoint(main, refused, tmp_path, small):
    folder = tmp_path / "run"
    line = refused("train", *small, "--lr", "1e30", "--backbone-lr", "1e30", "--out", folder, "-q")
    assert line.startswith("task 1, step ")
    assert "nan" in line or "inf" in line or "not finite" in line
    assert "no checkpoint yet" in line
    assert not (folder / "checkpoint.pt").exists()
    assert "is not finished" in refused("report", folder, "--out", tmp_path / "report")


@pytest.fixture(scope="module")
def diverged(lifelabel, small, tmp_path_factory):
    """A run that learns its first task and diverges in the second: (process, folder)."""
    folder = tmp_path_factory.mktemp("diverged") / "run"
    return lifelabel("train", *small, "--later-backbone-lr", "1e30", "--out", folder, "-q"), folder


def test_divergence_keeps_the_last_good_checkpoint(diverged):
    done, folder = diverged
    line = the_line(done)
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


def test_after_divergence_the_run_goes_on_from_there(main, diverged, tmp_path):
    folder = shutil.copytree(diverged[1], tmp_path / "run")
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values["later_backbone_lr"] = 6e-4
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    assert main("train", "--resume", folder, "-q").returncode == 0
    assert read_json(folder / "metrics.json")["finished"] is True


# Reports


def test_report(main, agcn_run, agcn_copy, tmp_path):
    """Two seeds of one method, in the 80 columns of a pipe."""
    values = {**yaml.safe_load((agcn_copy / "config.yaml").read_text()), "seed": 1}
    (agcn_copy / "config.yaml").write_text(yaml.safe_dump(values))
    (agcn_copy / "metrics.json").write_text(json.dumps({**read_json(agcn_copy / "metrics.json"), "seed": 1}))
    done = main("report", agcn_run, agcn_copy, "--out", tmp_path / "report")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "agcn" in done.stdout
    assert "forgetting" in done.stdout
    assert "…" not in done.stdout  # no name and no figure is cut
    table = (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
    assert table.startswith("| method | mAP |")
    mean_ap = f"{100 * read_json(agcn_run / 'metrics.json')['final']['mAP']:.2f}"
    assert f"| agcn (stream.train_images=60, stream.test_images=60) | {mean_ap} ± 0.00 |" in table
    assert "seeds 0, 1" in table
    with Image.open(tmp_path / "report" / "report.png") as picture:
        assert picture.format == "PNG"
        picture.load()


def test_report_of_an_unfinished_run_says_so(refused, diverged, tmp_path):
    line = refused("report", diverged[1], "--out", tmp_path / "report")
    assert "is not finished" in line
    assert f"--resume {diverged[1]}" in line
    assert not (tmp_path / "report").exists()


def test_report_of_what_is_no_run(refused, tmp_path):
    assert str(tmp_path / "nowhere") in refused("report", tmp_path / "nowhere", "--out", tmp_path / "report")
    assert str(tmp_path) in refused("report", tmp_path, "--out", tmp_path / "report")


def test_report_of_damaged_metrics(refused, agcn_copy, tmp_path):
    (agcn_copy / "metrics.json").write_text('{"finished": tr')
    assert "metrics.json is damaged" in refused("report", agcn_copy, "--out", tmp_path / "report")


def test_report_of_a_damaged_matrix(refused, agcn_copy, tmp_path):
    data = (agcn_copy / "acm.npz").read_bytes()
    (agcn_copy / "acm.npz").write_bytes(data[: len(data) // 2])
    assert "acm.npz" in refused("report", agcn_copy, "--out", tmp_path / "report")


def test_report_to_where_nothing_can_be_written(main, agcn_run, tmp_path):
    (tmp_path / "file").write_text("mine")
    done = main("report", agcn_run, "--out", tmp_path / "file" / "report")
    assert "cannot write to" in the_line(done)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_fidelity_that_the_config_would_undo_is_refused(main, refused, tmp_path):
    saved = tmp_path / "tuned.yaml"
    saved.write_text(main("train", "--print-config").stdout)
    assert "which win over --fidelity" in refused("train", "--config", saved, "--fidelity", "paper", "--print-config")
    saved.write_text("seed: 3\n")
    done = main("train", "--config", saved, "--fidelity", "paper", "--print-config")
    assert yaml.safe_load(done.stdout)["fidelity"] == "paper"
