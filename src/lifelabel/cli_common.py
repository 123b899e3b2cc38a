"""What several commands share: the two consoles, how settings and seeds are read, who watches a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lifelabel.errors import UserError, unknown

if TYPE_CHECKING:
    from lifelabel.engine import Watcher

out, err = Console(), Console(stderr=True)

MAX_SEEDS = 1000


def parse_settings(settings: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` texts to nested options; values are read as YAML.

    >>> parse_settings(["lr=0.1", "stream.tasks=4", "method.lambdas=[1, 2, 3]"])
    {'lr': 0.1, 'stream_options': {'tasks': 4}, 'method_options': {'lambdas': [1, 2, 3]}}
    """
    import yaml

    values: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, not '{text}'")
        try:
            parsed = yaml.safe_load(value)
        except Exception:  # yaml raises its own, and whatever int(), float() or a date make of a bad value
            raise UserError(f"--set {name}: cannot read the value '{value}'") from None
        section, dot, inner = name.strip().partition(".")
        if dot and section in ("stream", "method"):
            values.setdefault(f"{section}_options", {})[inner] = parsed
        else:
            values[name.strip()] = parsed
    return values


def parse_seeds(text: str) -> list[int]:
    """
    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        try:
            some = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            raise UserError(f"--seeds takes 0 or 0-2 or 0,3,5, not '{text}'") from None
        if not 1 <= some.stop - some.start <= MAX_SEEDS:
            raise UserError(f"--seeds '{part}' names no seed, or more than {MAX_SEEDS}")
        seeds += some
    return seeds


def check_fidelity(path: Path | None, values: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a fidelity that the options of a file would undo."""
    if "fidelity" in given and values.get("fidelity", given["fidelity"]) != given["fidelity"]:
        raise UserError(f"{path} sets fidelity: {values['fidelity']} and its options, which win over --fidelity")


def watcher(quiet: bool) -> Watcher:
    if quiet:
        from lifelabel.engine import Watcher

        return Watcher()
    from lifelabel.progress import Bar

    return Bar(err)


def print_whole(table: Table) -> None:
    """Print a table as wide as it is: a narrow terminal wraps lines, and no figure is cut."""
    wide = Console(width=1000)
    needed = Measurement.get(wide, wide.options, table).maximum
    Console(width=max(out.width, needed)).print(table)


def side_by_side(jobs: int | None, device: object) -> int:
    """How many runs at a time: as many as were asked for, or as the machine takes."""
    from lifelabel.runner import default_jobs

    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {jobs}")
    return jobs or default_jobs(str(device))


def parse_methods(text: str) -> list[str]:
    """
    >>> parse_methods("er, lwf")
    ['er', 'lwf']
    """
    from lifelabel.methods import METHODS

    names = list(METHODS) if text == "all" else [name.strip() for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "all"])
    return list(dict.fromkeys(names))


def check_file(path: Path | None, values: Mapping[str, Any], asked: Mapping[str, str | None]) -> None:
    """Refuse a file with options of another method or stream than the one asked for."""
    for kind, name in asked.items():
        if name and values.get(f"{kind}_options") and values.get(kind) != name:
            raise UserError(f"{path} holds options of {kind} {values.get(kind)}: take them out to use --{kind} {name}")
