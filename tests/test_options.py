"""Options: what converts to what, and what an error says."""

import math
from dataclasses import dataclass

import pytest

from lifelabel.errors import UserError, unknown
from lifelabel.options import convert, option, read


@dataclass(frozen=True)
class Knobs:
    images: int = option(100, "how many images", low=1, high=1000)
    rate: float = option(0.1, "a rate", above=0)
    soft: bool = option(False, "soft labels")
    mode: str = option("soft", "which labels", choices=("soft", "hard"))
    path: str | None = option(None, "a file")
    norm: float | None = option(1.5, "a length", above=0)
    weights: tuple[float, float, float] = option((1.0, 2.0, 3.0), "three weights", low=0)
    sizes: tuple[int, ...] = option((1,), "any number of sizes", low=1)


def knobs(**values):
    return read(Knobs, values, "knobs")


def error(**values):
    with pytest.raises(UserError) as caught:
        knobs(**values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_nothing_given_is_the_defaults():
    assert knobs() == Knobs()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("images", 7, 7),
        ("images", "7", 7),
        ("images", 7.0, 7),
        ("images", "1e2", 100),
        ("images", " 12 ", 12),
        ("rate", 3, 3.0),
        ("rate", "1e-3", 1e-3),  # what YAML makes of 1e-3
        ("rate", "0.5", 0.5),
        ("soft", True, True),
        ("soft", False, False),
        ("mode", "hard", "hard"),
        ("path", None, None),
        ("path", "a b.txt", "a b.txt"),
        ("norm", None, None),
        ("norm", "2", 2.0),
        ("weights", [1, "2", 3.5], (1.0, 2.0, 3.5)),
        ("weights", (0, 0, 0), (0.0, 0.0, 0.0)),
        ("weights", "0.07,0.93,1e5", (0.07, 0.93, 1e5)),
        ("weights", "0.07, 0.93 1000", (0.07, 0.93, 1000.0)),
        ("sizes", [], ()),
        ("sizes", "4 5 6 7", (4, 5, 6, 7)),
    ],
)
def test_conversion(name, given, expected):
    value = getattr(knobs(**{name: given}), name)
    assert value == expected
    assert type(value) is type(expected)
    if isinstance(value, tuple):
        assert [type(v) for v in value] == [type(v) for v in expected]


@pytest.mark.parametrize(
    ("name", "given", "what"),
    [
        ("images", "many", "a whole number"),
        ("images", 1.5, "a whole number"),
        ("images", "1.5", "a whole number"),
        ("images", "", "a whole number"),
        ("images", True, "a whole number"),
        ("images", None, "a whole number"),
        ("images", [1], "a whole number"),
        ("images", {"a": 1}, "a whole number"),
        ("images", math.inf, "a whole number"),
        ("images", "1e999", "a whole number"),
        ("rate", "fast", "a number"),
        ("rate", False, "a number"),
        ("rate", None, "a number"),
        ("rate", [0.1], "a number"),
        ("soft", 1, "true or false"),
        ("soft", "true", "true or false"),
        ("soft", None, "true or false"),
        ("mode", 3, "text"),
        ("mode", None, "text"),
        ("path", 3, "text"),
        ("norm", "long", "a number"),
        ("weights", 3, "a list"),
        ("weights", None, "a list"),
        ("weights", {"a": 1}, "a list"),
        ("weights", "1,2,x", "a number"),
        ("sizes", [1, 2.5], "a whole number"),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(name, given, what):
    assert error(**{name: given}).startswith(f"knobs.{name} must be {what}, not ")


def test_whole_numbers_keep_every_digit():
    assert convert(int, 2**53 + 1, "n") == 2**53 + 1
    assert convert(int, str(2**53 + 1), "n") == 2**53 + 1


@pytest.mark.parametrize("given", ["1,2", [1, 2, 3, 4], ""])
def test_a_tuple_of_the_wrong_length(given):
    assert error(weights=given).startswith("knobs.weights takes 3 values, not ")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("images", 0, "at least 1, not 0"),
        ("images", -5, "at least 1, not -5"),
        ("images", 1001, "at most 1000, not 1001"),
        ("rate", 0, "more than 0, not 0.0"),
        ("rate", -1, "more than 0, not -1.0"),
        ("norm", 0, "more than 0, not 0.0"),
        ("weights", [1, -0.5, 1], "at least 0, not -0.5"),
        ("sizes", [3, 0], "at least 1, not 0"),
    ],
)
def test_a_value_out_of_range(name, given, said):
    assert error(**{name: given}) == f"knobs.{name} must be {said}"


def test_the_ends_of_a_range_are_in_it():
    assert knobs(images=1).images == 1
    assert knobs(images=1000).images == 1000
    assert knobs(weights=(0, 0, 0)).weights == (0, 0, 0)


@pytest.mark.parametrize("given", [math.nan, math.inf, -math.inf, "nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("name", ["rate", "norm", "weights"])
def test_nan_and_infinity_are_refused(name, given):
    value = [1.0, given, 1.0] if name == "weights" else given
    assert error(**{name: value}).startswith(f"knobs.{name} must be a finite number, not ")


def test_a_choice_offers_the_nearest():
    assert error(mode="sofd") == "unknown value for knobs.mode 'sofd': did you mean 'soft'? (known: hard, soft)"


def test_a_choice_far_from_all_offers_none():
    said = error(mode="zzz")
    assert "did you mean" not in said
    assert "'zzz'" in said
    assert "hard, soft" in said


def test_an_unknown_name_offers_the_nearest_and_lists_all():
    said = error(imges=3)
    assert "'imges'" in said
    assert "knobs" in said
    assert "did you mean 'images'?" in said
    assert "images, mode, norm, path, rate, sizes, soft, weights" in said


@pytest.mark.parametrize("name", [3, None, True, (1, 2)])
def test_a_name_that_is_not_text(name):
    with pytest.raises(UserError, match="unknown option"):
        read(Knobs, {name: 1}, "knobs")


def test_a_top_level_name_has_no_prefix():
    with pytest.raises(UserError, match=r"^images must be at least 1, not 0$"):
        read(Knobs, {"images": 0}, "")
    with pytest.raises(UserError, match="option of a run 'imges'"):
        read(Knobs, {"imges": 0}, "")


def test_unknown_takes_any_iterable_and_sorts():
    assert str(unknown("method", "b", iter(["c", "a"]))).endswith("(known: a, c)")
