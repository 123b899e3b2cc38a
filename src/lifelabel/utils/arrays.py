"""Arrays of untrusted .npz files."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np

from lifelabel.errors import UserError

__all__ = ["read_arrays"]


def read_arrays(path: Path, max_bytes: int = 1 << 30) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. A damaged file, or one of more than `max_bytes` in memory, is a `UserError`.

    The sizes in the file are compared with the limit before memory is allocated.
    """
    if not path.is_file():  # a named pipe could block forever
        raise UserError(f"{path} is not a regular file: give the path of a file")
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(member.file_size for member in archive.infolist())
            if total > max_bytes:
                raise UserError(f"{path} holds more than {max_bytes:,} bytes: this cannot be the right file")
            return {member.filename.removesuffix(".npy"): _read(archive, member) for member in archive.infolist()}
    except (OSError, ValueError, EOFError, SyntaxError, zipfile.BadZipFile, zlib.error, RuntimeError):
        raise UserError(f"{path} is damaged or cut short") from None


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            raise ValueError("not an array of version 1.0")
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError("the header does not fit the content")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
