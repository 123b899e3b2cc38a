"""Text for messages: printable and short."""

import pytest

from lifelabel.utils.text import printable, shorten


@pytest.mark.parametrize(
    "character",
    ["\x00", "\x1b", "\n", "\r", "\t", "\x7f", "\x9b", "\u2028", "\u202e", "\u200b", "\ufeff", "\ud800", "\xa0"],
    ids=ascii,
)
def test_characters_that_are_not_printable_are_replaced(character):
    """Control characters, line separators, text that runs to the left, characters without width, half surrogates."""
    text = printable(f"a{character}b")
    assert text == "a\ufffdb"
    assert len(text.encode()) == 5


@pytest.mark.parametrize("text", ["", "plain text, 50 %", "naïve café", "犬 🐕", "a\\x1b[2J"])
def test_printable_text_is_not_changed(text):
    assert printable(text) == text


def test_other_objects_are_printed_as_text():
    assert printable(None) == "None"
    assert printable(ValueError("one\ntwo")) == "one\ufffdtwo"


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (None, "None"),
        ([1, 2, 3, 4], "[1, 2, 3, 4]"),
        ([1, 2, 3, 4, 5], "[1, 2, 3, 4, ...]"),
        ({"b": 1, "a": 2}, "{'a': 2, 'b': 1}"),
        (dict.fromkeys(range(5)), "{0: None, 1: None, 2: None, 3: None, ...}"),
        ([[[1]]], "[[[...]]]"),
        (ENDLESS, "[[[...]]]"),
        (10**5000, "a number of more than 100 digits"),  # Python does not print it
        (-(10**5000), "a number of more than 100 digits"),
        ("a" * 100, "a" * 100),
        ("a" * 99 + "bc", "a" * 99 + "b"),
    ],
    ids=shorten,
)
def test_a_value_is_written_as_in_python_and_a_long_or_deep_one_is_cut(value, text):
    assert shorten(value) == text


@pytest.mark.parametrize(
    "value",
    [10**4000, ["a" * 10**6] * 10**4, {"x" * 10**6: {"y" * 10**6: 1}}, b"z" * 10**6],
    ids=["int", "list", "dict", "bytes"],
)
def test_a_huge_value_is_short(value):
    assert len(shorten(value)) < 200
