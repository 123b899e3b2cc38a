"""The one exception a user's mistake raises, and the hint that goes with it."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: one line that says what was wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class Stopped(Exception):
    """The user or the system asked the run to stop; its checkpoint is on the disk."""


class HiddenLabel(LookupError):
    """A method asked for a label that its task does not show."""


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """An error for an unknown name that offers the nearest right one.

    >>> print(unknown("method", "acgn", ["agcn", "fine-tuning"]))
    unknown method 'acgn': did you mean 'agcn'? (known: agcn, fine-tuning)
    """
    names = sorted(known)
    name = short(name)
    near = difflib.get_close_matches(name, names, n=5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    listed = names if len(names) <= 40 else [*near, f"{len(names) - len(near)} more"]
    return UserError(f"unknown {kind} '{name}': {hint}(known: {', '.join(listed) or 'none'})")


def plain(text: object) -> str:
    r"""Text from files that nobody vouches for, without what a terminal would obey or could not print.

    >>> plain("a\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))


def short(value: object) -> str:
    """A value for a message, however large it is."""
    return value[:100] if isinstance(value, str) else _REPR.repr(value)


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxdict = 2, 4, 4
