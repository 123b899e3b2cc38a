"""Flags of several commands: declared once here, or generated from the declarations of options."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.common import parse_settings, stream_settings
from lifelabel.cli.completion import complete_list, complete_name, convention_names, method_names, stream_names
from lifelabel.config.fidelities import FIDELITIES, PHOTOGRAPHS
from lifelabel.config.run_options import RunOptions, stream_flags
from lifelabel.errors import UserError
from lifelabel.options import declared
from lifelabel.registry import load_plugin, resolve_names
from lifelabel.utils.text import shorten

_NAMES = {"method": method_names, "stream": stream_names}
_METAVARS = {int: "INT", float: "FLOAT"}
_OTHER_NAMES = {"batch_size": ("--global-batch-size",)}
"""Flags of other programs for the same option."""

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Any option as NAME=VALUE: `stream.NAME` for the stream, `method.NAME` for the method. Repeatable.",
    ),
]
Plugins = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE.py", help="A plug-in, a file or a module, whose code is run. Repeatable."),
]

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of a model.", show_default=False)
]
FinishedRunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", show_default=False)
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="A YAML file of options; flags override it.")]
OverwriteRun = Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace the file in --out.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]
Json = Annotated[bool, typer.Option("--json", help="JSON in place of the text.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Methods = Annotated[
    str,
    typer.Option(
        help="all, or names of `lifelabel list methods`, as er,lwf,agcn.", autocompletion=complete_list(method_names)
    ),
]
ConventionName = Annotated[
    str,
    typer.Option(
        "--convention",
        help="Scores in tables: paper (after the last task, on the whole test set), authors (after the last task, mean "
        "over the cumulative test sets) or average (mean over the tasks, right after each).",
        autocompletion=complete_name(convention_names),
    ),
]
Seeds = Annotated[str, typer.Option(help="Seeds, as 0 or 0-2 or 0,3,5.")]

_ARGUMENT = "stream_argument"
_StreamArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM",
        help="The same as --stream: a table such as photos.csv, or a name of `lifelabel list streams`.",
        autocompletion=complete_name(stream_names),
        show_default=False,
    ),
]


@dataclass(frozen=True)
class GivenOptions:
    """The options of a run that a command was given: by their flags and with --set."""

    set_: Settings = None
    plugin: Plugins = None
    flags: dict[str, Any] = field(default_factory=dict)

    def resolve(self) -> dict[str, Any]:
        """All of them as nested options. The plug-ins are loaded first."""
        from lifelabel.config.config import merge, nest_flags

        load_plugins(self.plugin)
        given = merge(nest_flags(self.flags), parse_settings(self.set_))
        return resolve_names(given, declared(RunOptions, "registered"))


@dataclass(frozen=True)
class Inference:
    """How the images of a finished model are computed."""

    device: Device = "auto"
    batch_size: Annotated[int | None, typer.Option(help="Images at a time [default: by image size].")] = None
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images [default: the number of cores for a GPU, else 0].")
    ] = None

    def arguments(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class LabelledImages:
    """A finished model, and the images that it is evaluated or calibrated on."""

    run: RunArgument
    table: Annotated[
        Path | None,
        typer.Argument(metavar="TABLE", help="A table of images and labels (.csv, .tsv, .parquet); or give --stream."),
    ] = None
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="STREAM",
            help="A stream in place of a table: a name of `lifelabel list streams`, or a .yaml or .zip file.",
        ),
    ] = None
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the images [default: the folder of the table].")
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="stream.NAME=VALUE", help="An option of the stream or of the table, as stream.separator."
        ),
    ] = None
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS",
            help="test, val, train or all [default: test, and to calibrate val; a table without a column `split`: "
            "all].",
        ),
    ] = None
    include_trained: Annotated[
        bool,
        typer.Option(
            "--include-trained", help="Use images that the model was trained on, too: figures are then too high."
        ),
    ] = False
    merge_case: Annotated[
        bool,
        typer.Option(
            "--merge-case",
            help="A class of the table whose name differs from that of the model only in case, spaces, underscores or "
            "hyphens is the class of the model.",
        ),
    ] = False
    alias: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a class of the table. Repeatable.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The keywords of `lifelabel.evaluate` and `lifelabel.calibrate`."""
        names = ({"merge_case": True} if self.merge_case else {}) | ({"alias": self.alias} if self.alias else {})
        return {
            "table": self.table, "stream": self.stream, "root": self.root, "rows": self.rows,
            "include_trained": self.include_trained, "stream_options": stream_settings(self.set_) | names,
        }  # fmt: skip


class OptionFlags:
    """A flag for every option of a run that declares one, or with `stream_only` for those of the stream.

    Their values are text: they are checked like the values of a YAML file. `without` lists the options that the command
    sets itself. With `stream_argument` the stream can be given without --stream, as an argument.
    """

    def __init__(self, *, without: Sequence[str] = (), stream_only: bool = False, stream_argument: bool = False):
        owners: dict[str, type] = {} if stream_only else dict.fromkeys(declared(RunOptions, "flag"), RunOptions)
        owners |= {name: cls for name, cls in stream_flags().items() if name not in owners}
        self.parameters = {name: _parameter(name, cls) for name, cls in owners.items() if name not in without}
        if stream_argument:
            kind = inspect.Parameter.KEYWORD_ONLY
            self.parameters[_ARGUMENT] = inspect.Parameter(_ARGUMENT, kind, default=None, annotation=_StreamArgument)

    def take(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Remove the values of these flags from the arguments. Returns those that were given."""
        flags = {name: arguments.pop(name) for name in self.parameters}
        if _ARGUMENT in flags:
            flags["stream"] = _one_stream(flags.pop(_ARGUMENT), flags["stream"])
        return {name: value for name, value in flags.items() if value not in (None, False, [])}


def _one_stream(argument: str | None, flag: str | None) -> str | None:
    """The stream that is given as an argument or by its flag."""
    if argument is not None and flag not in (None, argument):
        raise UserError(f"two streams: {shorten(argument)} and --stream {shorten(flag)}; give one of them")
    return flag if argument is None else argument


def _parameter(name: str, owner: type) -> inspect.Parameter:
    """The parameter of a command that typer turns into the flag of an option."""
    declared_field = next(each for each in dataclasses.fields(owner) if each.name == name)
    declaration = declared_field.metadata
    hint = typing.get_type_hints(owner)[name]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    details: dict[str, Any] = {"help": _help(declared_field, owner), "rich_help_panel": declaration["flag"]}
    several = typing.get_origin(hint) is tuple
    if hint is not bool:
        details["metavar"] = "PATH" if declaration["path"] is True else _METAVARS.get(hint, "TEXT")
    if declaration["choices"]:
        details["autocompletion"] = complete_name(lambda: declaration["choices"])
    elif name in _NAMES:
        details["autocompletion"] = complete_name(_NAMES[name])
    names = (f"--{name.replace('_', '-')}", *_OTHER_NAMES.get(name, ()))
    default = typer.Option(False if hint is bool else None, *names, **details)
    annotation = bool if hint is bool else list[str] | None if several else str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(declared_field: dataclasses.Field, owner: type) -> str:
    """The help of a flag, with its default if no fidelity and no preset changes it."""
    text, choices = declared_field.metadata["help"], declared_field.metadata["choices"]
    text = f"{text[0].upper()}{text[1:]}" + (f" ({', '.join(choices)})" if choices else "") + "."
    sets = (*FIDELITIES.values(), *PHOTOGRAPHS.values())
    varies = owner is not RunOptions or any(declared_field.name in options for options in sets)
    return text if varies or declared_field.default in (None, False) else f"{text} [default: {declared_field.default}]"


def load_plugins(plugins: Sequence[str] | None) -> None:
    """Load the plug-ins given with `--plugin`."""
    for plugin in plugins or ():
        load_plugin(plugin)
