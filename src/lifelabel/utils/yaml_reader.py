"""YAML of untrusted files, as plain data. All YAML of lifelabel is read here.

A small file cannot make many values or deep nesting. The reader refuses anchors, aliases, tags and keys that are named
twice, and limits the depth and the number of values. It has no merge keys (`<<` is a text) and no numbers to the base
60 (`1:30` is a text).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lifelabel.errors import UserError
from lifelabel.utils.files import open_regular
from lifelabel.utils.text import printable, shorten

_MAX_BYTES = 1_000_000
_MAX_DEPTH = 20
_MAX_VALUES = 100_000
_MAX_DIGITS = 100
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_LEFT_OUT = {_INT, _FLOAT, "tag:yaml.org,2002:merge", "tag:yaml.org,2002:value"}


class _Refused(yaml.MarkedYAMLError):
    """Valid YAML that this reader refuses."""


class _Loader(_Base):
    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping: dict[Any, Any] = yaml.constructor.BaseConstructor.construct_mapping(self, node, deep)
        if len(mapping) < len(node.value):
            seen: set[Any] = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if key in seen:
                    problem = f"names '{shorten(printable(key))}' twice"
                    raise _Refused(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key)
        return mapping

    def construct_yaml_int(self, node: Any) -> Any:
        if len(node.value) > _MAX_DIGITS:  # Python cannot print a number of thousands of digits
            problem = f"has a number of more than {_MAX_DIGITS} digits"
            raise _Refused(problem=problem, problem_mark=node.start_mark)
        return _Base.construct_yaml_int(self, node)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_OUT]
    for first, resolvers in _Base.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT, re.compile(r"[-+]?(?:0b[01_]+|0[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(
        r"(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)


def parse_yaml(text: str | bytes, name: str, advice: str, max_values: int = _MAX_VALUES) -> Any:
    """The value of a YAML text. One that cannot be read is a `UserError`: name, line, reason and advice.

    >>> parse_yaml("lr: 0.1\\ntime: 1:30", "a.yaml", "correct it")
    {'lr': 0.1, 'time': '1:30'}
    >>> parse_yaml("a: &x [1]", "a.yaml", "correct it")
    Traceback (most recent call last):
    lifelabel.errors.UserError: a.yaml, line 1, has an anchor, an alias or a tag: correct it
    """
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        _check(text, max_values)
        return yaml.load(text, _Loader)
    except Exception as error:  # yaml raises its own errors, and those of int(), float() or dates for a bad value
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}," if mark else ""
        problem = error.problem if isinstance(error, _Refused) else "is not valid YAML"
        raise UserError(f"{name}{where} {problem}: {advice}") from None


def _check(text: str, max_values: int) -> None:
    """Raise `_Refused` for what could exhaust the memory or the stack. Only one event is in memory at a time."""
    depth = values = 0
    for event in yaml.parse(text, _Base):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        problem = ""
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            problem = "has an anchor, an alias or a tag"
        elif depth > _MAX_DEPTH:
            problem = f"is nested deeper than {_MAX_DEPTH} levels"
        elif values > max_values:
            problem = f"has more than {max_values:,} values"
        if problem:
            raise _Refused(problem=problem, problem_mark=event.start_mark)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """The options in a YAML file of a configuration."""
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES:,} bytes: not a configuration")
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    values = parse_yaml(data, str(path), "`lifelabel train --print-config` prints a valid configuration")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold `option: value` lines, not {shorten(values)}")
    return values
