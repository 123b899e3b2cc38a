"""Untrusted Parquet files, row by row, in bounded memory.

A file of a few kilobytes can hold columns of gigabytes, and its metadata can state other sizes than its pages have.
So the header of every page of the columns to read is checked before a page is unpacked. A batch has so few rows that
its texts are small even if each is as long as its largest page.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lifelabel.errors import UserError
from lifelabel.utils.files import open_regular
from lifelabel.utils.text import shorten

_MAX_PAGES = 256 << 20
"""The largest page of each column, unpacked, all columns together."""
_MAX_VALUES = 20_000_000
"""Entries of the lists of a row group."""
_MAX_CELL = 131_072
"""As for text files: the field limit of the module csv."""
_MAX_ROWS_PER_BYTE = 32
"""Three million file names that are numbered in order, packed as small as possible, are 16 rows per byte."""
_MAX_DEPTH = 8
_I32, _STRUCT = 5, 12
"""Types of Thrift's compact protocol."""
_DICTIONARY_PAGE = 2
_DICTIONARY, _SELF_CONTAINED = {2, 8}, {0, 6}
"""Encodings of pages: with a dictionary (PLAIN_DICTIONARY, RLE_DICTIONARY), and those whose texts are all in the page
(PLAIN, DELTA_LENGTH_BYTE_ARRAY)."""


def column_names(path: Path) -> list[str]:
    """The names of the columns."""
    with _opened(path) as (_, metadata):
        return list(metadata.schema.to_arrow_schema().names)


def read_rows(path: Path, columns: Sequence[int], max_rows: int) -> Iterator[list[Any]]:
    """The values of the given columns, row by row; None in place of all other columns.

    A value is a text, a number, a date, a list of texts or numbers, or None. More than `max_rows` rows are refused.
    """
    with _opened(path) as (handle, metadata):
        from pyarrow import parquet

        schema = metadata.schema.to_arrow_schema()
        names = schema.names
        wanted = [names[position] for position in columns]
        for position, name in zip(columns, wanted, strict=True):
            if not _is_readable(kind := schema.field(position).type):
                raise UserError(
                    f"{path}: the column '{shorten(name)}' has the type {shorten(str(kind))}: write texts, numbers, or "
                    "lists of texts"
                )
        _check_rows(path, metadata, handle, max_rows)
        for group in range(metadata.num_row_groups):
            pages, repeated = _check_pages(path, metadata, group, handle, wanted)
            # a text that the lists of a column repeat is in memory once
            file = parquet.ParquetFile(handle, metadata=metadata, read_dictionary=repeated, pre_buffer=False)
            size = max(1, min(1024, _MAX_PAGES // max(pages, 1)))
            for batch in file.iter_batches(size, row_groups=[group], columns=wanted):
                cells: list[Any] = [[None] * len(batch)] * len(names)
                for position, name in zip(columns, wanted, strict=True):
                    cells[position] = _values(path, name, batch.column(batch.schema.get_all_field_indices(name)[0]))
                yield from map(list, zip(*cells, strict=True))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[IO[bytes], Any]]:
    """The file and its metadata."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs pyarrow: pip install 'lifelabel[parquet]'") from None
    try:
        with open_regular(path) as handle:
            yield handle, parquet.read_metadata(handle)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(f"{path} cannot be read as Parquet: {shorten(' '.join(str(error).split()))}") from None


def _is_readable(kind: Any) -> bool:
    """Whether a column of this Arrow type is text, a number or a date, or a list of texts or numbers."""
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return bool(_is_text(kind) or types.is_primitive(kind) or types.is_null(kind) or types.is_decimal(kind))


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _values(path: Path, name: str, column: Any) -> list[Any]:
    """The values of a column of a batch, as Python objects."""
    from pyarrow import compute, types

    kind = column.type
    listed = types.is_list(kind) or types.is_large_list(kind)
    entries = column.values if listed else column
    texts = entries.dictionary if types.is_dictionary(entries.type) else entries
    if _is_text(texts.type) and (compute.max(compute.binary_length(texts)).as_py() or 0) > _MAX_CELL:
        raise UserError(f"{path}: the column '{shorten(name)}' has a text of more than {_MAX_CELL:,} bytes")
    if types.is_dictionary(entries.type):
        objects = [*texts.to_pylist(), None]
        found = [objects[-1 if index is None else index] for index in entries.indices.to_pylist()]
    else:
        found = entries.to_pylist()
    if not listed:
        return found
    ends = column.offsets.to_pylist()
    valid = column.is_valid().to_pylist()
    return [found[ends[row] : ends[row + 1]] if known else None for row, known in enumerate(valid)]


# Sizes


def _check_rows(path: Path, metadata: Any, handle: IO[bytes], max_rows: int) -> None:
    size = os.fstat(handle.fileno()).st_size
    rows = sum(max(metadata.row_group(i).num_rows, 0) for i in range(metadata.num_row_groups))
    if rows > max_rows:
        raise UserError(f"{path} has more than {max_rows:,} rows: use a smaller table")
    if rows > 100_000 and rows > _MAX_ROWS_PER_BYTE * size:
        raise UserError(f"{path} has {rows:,} rows in {size:,} bytes: they cannot be different images")


def _check_pages(
    path: Path, metadata: Any, group: int, handle: IO[bytes], wanted: Sequence[str]
) -> tuple[int, list[str]]:
    """Refuse a row group that takes too much memory. Returns the bytes of the largest page of each column, unpacked and
    summed, and the columns of lists whose texts are in dictionaries."""
    chosen = set(wanted)
    chunks = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
    prefixes = (itertools.accumulate(chunk.path_in_schema.split("."), "{}.{}".format) for chunk in chunks)
    used = [i for i, found in enumerate(prefixes) if not chosen.isdisjoint(found)]
    if sum(max(chunks[i].total_compressed_size, 0) for i in used) > os.fstat(handle.fileno()).st_size:
        raise UserError(f"{path} cannot be read as Parquet: its columns overlap")
    total, repeated = 0, []
    for i in used:
        pages = _read_headers(handle, chunks[i])
        total += pages.largest + pages.dictionary
        name = chunks[i].path_in_schema
        in_list = metadata.schema.column(i).max_repetition_level > 0
        is_text = chunks[i].physical_type == "BYTE_ARRAY"
        dense = pages.encodings <= _SELF_CONTAINED and pages.unpacked <= _MAX_PAGES
        if in_list and is_text and not dense:
            repeated.append(name)
        mixed = name in repeated and not pages.encodings <= _DICTIONARY
        if total > _MAX_PAGES or max(pages.values, chunks[i].num_values) > _MAX_VALUES or mixed:
            raise UserError(
                f"{path}: the column '{shorten(name)}' takes too much memory: write pages of at most 1 MB, texts of at "
                f"most {_MAX_CELL:,} bytes, lists with dictionaries, and smaller row groups"
            )
    return total, repeated


@dataclass
class _Pages:
    """What the headers of the pages of a column chunk state. Sizes are bytes after unpacking."""

    largest: int = 0
    dictionary: int = 0
    unpacked: int = 0
    values: int = 0
    encodings: set[int] = field(default_factory=set)


def _read_headers(handle: IO[bytes], chunk: Any) -> _Pages:
    """The headers of all pages that pyarrow would read, of the chunk as pyarrow finds it."""
    place = chunk.data_page_offset
    if chunk.dictionary_page_offset:
        place = min(place, chunk.dictionary_page_offset)
    end = place + chunk.total_compressed_size
    pages = _Pages()
    while place < end and pages.values < chunk.num_values:
        handle.seek(place)
        header = _thrift_struct(handle)
        kind, unpacked, packed = (header.get((number, _I32), -1) for number in (1, 2, 3))
        if min(kind, unpacked, packed) < 0:
            raise ValueError("damaged page")
        if kind == _DICTIONARY_PAGE:
            pages.dictionary = max(pages.dictionary, unpacked)
        else:
            version_1, version_2 = (header.get((number, _STRUCT), {}) for number in (5, 8))
            pages.largest = max(pages.largest, unpacked)
            pages.unpacked += unpacked
            pages.values += max(version_1.get((1, _I32), 0), version_2.get((1, _I32), 0))
            pages.encodings |= {version_1.get((2, _I32), -1), version_2.get((4, _I32), -1)} - {-1}
        place = handle.tell() + packed
    return pages


def _thrift_struct(file: IO[bytes], depth: int = 0) -> dict[tuple[int, int], Any]:
    """The whole numbers of 32 bits and the structs in a Thrift struct, by the number and the type of their field.

    As in Thrift, the last of several fields counts.
    """
    if depth > _MAX_DEPTH:
        raise ValueError("damaged page")
    found: dict[tuple[int, int], Any] = {}
    number = 0
    while (head := file.read(1)) and (kind := head[0] & 15):
        number = number + (head[0] >> 4) if head[0] >> 4 else _signed(_varint(file))
        number = (number + 0x8000) % 0x10000 - 0x8000  # Thrift has 16 bits for it
        value = _thrift_value(file, kind, depth)
        if kind in (_I32, _STRUCT):
            found[number, kind] = value
    if not head:
        raise ValueError("truncated")
    return found


def _thrift_value(file: IO[bytes], kind: int, depth: int) -> Any:
    if kind == _STRUCT:
        return _thrift_struct(file, depth + 1)
    if kind in (4, _I32, 6):
        return _signed(_varint(file))
    if kind in (3, 7, 8):
        file.seek({3: 1, 7: 8}.get(kind) or _varint(file), os.SEEK_CUR)
    elif kind not in (1, 2):  # true or false; no page header has a list or a map
        raise ValueError("damaged page")
    return None


def _varint(file: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise ValueError("truncated")
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("damaged page")


def _signed(value: int) -> int:
    """The number of 32 bits that Thrift writes as a varint.

    >>> _signed(3), _signed(4)
    (-2, 2)
    """
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1)
