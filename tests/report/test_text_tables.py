"""A table of text and numbers in each format."""

import io

import pytest
from report.untrusted import HOSTILE, PRINTABLE
from rich.console import Console

from lifelabel.report.text_tables import (
    Column,
    Line,
    Stat,
    Table,
    markdown_lines,
    per_class_table,
    rich_grid,
    rich_table,
    tabular,
    tex,
)

BOLD, END = "\x1b[1m", "\x1b[0m"
TABLE = Table(
    (Column("method", is_text=True), Column("mAP ↑", short_head="mAP"), Column("MB", 0, 1e6, with_sd=False)),
    (
        Line(["er", Stat(50.126, 1.5, 3), Stat(2e9, 1, 3)], bold=frozenset([1])),
        Line(["", Stat(-7.5, None, 1), Stat(None, None, 0)], is_second=True),
    ),
)


def printed(table, width=60):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(table)
    return console.file.getvalue()


def plain(table, width=60):
    return printed(table, width).replace(BOLD, "").replace(END, "")


def test_one_table_in_every_format():
    assert markdown_lines(TABLE) == [
        "| method | mAP ↑ | MB |", "|---|---:|---:|", "| er | **50.13 ± 1.50** | 2,000 |", "|  | -7.50 | – |",
    ]  # fmt: skip
    assert [line.strip() for line in tabular(TABLE)] == [
        r"\begin{tabular}{lrr}", r"\toprule", r"\textbf{method} & \textbf{mAP $\uparrow$} & \textbf{MB} \\",
        r"\midrule", r"er & \textbf{50.13 $\pm$ 1.50} & 2,000 \\", r"% \rowcolor{gray!20}", r"& $-$7.50 & -- \\",
        r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    text = printed(rich_table(TABLE))
    assert f"{BOLD}50.1±1.5{END}" in text and "mAP ↑" not in text
    long = plain(rich_table(Table(TABLE.columns, TABLE.lines, "title", has_short_numbers=False)))
    assert "50.13 ± 1.50" in long and "title" in long


@pytest.mark.parametrize(
    ("values", "expected"),
    [([], Stat(None, None, 0)), ([None, 3.0, float("nan")], Stat(3.0, None, 1)), ([1.0, 3.0], Stat(2.0, 2**0.5, 2))],
)
def test_the_standard_deviation_is_that_of_a_sample_of_known_values(values, expected):
    assert Stat.from_values(values) == expected


def test_text_wraps_in_a_terminal_and_numbers_do_not():
    name, number = "a rather long name of a method", "12,345.67 ± 0.89"
    lines = plain(rich_grid(["name", "value"], [[name, number]], left=1, max_width=12, box=None)).splitlines()
    assert sum(number in line for line in lines) == 1
    assert [line[:12].strip() for line in lines[1:] if line.strip()] == ["a rather", "long name of", "a method"]
    narrow = plain(rich_grid(["name", "value"], [[name * 3, number]], left=1, box=None), width=30)
    assert number in narrow and max(map(len, narrow.splitlines())) <= 30


def test_the_table_of_classes():
    text = plain(per_class_table(["sky", "sea", "fog"], [1, 1, 2], [0.25, 0.5, None], {"images": [7, 1200, 0]}))
    words = [line.split() for line in text.splitlines() if line.strip()]
    assert words[0] == ["class", "task", "AP", "%", "images"]
    assert words[2:] == [["sea", "1", "50.0", "1,200"], ["sky", "1", "25.0", "7"], ["fog", "2", "–", "0"]]
    many = plain(per_class_table([f"a long name {k}" for k in range(50)], [1] * 50, [k / 50 for k in range(50)]))
    assert "50 classes: the 10 best and the 10 worst by AP" in " ".join(many.split())
    hostile = printed(per_class_table(["[red]x[/red]", HOSTILE], [1, 1], [0.5, 0.4], {"[bold]head": [1, 1]}), 200)
    assert "[red]x[/red]" in hostile and "[bold]head" in hostile  # no markup
    assert "\x1b[2J" not in hostile and PRINTABLE[:20] in hostile


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("λ1", r"$\lambda_1$"), ("10^4", "$10^4$"), ("a\\b", r"a\textbackslash{}b"), ("x-s0", "x-s0"),
        ("50 ± -3", r"50 $\pm$ $-$3"), ("b_c_d^e", r"b\_c\_$d^e$"),
        ("x^{\\input{i}}", r"x\textasciicircum{}\{\textbackslash{}input\{i\}\}"),
        ("x^{\\input j}", r"x\textasciicircum{}\{\textbackslash{}input j\}"),
    ],
)  # fmt: skip
def test_text_is_escaped_for_latex(text, expected):
    assert tex(text) == expected
