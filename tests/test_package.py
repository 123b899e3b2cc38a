"""What is released: the source distribution, the wheel, their metadata, and the versions that are tested together."""

import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lifelabel.version import __version__

ROOT = Path(__file__).parents[1]
NOT_SOURCES = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def not_sources(folder, names):
    """What a copy of the repository leaves out; `runs` is a folder of results only at the top."""
    return NOT_SOURCES(folder, names) | ({"runs"} if Path(folder) == ROOT else set())


def build(kind, source, folder):
    """Build in a folder without network: the function of setuptools that pip and `python -m build` call."""
    words = [sys.executable, "-c", BUILD, f"build_{kind}", folder]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz" if kind == "sdist" else "*.whl"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    source = shutil.copytree(ROOT, folder / "source", ignore=not_sources)
    shutil.copytree(ROOT / ".ci", source / ".ci")
    with tarfile.open(build("sdist", source, folder)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    return folder / f"lifelabel-{__version__}"


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    return build("wheel", sdist, tmp_path_factory.mktemp("wheel"))


def files_of(folder):
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", ".pytest_cache"} & {*path.parts}
    }


@pytest.mark.parametrize("folder", ["src/lifelabel", "tests", "docs", "benchmarks", "results", ".ci"])
def test_the_source_distribution_has_what_is_needed_to_build_and_test(sdist, folder):
    assert files_of(sdist / folder) == files_of(ROOT / folder)


def test_the_source_distribution_has_the_files_of_the_first_folder(sdist):
    names = {"LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile", "constraints.txt"}
    names.add("requirements.lock")
    assert names | {"pyproject.toml"} <= {path.name for path in sdist.iterdir()}
    assert (sdist / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_wheel_has_the_package_its_data_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    package = {name.removeprefix("lifelabel/") for name in names if name.startswith("lifelabel/")}
    assert package == files_of(ROOT / "src/lifelabel")
    assert {
        "py.typed",
        "config/presets/scenes/der++.yaml",
        "report/templates/report.css",
        "serve/static/page.js",
    } <= package
    info = f"lifelabel-{__version__}.dist-info/"
    others = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt", "licenses/LICENSE"}
    assert {name for name in names if not name.startswith("lifelabel/")} == {info + name for name in others}


def test_the_metadata_of_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        about = email.message_from_bytes(archive.read(f"lifelabel-{__version__}.dist-info/METADATA"))
    assert (about["Name"], about["Version"], about["Requires-Python"]) == ("lifelabel", __version__, ">=3.10")
    assert (about["License-Expression"], about.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert about["Author"] == "The lifelabel authors" and about["Summary"]
    assert about.get_payload().startswith("# lifelabel\n")


def test_the_installed_wheel_runs(wheel, tmp_path):
    """Outside the repository, with the packages of this environment."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", tmp_path / "site", wheel], check=True, timeout=120)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import lifelabel; print(lifelabel.__file__)"
    shown = [
        subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True, timeout=120).stdout
        for words in (
            [sys.executable, "-c", code],
            [tmp_path / "site/bin/lifelabel", "--version"],
            [tmp_path / "site/bin/lifelabel", "list", "methods"],
        )
    ]
    assert shown[0] == f"{tmp_path}/site/lifelabel/__init__.py\n"
    assert shown[1] == f"lifelabel {__version__}\n"
    assert "weighted-ridge" in shown[2] and "agcn" in shown[2]


# The versions that are tested together


def needed_packages(requirement, found):
    """Add to `found` the distribution of a requirement and those that it needs, as they are installed here."""
    name = canonicalize_name(requirement.name)
    key = (name, *requirement.extras)
    if key in found:
        return
    distribution = metadata.distribution(name)
    found[key] = distribution.version
    for line in distribution.requires or ():
        other = Requirement(line)
        extras = requirement.extras or {""}
        if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in extras):
            needed_packages(other, found)


def locked_versions():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    locked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch("==[^*,]+", str(each.specifier)) for each in locked)
    here = [each for each in locked if each.marker is None or each.marker.evaluate()]
    assert len({each.name for each in here}) == len(here)
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in here}


@pytest.mark.skipif(
    not Path(sys.prefix, ".test-installed").exists(), reason="`make test` did not make this environment"
)
def test_constraints_have_the_version_of_every_package_that_is_needed():
    found = {}
    needed_packages(Requirement("lifelabel[test,serve,export,parquet,tensorboard,timm]"), found)
    versions = {name: version for (name, *_), version in found.items() if name != "lifelabel"}
    assert len(versions) > 80
    locked = locked_versions()
    wrong = {name: (version, locked.get(name)) for name, version in versions.items() if locked.get(name) != version}
    assert not wrong, "run `make lock`, or install again: installed version, version of constraints.txt"


def test_the_lock_has_the_same_versions_and_a_hash_of_every_package():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert re.sub(r" \\\n +--hash=sha256:[0-9a-f]{64}", "", text) == (ROOT / "constraints.txt").read_text(
        encoding="utf-8"
    )
    packages = re.findall(r"^[a-z0-9].*$", text, re.MULTILINE)
    assert all(line.endswith(" \\") for line in packages)  # a hash follows


def test_constraints_and_licences_have_every_direct_dependency():
    """Of all extras, on this version of Python."""
    locked = locked_versions()
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [A-Z0-9].* \| (.+) \|$", page, re.MULTILINE)
    assert {*locked} <= {name for row in rows for name in row.split(", ")}
    for line in metadata.requires("lifelabel"):
        requirement = Requirement(line)
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), line
