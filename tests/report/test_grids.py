"""Grids of text cells in Markdown and in the terminal."""

import io

import pytest
from report.untrusted import HOSTILE, PRINTABLE, render
from rich.console import Console

from lifelabel.report.grids import Bold, escape_markdown, markdown_grid, rich_grid


def printed(table, width=60):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(table)
    return console.file.getvalue()


def plain(table, width=60):
    """The text without the codes of bold."""
    return printed(table, width).replace("\x1b[1m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("text", ["a_b", "A^{t-1} & B^t", "agcn (stream.train_images=60)", "50 % – é", "x > y"])
def test_text_without_markdown_is_not_changed(text):
    assert escape_markdown(text) == text


@pytest.mark.parametrize(
    "text",
    ["# a", "- *a*", "[a](b)", "![a](b)", "`a`", "<b>", "&lt;", "&#60;", "~~a~~", "_a_", "__a__", "a\\", "|", "$a$"],
)
def test_markdown_renders_untrusted_text_as_it_is(text):
    tags, lines = render(f"x {escape_markdown(text)}")
    assert tags == {"p"} and lines == [f"x {text}"]


def test_a_markdown_table_has_one_cell_for_each_text():
    cells = [["a|b", HOSTILE], [Bold("7|"), "<td>"]]
    tags, lines = render("\n".join(markdown_grid(["name", "| head"], cells, left=1)))
    assert tags == {"table", "thead", "tbody", "tr", "th", "td", "strong"}
    assert [line for line in lines if line] == ["name", "| head", "a|b", PRINTABLE, "7|", "<td>"]


@pytest.mark.parametrize(("left", "rule"), [(0, "|---:|---:|---:|"), (1, "|---|---:|---:|"), (3, "|---|---|---|")])
def test_the_first_columns_are_aligned_to_the_left(left, rule):
    assert markdown_grid(["a", "b", "c"], [], left) == ["| a | b | c |", rule]


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
