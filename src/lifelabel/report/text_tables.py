"""A table of text and numbers, and how it is written for the terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from lifelabel.utils.markdown import Bold, escape, grid, per_class_cells
from lifelabel.utils.text import printable


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation of n values; None if there are too few."""

    mean: float | None
    sd: float | None
    n: int

    @staticmethod
    def from_values(values: Iterable[float | None]) -> Stat:
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = statistics.mean(known) if known else None
        return Stat(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, and the format of its numbers."""

    head: str
    digits: int = 2
    unit: float = 1
    """Numbers are divided by it."""
    with_sd: bool = True
    short_head: str = ""
    """Its heading in the terminal, where that is another one."""
    key: str = ""
    """The name of its figure in files."""
    is_text: bool = False
    """Text is aligned to the left and wraps; numbers are aligned to the right."""

    def text(self, stat: Stat, compact: bool = False) -> str:
        """Mean ± standard deviation; `compact`: with one digit less."""
        if stat.mean is None:
            return "–"
        digits = max(self.digits - 1, 1) if compact and self.digits > 1 else self.digits
        mean = f"{stat.mean / self.unit:,.{digits}f}"
        if stat.sd is None or not self.with_sd:
            return mean
        return f"{mean}{'±' if compact else ' ± '}{stat.sd / self.unit:.{digits}f}"


class Line(NamedTuple):
    """One line of a table: text, or a statistic in the format of its column."""

    cells: Sequence[str | Stat]
    bold: frozenset[int] = frozenset()
    """The numbers of the cells in bold."""
    is_second: bool = False
    """It belongs to the line above it."""


@dataclass(frozen=True)
class Table:
    """A table. The columns of text are the first ones."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    title: str = ""
    short_title: str = ""
    """Its title in the terminal, where that is another one."""
    note: str = ""
    """A sentence that explains it."""
    has_short_numbers: bool = True
    """Whether numbers have fewer digits in the terminal."""

    @property
    def left(self) -> int:
        """The number of columns of text."""
        return sum(column.is_text for column in self.columns)

    def heads(self, compact: bool = False) -> list[str]:
        return [(compact and column.short_head) or column.head for column in self.columns]

    def texts(self, compact: bool = False) -> list[list[str]]:
        """The cells of each line as text; those in bold are `Bold`."""
        compact &= self.has_short_numbers
        found = []
        for line in self.lines:
            pairs = zip(self.columns, line.cells, strict=True)
            texts = [cell if isinstance(cell, str) else column.text(cell, compact) for column, cell in pairs]
            found.append([Bold(text) if number in line.bold else text for number, text in enumerate(texts)])
        return found


# Terminal

_NUMBER = 9
"""Characters of the head of a column of numbers in one line."""


def rich_grid(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: int, max_width: int | None = None,
    head_width: int = 1000, **look: Any,
) -> RichTable:  # fmt: skip
    """A table for the terminal. The first `left` columns are text, which wraps, also at `max_width` characters.

    The heads of the others, which are numbers, wrap at `head_width`.
    """
    table = RichTable(collapse_padding=True, pad_edge=False, **look)
    for index, head in enumerate(heads):
        is_text = index < left
        name = printable(head) if is_text else textwrap.fill(printable(head), head_width, break_long_words=False)
        table.add_column(
            Text(name), justify="left" if is_text else "right", no_wrap=not is_text, overflow="fold",
            max_width=max_width if is_text else None,
        )  # fmt: skip
    for row in rows:
        table.add_row(*(Text(printable(cell), style="bold" if isinstance(cell, Bold) else "") for cell in row))
    return table


def rich_table(table: Table) -> RichTable:
    """A table for a terminal of 100 columns."""
    title = printable(table.short_title or table.title)
    look = {"box": box.SIMPLE, "title": title or None, "title_justify": "left"}
    found = rich_grid(table.heads(compact=True), table.texts(compact=True), table.left, 30, _NUMBER, **look)
    for row, line in zip(found.rows, table.lines, strict=True):
        row.style = "dim" if line.is_second else None
    return found


def per_class_table(
    names: Sequence[str], tasks: Sequence[object], ap: Sequence[float | None],
    more: Mapping[str, Sequence[Any]] | None = None,
) -> RichTable:  # fmt: skip
    """A table of classes, by AP. The arguments are those of `lifelabel.utils.markdown.per_class_cells`."""
    heads, rows, note = per_class_cells(names, tasks, ap, more)
    table = rich_grid(heads, rows, left=1, max_width=40, box=box.SIMPLE, caption_justify="left")
    table.caption = Text(note) if note else None
    return table


# Markdown


def markdown_lines(table: Table) -> list[str]:
    return grid(table.heads(), table.texts(), table.left)


_BLOCK = re.compile(r"^(\d{0,9})(>|[-+.)](?=\s|$))")
"""The sign of a list or a quotation at the beginning of a line. The name of a row can be there."""


def paragraphs(notes: Iterable[str]) -> list[str]:
    """The lines of Markdown paragraphs, each after an empty line. Nothing in them is a list, a quotation or markup."""
    return [line for note in notes for line in ("", _BLOCK.sub(r"\1\\\2", escape(note)))]


# LaTeX


def tabular(table: Table) -> list[str]:
    """The lines of a tabular environment with booktabs."""
    out = [rf"  \begin{{tabular}}{{{'l' * table.left}{'r' * (len(table.columns) - table.left)}}}", r"    \toprule"]
    out.append("    " + " & ".join(rf"\textbf{{{tex(name)}}}" for name in table.heads()) + r" \\")
    for line, texts in zip(table.lines, table.texts(), strict=True):
        cells = [rf"\textbf{{{tex(text)}}}" if isinstance(text, Bold) else tex(text) for text in texts]
        rule = r"    % \rowcolor{gray!20}" if line.is_second else r"    \midrule"
        out += [rule, f"    {' & '.join(cells)} " + r"\\"]
    return [*out, r"    \bottomrule", r"  \end{tabular}"]


_SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "×": r"$\times$", "√": r"$\surd$", "λ": r"$\lambda$", "–": "--", "≠": r"$\neq$",
    "|": r"\textbar{}", "[": "{[}", "]": "{]}", "\N{REPLACEMENT CHARACTER}": "?",
}  # fmt: skip
"""A bracket at the beginning of a row would be the width of the rule above it. A | is a dash in some fonts."""
_FORMULAS = re.compile(
    r"(?P<base>[A-Za-z0-9]+)\^(?P<power>\{[A-Za-z0-9+-]+\}|[A-Za-z0-9]+)|λ(?P<index>[0-9])|(?P<minus>(?<!\w)-(?=\d))"
)
"""Nothing in a formula needs an escape: the text may be untrusted."""


def tex(text: str) -> str:
    r"""Text escaped for LaTeX. Powers, λ1 and negative numbers become formulas.

    >>> print(tex("A^{t-1} & B_1: -50 %"))
    $A^{t-1}$ \& B\_1: $-$50 \%
    """
    out, position = "", 0
    for found in _FORMULAS.finditer(text):
        power, index = found["power"], found["index"]
        formula = f"{found['base']}^{power}" if power else rf"\lambda_{index}" if index else "-"
        out += _escape_tex(text[position : found.start()]) + f"${formula}$"
        position = found.end()
    return out + _escape_tex(text[position:])


def _escape_tex(text: str) -> str:
    return "".join(_SYMBOLS.get(letter, letter) for letter in printable(text))
