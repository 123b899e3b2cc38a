"""Grids of text cells in Markdown and in the terminal, and the escaping of untrusted text in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from lifelabel.utils.text import printable

__all__ = ["Bold", "escape_markdown", "markdown_grid", "rich_grid"]


class Bold(str):
    """The text of a cell in bold."""


_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_MARKDOWN = re.compile(r"[\\`*\[\]#~$|<]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")


def escape_markdown(text: object) -> str:
    r"""Untrusted text on one line that Markdown renders as it is, also in a cell of a table.

    An underscore inside a word stays: it has no effect there.

    >>> print(escape_markdown("[a](b) <b> x|y $5_to_$10"))
    \[a\](b) &lt;b> x\|y \$5_to\_\$10
    """
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], rf"\{found[0]}"), printable(text))


def markdown_grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    r"""The lines of a Markdown table. The first `left` columns are aligned to the left, the others to the right.

    >>> markdown_grid(["class", "images"], [["a|b", Bold("7")]], 1)
    ['| class | images |', '|---|---:|', '| a\\|b | **7** |']
    """
    rule = "|" + "---|" * left + "---:|" * (len(heads) - left)
    lines = ["| " + " | ".join(map(_markdown_cell, row)) + " |" for row in (heads, *rows)]
    return [lines[0], rule, *lines[1:]]


def _markdown_cell(text: str) -> str:
    return f"**{escape_markdown(text)}**" if isinstance(text, Bold) else escape_markdown(text)


def rich_grid(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: int, max_width: int | None = None, **look: Any
) -> Table:
    """A table for the terminal. The first `left` columns are text, which wraps, also at `max_width` characters."""
    table = Table(collapse_padding=True, pad_edge=False, **look)
    for index, head in enumerate(heads):
        is_text = index < left
        table.add_column(
            Text(head), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold",
            max_width=max_width if is_text else None,
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(printable(cell), style="bold" if isinstance(cell, Bold) else "") for cell in row))
    return table
