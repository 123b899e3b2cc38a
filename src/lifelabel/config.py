"""The configuration of a run: every option in one place, from defaults, a fidelity, a YAML file and flags.

Later layers win: default < fidelity (`tuned`: and the method's preset) < YAML file < flags. What results is complete,
and printed or saved as YAML it makes the same run again.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from lifelabel import presets
from lifelabel.buffer import BufferOptions
from lifelabel.errors import UserError, short, unknown
from lifelabel.images import AUGMENTATIONS
from lifelabel.methods import METHODS
from lifelabel.options import option, read
from lifelabel.streams import STREAMS, resolve
from lifelabel.streams.protocols import ORDERS

MAX_YAML_BYTES = 1_000_000


def budget(images: int) -> dict[str, dict[str, int]]:
    """One replay budget for all methods that keep images."""
    keeping = (name for name, method in METHODS.items() if issubclass(method.Options, BufferOptions))
    return {name: {"buffer_images": images} for name in keeping}


FIDELITIES: dict[str, dict[str, Any]] = {
    # Our defaults: what measured best (docs/methods/agcn.md).
    "tuned": {"of_method": budget(200)},
    # The equations as printed. The paper names no learning rate, batch size or pooling: those are the authors' code's.
    "paper": {
        "batch_size": 8,
        "lr": 3e-5,
        "backbone_lr": 1e-4,
        "later_backbone_lr": 1e-4,
        "batch_norm": "running",
        "adam_eps": 1e-4,
        "augment": "crop-flip",
        "pool": "max",
        "reduction": "sum",
        "word_norm": None,
        "of_method": {
            "agcn": {
                "lambdas": (0.07, 0.93, 1e5),
                "soft_labels": "sigmoid",
                "new_old": "bayes",
                "adjacency": "raw",
                "activate_output": True,
                "hidden": 1024,
                "prevalence": None,
                "context": 0.0,
            },
            "lwf": {"lambdas": (0.07, 0.93)},
            **budget(200),
        },
    },
    # The authors' code, with the paper's loss weights, which the code leaves undefined.
    "release": {
        "batch_size": 8,
        "lr": 3e-5,
        "backbone_lr": 1e-4,
        "later_backbone_lr": 1e-4,
        "batch_norm": "running",
        "adam_eps": 1e-8,
        "augment": "flip",
        "pool": "max",
        "reduction": "mean",
        "word_norm": None,
        "of_method": {
            "agcn": {
                "lambdas": (0.07, 0.93, 1e5),
                "soft_labels": "softmax",
                "new_old": "halved",
                "adjacency": "binarised",
                "activate_output": False,
                "hidden": 1024,
                "prevalence": None,
                "context": 0.0,
            },
            "lwf": {"lambdas": (0.07, 0.93)},
            **budget(200),
        },
    },
    # As the simplest programs of the field: one learning rate for everything, running statistics, the authors' matrix.
    "plain": {
        "lr": 1e-3,
        "backbone_lr": 1e-3,
        "later_backbone_lr": 1e-3,
        "batch_norm": "running",
        "of_method": {
            "agcn": {
                "lambdas": (0.07, 0.93, 1e3),
                "new_old": "halved",
                "adjacency": "binarised",
                "hidden": 1024,
                "prevalence": None,
                "context": 0.0,
            },
            "lwf": {"lambdas": (0.07, 0.93)},
            **budget(200),
        },
    },
}
"""What each fidelity sets; `of_method` holds the options of single methods."""

PHOTOGRAPHS: dict[str, dict[str, Any]] = {
    # What the fidelities say of photographs, on top: the embedded pictures are small and need no pretrained weights.
    "tuned": {
        "batch_size": 32,
        "lr": 1e-3,
        "backbone_lr": 2e-5,
        "later_backbone_lr": 2e-5,
        "batch_norm": "frozen",
        "backbone": "efficientnet-lite0",
        "weights": "imagenet",
        "image_size": 224,
        "pool": "avg",
        "of_method": {"agcn": {"lambdas": (0.15, 0.85, 1e3), "hidden": 2048}, **budget(2000)},
    },
    "plain": {
        "batch_size": 32,
        "lr": 2e-4,
        "backbone_lr": 2e-4,
        "later_backbone_lr": 2e-4,
        "backbone": "efficientnet-lite0",
        "weights": "imagenet",
        "image_size": 224,
        "pool": "avg",
        "of_method": budget(2000),
    },
    "paper": {"backbone": "resnet101", "weights": "imagenet", "image_size": 448, "of_method": budget(2000)},
    "release": {"backbone": "resnet101", "weights": "imagenet", "image_size": 448, "of_method": budget(2000)},
}


@dataclass(frozen=True)
class Config:
    """All options of a run. `stream_options` and `method_options` are what that stream and that method declare."""

    stream: str = option("scenes", "what to learn from: `lifelabel list streams`")
    stream_options: Any = None
    method: str = option("agcn", "how to learn: `lifelabel list methods`")
    method_options: Any = None
    fidelity: str = option(
        "tuned",
        "options that measured best, the paper's equations, the authors' code, or plain training",
        choices=tuple(FIDELITIES),
    )
    seed: int = option(0, "order of the images, augmentation and first weights", low=0, high=2**31 - 1)
    batch_size: int = option(8, "images a step", low=1, high=1_000_000)
    lr: float = option(3e-4, "learning rate of the head (linear or graph)", above=0)
    backbone_lr: float = option(1e-3, "learning rate of the backbone in the first task", above=0)
    later_backbone_lr: float = option(6e-4, "learning rate of the backbone in later tasks", low=0)
    batch_norm: str = option(
        "first-task",
        "batch-norm statistics: running, frozen, or running in the first task and frozen after it",
        choices=("running", "frozen", "first-task"),
    )
    adam_eps: float = option(1e-8, "Adam's epsilon", above=0)
    augment: str = option("flip", "augmentation of training images", choices=tuple(AUGMENTATIONS))
    reduction: str = option(
        "mean", "losses as sums (paper) or means (authors' code) over classes", choices=("mean", "sum")
    )
    backbone: str = option("tiny", "image features: `lifelabel list backbones`")
    weights: str = option("none", "first weights of the backbone: none, imagenet, or a .safetensors or .pth file")
    allow_seen_weights: bool = option(False, "accept weights that were trained on the stream's own classes")
    image_size: int | None = option(
        None, "pixels a side; none: as the embedded pictures are drawn, 224 for photographs", low=16, high=4096
    )
    workers: int | None = option(
        None, "processes that decode images ahead; none: the number of cores on a GPU, 0 on the CPU", low=0, high=256
    )
    strict: bool = option(False, "stop at the first image that cannot be read, instead of skipping it")
    pool: str = option("max", "global pooling of the last feature map", choices=("max", "avg"))
    words: str | None = option(None, "a GloVe text file for the label words; none: a fixed vector a word")
    word_dim: int = option(300, "length of a fixed word vector", low=1, high=100_000)
    word_norm: float | None = option(1.7, "length every label's embedding is scaled to; none: as it is", above=0)
    device: str = option("auto", "auto, cpu, cuda or cuda:N")
    precision: str = option(
        "auto",
        "float32, or bfloat16 in the backbone and the label graph; auto: bfloat16 on a GPU that has it",
        choices=("auto", "fp32", "bf16"),
    )
    task_order: int = option(0, "0: the stream's own order of tasks; k: the k-th random one", low=0, high=1000)
    compile: str = option(
        "auto",
        "on a GPU: replay steps as CUDA graphs and compile the backbone (on), compile where the run is long enough to "
        "gain from it (auto), or go step by step (off)",
        choices=("auto", "on", "off"),
    )
    first_tasks: int | None = option(None, "learn and score the first tasks alone; none: all", low=1)
    hold_out: float = option(
        0.0, "share of the training images that is not learned but scored, in place of the test images", low=0, high=0.9
    )
    save_scores: bool = option(False, "keep the final scores and labels of the test images in scores.npz")
    checkpoint_seconds: float = option(30.0, "seconds between checkpoints inside a task; 0: after every step", low=0)

    @staticmethod
    def make(values: Mapping[str, Any] | None = None, *, with_preset: bool = True) -> Config:
        """A complete, checked configuration from the options that differ from the defaults.

        Without the method's preset, `tuned` are the defaults alone.

        >>> Config.make({"method": "agcn", "method_options": {"mix": 0.1}}).method_options.mix
        0.1
        """
        values = dict(values or {})
        given = values.get("stream", Config.stream)
        if not isinstance(given, str):
            raise unknown("stream", given, STREAMS)
        stream, of_stream = resolve(given, _section(values, "stream_options"))
        values["stream"] = stream
        method = _known("method", values.get("method", Config.method), METHODS)
        fidelity = _known("fidelity", values.get("fidelity", Config.fidelity), FIDELITIES)
        kind = kind_of(stream)
        preset = merge(FIDELITIES[fidelity], PHOTOGRAPHS[fidelity] if kind == "photographs" else {})
        of_method = dict(preset.pop("of_method", {}).get(method, {}))
        if fidelity == "tuned" and with_preset:
            preset = merge(preset, presets.preset(kind, method))
            of_method |= preset.pop("method_options", {})
        of_method |= _section(values, "method_options")
        shared = {k: v for k, v in {**preset, **values}.items() if k not in ("stream_options", "method_options")}
        config = read(Config, shared, "")
        return dataclasses.replace(
            config,
            stream_options=read(STREAMS[stream].Options, of_stream, "stream", f"stream {stream}"),
            method_options=read(METHODS[method].Options, of_method, "method", f"method {method}"),
        )

    def precision_on(self, device: torch.device) -> str:
        """fp32 or bf16: what `auto` means on this device.

        >>> Config.make({"precision": "auto"}).precision_on(torch.device("cpu"))
        'fp32'
        """
        if self.precision != "auto":
            return self.precision
        if device.type != "cuda":
            return "fp32"
        with torch.cuda.device(device):
            return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"

    def with_absolute_paths(self) -> Config:
        """The same with every file and folder named from the root of the file system."""
        stream = {name: _absolute(getattr(self.stream_options, name, None)) for name in ("root", "file")}
        order = getattr(self.stream_options, "order", None)
        if order is not None and order not in ORDERS and Path(order).is_file():
            stream["order"] = _absolute(order)
        changed = {name: path for name, path in stream.items() if path is not None}
        return dataclasses.replace(
            self,
            words=_absolute(self.words),
            weights=self.weights if self.weights in ("none", "imagenet") else str(_absolute(self.weights)),
            stream_options=dataclasses.replace(self.stream_options, **changed),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for YAML; `Config.make(config.to_dict())` is the same configuration."""
        return _plain(dataclasses.asdict(self))

    def to_yaml(self) -> str:
        """Every option with its help, re-runnable with `lifelabel train --config`."""
        return "".join(_yaml_lines(self, ""))


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The options in a YAML file."""
    try:
        if Path(path).stat().st_size > MAX_YAML_BYTES:
            raise UserError(f"{path} is larger than {MAX_YAML_BYTES:,} bytes: not a configuration")
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except UserError:
        raise
    except Exception as error:  # yaml raises its own, and whatever int(), float() or a date make of a bad value
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise UserError(
            f"{path}{where} is not valid YAML; `lifelabel train --print-config` shows one that is"
        ) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `option: value` lines, not {short(values)}")
    return values


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Layers of options, later ones winning; the two sections are merged option by option."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if both else value
    return merged


def kind_of(stream: str) -> str:
    """Which presets are for a stream, by its name."""
    return "photographs" if STREAMS[stream].photographs else "scenes"


def resolve_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:N`, checked to be there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device '{name}': give auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device '{name}' is not supported: give auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device '{name}' is not there: torch sees {torch.cuda.device_count()} CUDA devices; try cpu")
    return device


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _known(kind: str, name: Any, table: Mapping[str, Any]) -> str:
    if not isinstance(name, str) or name not in table:
        raise unknown(kind, name, table)
    return name


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name) or {}
    if not isinstance(section, Mapping):
        raise UserError(f"{name} must hold `option: value` lines, not '{short(section)}'")
    return dict(section)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def _yaml_lines(options: Any, indent: str) -> list[str]:
    lines = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            inner = _yaml_lines(value, indent + "  ")
            lines += [f"{indent}{field.name}:\n", *inner] if inner else [f"{indent}{field.name}: {{}}\n"]
            continue
        text = yaml.safe_dump(_plain(value), default_flow_style=True, width=1000).removesuffix("...\n").strip()
        choices = field.metadata.get("choices")
        help = field.metadata["help"] + (f" ({', '.join(choices)})" if choices else "")
        comment = textwrap.fill(help, 110, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        lines.append(f"{comment}\n{indent}{field.name}: {text}\n")
    return lines
