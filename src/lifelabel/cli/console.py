"""The consoles of the command line: stdout and stderr."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lifelabel.utils.text import printable

__all__ = ["err", "out", "print_line", "print_table"]

out, err = Console(), Console(stderr=True)


def print_line(line: str, style: str | None = None, console: Console | None = None) -> None:
    """Print text as it is, without markup and without wrapping. Control characters are replaced."""
    text = "\n".join(map(printable, line.split("\n")))
    (console or out).print(text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table at its full width. A narrow terminal wraps its lines, and no number is cut."""
    wide = Console(width=1000)
    needed = Measurement.get(wide, wide.options, table).maximum
    Console(width=max(out.width, needed)).print(table)
