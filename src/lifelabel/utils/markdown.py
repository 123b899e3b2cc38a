"""Markdown: the escaping of untrusted text, tables, and the table of the average precision of each class."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

from lifelabel.utils.text import printable

_MAX_CLASSES, _ENDS = 40, 10
"""A table of more classes has the best and the worst ones only."""


class Bold(str):
    """The text of a cell in bold."""


_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_MARKDOWN = re.compile(r"[\\`*\[\]#~$|<]|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)")


def escape(text: object) -> str:
    r"""Untrusted text on one line that Markdown renders as it is, also in a cell of a table.

    An underscore inside a word stays: it has no effect there.

    >>> print(escape("[a](b) <b> x|y $5_to_$10"))
    \[a\](b) &lt;b> x\|y \$5_to\_\$10
    """
    return _MARKDOWN.sub(lambda found: _ENTITIES.get(found[0], rf"\{found[0]}"), printable(text))


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> list[str]:
    r"""The lines of a Markdown table. The first `left` columns are aligned to the left, the others to the right.

    >>> grid(["class", "images"], [["a|b", Bold("7")]], 1)
    ['| class | images |', '|---|---:|', '| a\\|b | **7** |']
    """
    rule = "|" + "---|" * left + "---:|" * (len(heads) - left)
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in (heads, *rows)]
    return [lines[0], rule, *lines[1:]]


def _cell(text: str) -> str:
    return f"**{escape(text)}**" if isinstance(text, Bold) else escape(text)


def per_class_markdown(
    names: Sequence[str], tasks: Sequence[object], ap: Sequence[float | None],
    more: Mapping[str, Sequence[Any]] | None = None,
) -> list[str]:  # fmt: skip
    """The lines of a Markdown table of classes, by AP. The arguments are those of `per_class_cells`.

    >>> print(*per_class_markdown(["sky", "sea"], [1, 2], [0.25, 0.5], {"images": [8, 1200]}), sep="\\n")
    | class | task | AP % | images |
    |---|---:|---:|---:|
    | sea | 2 | 50.0 | 1,200 |
    | sky | 1 | 25.0 | 8 |
    """
    heads, rows, note = per_class_cells(names, tasks, ap, more)
    return [*grid(heads, rows, left=1), *(["", escape(note)] if note else [])]


def per_class_cells(
    names: Sequence[str], tasks: Sequence[object], ap: Sequence[float | None],
    more: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[list[str], list[list[str]], str]:  # fmt: skip
    """The heads, the rows and the note of a table of classes, from the highest AP to the lowest. Nothing is escaped.

    `tasks` has the name of the task of each class, or its number, from 1. `ap` has fractions; None or NaN: the class
    has no positive image.
    `more` has further columns by their heads. In these, whole numbers and texts are shown as they are, None as "–", and
    other numbers are fractions, shown in %. The note is empty if every class has a row.
    """
    scores = [math.nan if value is None else float(value) for value in ap]
    columns = {"AP": scores, **(more or {})}
    heads = ["class", "task", *(f"{head} %" if any(map(_is_fraction, columns[head])) else head for head in columns)]
    known = sorted((k for k, score in enumerate(scores) if math.isfinite(score)), key=lambda k: -scores[k])
    order = [*known, *(k for k, score in enumerate(scores) if not math.isfinite(score))]
    rows = [[names[k], f"{tasks[k]}", *(_text(column[k]) for column in columns.values())] for k in order]
    if len(rows) <= _MAX_CLASSES:
        return heads, rows, ""
    note, unknown = f"{len(rows)} classes", len(rows) - len(known)
    if len(known) > 2 * _ENDS:
        note += f": the {_ENDS} best and the {_ENDS} worst by AP"
        rows = [*rows[:_ENDS], ["…"] * len(heads), *rows[len(known) - _ENDS : len(known)]]
    else:
        rows = rows[: len(known)]
    return heads, rows, note + (f"; {unknown} without a positive image are not shown" if unknown else "")


def _is_fraction(value: Any) -> bool:
    return not (value is None or isinstance(value, str | Integral)) and math.isfinite(value)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{int(value):,}" if isinstance(value, Integral) else f"{100 * value:.1f}" if _is_fraction(value) else "–"
