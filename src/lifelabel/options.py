"""Options: dataclass fields that declare their help, their values and their role. Flags, YAML and Python use them.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Example:
...     images: int = option(100, "number of images", low=1)
...     mode: str = option("soft", "which labels", choices=("soft", "hard"))
>>> read(Example, {"images": 7}, "stream")
Example(images=7, mode='soft')
>>> read(Example, {"mode": "sofd"}, "stream")
Traceback (most recent call last):
lifelabel.errors.UserError: unknown value for stream.mode 'sofd': did you mean 'soft'? (known: hard, soft)
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from lifelabel.errors import UserError, unknown
from lifelabel.utils.text import shorten

_T = TypeVar("_T")


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    free: bool = False,
    resume: bool = False,
    label: bool = True,
    path: bool | tuple[str, ...] = False,
    equal: bool = False,
    registered: bool = False,
    flag: str = "",
) -> Any:
    """A dataclass field that declares everything about one option.

    `help` is one sentence, without a full stop. `choices`, `low`, `above` and `high` limit the values (`low` and `high`
    are allowed, `above` is not). The other arguments declare the role of the option in a run:

    - `free`: it does not affect results. Two runs that differ only in free options are the same run. A free option may
      be changed before a run resumes, and is not in labels.
    - `resume`: it may be changed in config.yaml before a run resumes.
    - `label`: a value other than the default is in the label of the run in tables.
    - `path`: a file or folder. It is stored as an absolute path, and may be changed before a run resumes. A tuple lists
      the values that are not paths.
    - `equal`: a comparison of methods reports whether all methods have the same value.
    - `registered`: the name of an object in a registry. A plug-in can be given, as `FILE.py:NAME`.
    - `flag`: the group of the command-line flag that is generated for it; empty for no flag.
    """
    metadata = {
        "help": help, "choices": choices, "low": low, "above": above, "high": high, "free": free,
        "resume": resume or free, "label": label and not free, "path": path, "equal": equal,
        "registered": registered, "flag": flag,
    }  # fmt: skip
    return dataclasses.field(default=default, metadata=metadata)


def declared(options: Any, role: str) -> tuple[str, ...]:
    """The names of the options of a dataclass that declare a role, such as "free" or "path".

    >>> @dataclasses.dataclass
    ... class Example:
    ...     lr: float = option(0.1, "learning rate", resume=True)
    ...     device: str = option("auto", "device", free=True)
    >>> declared(Example, "resume"), declared(Example, "free")
    (('lr', 'device'), ('device',))
    """
    return tuple(field.name for field in dataclasses.fields(options) if field.metadata.get(role))


def change_text(change: Mapping[str, Any]) -> str:
    """A change of an option during a run, as text. Its values may come from an untrusted file.

    >>> change_text({"option": "lr", "before": 0.1, "after": 0.2, "task": 2, "step": 5})
    'lr changed from 0.1 to 0.2 after step 5 of task 2'
    """
    values = [change.get(key) for key in ("option", "before", "after", "task", "step")]
    name, before, after, task, step = ("none" if value is None else shorten(value) for value in values)
    where = f"before task {task}" if step == "0" else f"after step {step} of task {task}"
    return f"{name} changed from {before} to {after} {where}"


def with_defaults(options: type, **defaults: Any) -> type:
    """The same dataclass of options with other defaults."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    changed = [
        (name, fields[name].type, dataclasses.field(default=value, metadata=fields[name].metadata))
        for name, value in defaults.items()
    ]
    return dataclasses.make_dataclass(
        options.__name__, changed, bases=(options,), frozen=True, namespace={"__module__": options.__module__}
    )


def read(cls: type[_T], values: Mapping[str, Any], where: str, owner: str = "") -> _T:
    """Make `cls` from a mapping. Every name, type and range is checked.

    Error messages call an option `where.name`, and `owner` the object that the options belong to.
    """
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    prefix = f"{where}." if where else ""
    hints = typing.get_type_hints(cls)
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise unknown(f"option of {owner or where or 'a run'}", name, known)
        checked[name] = _check(known[name], hints[name], value, prefix + name)
    return cls(**checked)


def _check(field: dataclasses.Field, hint: Any, value: Any, name: str) -> Any:
    """The value, converted to its type. A `UserError` states which values are allowed."""
    choices, low, above, high = (field.metadata.get(k) for k in ("choices", "low", "above", "high"))
    if choices and hint is str:
        word = ("off", "on")[value] if isinstance(value, bool) else str(value)
        value = word if word in choices else value  # YAML reads 2012 as a number, and off as false
    value = _convert(hint, value, name)
    parts = value if isinstance(value, tuple) else (value,)
    if choices and value is not None:
        for part in parts:
            if part not in choices:
                raise unknown(f"value for {name}", part, choices)
    for number in parts:
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{name} must be a finite number, not {number}")
        if low is not None and number < low:
            raise UserError(f"{name} must be at least {low}, not {shorten(number)}")
        if above is not None and number <= above:
            raise UserError(f"{name} must be more than {above}, not {shorten(number)}")
        if high is not None and number > high:
            raise UserError(f"{name} must be at most {high}, not {shorten(number)}")
    return value


def _convert(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type `hint`: int, float, bool, str, a tuple of one of them, or None if allowed."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
            return None
        return _convert(next(a for a in arguments if a is not type(None)), value, name)
    if origin is tuple:
        if isinstance(value, str):
            value = [part for part in value.replace(",", " ").split() if part]
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{name} must be a list, not {shorten(value)}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise UserError(f"{name} takes {len(arguments)} values, not {len(value)}: {shorten(value)}")
        return tuple(_convert(arguments[0], part, name) for part in value)
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        return value
    if hint in (int, float) and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if hint is int and isinstance(value, (str, int)) and re.fullmatch(r"\s*[+-]?\d+\s*", str(value)):
                return int(value)
            number = float(value)  # YAML reads 1e-3 as a string
            if hint is float:
                return number
            if number.is_integer():
                return int(number)
    kind = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]
    given = f"'{shorten(value)}'" if isinstance(value, str) else shorten(value)
    raise UserError(f"{name} must be {kind}, not {given}")
