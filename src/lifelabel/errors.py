"""The one exception a user's mistake raises, and the hint that goes with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: one line that says what was wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class Stopped(Exception):
    """The user or the system asked the run to stop; its checkpoint is on the disk."""


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for an unknown name that offers the nearest right one.

    >>> print(unknown("method", "acgn", ["agcn", "fine-tuning"]))
    unknown method 'acgn': did you mean 'agcn'? (known: agcn, fine-tuning)
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    return UserError(f"unknown {kind} '{name}': {hint}(known: {', '.join(names)})")
