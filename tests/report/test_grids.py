"""Grids of text cells in the terminal."""

import io

from rich.console import Console

from lifelabel.report.text_tables import rich_grid
from lifelabel.utils.markdown import Bold


def printed(table, width=60):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(table)
    return console.file.getvalue()


def plain(table, width=60):
    """The text without the codes of bold."""
    return printed(table, width).replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_untrusted_text_in_a_terminal_is_neither_control_characters_nor_markup():
    text = printed(rich_grid(["[bold]head"], [["\x1b[2Jcat [red]dog[/red]"]], left=1))
    assert "[bold]head" in text and "\ufffd[2Jcat [red]dog[/red]" in text
    assert "\x1b[2J" not in text


def test_bold_cells_are_bold_in_a_terminal():
    text = printed(rich_grid(["a", "b"], [["plain", Bold("best")]], left=1, show_header=False))
    assert "\x1b[1mbest\x1b[0m" in text and "\x1b[1mplain" not in text


def test_text_wraps_in_a_terminal_and_numbers_do_not():
    name, number = "a rather long name of a method", "12,345.67 ± 0.89"
    lines = plain(rich_grid(["name", "value"], [[name, number]], left=1, max_width=12, box=None)).splitlines()
    assert sum(number in line for line in lines) == 1
    assert [line[:12].strip() for line in lines[1:] if line.strip()] == ["a rather", "long name of", "a method"]
    narrow = plain(rich_grid(["name", "value"], [[name * 3, number]], left=1, box=None), width=30)
    assert number in narrow and max(map(len, narrow.splitlines())) <= 30
