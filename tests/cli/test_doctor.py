"""`lifelabel doctor`: its table, its exit code, and checks that fail."""

import json
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lifelabel.cli import doctor
from lifelabel.cli.doctor import Check, examine
from lifelabel.streams import STREAMS

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def by_name(checks):
    return {check.name: check for check in checks}


def test_the_table_and_json_have_the_same_checks(main, output):
    found = json.loads(output("doctor", "--json"))
    assert found["usable"] is True
    names = [check["name"] for check in found["checks"]]
    expected = {"Python", "lifelabel", "torch", "image formats", "CPU", "memory", "disk", "ImageNet weights"}
    assert expected <= set(names)
    assert not [check for check in found["checks"] if "could not be checked" in check["found"]]
    table = main("doctor")
    assert table.returncode == 0 and "lifelabel can be used here; notes: " in table.stdout
    for name in names:
        assert re.search(rf"^ (ok|note) +{re.escape(name)} ", table.stdout, re.MULTILINE), name


def test_a_check_that_fails_is_a_note_with_its_error(main, monkeypatch):
    def fail():
        yield Check("first", "ok", "1")
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(doctor, "_CHECKS", {"both": fail})
    assert examine() == [
        Check("first", "ok", "1"),
        Check("both", "note", "could not be checked (PermissionError: [Errno 13] Permission denied)"),
    ]
    assert main("doctor").returncode == 0


@pytest.mark.parametrize("module", ["numpy", "torch"])
def test_without_a_package_doctor_works_and_the_others_say_so(module):
    code = f"import sys; sys.modules['{module}'] = None; from lifelabel.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", code, "doctor"], capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert re.search(rf"^ problem +import {module} .*import of {module} halted", done.stdout, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code, "metrics", "--help"], capture_output=True, text=True)
    if module == "torch":  # it is imported where it is used
        assert done.returncode == 0
    else:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "`lifelabel doctor`" in done.stderr


def test_what_makes_lifelabel_unusable_is_a_problem(main, monkeypatch):
    versions = {"numpy": "1.26.4", "torchvision": None}
    installed = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: versions[name] if name in versions else installed(name))
    found = by_name(examine())
    assert found["numpy"] == Check("numpy", "problem", "1.26.4", "too old: pip install --upgrade 'numpy>=2.0'")
    assert found["torchvision"] == Check("torchvision", "problem", "not installed", "pip install 'torchvision>=0.26'")
    done = main("doctor")
    assert done.returncode == 1 and "problems that must be solved: 2" in done.stdout


def test_torchvision_for_another_torch_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda _: ["numpy", "torch==2.9.1"])
    (found,) = doctor._torchvision()
    assert found.state == "problem" and found.found.startswith("made for torch 2.9.1, and torch is ")


def test_a_missing_extra_has_its_command(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    found = by_name(doctor._optional())
    assert found["timm"].advice == "for the backbones of timm: pip install 'lifelabel[timm]'"
    assert found["Jinja2"].advice == "for the report in HTML: pip install Jinja2"
    assert {check.state for check in found.values()} == {"note"}


def test_the_packages_are_those_of_pyproject():
    toml = pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    project = toml.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    lowest = dict(re.match(r"([\w-]+)>=([\d.]+)", line).groups() for line in project["dependencies"])
    optional = {name for name, (extra, _) in doctor._OPTIONAL.items() if not extra}
    assert {name: version for name, version in lowest.items() if name not in optional} == doctor._REQUIRED
    assert optional <= lowest.keys()
    for name, (extra, _) in doctor._OPTIONAL.items():
        if extra:
            packages = project["optional-dependencies"][extra]
            assert name in [re.match(r"[\w-]+", package)[0] for package in packages]


def test_a_plugin_that_cannot_be_loaded_is_a_note(monkeypatch):
    points = [EntryPoint("months", "no_such_module:MONTHS", "lifelabel.streams")]
    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda group: points if "streams" in group else [])
    monkeypatch.setattr(STREAMS, "_entry_points", None)
    (found,) = doctor._plugins()
    assert found.state == "note" and "no_such_module" in found.found


def test_weights_in_the_caches_are_found(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    assert next(doctor._weights()).state == "note"
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    (tmp_path / "hub" / "checkpoints" / "resnet18-f37072fd.pth").touch()
    (tmp_path / "hub" / "models--timm--vit_small").mkdir()
    assert next(doctor._weights()).found == "resnet18-f37072fd.pth, timm/vit_small"
