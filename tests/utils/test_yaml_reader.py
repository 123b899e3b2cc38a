"""The reader of untrusted YAML: what it reads, and what it refuses."""

import time

import pytest
import yaml

from lifelabel.errors import UserError
from lifelabel.utils.yaml_reader import parse_yaml

MERGE_BOMB = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 11)
)
LIST_BOMB = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 11))


def message_of(text, **limits):
    with pytest.raises(UserError) as caught:
        parse_yaml(text, "f.yaml", "correct it", **limits)
    message = str(caught.value)
    assert message.startswith("f.yaml") and message.endswith(": correct it") and len(message) < 300
    return message.removeprefix("f.yaml").removesuffix(": correct it")


@pytest.mark.parametrize(
    "value",
    [1, -7, 2.5, 1e300, 1e-300, float("inf"), True, None, "", "1:30", "1:30.5", "<<", "=", "-.5", "1e-3", "0x1f", "~",
     "yes", "2020-01-01", "&a", "*a", "!x", "a\nb", "é犬", [1, [2, {"a": None}]], {"a": {"b": "c"}, 3: 4}],
    ids=repr,
)  # fmt: skip
def test_what_yaml_writes_is_read_as_it_was(value):
    assert parse_yaml(yaml.safe_dump(value), "f.yaml", "") == value


def test_numbers_to_the_base_60_and_merge_keys_are_texts():
    assert parse_yaml("seed: 1:1:1\nlr: 1:1.5", "f.yaml", "") == {"seed": "1:1:1", "lr": "1:1.5"}
    assert parse_yaml("<<: {a: 1}\nb: 2", "f.yaml", "") == {"<<": {"a": 1}, "b": 2}
    assert parse_yaml("seed: " + "1:" * 100_000 + "1", "f.yaml", "")["seed"].startswith("1:1:1")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MERGE_BOMB, ", line 1, has an anchor, an alias or a tag"),
        (LIST_BOMB, ", line 1, has an anchor, an alias or a tag"),
        ("a: 1\nb: *a", ", line 2, has an anchor, an alias or a tag"),
        ("a: !!int 1:1", ", line 1, has an anchor, an alias or a tag"),
        ("a: !!python/object/apply:os.getcwd []", ", line 1, has an anchor, an alias or a tag"),
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", ", line 5, names 'c' twice"),
        ("1: 1\n1.0: 2\n", ", line 2, names '1.0' twice"),
        ("a: " + "9" * 101, ", line 1, has a number of more than 100 digits"),
        ("a: 0x" + "f" * 100_000, ", line 1, has a number of more than 100 digits"),
        ("[" * 100_000, ", line 1, is nested deeper than 20 levels"),
        ("- " * 100_000, ", line 1, is nested deeper than 20 levels"),
        ("a: [1\n", ", line 2, is not valid YAML"),
        ("? [1]\n: 2", ", line 1, is not valid YAML"),
        ("a: 1\n---\nb: 1", ", line 2, is not valid YAML"),
        ("a: \x00", " is not valid YAML"),
        ("a: 2020-99-99", " is not valid YAML"),
        (b"\xff\xfe\xfa", " is not valid YAML"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_refused(text, problem):
    begin = time.process_time()
    assert message_of(text) == problem
    assert time.process_time() - begin < 2


def test_the_number_of_values_is_limited():
    text = "\n".join(f"- {i}" for i in range(9))
    assert parse_yaml(text, "f.yaml", "", max_values=10) == list(range(9))
    assert message_of(text + "\n- 9", max_values=10) == ", line 10, has more than 10 values"


def test_a_byte_order_mark():
    assert parse_yaml(b"\xef\xbb\xbfa: 1", "f.yaml", "") == {"a": 1}
