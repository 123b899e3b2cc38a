"""The average precision of each class, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from lifelabel.report.grids import rich_grid
from lifelabel.utils.markdown import per_class_cells

__all__ = ["per_class_table"]


def per_class_table(
    names: Sequence[str], tasks: Sequence[object], ap: Sequence[float | None],
    more: Mapping[str, Sequence[Any]] | None = None,
) -> Table:  # fmt: skip
    """A table of classes, by AP. The arguments are those of `lifelabel.utils.markdown.per_class_cells`."""
    heads, rows, note = per_class_cells(names, tasks, ap, more)
    table = rich_grid(heads, rows, left=1, max_width=40, box=box.SIMPLE, caption_justify="left")
    table.caption = Text(note) if note else None
    return table
