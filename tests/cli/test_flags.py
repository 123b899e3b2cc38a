"""Flags that are generated from options, and options that are given at the wrong level."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
import typer
import yaml

import lifelabel as package
from lifelabel.cli.main import app
from lifelabel.config.run_options import RunOptions
from lifelabel.options import option
from lifelabel.streams import STREAMS, Source

STREAM_FLAGS = {
    field.name: field.metadata
    for source in STREAMS.values()
    for field in reversed(dataclasses.fields(source.Options))
    if field.metadata["flag"]
}
RUN_FLAGS = {field.name: field.metadata for field in dataclasses.fields(RunOptions) if field.metadata["flag"]}
SET_BY_COMMAND = {
    "train": set(),
    "compare": {"method", "seed", "task_order", "class_order"},
    "study": {"method", "seed", "task_order", "class_order"},
    "tune": {"method", "seed", "first_tasks", "hold_out"},
}
"""The options that a command sets itself, from its own flags."""


def params_of(command):
    """The parameters of a command by their first flags."""
    found = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    flags = [flag for param in found.params for flag in param.opts]
    assert len(flags) == len(set(flags))
    return {param.opts[0]: param for param in found.params}


def flag_of(name):
    return f"--{name.replace('_', '-')}"


@pytest.mark.parametrize("name", [*RUN_FLAGS, *STREAM_FLAGS])
def test_every_option_with_a_flag_has_one_in_train_with_its_help(name):
    metadata = RUN_FLAGS.get(name) or STREAM_FLAGS[name]
    param = params_of("train")[flag_of(name)]
    assert param.rich_help_panel == metadata["flag"]
    if name in RUN_FLAGS:  # streams may describe the same option in different words
        assert param.help.lower().startswith(metadata["help"].lower())
    assert all(choice in param.help for choice in metadata["choices"] or ())


def test_flags_of_streams():
    assert STREAM_FLAGS.keys() == {"root", "tasks", "merge_case", "alias"}
    params = params_of("train")
    assert "folder of the images" in params["--root"].help and "umber of tasks" in params["--tasks"].help


@pytest.mark.parametrize("command", SET_BY_COMMAND)
def test_a_command_leaves_out_the_flags_that_it_sets_itself(command):
    flags = params_of(command).keys()
    own = {"method", "first_tasks", "hold_out"} if command == "tune" else set()  # it has flags with these names
    for name in RUN_FLAGS:
        expected = name not in SET_BY_COMMAND[command] or name in own
        assert (flag_of(name) in flags) == expected, name
    assert {"--root", "--tasks", "--set", "--plugin"} <= flags


def test_tasks_of_tune_are_those_of_the_stream():
    params = params_of("tune")
    assert params["--tasks"].help.startswith("Number of tasks that the classes are divided")
    assert params["--first-tasks"].help.startswith("Number of tasks to train on, from the first.")


@pytest.mark.parametrize("command", ["inspect", "build"])
def test_data_has_the_flags_of_the_stream_only(command):
    flags = params_of(f"data {command}").keys()
    assert {"--root", "--tasks", "--set", "--plugin"} <= flags
    assert not flags & {flag_of(name) for name in RUN_FLAGS}


def test_the_flags_of_train_are_its_own_and_those_of_options():
    own = {"out_folder", "resume", "config", "set_", "plugin", "print_config", "overwrite", "quiet", "stream_argument"}
    names = {param.name for param in params_of("train").values()}
    assert names == own | RUN_FLAGS.keys() | STREAM_FLAGS.keys()


# Values


WRONG = {
    "seed": "x", "batch_size": "many", "lr": "fast", "backbone_lr": ".inf", "batch_norm": "froze", "fidelity": "papr",
    "method": "acgn", "stream": "scenez", "image_size": "large", "precision": "fp16", "workers": "-1",
    "hold_out": "0.95", "word_norm": "0", "pool": "mean", "task_order": "1001",
    "class_order": "-1", "epochs": "0",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_a_flag_is_checked_like_one_of_yaml(refused, tmp_path, name):
    text = "inf" if WRONG[name] == ".inf" else WRONG[name]
    (tmp_path / "wrong.yaml").write_text(f"{name}: {WRONG[name]}\n")
    by_file = refused("train", "--config", tmp_path / "wrong.yaml", "--print-config")
    assert refused("train", flag_of(name), text, "--print-config") == by_file
    assert refused("train", "--set", f"{name}={WRONG[name]}", "--print-config") == by_file


@pytest.mark.parametrize(
    ("args", "values"),
    [
        (("--lr", "1e-2", "--batch-size", "4"), {"lr": 0.01, "batch_size": 4}),
        (("--image-size", "none", "--word-norm", "none"), {"image_size": None, "word_norm": None}),
        (("--strict", "--save-scores"), {"strict": True, "save_scores": True, "allow_seen_weights": False}),
        (("--compile", "off", "--hold-out", "0.25"), {"compile": "off", "hold_out": 0.25}),
        (("--adam-eps", "1e-4", "--set", "adam_eps=1e-3"), {"adam_eps": 1e-3}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_values_of_flags(main, args, values):
    config = yaml.safe_load(main("train", *args, "--print-config").stdout)
    assert {name: config[name] for name in values} == values


def test_flags_of_the_stream_are_in_its_section(main, tmp_path):
    done = main("train", "--stream", "photos.csv", "--root", tmp_path, "--tasks", "3", "--print-config")
    options = yaml.safe_load(done.stdout)["stream_options"]
    assert (options["file"], options["root"], options["tasks"]) == ("photos.csv", str(tmp_path), 3)


def test_the_stream_may_be_an_argument(main, refused, tmp_path):
    (tmp_path / "photos.csv").write_text("image,labels\n")
    as_flag = main("train", "--stream", tmp_path / "photos.csv", "--print-config").stdout
    assert main("train", tmp_path / "photos.csv", "--print-config").stdout == as_flag and "photos.csv" in as_flag
    for command in (["compare"], ["tune", "--method", "er"]):
        assert "there is no" in refused(*command, tmp_path / "no.csv", "--out", tmp_path / "x")
    line = "two streams: a.csv and --stream b.csv; give one of them"
    assert refused("train", "a.csv", "--stream", "b.csv", "--out", tmp_path / "x") == line


def test_flags_win_over_a_file(main, tmp_path):
    (tmp_path / "a.yaml").write_text("lr: 0.5\nbatch_size: 3\nstream_options: {tasks: 2, classes: 8}\n")
    done = main("train", "--config", tmp_path / "a.yaml", "--lr", "0.25", "--tasks", "4", "--print-config")
    config = yaml.safe_load(done.stdout)
    assert (config["lr"], config["batch_size"]) == (0.25, 3)
    assert (config["stream_options"]["tasks"], config["stream_options"]["classes"]) == (4, 8)


def test_a_flag_that_the_stream_does_not_have(refused):
    line = refused("train", "--root", "photos", "--print-config")
    assert re.fullmatch("'root' is an option of .*coco.*, not of scenes: choose another stream, or remove it", line)
    for args in (("--tasks", "3"), ("--set", "tasks=3"), ("--set", "stream.tasks=3")):
        line = refused("train", "--stream", "a.yaml", *args, "--print-config")
        assert re.fullmatch("'tasks' is an option of .*scenes.*, not of manifest: choose another .*", line)


# Options at the wrong level


OF_METHOD = "'mix' is an option of the method: give method.mix (in YAML and Python: mix in method_options)"
OF_STREAM = "'tasks' is an option of the stream: give stream.tasks (in YAML and Python: tasks in stream_options)"
OF_RUN = "'lr' is an option of the run: give lr without a prefix (in YAML: at the top level)"
NOT_OF_ER = "'mix' is an option of agcn, agcn++, not of er: choose another method, or remove it"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--set", "mix=1"), OF_METHOD), (("--set", "stream.mix=1"), OF_METHOD),
        (("--set", "tasks=3"), OF_STREAM), (("--set", "method.tasks=3"), OF_STREAM),
        (("--set", "stream.lr=1"), OF_RUN), (("--set", "method.lr=1"), OF_RUN),
        (("--method", "er", "--set", "method.mix=1"), NOT_OF_ER), (("--method", "er", "--set", "mix=1"), NOT_OF_ER),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)  # fmt: skip
def test_an_option_at_the_wrong_level(refused, tmp_path, args, line):
    assert refused("train", *args, "--out", tmp_path / "run") == line
    assert not (tmp_path / "run").exists()


def test_an_option_of_several_levels_is_accepted_at_each(main):
    config = yaml.safe_load(main("train", "--seed", "3", "--set", "stream.seed=4", "--print-config").stdout)
    assert (config["seed"], config["stream_options"]["seed"]) == (3, 4)


# Python


def test_keywords_of_python_are_the_names_of_flags(tmp_path):
    given = {"stream_options": {"train_images": 20, "test_images": 20}}
    result = package.train(tmp_path / "run", given, tasks=2, method="fine-tuning", device="cpu")
    options = result.config.stream_options
    assert (options.train_images, options.tasks, len(result.metrics["tasks"])) == (20, 2, 2)
    with pytest.raises(package.UserError, match="unknown option of a run 'larning_rate'"):
        package.train(tmp_path / "other", larning_rate=1)


# Plug-ins


def test_a_broken_installed_stream_does_not_break_help(tmp_path):
    info = tmp_path / "broken-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[lifelabel.streams]\nbroken = no_such_module:STREAM\n")
    code = """
import sys
from lifelabel.cli.main import main
for words in (["train", "--help"], ["train", "--tasks", "4", "--print-config"], ["list", "methods"]):
    sys.argv = ["lifelabel", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_of_a_registered_stream_are_keywords(monkeypatch):
    """A plug-in that is loaded can declare further flags. They are keywords of `lifelabel.train`."""
    from lifelabel.config.config import nest_flags

    @dataclasses.dataclass(frozen=True)
    class Options:
        months: int = option(1, "number of months", flag="Data")

    assert nest_flags({"months": 3}) == {"months": 3}
    monkeypatch.setitem(STREAMS._items, "calendar", Source("by month", Options, lambda options: None))
    assert nest_flags({"months": 3, "lr": 1}) == {"lr": 1, "stream_options": {"months": 3}}
