"""The exceptions of lifelabel, and the hint for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from lifelabel.utils.text import printable, shorten


class UserError(Exception):
    """A mistake that the user can correct. The message is one line: what is wrong, where, and what to do.

    The command line prints it without a traceback and exits with code 2. Names and values of untrusted files can be
    in it: `str` joins lines and replaces control characters.
    """

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


class Diverged(UserError):
    """Training diverged: a loss, a weight or a score is not finite."""


class Interrupted(UserError):
    """The machine ended the work: the disk is full, for example, or a process was killed.

    `remedy` is what to do before a run is resumed. `hint` is what to do if there is no run to resume.

    >>> error = Interrupted("cannot write a.txt: Permission denied", "make it writable", "choose another folder")
    >>> print(error)
    cannot write a.txt: Permission denied; choose another folder
    >>> print(error.resumable("lifelabel train --resume a"))
    cannot write a.txt: Permission denied; make it writable and resume with: lifelabel train --resume a
    """

    def __init__(self, what: str, remedy: str, hint: str = ""):
        super().__init__(f"{what}; {hint or remedy}")
        self.what, self.remedy = what, remedy

    def resumable(self, command: str) -> UserError:
        """The same error with the command that resumes the run."""
        return UserError(f"{self.what}; {self.remedy} and resume with: {command}")


class NotFinite(FloatingPointError):
    """A loss, a score or a weight is not finite. `step` is the step that computed it; None: the last one."""

    def __init__(self, what: str, step: int | None = None):
        super().__init__(what)
        self.step = step


class Stopped(Exception):
    """The user or the system stopped a run or a search. The message has the command that continues it."""


class OtherProcess(Exception):
    """Another process of the run failed or ended. That process reports the cause."""


class HiddenLabel(LookupError):
    """The labels of a class were requested that is hidden in the current task."""


def reason(error: BaseException) -> str:
    """The type of an exception and the first line of its message.

    >>> reason(ZeroDivisionError("division by zero")), reason(KeyboardInterrupt())
    ('ZeroDivisionError: division by zero', 'KeyboardInterrupt')
    """
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


def unknown(kind: str, name: object, known: Iterable[str]) -> UserError:
    """A `UserError` for an unknown name, with the closest known name as a hint.

    >>> print(unknown("method", "acgn", ["agcn", "fine-tuning"]))
    unknown method 'acgn': did you mean 'agcn'? (known: agcn, fine-tuning)
    """
    names = sorted(known)
    name = shorten(name)
    near = difflib.get_close_matches(name, names, n=5)
    hint = f"did you mean '{near[0]}'? " if near else ""
    listed = names if len(names) <= 60 else [*near, f"{len(names) - len(near)} more"]
    return UserError(f"unknown {kind} '{name}': {hint}(known: {', '.join(listed) or 'none'})")
