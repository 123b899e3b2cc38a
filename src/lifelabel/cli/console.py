"""The consoles of the command line: stdout and stderr.

They show no colour under NO_COLOR. Characters that the terminal cannot show are replaced by ASCII. A command that
writes files does not end because its output has been closed, as by `| head -1`.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
import unicodedata
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from lifelabel.utils.text import printable

_ASCII = str.maketrans(
    {
        "–": "-", "—": "-", "−": "-", "…": "...", "±": "+-", "×": "x", "·": ".", "•": "*", "√": "yes", "→": "->",
        "←": "<-", "↑": "^", "↓": "v", "≠": "!=", "≤": "<=", "≥": ">=", "λ": "lambda", "✓": "+", "✗": "x",
        "‘": "'", "’": "'", "“": '"', "”": '"', "\N{REPLACEMENT CHARACTER}": "?", "ß": "ss", "ø": "o", "ł": "l",
        **dict.fromkeys("─━═╸╺", "-"), **dict.fromkeys("│┃║", "|"), **dict.fromkeys("╭╮╰╯┌┐└┘├┤┬┴┼┏┓┗┛┡┩╇╞╪╡╘╧╛", "+"),
    }
)  # fmt: skip
"""Texts for characters of lifelabel itself, of its tables and of typer's help."""
_HANDLER = "lifelabel"


def _to_ascii(error: UnicodeError) -> tuple[str, int]:
    """The error handler of an encoding: é becomes e, and a character without such a text its code, as in \\u72ac."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = ""
    for letter in error.object[error.start : error.end]:
        plain = unicodedata.normalize("NFD", letter.translate(_ASCII)).encode("ascii", "ignore").decode()
        text += plain or ("" if unicodedata.combining(letter) else letter.encode("ascii", "backslashreplace").decode())
    return text, error.end


codecs.register_error(_HANDLER, _to_ascii)


def discard_output(number: int) -> None:
    """Discard what is written to a file descriptor from now on."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, number)
    os.close(devnull)


class _Discarding(io.FileIO):
    """A file descriptor for output. If it is closed, this and all later output is discarded."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:  # the pipe or the terminal is closed, or the disk is full
            discard_output(self.fileno())
            return memoryview(data).nbytes


def prepare_streams(keep_going: bool) -> None:
    """Prepare stdout and stderr of this process: any character can be written, and closed streams are replaced.

    With `keep_going`, output to a closed pipe is discarded. Otherwise writing it raises BrokenPipeError.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # else a file of a run could get the number of stdout
        pass
    os.close(number)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)
            if keep_going and sys.platform != "win32":
                file = io.BufferedWriter(_Discarding(stream.fileno(), "wb", closefd=False))
                lines, through = stream.line_buffering, stream.write_through
                setattr(sys, name, io.TextIOWrapper(file, stream.encoding, _HANDLER, None, lines, through))
    if os.environ.get("NO_COLOR") or os.environ.get("GITHUB_ACTIONS"):
        from typer import rich_utils

        if os.environ.get("NO_COLOR"):
            rich_utils.COLOR_SYSTEM = None
        elif not os.environ.get("FORCE_COLOR"):
            rich_utils.FORCE_TERMINAL = None  # typer colours its help on GitHub, also in a pipe


def make_console(**look: Any) -> Console:
    """A console. Under NO_COLOR it has no styles at all; rich alone would leave out colours only."""
    return Console(color_system=None if os.environ.get("NO_COLOR") else "auto", **look)


out = make_console()
# FORCE_COLOR makes a file a terminal for rich: it gets colours, but no progress bars
err = make_console(stderr=True, force_interactive=None if sys.stderr and sys.stderr.isatty() else False)


def print_line(line: str, style: str | None = None, console: Console | None = None) -> None:
    """Print text as it is, without markup and without wrapping. Control characters, also line breaks, are replaced."""
    (console or out).print(printable(line), style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_table(table: Table) -> None:
    """Print a table at its full width. A narrow terminal wraps its lines, and no number is cut."""
    _make_encodable(table)
    wide = make_console(width=1000)
    print_wide(table, Measurement.get(wide, wide.options, table).maximum)


def print_wide(content: RenderableType, width: int) -> None:
    """Print to stdout, in lines of at least `width` characters also if the terminal has fewer."""
    _make_encodable(content)
    make_console(width=max(out.width, width)).print(content, highlight=False)


def _make_encodable(content: RenderableType) -> None:
    """Replace what stdout cannot show in the cells of tables. Later it would change the widths of columns."""
    if isinstance(content, Group):
        for part in content.renderables:
            _make_encodable(part)
    if isinstance(content, Table):
        encoding = getattr(out.file, "encoding", None) or "utf-8"
        cells = (cell for column in content.columns for cell in (column.header, *column.cells))
        for cell in cells:
            if isinstance(cell, Text):
                cell.plain = cell.plain.encode(encoding, _HANDLER).decode(encoding)
