"""The configuration of a run: every option with its value, from defaults, a fidelity, a YAML file and flags.

Later layers override earlier ones: defaults < fidelity (with `tuned`: the preset of the method) < YAML file < flags. A
configuration is complete: saved as YAML, it makes the same run again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lifelabel.config import presets
from lifelabel.config.fidelities import BUFFER_IMAGES, FIDELITIES, LABEL_GRAPHS, PHOTOGRAPHS
from lifelabel.config.run_options import RunOptions, stream_flags
from lifelabel.errors import UserError, unknown
from lifelabel.methods import METHODS
from lifelabel.methods.buffer import BufferOptions
from lifelabel.options import read
from lifelabel.registry import check_plugins
from lifelabel.streams import STREAMS, resolve
from lifelabel.utils.text import shorten

_SECTIONS = ("stream_options", "method_options")
_NETWORK = ("backbone", "weights")
_RATES = ("lr", "backbone_lr", "later_backbone_lr", "batch_norm")
"""Options that have the values of scenes on photographs too, if the backbone has no pretrained weights.

They override the preset, which was chosen with pretrained weights. With small learning rates and frozen statistics, a
backbone with random weights does not learn.
"""


class Entry(NamedTuple):
    """One option of a configuration: its plain value, and its declaration (see `lifelabel.options.option`)."""

    value: Any
    declaration: Mapping[str, Any]


@dataclass(frozen=True)
class Config(RunOptions):
    """All options of a run. The stream declares those in `stream_options`, and the method those in `method_options`."""

    stream_options: Any = None
    method_options: Any = None

    @staticmethod
    def make(values: Mapping[str, Any] | None = None, *, with_preset: bool = True) -> Config:
        """A complete, checked configuration from the options that differ from the defaults.

        `values` has the structure of a YAML file. `with_preset=False` leaves out the preset of the method.

        >>> Config.make({"method": "agcn", "method_options": {"mix": 0.1}}).method_options.mix
        0.1
        """
        values = dict(values or {})
        values["plugins"] = check_plugins(read(Config, {"plugins": values.get("plugins", ())}, "").plugins)
        name = values.get("stream", Config.stream)
        if not isinstance(name, str):
            raise unknown("stream", name, STREAMS)
        stream, of_stream = resolve(name, _section(values, "stream_options"))
        values["stream"] = stream
        fidelity = values.get("fidelity", Config.fidelity)
        if not isinstance(fidelity, str) or fidelity not in FIDELITIES:
            raise unknown("fidelity", fidelity, FIDELITIES)
        kind = kind_of(stream)
        base = merge(FIDELITIES[fidelity], PHOTOGRAPHS[fidelity] if kind == "photographs" else {})
        if set(str(values.get("backbone")).split("+")) == {"tiny"}:  # no weights for it are published
            base["weights"] = "none"
        trained = has_weights(values.get("weights", base.get("weights", Config.weights)))
        method = values.setdefault("method", _default_method(stream, fidelity, trained))
        found = METHODS.find(method)
        of_graphs = LABEL_GRAPHS.get(fidelity, {}) if found.label_graph else {}
        base |= of_graphs
        of_fidelity = vars(found).get("fidelities", {})
        options = {"": Config, "stream": STREAMS[stream].Options, "method": METHODS[method].Options}
        of_method = {"buffer_images": BUFFER_IMAGES[kind]} if issubclass(options["method"], BufferOptions) else {}
        of_method |= {**of_fidelity.get(fidelity, {}), **of_fidelity.get(f"{fidelity}/{kind}", {})}
        if fidelity == "tuned" and with_preset:
            base = merge(base, _preset(kind, method))
            of_method |= base.pop("method_options", {})
        if kind == "photographs" and not trained:
            rates = {**FIDELITIES[fidelity], **of_graphs}
            base |= {name: rates.get(name, getattr(Config, name)) for name in _RATES}
        of_method |= _section(values, "method_options")
        shared = {k: v for k, v in {**base, **values}.items() if k not in _SECTIONS}
        for level, names in (("", shared), ("stream", of_stream), ("method", of_method)):
            _check_levels(names, level, options, method, stream)
        return dataclasses.replace(
            read(Config, shared, ""),
            stream_options=read(options["stream"], of_stream, "stream", f"stream {stream}"),
            method_options=read(options["method"], of_method, "method", f"method {method}"),
        )

    def entries(self) -> dict[str, Entry]:
        """Every option by its full name, such as `lr`, `method.mix` or `stream.tasks`."""
        found = {}
        for prefix, options in (("", self), ("method.", self.method_options), ("stream.", self.stream_options)):
            for field in dataclasses.fields(options):
                if field.name not in _SECTIONS:
                    found[prefix + field.name] = Entry(plain(getattr(options, field.name)), field.metadata)
        return found

    @property
    def label(self) -> str:
        """The name of a run in tables: the method, the fidelity, and the options that are not the default.

        Options that declare `label=False`, such as the seed, are left out.

        >>> Config.make({"fidelity": "release", "seed": 3, "method_options": {"mix": 0.2}}).label
        'agcn (release, mix=0.2)'
        """
        base = {"stream": self.stream, "method": self.method, "fidelity": self.fidelity}
        # other defaults follow from the backbone and its weights
        defaults = Config.make({**base, "backbone": self.backbone, "weights": self.weights}).entries()
        defaults |= {name: entry for name, entry in Config.make(base).entries().items() if name in _NETWORK}
        parts = [self.fidelity] if self.fidelity != Config.fidelity else []
        for name, (value, declaration) in self.entries().items():
            if declaration.get("label", True) and value != defaults[name].value:
                parts.append(f"{name.removeprefix('method.')}={short_value(value)}")
        return self.method + (f" ({', '.join(parts)})" if parts else "")

    @property
    def has_preset(self) -> bool:
        """Whether the method has a preset on this kind of stream. A search may have had nothing to choose."""
        kind = kind_of(self.stream)
        exists = presets.origin(kind, self.method) is not None or bool(METHODS[self.method].presets.get(kind))
        return exists and self.fidelity == "tuned"

    def equal_options(self) -> dict[str, Any]:
        """The options that methods in a comparison should have in common (`equal`), without the prefix `method.`."""
        entries = self.entries().items()
        return {name.removeprefix("method."): value for name, (value, declared) in entries if declared.get("equal")}

    def with_absolute_paths(self) -> Config:
        """The same configuration with absolute paths. A run can then be resumed from any folder."""
        sections = {name: _absolute(getattr(self, name)) for name in _SECTIONS}
        return dataclasses.replace(_absolute(self), **sections)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for YAML. `Config.make(config.to_dict())` is the same configuration."""
        return plain(dataclasses.asdict(self))

    def to_yaml(self) -> str:
        """YAML of every option, with its help as a comment. `lifelabel train --config` reads it."""
        return "".join(_yaml_lines(self, ""))


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping from several layers of options. Later layers override earlier ones, option by option."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            are_sections = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
            merged[key] = {**merged[key], **value} if are_sections else value
    return merged


def nest_flags(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags of the command line, or keywords in Python, as options: those of the stream are in `stream_options`.

    >>> nest_flags({"lr": 0.1, "root": "photos", "tasks": 3})
    {'lr': 0.1, 'stream_options': {'root': 'photos', 'tasks': 3}}
    """
    names = stream_flags().keys() - {field.name for field in dataclasses.fields(Config)}
    of_stream = {name: value for name, value in flags.items() if name in names}
    of_run = {name: value for name, value in flags.items() if name not in names}
    return merge(of_run, {"stream_options": of_stream} if of_stream else {})


def _default_method(stream: str, fidelity: str, trained: bool) -> str:
    """The method that declares `default_for_photographs`, or, for the paper's streams and for scenes, the paper's."""
    source = STREAMS[stream]
    if not (trained and source.photographs and not source.of_paper and fidelity == "tuned"):
        return Config.method
    return next(name for name, method in METHODS.registered().items() if method.default_for_photographs)


def has_weights(weights: Any) -> bool:
    """Whether a backbone, or one of several, has pretrained weights, by the option `weights`.

    >>> has_weights("imagenet"), has_weights("none+none")
    (True, False)
    """
    return set(str(weights).split("+")) != {"none"}


def kind_of(stream: str) -> str:
    """The kind of a stream, by its name: `photographs` or `scenes`. Each kind has its own defaults and presets."""
    return "photographs" if STREAMS[stream].photographs else "scenes"


def short_value(value: Any) -> str:
    """A value as text for a label. An absolute path is shortened to its last part."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else str(value)


def _preset(kind: str, method: str) -> dict[str, Any]:
    """A preset of this package, or one that the class of the method declares."""
    return presets.load(kind, method) or dict(METHODS[method].presets.get(kind, {}))


def _check_levels(names: Mapping[str, Any], level: str, options: Mapping[str, type], method: str, stream: str) -> None:
    """Refuse an option at the wrong level, or of another method or stream. The message states where it belongs."""
    fields = {key: {field.name for field in dataclasses.fields(cls)} - {*_SECTIONS} for key, cls in options.items()}
    for name in names:
        if name in fields[level]:
            continue
        home = next((key for key in options if name in fields[key]), None)
        if home == "":
            raise UserError(
                f"'{name}' is an option of the run: give {name} without a prefix (in YAML: at the top level)"
            )
        if home is not None:
            raise UserError(
                f"'{name}' is an option of the {home}: give {home}.{name} (in YAML and Python: {name} in "
                f"{home}_options)"
            )
        for kind, registry, chosen in (("method", METHODS, method), ("stream", STREAMS, stream)):
            others = _owners(registry, name) if level in ("", kind) else []
            if others:
                raise UserError(
                    f"'{name}' is an option of {', '.join(others)}, not of {chosen}: choose another {kind}, or remove "
                    "it"
                )


def _owners(registry: Mapping[str, Any], name: Any) -> list[str]:
    """The methods or streams that have an option called `name`."""
    found = []
    for each in registry:
        with contextlib.suppress(UserError):  # a broken plug-in must not hide the mistake of the user
            if name in {field.name for field in dataclasses.fields(registry[each].Options)}:
                found.append(each)
    return found


def _absolute(options: Any) -> Any:
    """The same options with absolute paths."""
    changed = {}
    for field in dataclasses.fields(options):
        value, path = getattr(options, field.name), field.metadata.get("path")
        if path and value is not None:
            # the weights of several backbones are joined by +
            parts = [value] if path is True or Path(value).expanduser().exists() else value.split("+")
            changed[field.name] = "+".join(_absolute_path(part, path) for part in parts)
    return dataclasses.replace(options, **changed)


def _absolute_path(value: str, path: Any) -> str:
    """The absolute path. Where names are allowed too, another word may be a misspelt name: a path looks like one."""
    absolute = Path(value).expanduser().absolute()
    is_path = path is True or (value not in path and (absolute.suffix or absolute.is_file()))
    return str(absolute) if is_path else value


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = values.get(name) or {}
    if not isinstance(section, Mapping):
        raise UserError(f"{name} must hold `option: value` lines, not '{shorten(section)}'")
    return dict(section)


def plain(value: Any) -> Any:
    """A value as YAML and JSON have it: lists in place of tuples."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (tuple, list)) else value


def yaml_value(value: Any) -> str:
    """A value as YAML on one line.

    >>> yaml_value((0.5, None))
    '[0.5, null]'
    """
    return yaml.safe_dump(plain(value), default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _yaml_lines(options: Any, indent: str) -> list[str]:
    lines = []
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            inner = _yaml_lines(value, indent + "  ")
            lines += [f"{indent}{field.name}:\n", *inner] if inner else [f"{indent}{field.name}: {{}}\n"]
            continue
        text = yaml_value(value)
        choices = field.metadata.get("choices")
        help = field.metadata.get("help", "") + (f" ({', '.join(choices)})" if choices else "")
        comment = textwrap.fill(help, 110, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        lines.append(f"{comment}\n{indent}{field.name}: {text}\n" if help else f"{indent}{field.name}: {text}\n")
    return lines
