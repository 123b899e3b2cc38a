"""Text for messages: printable and short."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence

__all__ = ["MAX_TASK_NAME", "printable", "shorten", "task_cell", "task_text"]

MAX_TASK_NAME = 60
"""Characters of the name of a task."""


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
