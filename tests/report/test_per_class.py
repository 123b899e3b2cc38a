"""The table of classes in the terminal."""

import io

from report.untrusted import HOSTILE, PRINTABLE
from rich.console import Console

from lifelabel.report.text_tables import per_class_table


def printed(table, width=200):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(table)
    return console.file.getvalue()


def test_one_line_per_class():
    lines = printed(per_class_table(["sky", "sea", "fog"], [1, 1, 2], [0.25, 0.5, None], {"images": [7, 1200, 0]}))
    words = [line.split() for line in lines.splitlines() if line.strip()]
    assert words[0] == ["class", "task", "AP", "%", "images"]
    assert words[2:] == [["sea", "1", "50.0", "1,200"], ["sky", "1", "25.0", "7"], ["fog", "2", "–", "0"]]


def test_the_note_is_under_the_table():
    lines = printed(per_class_table([f"a long name {k}" for k in range(50)], [1] * 50, [k / 50 for k in range(50)]))
    assert "50 classes: the 10 best and the 10 worst by AP" in " ".join(lines.split())


def test_untrusted_names_are_neither_control_characters_nor_markup():
    text = printed(per_class_table(["[red]x[/red]", HOSTILE], [1, 1], [0.5, 0.4]))
    assert "[red]x[/red]" in text and "\x1b[2J" not in text
    assert PRINTABLE[:20] in text
