"""Completion of names in the shell. Torch is not imported: an answer must come at once."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from pathlib import Path

from lifelabel.registry import definitions

_METHODS = Path(__file__).parents[1] / "methods"
_Complete = Callable[[str], list[str]]


def method_names() -> list[str]:
    """The built-in methods, and those of installed plug-ins. Neither are imported."""
    return [*(each.name for each in definitions(_METHODS)), *_installed("methods")]


def convention_names() -> list[str]:
    """How tables can summarise their scores."""
    from lifelabel.metrics.over_tasks import CONVENTIONS

    return list(CONVENTIONS)


def study_names() -> list[str]:
    """The studies of `lifelabel study`."""
    from lifelabel.search.studies import STUDIES

    return list(STUDIES)


def stream_names() -> list[str]:
    """The streams, also of installed plug-ins. A stream can be a file too: the shell completes its path."""
    from lifelabel.streams import STREAMS

    return [*STREAMS.registered(), *_installed("streams")]


def _installed(kind: str) -> list[str]:
    return [point.name for point in importlib.metadata.entry_points(group=f"lifelabel.{kind}")]


def complete_name(names: Callable[[], Iterable[str]]) -> _Complete:
    """A function that completes one name.

    >>> complete_name(lambda: ["er", "ewc", "lwf"])("e")
    ['er', 'ewc']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def complete_list(names: Callable[[], Iterable[str]]) -> _Complete:
    """A function that completes the last name of a list with commas. A name that is in the list is left out.

    >>> complete_list(lambda: ["er", "ewc", "lwf"])("er,e")
    ['er,ewc']
    """

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last) and name not in given]

    return complete
