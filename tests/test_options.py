"""Options: conversion of values, limits, and error messages."""

import math
from dataclasses import asdict, dataclass

import pytest

from lifelabel.errors import UserError
from lifelabel.options import _convert as convert
from lifelabel.options import declared, option, read, with_defaults


@dataclass(frozen=True)
class Options:
    images: int = option(100, "number of images", low=1, high=1000)
    rate: float = option(0.1, "a rate", above=0)
    soft: bool = option(False, "soft labels")
    mode: str = option("soft", "which labels", choices=("soft", "hard"))
    path: str | None = option(None, "a file")
    norm: float | None = option(1.5, "a length", above=0)
    weights: tuple[float, float, float] = option((1.0, 2.0, 3.0), "three weights", low=0)
    sizes: tuple[int, ...] = option((1,), "any number of sizes", low=1)


def make(**values):
    return read(Options, values, "example")


def message_of(**values):
    with pytest.raises(UserError) as caught:
        make(**values)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_defaults():
    expected = {
        "images": 100, "rate": 0.1, "soft": False, "mode": "soft", "path": None, "norm": 1.5,
        "weights": (1.0, 2.0, 3.0), "sizes": (1,),
    }  # fmt: skip
    assert asdict(make()) == expected


def test_other_defaults():
    """A copy of the options with other defaults has the same declarations."""
    other = with_defaults(Options, images=7, mode="hard")
    assert (read(other, {}, "").images, read(other, {}, "").mode, read(other, {}, "").rate) == (7, "hard", 0.1)
    assert make().images == 100
    with pytest.raises(UserError, match=r"^images must be at most 1000, not 1001$"):
        read(other, {"images": 1001}, "")


def test_roles():
    @dataclass
    class Roles:
        seed: int = option(0, "a seed", label=False)
        lr: float = option(0.1, "a rate", resume=True)
        device: str = option("auto", "a device", free=True)
        file: str | None = option(None, "a file", path=True)

    names = {role: declared(Roles, role) for role in ("free", "resume", "label", "path", "equal", "flag")}
    assert names == {
        "free": ("device",), "resume": ("lr", "device"), "label": ("lr", "file"), "path": ("file",), "equal": (),
        "flag": (),
    }  # fmt: skip


CONVERSIONS = {
    "images": [(7, 7), ("7", 7), (7.0, 7), ("1e2", 100), (" 12 ", 12)],
    "rate": [(3, 3.0), ("1e-3", 1e-3), ("0.5", 0.5)],  # YAML reads 1e-3 as text
    "soft": [(True, True), (False, False)],
    "mode": [("hard", "hard")],
    "path": [(None, None), ("a b.txt", "a b.txt")],
    "norm": [(None, None), ("2", 2.0)],
    "weights": [
        ([1, "2", 3.5], (1.0, 2.0, 3.5)),
        ((0, 0, 0), (0.0, 0.0, 0.0)),
        ("0.07,0.93,1e5", (0.07, 0.93, 1e5)),
        ("0.07, 0.93 1000", (0.07, 0.93, 1000.0)),
    ],
    "sizes": [([], ()), ("4 5 6 7", (4, 5, 6, 7))],
}


@pytest.mark.parametrize(
    ("name", "given", "expected"), [(name, *case) for name, cases in CONVERSIONS.items() for case in cases]
)
def test_conversion(name, given, expected):
    value = getattr(make(**{name: given}), name)
    assert value == expected
    assert type(value) is type(expected)
    if isinstance(value, tuple):
        assert [type(v) for v in value] == [type(v) for v in expected]


WRONG_TYPES = {
    "images": ("a whole number", ["many", 1.5, "1.5", "", True, None, [1], {"a": 1}, math.inf, "1e999"]),
    "rate": ("a number", ["fast", False, None, [0.1]]),
    "soft": ("true or false", [1, "true", None]),
    "mode": ("text", [3, None]),
    "path": ("text", [3]),
    "norm": ("a number", ["long"]),
    "weights": ("a list", [3, None, {"a": 1}]),
}


@pytest.mark.parametrize(
    ("name", "what", "given"),
    [
        *((name, what, given) for name, (what, values) in WRONG_TYPES.items() for given in values),
        ("weights", "a number", "1,2,x"),
        ("sizes", "a whole number", [1, 2.5]),
    ],
)
def test_a_wrong_type_is_reported_with_the_expected_one(name, what, given):
    assert message_of(**{name: given}).startswith(f"example.{name} must be {what}, not ")


def test_whole_numbers_keep_every_digit():
    assert convert(int, 2**53 + 1, "n") == 2**53 + 1
    assert convert(int, str(2**53 + 1), "n") == 2**53 + 1


@pytest.mark.parametrize("given", ["1,2", [1, 2, 3, 4], ""])
def test_a_tuple_of_the_wrong_length(given):
    assert message_of(weights=given).startswith("example.weights takes 3 values, not ")


@pytest.mark.parametrize(
    ("name", "given", "limit"),
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
def test_a_value_out_of_range(name, given, limit):
    assert message_of(**{name: given}) == f"example.{name} must be {limit}"


def test_the_limits_of_a_range_are_allowed():
    assert make(images=1).images == 1
    assert make(images=1000).images == 1000
    assert make(weights=(0, 0, 0)).weights == (0, 0, 0)


@pytest.mark.parametrize("given", [math.nan, math.inf, -math.inf, "nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("name", ["rate", "norm", "weights"])
def test_nan_and_infinity_are_refused(name, given):
    value = [1.0, given, 1.0] if name == "weights" else given
    assert message_of(**{name: value}).startswith(f"example.{name} must be a finite number, not ")


def test_an_unknown_name_has_a_hint_and_the_known_names():
    message = message_of(imges=3)
    assert "'imges'" in message
    assert "example" in message
    assert "did you mean 'images'?" in message
    assert "images, mode, norm, path, rate, sizes, soft, weights" in message


@pytest.mark.parametrize("name", [3, None, True, (1, 2)])
def test_a_name_that_is_not_text(name):
    with pytest.raises(UserError, match="unknown option"):
        read(Options, {name: 1}, "example")


def test_a_top_level_name_has_no_prefix():
    with pytest.raises(UserError, match=r"^images must be at least 1, not 0$"):
        read(Options, {"images": 0}, "")
    with pytest.raises(UserError, match="option of a run 'imges'"):
        read(Options, {"imges": 0}, "")
