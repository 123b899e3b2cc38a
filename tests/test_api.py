"""The public API: what `dir(lifelabel)` and `help(lifelabel)` show, and the example of docs/library.md."""

import inspect
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import command_server

import lifelabel
from lifelabel.registry import Registry

ROOT = Path(__file__).parents[1]


def test_dir_shows_exactly_the_public_names():
    assert dir(lifelabel) == sorted(lifelabel.__all__)
    wanted = {"train", "resume", "evaluate", "calibrate", "export", "Config", "Result", "Method", "Batch", "Learner"}
    wanted |= {"ACM", "streams", "metrics"}
    assert wanted <= set(dir(lifelabel))


@pytest.mark.parametrize("name", sorted(set(lifelabel.__all__) - {"__version__"}))
def test_every_public_name_exists_and_is_documented(name):
    item = getattr(lifelabel, name)
    if not isinstance(item, Registry):
        assert inspect.getdoc(item), f"{name} has no docstring"


def test_help_shows_the_public_names():
    text = pydoc.plain(pydoc.render_doc(lifelabel))
    for name in ("train(", "class Method", "class ACM", "class Config"):
        assert name in text


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lifelabel' has no attribute 'nothing'"):
        lifelabel.nothing  # noqa: B018


def test_importing_the_package_does_not_import_torch():
    code = "import sys, lifelabel; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_loop_of_the_library_page_runs_in_under_30_lines(tmp_path):
    page = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) < 30
    done = command_server.run(code=code, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    scores = [float(score) for score in re.findall(r"^\d+ (0\.\d+)$", done.stdout, re.MULTILINE)]
    assert len(scores) == 5 and scores[0] > 0.6, done.stdout  # chance is 0.3


def test_the_extending_page_quotes_the_example_package():
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8").partition("\n## A package\n")[2]
    quoted = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    files = [
        (ROOT / "tests" / "plugin_example" / name).read_text(encoding="utf-8")
        for name in ("lifelabel_example.py", "pyproject.toml")
    ]
    assert len(quoted) == 2 and all(any(part in file for file in files) for part in quoted)


def test_the_method_of_the_extending_page_runs(tmp_path):
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert len(code.splitlines()) <= 40
    (tmp_path / "my_method.py").write_text(code, encoding="utf-8")
    (train,) = re.findall(r"^    (lifelabel train .*Smooth.*)$", page, re.MULTILINE)
    small = "--set stream.train_images=60 --set stream.test_images=60 --device cpu"
    words = f"{train} {small}".split()[1:]
    done = command_server.run(*words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("my_method:Smooth: mAP ")
