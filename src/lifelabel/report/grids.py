"""Grids of text cells in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from lifelabel.utils.markdown import Bold
from lifelabel.utils.text import printable

__all__ = ["rich_grid"]


def rich_grid(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: int, max_width: int | None = None, **look: Any
) -> Table:
    """A table for the terminal. The first `left` columns are text, which wraps, also at `max_width` characters."""
    table = Table(collapse_padding=True, pad_edge=False, **look)
    for index, head in enumerate(heads):
        is_text = index < left
        table.add_column(
            Text(printable(head)), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold",
            max_width=max_width if is_text else None,
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(printable(cell), style="bold" if isinstance(cell, Bold) else "") for cell in row))
    return table
