"""Every shipped preset: its file, its origin, its options, and whether `lifelabel tune` can choose them."""

import functools
import itertools
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from lifelabel.config import presets
from lifelabel.config.config import Config, plain
from lifelabel.methods import METHODS
from lifelabel.search.tuner import search_space

ROOT = Path(__file__).parents[2]
FOLDER = Path("src/lifelabel/config/presets")
EXAMPLE = {"scenes": "scenes", "photographs": "split-coco"}
"""A stream of each kind."""
SHIPPED = sorted((path.parent.name, path.stem) for path in (ROOT / FOLDER).glob("*/*.yaml"))
every_preset = pytest.mark.parametrize(("kind", "method"), SHIPPED)


def text_of(kind, method):
    return (ROOT / FOLDER / kind / f"{method}.yaml").read_text(encoding="utf-8")


def comments_of(kind, method):
    """The comments of a file as (name, text), read without the package."""
    lines = [line for line in text_of(kind, method).splitlines() if line.startswith("# ")]
    return dict(line.removeprefix("# ").split(": ", 1) for line in lines if ": " in line)


def values_of(kind, method):
    """The options of a file: those of the run, and those of the method."""
    values = yaml.safe_load(text_of(kind, method))
    return {name: value for name, value in values.items() if name != "method_options"}, values.get("method_options", {})


@functools.cache
def defaults_of(kind, method):
    return Config.make({"stream": EXAMPLE[kind], "method": method}, with_preset=False).to_dict()


def test_every_preset_is_that_of_a_method_and_a_kind_of_stream():
    assert set(EXAMPLE) == set(presets.KINDS)
    assert {kind for kind, _ in SHIPPED} == set(EXAMPLE) and {method for _, method in SHIPPED} <= set(METHODS)


@every_preset
def test_a_run_has_the_options_of_its_preset(kind, method):
    run, own = values_of(kind, method)
    assert run.pop("method") == method
    config = Config.make({"stream": EXAMPLE[kind], "method": method}).to_dict()
    assert {name: config[name] for name in run} == run
    assert {name: config["method_options"][name] for name in own} == own


@every_preset
def test_a_preset_states_its_origin(kind, method):
    comments = comments_of(kind, method)
    # a commit without changes is the last word: otherwise nobody can repeat the search
    assert re.fullmatch("[0-9a-f]{40}", comments["date"].split()[-1])
    assert comments["command"].startswith(f"lifelabel tune --method {method} ")
    assert re.search(" mAP on held-out (training images of the first|images of a proxy stream)", comments["reached"])
    origin = presets.origin(kind, method)
    assert (origin.command, origin.reached) == (comments["command"], comments["reached"])


@every_preset
def test_a_preset_has_only_options_that_tune_can_choose(kind, method):
    """Every searched option and nothing else. A value is a candidate, the default, or was given with --set."""
    run, own = values_of(kind, method)
    assert run.pop("method") == method
    space = search_space(method, kind, {})
    assert {*run, *own} == {*space}
    assert {*own} == {*METHODS[method].search_space}
    defaults = defaults_of(kind, method)
    words = shlex.split(comments_of(kind, method)["command"])
    fixed = dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "--set")
    for name, value in {**run, **own}.items():
        default = (defaults["method_options"] if name in own else defaults)[name]
        full_name = f"method.{name}" if name in own else name
        if full_name in fixed:
            assert value == yaml.safe_load(fixed[full_name]), name
        elif name == "later_backbone_lr":  # candidates are fractions of backbone_lr, and so is the default
            fractions = (*space[name], defaults["later_backbone_lr"] / defaults["backbone_lr"])
            assert value in [pytest.approx(fraction * run["backbone_lr"], rel=1e-5) for fraction in fractions]
        elif name == "batch_norm" and METHODS[method].joint:
            assert value in space[name]
        else:
            assert value in [*map(plain, space[name]), default], name


@pytest.mark.parametrize("kind", EXAMPLE)
def test_a_preset_is_used_by_the_tuned_fidelity_and_given_options_win(kind, monkeypatch):
    """With a preset of this test in place of the shipped ones."""
    text = "# command: x\n# reached: y\nmethod: agcn\nlr: 0.0123\nmethod_options:\n  mix: 0.77\n"
    monkeypatch.setattr(presets, "_text", lambda kind_, method: text if (kind_, method) == (kind, "agcn") else "")
    stream = EXAMPLE[kind]
    config = Config.make({"stream": stream, "method": "agcn"})
    assert (config.lr, config.method_options.mix) == (0.0123, 0.77)
    other = Config.make({"stream": EXAMPLE[next(k for k in EXAMPLE if k != kind)], "method": "agcn"})
    assert other.lr != 0.0123 and other.method_options.mix != 0.77
    given = Config.make({"stream": stream, "method": "agcn", "lr": 0.5, "method_options": {"mix": 0.1}})
    assert (given.lr, given.method_options.mix) == (0.5, 0.1)
    assert Config.make({"stream": stream, "method": "agcn", "fidelity": "paper"}).lr == 3e-5


def test_a_method_without_a_preset():
    assert presets.load("scenes", "nothing") == {} and presets.origin("scenes", "nothing") is None


def test_the_origin_is_read_from_comments_only():
    assert presets.parse_origin("method: er\nlr: 1.0 # command: no\n") == ("", "")
    assert presets.parse_origin("# reached: 1 mAP\n# command: a: b\nmethod: er\n") == ("a: b", "1 mAP")


def test_list_presets_prints_the_score_and_the_command_of_every_file(output):
    text = output("list", "presets")
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert sorted(lines) == sorted(f"{kind}/{method}" for kind, method in SHIPPED)
    for kind, method in SHIPPED:
        comments = comments_of(kind, method)
        name, rest = lines[f"{kind}/{method}"].split(maxsplit=1)
        assert rest == f"{comments['reached']}: {comments['command']}", name


@pytest.fixture
def packaged(monkeypatch, tmp_path):
    """A copy of the packaged presets that the test may change."""
    shutil.copytree(ROOT / FOLDER, tmp_path / "presets")
    monkeypatch.setattr(presets.resources, "files", lambda name: tmp_path / "presets")
    presets._text.cache_clear()
    yield tmp_path / "presets"
    presets._text.cache_clear()


@pytest.mark.parametrize("content", [None, b"lr: [", b"\xff\xff", b"- 1", b"method: agcn", b"a: &a [*a]"])
def test_a_missing_or_damaged_preset_is_an_error(packaged, refused, tmp_path, content):
    path = packaged / "scenes/er.yaml"
    shutil.rmtree(path.parent) if content is None else path.write_bytes(content)
    line = refused("train", "--method", "er", "--out", tmp_path / "run")
    assert line.startswith(f"the preset {path}") and line.endswith("install lifelabel again, or give --fidelity plain")
    assert Config.make({"method": "er", "fidelity": "plain"}).method == "er"
    assert content is None or Config.make({"method": "lwf"}).has_preset
