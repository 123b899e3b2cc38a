"""Every preset that is shipped: it is there, it says where it comes from, and all of its options arrive in a run."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml

from lifelabel.config import Config
from lifelabel.methods import METHODS
from lifelabel.presets import KINDS, described, preset, story

EXAMPLE = {"scenes": "scenes", "photographs": "split-coco"}
ROOT = Path(__file__).parents[1]


FOLDER = resources.files("lifelabel") / "presets"
SHIPPED = sorted(
    (kind, path.name.removesuffix(".yaml"))
    for kind in KINDS
    for path in (FOLDER / kind).iterdir()
    if path.name.endswith(".yaml")
)


def test_every_method_has_a_preset_for_every_kind_of_stream():
    assert sorted((kind, method) for kind in KINDS for method in METHODS) == SHIPPED


@pytest.mark.parametrize(("kind", "method"), SHIPPED)
def test_the_options_of_a_preset_arrive(kind, method):
    text = (FOLDER / kind / f"{method}.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    assert values.pop("method") == method
    config = Config.make({"stream": EXAMPLE[kind], "method": method}).to_dict()
    for name, value in values.pop("method_options", {}).items():
        assert config["method_options"][name] == value, name
    for name, value in values.items():
        assert config[name] == value, name
    told = described(kind, method)
    assert told.command.startswith(f"lifelabel tune --method {method} ")
    assert " mAP on held-out training images of the first " in told.reached
    assert text.startswith("# ")


@pytest.mark.parametrize("kind", KINDS)
def test_a_preset_is_for_the_tuned_fidelity_and_gives_way_to_what_is_asked_for(kind, monkeypatch, tmp_path):
    """With a preset made up for this test, in place of those that are shipped."""
    from lifelabel import presets

    made_up = "# command: x\n# reached: y\nmethod: agcn\nlr: 0.0123\nmethod_options:\n  mix: 0.77\n"
    monkeypatch.setattr(presets, "_text", lambda kind_, method: made_up if (kind_, method) == (kind, "agcn") else "")
    stream = EXAMPLE[kind]
    config = Config.make({"stream": stream, "method": "agcn"})
    assert (config.lr, config.method_options.mix) == (0.0123, 0.77)
    other = Config.make({"stream": EXAMPLE[next(k for k in KINDS if k != kind)], "method": "agcn"})
    assert other.lr != 0.0123 and other.method_options.mix != 0.77
    asked = Config.make({"stream": stream, "method": "agcn", "lr": 0.5, "method_options": {"mix": 0.1}})
    assert (asked.lr, asked.method_options.mix) == (0.5, 0.1)
    assert Config.make({"stream": stream, "method": "agcn", "fidelity": "paper"}).lr == 3e-5


def test_what_nobody_shipped():
    assert preset("scenes", "nothing") == {} and described("scenes", "nothing") is None


def test_a_file_that_does_not_tell_its_story():
    assert story("method: er\nlr: 1.0 # command: no\n") == ("", "")
    assert story("# reached: 1 mAP\n# command: a: b\nmethod: er\n") == ("a: b", "1 mAP")


def test_the_list_of_presets(main):
    done = main("list", "presets")
    assert done.returncode == 0
    told = {f"{kind}/{method}": described(kind, method) for kind in KINDS for method in METHODS}
    lines = [f"{name:<20} {text.reached}: {text.command}" for name, text in told.items() if text]
    assert done.stdout.splitlines() == lines


def test_presets_are_in_what_is_installed(tmp_path):
    """The package as it is built for a wheel holds the same files as the sources."""
    (tmp_path / "src" / "lifelabel" / "presets" / "scenes").mkdir(parents=True)
    for name in ("__init__.py", "version.py", "presets/__init__.py"):
        (tmp_path / "src/lifelabel" / name).write_text((ROOT / "src/lifelabel" / name).read_text(encoding="utf-8"))
    (tmp_path / "src/lifelabel/presets/scenes/der++.yaml").write_text("method: der++\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (tmp_path / "README.md").touch()
    command = [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build_py", "--build-lib", "built"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "built/lifelabel/presets/scenes/der++.yaml").read_text() == "method: der++\n"
    assert (tmp_path / "built/lifelabel/presets/__init__.py").is_file()
