"""Options: dataclass fields that carry their own help, choices and range, read from flags and YAML.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Knobs:
...     images: int = option(100, "how many images", low=1)
...     mode: str = option("soft", "which labels", choices=("soft", "hard"))
>>> read(Knobs, {"images": 7}, "stream")
Knobs(images=7, mode='soft')
>>> read(Knobs, {"mode": "sofd"}, "stream")
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

from lifelabel.errors import UserError, short, unknown

T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
) -> Any:
    """A dataclass field with a sentence of help and the values it takes (`low` and `high` included, `above` not)."""
    metadata = {"help": help, "choices": choices, "low": low, "above": above, "high": high}
    return dataclasses.field(default=default, metadata=metadata)


def read(cls: type[T], values: Mapping[str, Any], where: str, owner: str = "") -> T:
    """Make `cls` from a mapping; every key, type and range is checked.

    An error names an option `where.name`, and `owner` as what has, or lacks, that option.
    """
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    prefix = f"{where}." if where else ""
    hints = typing.get_type_hints(cls)
    checked = {}
    for name, value in values.items():
        if name not in known:
            raise unknown(f"option of {owner or where or 'a run'}", name, known)
        checked[name] = check(known[name], hints[name], value, prefix + name)
    return cls(**checked)


def check(field: dataclasses.Field, hint: Any, value: Any, name: str) -> Any:
    """The value as its type, or a UserError that says what was expected."""
    choices, low, above, high = (field.metadata.get(k) for k in ("choices", "low", "above", "high"))
    if choices and hint is str:
        word = ("off", "on")[value] if isinstance(value, bool) else str(value)
        value = word if word in choices else value  # YAML reads 2012 as a number, and off as false
    value = convert(hint, value, name)
    if choices and value is not None and value not in choices:
        raise unknown(f"value for {name}", value, choices)
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            continue
        if isinstance(number, float) and not math.isfinite(number):
            raise UserError(f"{name} must be a finite number, not {number}")
        if low is not None and number < low:
            raise UserError(f"{name} must be at least {low}, not {number}")
        if above is not None and number <= above:
            raise UserError(f"{name} must be more than {above}, not {number}")
        if high is not None and number > high:
            raise UserError(f"{name} must be at most {high}, not {number}")
    return value


def convert(hint: Any, value: Any, name: str) -> Any:
    """`value` as the type `hint` (int, float, bool, str, a tuple of one of them, or None where allowed)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None or (isinstance(value, str) and value.lower() in ("none", "null")):
            return None
        return convert(next(a for a in arguments if a is not type(None)), value, name)
    if origin is tuple:
        if isinstance(value, str):
            value = [part for part in value.replace(",", " ").split() if part]
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{name} must be a list, not {short(value)}")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise UserError(f"{name} takes {len(arguments)} values, not {len(value)}: {short(value)}")
        return tuple(convert(arguments[0], part, name) for part in value)
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
    given = f"'{short(value)}'" if isinstance(value, str) else short(value)
    raise UserError(f"{name} must be {kind}, not {given}")
