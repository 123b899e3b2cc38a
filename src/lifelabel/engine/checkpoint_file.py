"""The file of a checkpoint: what `torch.save` writes, and a SHA-256 of it at the end of the same file.

`torch.load` ignores bytes after the end of its archive, so it reads these files too.
"""

from __future__ import annotations

import functools
import hashlib
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from lifelabel.errors import UserError
from lifelabel.runs.folder import DamagedCheckpoint, RunFolder
from lifelabel.utils.files import open_regular

_FORMAT = 5
_MARK = b"\nlifelabel sha256 "
_DIGITS = 2 * hashlib.sha256().digest_size
_BLOCK = 1 << 20


def save_checkpoint(folder: RunFolder, state: Mapping[str, Any]) -> None:
    """Write the checkpoint of a run. The one before it is kept."""
    folder.write_checkpoint(functools.partial(write_checkpoint, state=state))


def load_checkpoint(folder: RunFolder, note: Callable[[str], None] | None = None) -> dict[str, Any] | None:
    """The last checkpoint of a run, or, if it is damaged, the one before it; None if there is none yet."""
    return folder.read_checkpoint(read_checkpoint, note)


def write_checkpoint(handle: IO[bytes], state: Mapping[str, Any]) -> None:
    """Write a state, and the SHA-256 of the bytes before it."""
    file: Any = _HashingFile(handle)
    torch.save({"format": _FORMAT, **state}, file)
    if file.error is not None:
        raise file.error
    handle.write(_MARK + file.sha256.hexdigest().encode())


class _HashingFile:
    """A file for `torch.save` that computes the SHA-256 of what is written.

    After an error the other bytes are discarded, and the error is kept: torch would report another one.
    """

    def __init__(self, handle: IO[bytes]):
        self.handle, self.sha256 = handle, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                self.handle.write(data)
                self.sha256.update(data)
            except OSError as error:
                self.error = error
        return len(data)

    def flush(self) -> None:
        """The caller flushes the file."""


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The state in a checkpoint, loaded as data (`weights_only`). Its SHA-256 is checked first."""
    try:
        handle = open_regular(path)
    except UserError:
        raise DamagedCheckpoint(f"{path} is not a regular file") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    try:
        with handle:
            _check_digest(handle, path)
            _check_sizes(handle, path)
            handle.seek(0)
            state = torch.load(handle, map_location="cpu", weights_only=True)
    except DamagedCheckpoint:
        raise
    except Exception:  # a damaged file raises errors of torch, zipfile and pickle, a damaged disk an OSError
        raise DamagedCheckpoint(f"{path} is damaged or cut short") from None
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise UserError(f"{path} is not a checkpoint of this version of lifelabel (format {_FORMAT})")
    return state


def _check_sizes(handle: IO[bytes], path: Path) -> None:
    """Refuse an archive that unpacks to more than the file: torch writes its members as they are."""
    with zipfile.ZipFile(handle) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > handle.seek(0, os.SEEK_END):
        raise DamagedCheckpoint(f"{path} is damaged: it holds more than its size")


def _check_digest(handle: IO[bytes], path: Path) -> None:
    """Refuse a file that has no SHA-256 at its end, or another one."""
    left = handle.seek(0, os.SEEK_END) - len(_MARK) - _DIGITS
    handle.seek(max(0, left))
    mark = handle.read(len(_MARK))
    written = handle.read(_DIGITS)
    if mark != _MARK:
        raise DamagedCheckpoint(f"{path} is damaged or cut short: it has no SHA-256")
    handle.seek(0)
    found = hashlib.sha256()
    while left and (block := handle.read(min(_BLOCK, left))):
        found.update(block)
        left -= len(block)
    if found.hexdigest().encode() != written:
        raise DamagedCheckpoint(f"{path} is damaged or cut short: its SHA-256 is another one")
