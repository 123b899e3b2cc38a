"""Text for messages: printable and short."""

from __future__ import annotations

import reprlib

__all__ = ["BELOW_ZERO", "counted", "printable", "shorten"]


BELOW_ZERO = "below 0: better than before"
"""What a negative value of forgetting means."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, for messages.

    >>> counted(1, "image"), counted(2_000, "class"), counted(1, "image has", "images have")
    ('1 image', '2,000 classes', '1 image has')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + ('es' if noun.endswith('s') else 's')}"


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


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict = 2, 4, 4
