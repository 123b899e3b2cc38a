"""The application `lifelabel`, and the decorator that adds a command to it.

A parameter of a command that is a dataclass has the flags and arguments that its fields declare.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from lifelabel.cli.flags import OptionFlags

_LOOK: dict[str, Any] = {"rich_markup_mode": "markdown", "context_settings": {"help_option_names": ["-h", "--help"]}}

app = typer.Typer(
    help="Lifelong multi-label image recognition: a stream of tasks, partial labels, no old images.",
    pretty_exceptions_enable=False,
    **_LOOK,
)
_groups = {
    "": app,
    "data": typer.Typer(help="Inspect a stream: its content and its problems; write its manifest.", **_LOOK),
}


def command(
    name: str, examples: str, flags: OptionFlags | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function: it becomes the command `name`, such as `train` or `data build`.

    `examples` has one command line per line, with an explanation after `  # `. `flags` replaces the parameter or field
    `flags` of the function.
    """
    group, _, own_name = name.rpartition(" ")
    if group and group not in (each.name for each in app.registered_groups):
        app.add_typer(_groups[group], name=group)
    lines = [line.partition("  # ") for line in examples.strip().splitlines()]
    texts = [f"`{line}`" + (f" ({comment})" if comment else "") for line, _, comment in lines]
    epilog = "\n\n".join(["Examples:" if len(texts) > 1 else "Example:", *texts])

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        _groups[group].command(own_name, epilog=epilog)(_with_groups(function, flags))
        return function

    return decorate


def _with_groups(function: Callable[..., None], flags: OptionFlags | None) -> Callable[..., None]:
    """The function with a parameter for each field of the dataclasses among its parameters, and for each flag."""
    own = inspect.signature(function, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: each.annotation for name, each in own.items() if dataclasses.is_dataclass(each.annotation)
    }
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in own.items():
        if name in groups:
            parameters |= _parameters_of(groups[name])
        else:
            parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    parameters.pop("flags", None)
    parameters |= flags.parameters if flags else {}

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        if flags:
            arguments["flags"] = flags.take(arguments)
        for name, group in groups.items():
            arguments[name] = group(**{each.name: arguments.pop(each.name) for each in dataclasses.fields(group)})
        function(**{name: arguments[name] for name in own})

    run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    run.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return run


def _parameters_of(group: Any) -> dict[str, inspect.Parameter]:
    """A parameter for each field of a dataclass."""
    hints = typing.get_type_hints(group, include_extras=True)
    return {
        each.name: inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is dataclasses.MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in dataclasses.fields(group)
    }
