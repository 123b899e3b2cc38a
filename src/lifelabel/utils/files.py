"""Files written atomically, regular files opened for reading, and folders of output without links."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import IO, Any

from lifelabel.errors import Interrupted, UserError

_REMEDIES = {
    errno.ENOSPC: "free space", errno.EDQUOT: "free space",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
}  # fmt: skip


def partial_name(name: str) -> str:
    """The name of the temporary file that `atomic_write` uses. A killed process leaves this file behind."""
    return f".{name}.new"


def below(folder: Path, name: str | PurePath) -> Path:
    """The path `folder / name` of something that lifelabel reads, writes or deletes in a folder of its output.

    A link in `name` is a `UserError`: it could lead to files outside of the folder. `folder` itself may be a link.
    """
    path = folder
    for part in PurePath(name).parts:
        path = path / part
        if path.is_symlink():
            raise UserError(f"{path} is a link, which is not followed: delete it, or put what it leads to in its place")
    return path


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
    disk and then renamed to `path`. The file that is there before is renamed to `previous`, if given. Links are errors.
    """
    path = below(path.parent, path.name)
    temporary = below(path.parent, temporary_name or partial_name(path.name))
    try:
        with writing(path):
            temporary.unlink(missing_ok=True)  # of a killed process
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


def open_regular(path: Path | str, mode: str = "rb", **options: Any) -> IO[Any]:
    """Open a file that a user has named, for reading: as `open`.

    Anything but a regular file is a `UserError`. A named pipe could block forever, and a device may have no end.
    """
    return open(path, mode, opener=_open_regular, **options)


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # without waiting for the writer of a pipe
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise UserError(f"{path} is not a regular file: give the path of a file")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """A regular file and its size. Errors are a `UserError`."""
    try:
        with open_regular(path) as file:
            yield file, os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:  # ValueError: a null character
        raise UserError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def check_regular(path: Path) -> int:
    """The size of a regular file, for a library that opens it by its path. Anything else is a `UserError`."""
    with _opened(path) as (_, size):
        return size


def read_limited(path: Path, limit: int) -> bytes:
    """The bytes of an untrusted file: a regular file of at most `limit` bytes."""
    with _opened(path) as (file, size):
        if size > limit:
            raise UserError(f"{path} has more than {limit:,} bytes: this cannot be the right file")
        return file.read(size)


def sha256(path: Path) -> str:
    """The SHA-256 of a regular file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
