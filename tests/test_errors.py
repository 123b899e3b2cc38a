"""Exceptions, and the hint for an unknown name."""

import pytest

from lifelabel.errors import Diverged, HiddenLabel, Stopped, UserError, unknown


def test_which_exceptions_are_mistakes_of_the_user():
    """A command reports these in one line. A stop and a hidden label are something else."""
    assert issubclass(Diverged, UserError)
    assert not issubclass(Stopped, UserError) and not issubclass(HiddenLabel, UserError)
    assert issubclass(HiddenLabel, LookupError)  # `batch.label` behaves like a dictionary without the label


def test_the_message_is_one_line_of_printable_characters():
    name = "a\x1b[2Jb\r\n\ud800c"
    assert str(UserError(f"no class {name}")) == "no class a\ufffd[2Jb \ufffdc"
    assert str(Diverged(name)) == "a\ufffd[2Jb \ufffdc"


def test_a_few_names_are_all_listed():
    error = unknown("colour", "gren", ["red", "green", "blue"])
    assert type(error) is UserError
    assert str(error) == "unknown colour 'gren': did you mean 'green'? (known: blue, green, red)"
    assert str(unknown("colour", "xyz", ["red"])) == "unknown colour 'xyz': (known: red)"
    assert str(unknown("colour", "red", [])) == "unknown colour 'red': (known: none)"


@pytest.mark.parametrize(
    ("name", "end"),
    [("class 7", "did you mean 'class 7x'? (known: class 7x, "), ("zzz", "unknown class 'zzz': (known: 1000 more)")],
)
def test_of_many_names_only_the_closest_are_listed(name, end):
    message = str(unknown("class", name, [f"class {n}x" for n in range(1000)]))
    assert end in message and len(message) < 200
    assert message.endswith(" more)")


@pytest.mark.parametrize(("count", "listed"), [(60, True), (61, False)])
def test_up_to_sixty_names_are_listed(count, listed):
    names = [f"n{n:02}" for n in range(count)]
    message = str(unknown("name", "?", names))
    assert (", ".join(names) in message) == listed
    assert message.endswith(f"(known: {', '.join(names)})" if listed else "(known: 61 more)")


@pytest.mark.parametrize("name", [None, 3, ["red"], "r" * 5000])
def test_a_name_that_is_not_short_text(name):
    message = str(unknown("colour", name, ["red"]))
    assert message.startswith("unknown colour '") and "(known: red)" in message and len(message) < 200
