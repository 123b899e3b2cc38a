"""Markdown: escaping, tables, and the table of classes."""

import math

import numpy as np
import pytest
from report.untrusted import HOSTILE, PRINTABLE, render

from lifelabel.utils.markdown import Bold, escape, grid, per_class_cells, per_class_markdown


@pytest.mark.parametrize("text", ["a_b", "A^{t-1} & B^t", "agcn (stream.train_images=60)", "50 % – é", "x > y"])
def test_text_without_markdown_is_not_changed(text):
    assert escape(text) == text


@pytest.mark.parametrize(
    "text",
    ["# a", "- *a*", "[a](b)", "![a](b)", "`a`", "<b>", "&lt;", "&#60;", "~~a~~", "_a_", "__a__", "a\\", "|", "$a$"],
)
def test_markdown_renders_untrusted_text_as_it_is(text):
    tags, lines = render(f"x {escape(text)}")
    assert tags == {"p"} and lines == [f"x {text}"]


def test_a_markdown_table_has_one_cell_for_each_text():
    cells = [["a|b", HOSTILE], [Bold("7|"), "<td>"]]
    tags, lines = render("\n".join(grid(["name", "| head"], cells, left=1)))
    assert tags == {"table", "thead", "tbody", "tr", "th", "td", "strong"}
    assert [line for line in lines if line] == ["name", "| head", "a|b", PRINTABLE, "7|", "<td>"]


@pytest.mark.parametrize(("left", "rule"), [(0, "|---:|---:|---:|"), (1, "|---|---:|---:|"), (3, "|---|---|---|")])
def test_the_first_columns_are_aligned_to_the_left(left, rule):
    assert grid(["a", "b", "c"], [], left) == ["| a | b | c |", rule]


# The table of classes


def test_classes_from_the_highest_ap_to_the_lowest_and_those_without_a_positive_image_last():
    heads, rows, note = per_class_cells(list("abcde"), [1, 1, 2, 2, 3], [0.25, None, 1, math.nan, 0.5])
    assert heads == ["class", "task", "AP %"]
    assert rows == [["c", "2", "100.0"], ["e", "3", "50.0"], ["a", "1", "25.0"], ["b", "1", "–"], ["d", "2", "–"]]
    assert note == ""


def test_classes_with_the_same_ap_keep_their_order():
    assert [row[0] for row in per_class_cells(list("bca"), [1, 1, 1], [0.5, 0.5, 0.5])[1]] == list("bca")


def test_further_columns_are_counts_fractions_or_texts():
    more = {
        "images": np.array([1200, 0]),
        "precision": np.array([0.5, np.nan], np.float32),
        "threshold": ["0.37", None],
    }
    heads, rows, _ = per_class_cells(["a", "b"], [1, 2], [0.1, None], more)
    assert heads == ["class", "task", "AP %", "images", "precision %", "threshold"]
    assert rows == [["a", "1", "10.0", "1,200", "50.0", "0.37"], ["b", "2", "–", "0", "–", "–"]]


def many(known, unknown=0):
    """Classes c0, c1, … with an AP that falls."""
    count = known + unknown
    return [f"c{k}" for k in range(count)], [1] * count, [*np.linspace(1, 0, known), *[None] * unknown]


def test_up_to_40_classes_have_a_row():
    _, rows, note = per_class_cells(*many(30, 10))
    assert len(rows) == 40 and note == ""


def test_of_more_classes_the_best_and_the_worst_have_a_row():
    _, rows, note = per_class_cells(*many(38, 3))
    expected = [*(f"c{k}" for k in range(10)), "…", *(f"c{k}" for k in range(28, 38))]
    assert [row[0] for row in rows] == expected
    assert note == "41 classes: the 10 best and the 10 worst by AP; 3 without a positive image are not shown"
    assert per_class_cells(*many(41))[2] == "41 classes: the 10 best and the 10 worst by AP"


def test_no_class_is_among_the_best_and_the_worst():
    _, rows, note = per_class_cells(*many(15, 30))
    assert [row[0] for row in rows] == [f"c{k}" for k in range(15)]
    assert note == "45 classes; 30 without a positive image are not shown"


def test_markdown_of_untrusted_names():
    tags, lines = render("\n".join(per_class_markdown([HOSTILE], [1], [0.5], {"<b>": [HOSTILE]})))
    assert tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert [line for line in lines if line] == ["class", "task", "AP %", "<b>", PRINTABLE, "1", "50.0", PRINTABLE]


def test_markdown_ends_with_the_note():
    names, tasks, ap = many(41)
    lines = per_class_markdown(names, tasks, ap)
    assert lines[-2:] == ["", "41 classes: the 10 best and the 10 worst by AP"]
    assert len(lines) == 2 + 21 + 2


def test_no_class():
    assert per_class_cells([], [], []) == (["class", "task", "AP"], [], "")
