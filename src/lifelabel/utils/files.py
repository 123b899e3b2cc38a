"""Files written atomically, and files read with a limit on their size."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from lifelabel.errors import Interrupted, UserError

__all__ = ["atomic_write", "check_regular", "partial_name", "read_limited", "write_text", "writing"]

_REMEDIES = {
    errno.ENOSPC: "free space", errno.EDQUOT: "free space",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
}  # fmt: skip


def partial_name(name: str) -> str:
    """The name of the temporary file that `atomic_write` uses. A killed process leaves this file behind."""
    return f".{name}.new"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise a `UserError` about `path` in place of an `OSError`."""
    try:
        yield
    except OSError as error:
        remedy, other = _REMEDIES.get(error.errno or 0, "make it writable"), "choose another folder"
        hint = f"{remedy}, or {other}" if error.errno in _REMEDIES else other
        raise Interrupted(f"cannot write {path}: {error.strerror or error}", remedy, hint) from None


@contextlib.contextmanager
def atomic_write(path: Path, temporary_name: str = "", previous: Path | None = None) -> Iterator[IO[bytes]]:
    """Write a file completely or not at all.

    The bytes go to a temporary file in the same folder, called `partial_name` or `temporary_name`. It is flushed to the
    disk and then renamed to `path`. The file that is there before is renamed to `previous`, if given.
    """
    temporary = path.parent / (temporary_name or partial_name(path.name))
    try:
        with writing(path):
            temporary.unlink(missing_ok=True)  # a link that somebody has put there must not be followed
            with open(temporary, "xb") as handle:
                yield handle
                handle.flush()
                os.fsync(handle.fileno())
            if previous is not None and path.exists():
                os.replace(path, previous)
            os.replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path) as handle:
        handle.write(text.encode())


def check_regular(path: Path) -> int:
    """The size of a regular file. Anything else is a `UserError`: reading a named pipe could block forever."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file: give the path of a file")
    return status.st_size


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of an untrusted file: a regular file of at most `limit` bytes."""
    if check_regular(path) > limit:
        raise UserError(f"{path} has more than {limit:,} bytes: this cannot be the right file")
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
