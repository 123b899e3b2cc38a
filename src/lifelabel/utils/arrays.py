"""Arrays of untrusted .npz files. Sizes are checked before memory is allocated."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from lifelabel.errors import UserError
from lifelabel.utils.files import check_regular

_MAX_BYTES = 1 << 30
_BLOCK = 1 << 24


class Header(NamedTuple):
    """The shape and the type of an array, and whether it is stored column by column."""

    shape: tuple[int, ...]
    by_column: bool
    dtype: np.dtype


def read_arrays(path: Path, max_bytes: int = _MAX_BYTES, names: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, or those called `names`.

    A damaged file, or one whose arrays take more than `max_bytes`, is a `UserError`.
    """
    with _opened(path, max_bytes, names) as members:
        found = {}
        for name, (archive, member) in members.items():
            with archive.open(member) as file:
                _read_header(file, member)
            with archive.open(member) as file:
                found[name] = np.lib.format.read_array(file, allow_pickle=False)
        return found


def read_headers(path: Path, max_bytes: int = _MAX_BYTES, names: Collection[str] | None = None) -> dict[str, Header]:
    """The headers of the arrays of an .npz file, or of those called `names`. The arrays are not read."""
    with _opened(path, max_bytes, names) as members:
        found = {}
        for name, (archive, member) in members.items():
            with archive.open(member) as file:
                found[name] = _read_header(file, member)
        return found


def array_names(path: Path) -> list[str]:
    """The names of the arrays of an .npz file, sorted."""
    with _opened(path, None) as members:
        return sorted(members)


def read_rows(path: Path, name: str, max_bytes: int = _MAX_BYTES) -> Iterator[np.ndarray]:
    """Blocks of rows of one array with two axes. Only one block is in memory at a time."""
    with _opened(path, max_bytes, {name}) as members:
        archive, member = members[name]
        with archive.open(member) as file:
            shape, by_column, dtype = _read_header(file, member)
            if by_column or len(shape) != 2 or not math.prod(shape):
                raise ValueError("not stored row by row")
            step = max(1, _BLOCK // (shape[1] * dtype.itemsize))
            for start in range(0, shape[0], step):
                rows = min(step, shape[0] - start)
                data = file.read(rows * shape[1] * dtype.itemsize)
                yield np.frombuffer(data, dtype).reshape(rows, shape[1])


@contextlib.contextmanager
def _opened(
    path: Path, max_bytes: int | None, names: Collection[str] | None = None
) -> Iterator[dict[str, tuple[zipfile.ZipFile, zipfile.ZipInfo]]]:
    """The members of an .npz file by name, or those called `names`. Every error in the file is one `UserError`."""
    check_regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            members = {name: member for name, member in members.items() if names is None or name in names}
            if max_bytes is not None and sum(member.file_size for member in members.values()) > max_bytes:
                raise UserError(f"{path} holds more than {max_bytes:,} bytes: this cannot be the right file")
            yield {name: (archive, member) for name, member in members.items()}
    except (UserError, GeneratorExit):
        raise
    except Exception:  # a damaged file raises errors of zipfile, zlib, struct, tokenize and numpy
        raise UserError(f"{path} is damaged or cut short") from None


def _read_header(file: IO[bytes], member: zipfile.ZipInfo) -> Header:
    """Read the header of an array. Raises ValueError if the array does not fit into its member."""
    if np.lib.format.read_magic(file) != (1, 0):  # another version can have a header of 4 GB
        raise ValueError("not an array of version 1.0")
    header = Header(*np.lib.format.read_array_header_1_0(file))
    if header.dtype.names is not None or min(header.shape, default=0) < 0:
        raise ValueError("not an array of plain values")
    if math.prod(header.shape) * header.dtype.itemsize > member.file_size - file.tell():
        raise ValueError("the header does not fit the content")
    return header
