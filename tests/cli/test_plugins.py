"""Plug-ins from the command line: the package tests/plugin_example, as a file, as a module and installed."""

import csv
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from support.run_files import SendSignal, read_json

import lifelabel as package
from lifelabel import registry
from lifelabel.cli import train
from lifelabel.config import presets
from lifelabel.errors import UserError
from lifelabel.metrics import METRICS, Metric

EXAMPLE = Path(__file__).parents[1] / "plugin_example"
NAMES = {"methods": "anchor", "streams": "few-scenes", "backbones": "one-layer", "metrics": "top_1"}
RUN = ("--stream", "few-scenes", "--backbone", "one-layer", "--device", "cpu")
"""A run of 40 images of 32 pixels in two tasks."""
SMALL = (
    "--set", "stream.train_images=40", "--set", "stream.test_images=40", "--tasks", "2", "--device", "cpu", "-q",
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("plugin_state")


@pytest.fixture
def plugin(tmp_path):
    """A copy of the plug-in as a file. It is not in the current folder."""
    (tmp_path / "code").mkdir()
    return Path(shutil.copy(EXAMPLE / "lifelabel_example.py", tmp_path / "code"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package and its metadata, as setuptools writes them."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("lifelabel_example.py", "pyproject.toml"):
        shutil.copy(EXAMPLE / name, source)
    commands = ["build_py", "--build-lib", site, "egg_info", "--egg-base", site]
    words = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", *commands]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return site


def test_the_example_is_short():
    lines = (EXAMPLE / "lifelabel_example.py").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 50


# Files and modules


def test_every_kind_of_object_is_trained_and_recorded(output, plugin, tmp_path):
    text = output("train", "--plugin", plugin, "--method", "anchor", *RUN, "--tasks", "2", "--out", "run", "-q")
    assert text.startswith("anchor: mAP ")
    config = yaml.safe_load(Path("run/config.yaml").read_text())
    assert [config[name] for name in ("method", "stream", "backbone")] == ["anchor", "few-scenes", "one-layer"]
    assert config["plugins"] == [str(plugin)]
    assert config["stream_options"] == {"images": 40, "tasks": 2} and config["method_options"] == {"strength": 0.01}
    metrics = read_json(Path("run/metrics.json"))
    assert metrics["stream"] == "few-scenes" and len(metrics["tasks"]) == 2
    assert 0 <= metrics["final"]["conventions"]["top_1"] <= 1
    last = json.loads(Path("run/history.jsonl").read_text().splitlines()[-1])
    assert last["losses"].keys() == {"cls", "change"} and last["losses"]["change"] > 0
    backbone = 32 * (3 * 8 * 8 + 1) * 4
    assert read_json(Path("run/environment.json"))["footprint"] == {"images": 0, "bytes": backbone}


@pytest.mark.parametrize(
    "how", ["FILE.py:NAME", "--set FILE.py:NAME", "module:NAME", "--plugin FILE.py", "--plugin module"]
)
def test_a_method_is_given_in_several_ways(output, plugin, monkeypatch, how):
    """All of them make the same run."""
    if "module" in how:
        monkeypatch.chdir(plugin.parent)
    words = {
        "FILE.py:NAME": ["--method", f"{plugin}:Anchor"],
        "--set FILE.py:NAME": ["--set", f"method={plugin}:Anchor"],
        "module:NAME": ["--method", "lifelabel_example:Anchor"],
        "--plugin FILE.py": ["--plugin", plugin, "--method", "anchor"],
        "--plugin module": ["--plugin", "lifelabel_example", "--method", "anchor"],
    }[how]
    config = yaml.safe_load(output("train", *words, *RUN, "--set", "method.strength=0.5", "--print-config"))
    assert config["method"] == ("lifelabel_example:Anchor" if how.endswith(":NAME") else "anchor")
    assert config["method_options"] == {"strength": 0.5}
    assert config["plugins"] == ["lifelabel_example" if "module" in how else str(plugin)]


def test_streams_and_backbones_are_given_as_names_in_a_file(main, output, plugin):
    objects = ("--stream", f"{plugin}:FEW_SCENES", "--backbone", f"{plugin}:one_layer")
    text = output("train", "--method", f"{plugin}:Anchor", *objects, "--device", "cpu", "--out", "run", "-q")
    assert text.startswith("lifelabel_example:Anchor: mAP ")
    inspected = main("data", "inspect", f"{plugin}:FEW_SCENES", "--tasks", "4", "--no-sheets", "--out", "look")
    assert inspected.returncode == 0 and len(read_json(Path("look/stream.json"))["tasks"]) == 4


@pytest.mark.parametrize("what", NAMES)
def test_list_has_the_objects_of_a_plugin(main, plugin, what):
    names = [line.split()[0] for line in main("list", what).stdout.splitlines()]
    assert NAMES[what] not in names
    lines = main("list", what, "--plugin", plugin).stdout.splitlines()
    (added,) = [line for line in lines if line.split()[0] not in names]
    assert added.split()[0] == NAMES[what] and len(added.split(maxsplit=1)[1]) > 10


def test_a_stopped_run_resumes_only_with_its_plugin(main, lifelabel, error_line, plugin, monkeypatch):
    args = ("train", "--plugin", plugin, "--method", "anchor", *RUN, "--set", "checkpoint_seconds=0")
    assert main(*args, "--out", "straight", "-q").returncode == 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "make_callback", lambda quiet: SendSignal(1, signal.SIGTERM))
        assert main(*args, "--out", "stopped").returncode == 130
    assert len(Path("stopped/history.jsonl").read_bytes()) < len(Path("straight/history.jsonl").read_bytes())
    monkeypatch.setenv("LIFELABEL_PLUGINS", "")
    line = error_line(lifelabel("train", "--resume", "stopped"))
    needed = f"this run needs the plug-in {plugin}: give --plugin {plugin}, which runs its code"
    assert line == f"stopped/config.yaml cannot be used: {needed}"
    done = lifelabel("train", "--resume", "stopped", "--plugin", plugin, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    for name in ("metrics.json", "history.jsonl"):
        assert Path("stopped", name).read_bytes() == Path("straight", name).read_bytes()
    report = lifelabel("report", "stopped", "--out", "report")  # no code of the plug-in is run
    assert report.returncode == 0 and "anchor (backbone=one-layer)" in Path("report/table.md").read_text("utf-8")


def test_compare_trains_a_plugin_in_child_processes(output, tables_only, plugin):
    methods = f"fine-tuning,{plugin}:Anchor"
    args = ("compare", "--plugin", plugin, "--methods", methods, *RUN, "--seeds", "0", "--jobs", "2", "--out", "out")
    output(*args, "-q")
    table = read_json(Path("out/table.json"))
    assert [row["name"] for row in table["rows"]] == ["fine-tuning", "lifelabel_example:Anchor"]
    assert table["failures"] == []
    final = read_json(Path("out/lifelabel_example-Anchor-s0/metrics.json"))["final"]
    assert table["rows"][1]["figures"]["mAP"]["mean"] == pytest.approx(100 * final["mAP"])
    assert table["rows"][1]["figures"]["stored_bytes"]["mean"] == 32 * (3 * 8 * 8 + 1) * 4


def test_tune_searches_the_options_of_a_plugin(main, output, plugin):
    given = ("--stream", f"{plugin}:FEW_SCENES", "--set", "stream.images=60", "--device", "cpu", "--hold-out", "0.4")
    fixed = ("--lr", "1e-3", "--set", "batch_norm=running", "--first-tasks", "2", "--trials", "4", "--jobs", "2", "-q")
    text = output("tune", "--method", f"{plugin}:Anchor", *given, *fixed, "--out", "tuned")
    with open("tuned/trials.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method.strength"] for row in rows] == ["0.01", "0.001", "0.1", rows[3]["method.strength"]]
    best = max(rows, key=lambda row: float(row["mAP"]))
    preset = Path("tuned/preset.yaml").read_text()
    assert yaml.safe_load(preset)["method_options"] == {"strength": float(best["method.strength"])}
    used = main("train", "--plugin", plugin, "--config", "tuned/preset.yaml", "--print-config")
    assert yaml.safe_load(used.stdout)["method"] == "lifelabel_example:Anchor"
    words = shlex.split(presets.parse_origin(preset).command)
    assert words[words.index("--plugin") + 1] == str(plugin)
    assert main(*words[1:], "-q").stdout == text  # the command of the preset repeats nothing


# Installed packages


def test_an_installed_package(main, lifelabel, error_line, site, monkeypatch):
    """Its objects are found by their names, without --plugin."""
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{site}"}
    done = lifelabel("train", "--method", "anchor", *RUN, "--out", "run", "-q", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "top_1" in read_json(Path("run/metrics.json"))["final"]["conventions"]
    assert yaml.safe_load(Path("run/config.yaml").read_text())["plugins"] == []
    Path("run/metrics.json").unlink()  # as if it had been killed at the very end
    assert error_line(lifelabel("train", "--resume", "run")).startswith(
        "run/config.yaml cannot be used: unknown stream 'few-scenes': "
    )
    monkeypatch.syspath_prepend(site)
    assert main("train", "--resume", "run", "-q").stdout == done.stdout
    for what, name in NAMES.items():
        names = [line.split()[0] for line in main("list", what).stdout.splitlines()]
        assert names.count(name) == 1


# Names of plug-ins outside of flags


def test_a_file_with_the_name_of_a_plugin_imports_nothing(output, refused, plugin):
    """The plug-in is found by its file name, if the user loads it."""
    Path("my.yaml").write_text(f"method: {plugin}:Anchor\n", encoding="utf-8")
    line = refused("train", "--config", "my.yaml", "--print-config")
    expected = f"method '{plugin}:Anchor' is in a plug-in that is not loaded: give --plugin {plugin}"
    assert line == expected and not registry.loaded_plugins()
    assert "strength: 0.01" in output("train", "--config", "my.yaml", "--plugin", plugin, "--print-config")


# Methods and metrics that are wrong


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "class Mine(lifelabel.Method):\n    def logits(self, features, num_classes=None): ...",
            "the method Mine is not complete: implement features, load_state_dict, state_dict, learn",
        ),
        (
            "class Mine(lifelabel.FineTuning):\n    presets = {'scenes': ['lr']}",
            "the presets of the method Mine must be a dict of options by kind of stream",
        ),
        ("class Mine(lifelabel.FineTuning):\n    Options = None", "the Options of the method Mine must be a dataclass"),
    ],
    ids=["abstract methods", "presets", "no options"],
)
def test_an_incomplete_method_is_one_line(refused, code, line):
    Path("mine.py").write_text(f"import lifelabel\n\n{code}\n", encoding="utf-8")
    assert refused("train", "--method", "mine.py:Mine", "--print-config") == line


def test_a_method_may_implement_observe_in_place_of_learn(main, tmp_path):
    code = """
from lifelabel import FineTuning, Method

class Mine(Method):
    summary = "fine-tuning that is not recorded"
    def __init__(self, setting, options):
        super().__init__(setting, options)
        self.inner = FineTuning(setting, options)
    def begin_task(self, classes):
        super().begin_task(classes)
        self.inner.begin_task(classes)
    def observe(self, batch):
        return self.inner.observe(batch)
    def features(self, images):
        return self.inner.features(images)
    def logits(self, features, num_classes=None):
        return self.inner.logits(features, num_classes)
    def state_dict(self):
        return self.inner.state_dict()
    def load_state_dict(self, state):
        self.inner.load_state_dict(state)
"""
    Path("mine.py").write_text(code, encoding="utf-8")
    assert main("train", "--method", "mine.py:Mine", *SMALL, "--fidelity", "plain", "--out", "mine").returncode == 0
    assert main("train", "--method", "fine-tuning", *SMALL, "--fidelity", "plain", "--out", "other").returncode == 0
    metrics = [read_json(Path(name, "metrics.json")) for name in ("mine", "other")]
    assert metrics[0]["final"] == metrics[1]["final"]


def test_a_metric_that_fails_is_reported_before_the_training(refused):
    code = (
        "from lifelabel.metrics import METRICS, Metric\nMETRICS.register('bad', Metric('me', 'fails', lambda s: 1 / 0))"
    )
    Path("bad.py").write_text(code, encoding="utf-8")
    line = refused("train", "--plugin", "bad.py", "--method", "fine-tuning", "--device", "cpu", "--out", "run", "-q")
    assert line == "the metric 'bad' of a plug-in failed: ZeroDivisionError: division by zero"
    assert not Path("run").exists()


def test_a_metric_of_a_plugin_has_a_column_in_tables(main, output, tables_only, plugin):
    output("train", "--plugin", plugin, "--method", "fine-tuning", *SMALL, "--save-scores", "--out", "a")
    value = read_json(Path("a/metrics.json"))["final"]["conventions"]["top_1"]
    text = output("report", "a", "--out", "report")  # no plug-in is needed
    assert "top_1" in text
    with open("report/table.csv", encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["top_1_mean"]) == value and row["top_1_n"] == "1"
    assert "Metrics of plug-ins, in their own unit: top_1." in Path("report/table.md").read_text()
    done = main("metrics", "a/scores.npz", "--plugin", plugin)
    assert f"top_1 (a metric of a plug-in, on all images): {value}" in done.stdout


def test_a_cell_of_a_notebook_may_register_again():
    def top(scored):
        return 1.0

    METRICS.register("mine", Metric("me", "a metric", top))
    METRICS.register("mine", Metric("me", "a metric", top))
    with pytest.raises(UserError, match="metric 'mine' is registered already"):
        METRICS.register("mine", Metric("me", "another metric", top))


@pytest.mark.parametrize("body", ["return None", "return {'cls': 1.0}"])
def test_losses_that_are_no_tensors(refused, body):
    code = f"from lifelabel import FineTuning\n\nclass Mine(FineTuning):\n    def learn(self, batch):\n        {body}\n"
    Path("mine.py").write_text(code, encoding="utf-8")
    line = refused("train", "--method", "mine.py:Mine", *SMALL, "--out", "run")
    assert line.startswith("method mine:Mine: learn(batch) must return a dict of losses, each a tensor of one number")


def test_a_state_that_a_checkpoint_cannot_hold(refused):
    code = """
import numpy as np
from lifelabel import FineTuning

class Mine(FineTuning):
    def state_dict(self):
        return {**super().state_dict(), "seen": [np.zeros(3)]}
"""
    Path("mine.py").write_text(code, encoding="utf-8")
    line = refused("train", "--method", "mine.py:Mine", *SMALL, "--out", "run")
    start = "method mine:Mine: state_dict()['seen'][0] is a ndarray, which a checkpoint cannot hold: use tensors, "
    assert line.startswith(start)


def test_a_search_space_of_unknown_options(refused):
    code = "from lifelabel import FineTuning\n\nclass Mine(FineTuning):\n    search_space = {'nope': (1, 2)}\n"
    Path("mine.py").write_text(code, encoding="utf-8")
    line = refused("tune", "--method", "mine.py:Mine", "--out", "tuned")
    assert line == "the search_space of the method Mine has options that it does not declare: nope"


def test_streams_and_backbones_of_the_wrong_type(refused):
    code = """
from dataclasses import dataclass
from lifelabel import BACKBONES, STREAMS, streams

@dataclass(frozen=True)
class Options: ...

STREAMS.register("nothing", streams.Source("no stream", Options, lambda options: None, photographs=False))
BACKBONES.register("nothing", lambda pool, weights: None)
"""
    Path("wrong.py").write_text(code, encoding="utf-8")
    args = ("train", "--plugin", "wrong.py", "--method", "fine-tuning", "--device", "cpu", "--out", "run")
    line = refused(*args, "--stream", "nothing")
    assert line == "stream nothing: its function must return a lifelabel.Stream, not a NoneType"
    line = refused(*args, "--backbone", "nothing")
    assert line == "backbone nothing: its function must return a lifelabel.backbones.Backbone, not a NoneType"


@pytest.mark.parametrize("name", ["my_method.py", "my_method.py:"])
def test_a_file_without_the_name_of_a_method(refused, name):
    line = refused("train", "--method", name, "--print-config")
    assert line == f"'{name}' is a file: give my_method.py:NAME, with the name of the method in it"


def test_a_class_in_place_of_a_name():
    with pytest.raises(UserError, match=r"give a method by its name: METHODS\.register"):
        package.train("run", method=package.FineTuning)
    with pytest.raises(UserError, match="the options must be a dict, not er"):
        package.train("run", "er")


def test_a_method_declares_its_preset_and_options_to_compare(main, tables_only):
    """The preset is the default on this kind of stream. A table states which methods have none, and what differs."""
    code = """
from dataclasses import dataclass
from lifelabel import FineTuning, option

@dataclass(frozen=True)
class Options:
    width: int = option(1, "a number", equal=True)

class Plain(FineTuning):
    Options = Options

class Tuned(Plain):
    presets = {"scenes": {"lr": 0.02, "method_options": {"width": 2}}}
"""
    Path("mine.py").write_text(code, encoding="utf-8")
    texts = [main("train", "--method", f"mine.py:{name}", "--print-config").stdout for name in ("Plain", "Tuned")]
    assert [yaml.safe_load(text)["lr"] for text in texts] == [3e-4, 0.02]
    for name in ("Plain", "Tuned"):
        assert main("train", "--method", f"mine.py:{name}", *SMALL, "--out", name).returncode == 0
    assert main("report", "Plain", "Tuned", "--out", "report").returncode == 0
    table = Path("report/table.md").read_text()
    assert "NOT equal: these have no preset, and the default options: mine:Plain." in table
    assert "NOT equal: width (1: mine:Plain; 2: mine:Tuned)." in table


def test_a_plugin_that_changed_is_noted(lifelabel, plugin):
    args = ("train", "--plugin", plugin, "--method", "anchor", *RUN, "--set", "checkpoint_seconds=0", "--out", "run")
    assert lifelabel(*args, "-q").returncode == 0
    for name in ("metrics.json", "environment.json"):
        Path("run", name).unlink()
    state = torch.load("run/checkpoint.pt", weights_only=True)
    assert state["plugin_files"].keys() == {"lifelabel_example"}
    state["task"], state["records"] = 1, state["records"][:1]
    torch.save(state, "run/checkpoint.pt")
    plugin.write_text(plugin.read_text() + "\n# changed\n")
    done = lifelabel("train", "--resume", "run", "--plugin", plugin)
    assert "the plug-in lifelabel_example has changed since the checkpoint was written" in done.stderr
