"""Text for messages: printable and short."""

from __future__ import annotations

import ast
import json
import re
import reprlib
from collections.abc import Sequence

_TEXT = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_LIST = re.compile(rf"""\[\s*(?:(?:{_TEXT})\s*(?:,\s*|(?=['"\]])))*\]""", re.DOTALL)


MAX_TASK_NAME = 60
"""Characters of the name of a task."""
BELOW_ZERO = "below 0: better than before"
"""What a negative value of forgetting means."""


def counted(number: int, noun: str) -> str:
    """A number with its noun. The noun is given in the plural, with what follows it.

    >>> counted(2_000, "training images"), counted(1, "new classes"), counted(1, "rows that have no image")
    ('2,000 training images', '1 new class', '1 row that has no image')
    """
    words = noun.split(" ")
    head = next((k for k, word in enumerate(words[:2]) if re.fullmatch(r"\w+[^s]s", word)), None)
    if number == 1 and head is not None:
        words[head] = re.sub(r"(?<=ss|sh|ch)es$|(?<=x)es$|s$", "", re.sub("ies$", "ys", words[head]))
        verb = head + 1 + (words[head + 1 : head + 2] == ["that"])
        words[verb:] = [_SINGULAR.get(word, word) for word in words[verb : verb + 1]] + words[verb + 1 :]
    return f"{number:,} {' '.join(words)}"


_SINGULAR = {"are": "is", "have": "has", "do": "does"} | {
    verb: f"{verb}s" for verb in ("differ", "give", "occur", "repeat")
}


def list_of_texts(text: str) -> list[str] | None:
    """The texts of a list as JSON, Python or NumPy write it; None for any other text.

    >>> list_of_texts("['person', 'cup']"), list_of_texts('["caf\\u00e9"]'), list_of_texts("['a' 'b']")
    (['person', 'cup'], ['café'], ['a', 'b'])
    """
    text = text.strip()
    if not _LIST.fullmatch(text):
        return None
    try:
        return list(json.loads(text))
    except ValueError:
        pass
    try:
        return [str(ast.literal_eval(each)) for each in re.findall(_TEXT, text, re.DOTALL)]
    except (ValueError, SyntaxError):  # an escape sequence that does not exist
        return None


def printable(text: object) -> str:
    r"""Text from an untrusted file, with every control character replaced.

    >>> printable("a\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def shorten(value: object) -> str:
    """A value for a message, cut to about 100 characters."""
    if isinstance(value, int) and abs(value) >= 10**100:  # Python refuses to print thousands of digits
        return "a number of more than 100 digits"
    return value[:100] if isinstance(value, str) else _REPR.repr(value)


def task_text(number: int, names: Sequence[str] = (), of: int | None = None) -> str:
    """How messages call a task: its name if it has one, and of how many tasks it is one.

    >>> task_text(2), task_text(2, of=3), task_text(2, ["april", "may"]), task_text(2, ["april", "may"], of=3)
    ('task 2', 'task 2/3', 'may', 'may (2/3)')
    """
    cell = task_cell(number, names)
    if cell == str(number):
        return f"task {number}" + (f"/{of}" if of else "")
    return cell + (f" ({number}/{of})" if of else "")


def task_cell(number: int, names: Sequence[str] = ()) -> str:
    """The name of a task, else its number: for a column or an axis with the title "task"."""
    name = names[number - 1] if 0 < number <= len(names) else ""
    return printable(name)[:MAX_TASK_NAME] or str(number)


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict = 2, 4, 4
