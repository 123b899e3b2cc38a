"""Command-line flags that are generated from the declarations of options."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from lifelabel.cli.completion import complete_name, method_names, stream_names
from lifelabel.config.fidelities import FIDELITIES, PHOTOGRAPHS
from lifelabel.config.run_options import RunOptions, stream_flags
from lifelabel.errors import UserError
from lifelabel.options import declared
from lifelabel.utils.text import shorten

__all__ = ["Plugins", "Settings", "given_options", "load_plugins", "with_option_flags"]

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


def with_option_flags(
    *, without: Sequence[str] = (), stream_only: bool = False, stream_argument: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command: add a flag for every option of a run that declares one, or only for those of the stream.

    `without` lists the options that the command sets itself. With `stream_argument` the stream can be given without
    --stream, as an argument. The command gets the flags that were given as one dict, in
    its parameter `flags`. Their values are text: they are checked like the values of a YAML file.
    """
    owners: dict[str, type] = {} if stream_only else dict.fromkeys(declared(RunOptions, "flag"), RunOptions)
    owners |= {name: cls for name, cls in stream_flags().items() if name not in owners}
    owners = {name: cls for name, cls in owners.items() if name not in without}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_flags(**arguments: Any) -> None:
            flags = {name: arguments.pop(name) for name in owners}
            if stream_argument:
                flags["stream"] = _one_stream(arguments.pop(_ARGUMENT), flags["stream"])
            command(**arguments, flags={name: value for name, value in flags.items() if value not in (None, False, [])})

        parameters = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
        parameters += [_parameter(name, cls) for name, cls in owners.items()]
        if stream_argument:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(inspect.Parameter(_ARGUMENT, kind, default=None, annotation=_StreamArgument))
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_flags

    return decorate


def _one_stream(argument: str | None, flag: str | None) -> str | None:
    """The stream that is given as an argument or by its flag."""
    if argument is not None and flag not in (None, argument):
        raise UserError(f"two streams: {shorten(argument)} and --stream {shorten(flag)}; give one of them")
    return flag if argument is None else argument


def _parameter(name: str, owner: type) -> inspect.Parameter:
    """The parameter of a command that typer turns into the flag of an option."""
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    declaration = field.metadata
    hint = typing.get_type_hints(owner)[name]
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    details: dict[str, Any] = {"help": _help(field, owner), "rich_help_panel": declaration["flag"]}
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


def _help(field: dataclasses.Field, owner: type) -> str:
    """The help of a flag, with its default if no fidelity and no preset changes it."""
    text, choices = field.metadata["help"], field.metadata["choices"]
    text = f"{text[0].upper()}{text[1:]}" + (f" ({', '.join(choices)})" if choices else "") + "."
    sets = (*FIDELITIES.values(), *PHOTOGRAPHS.values())
    varies = owner is not RunOptions or any(field.name in options for options in sets)
    return text if varies or field.default in (None, False) else f"{text} [default: {field.default}]"


def load_plugins(plugins: Sequence[str] | None) -> None:
    """Load the plug-ins given with `--plugin`."""
    from lifelabel.registry import load_plugin

    for plugin in plugins or ():
        load_plugin(plugin)


def given_options(
    flags: dict[str, Any], settings: Sequence[str] | None, plugins: Sequence[str] | None
) -> dict[str, Any]:
    """The options given by flags and `--set`. The plug-ins given with `--plugin` are loaded first."""
    from lifelabel.cli.common import parse_settings
    from lifelabel.config.config import merge, nest_flags
    from lifelabel.registry import resolve_names

    load_plugins(plugins)
    given = merge(nest_flags(flags), parse_settings(list(settings or [])))
    return resolve_names(given, declared(RunOptions, "registered"))
