"""The index of tar shards: in which shard each image is, and at which byte.

Only headers are read, once per shard. The index is stored in the cache folder, so the next run reads the headers of new
and changed shards only. It has 32 bytes per image: it holds a hash of each name, and no name.

Shards are untrusted. Only regular files with a safe name and the suffix of an image are listed. A damaged shard is a
`UserError`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.decode import IMAGE_SUFFIXES
from lifelabel.images.photographs import FOLDERS, safe_path, spellings
from lifelabel.images.source import Problems
from lifelabel.utils import cache
from lifelabel.utils.files import open_regular
from lifelabel.utils.text import printable, shorten

__all__ = ["Shard", "TarIndex", "read_index", "stat_shards"]

_T = TypeVar("_T")
_VERSION = 1
_KEY = np.dtype("S16")
"""The hash of a name: an order exists for this type, and searchsorted supports it."""
_BLOCK = 512
_MAX_HEADER = 16 << 10
"""Bytes of the headers of one member: long names and extended attributes. tarfile reads all of them at once."""
_THREADS = 8
"""Shards that are read at a time: on a network disk most of the time is waiting."""
_CHUNK = 1 << 16
"""Names that are searched at a time."""
_SPELLINGS = 3
_PREFIXES = tuple(f"{folder}/" for folder in FOLDERS)
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_UNSAFE, _SPECIAL = "tar members whose name is not allowed", "tar members that are links, devices or sparse files"
_REPEATED = "tar members that repeat the name of another one; the last one is used"


@dataclass(frozen=True)
class Shard:
    """One tar file as it was when its headers were read."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class _Content:
    """The images of one shard, in the order of the file."""

    key: np.ndarray
    offset: np.ndarray
    size: np.ndarray
    prefixes: tuple[str, ...]
    """The usual folders that its images are in."""
    problems: tuple[tuple[str, str, int], ...]
    """Kind, example and number."""


@dataclass(frozen=True)
class TarIndex:
    """The images of some shards, sorted by the hash of their name, then by shard and position.

    A name can occur several times. The last member counts, as if the shards were unpacked one after the other.
    """

    shards: tuple[Shard, ...]
    prefixes: tuple[str, ...]
    problems: tuple[tuple[tuple[str, str, int], ...], ...]
    """The problems of each shard."""
    key: np.ndarray
    shard: np.ndarray
    offset: np.ndarray
    size: np.ndarray

    def __len__(self) -> int:
        return len(self.key)

    def find(self, names: Sequence[str]) -> np.ndarray:
        """The position of each image in the index; -1 if no shard has it.

        A name is searched as in a folder: as it is, in the usual folders, and in the spellings of COCO.
        """
        found = np.full(len(names), -1, np.int64)
        for start in range(0, len(names), _CHUNK):
            part = found[start : start + _CHUNK]
            spelled = [["".join(each) for each in spellings(name)] for name in names[start : start + _CHUNK]]
            for which in range(_SPELLINGS):
                for prefix in ("", *self.prefixes):
                    left = [row for row in np.flatnonzero(part < 0).tolist() if len(spelled[row]) > which]
                    part[left] = self._search([prefix + spelled[row][which] for row in left])
        return found

    def _search(self, names: Sequence[str]) -> np.ndarray:
        if not names or not len(self):
            return np.full(len(names), -1)
        wanted = np.frombuffer(b"".join(map(_key, names)), _KEY)
        last = np.maximum(np.searchsorted(self.key, wanted, side="right") - 1, 0)
        return np.where(self.key[last] == wanted, last, -1)

    def add_problems(self, to: Problems) -> None:
        """Report what was found in the shards."""
        for shard, problems in zip(self.shards, self.problems, strict=True):
            for kind, example, count in problems:
                to.add(kind, f"{Path(shard.path).name}: {example}", count)
        if repeated := int(np.count_nonzero(self.key[1:] == self.key[:-1])):
            to.add(_REPEATED, count=repeated)


def stat_shards(paths: Sequence[Path]) -> tuple[Shard, ...]:
    """The shards with their sizes and times. A shard that is missing or not a regular file is a `UserError`."""
    shards = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError as error:
            raise UserError(f"cannot read the shard {path}: {error.strerror}; give another --root") from None
        if not stat.S_ISREG(status.st_mode):  # a named pipe could block forever
            raise UserError(f"the shard {path} is not a regular file: give the path of a tar file")
        shards.append(Shard(str(path), status.st_size, status.st_mtime_ns))
    return tuple(shards)


def read_index(root: Path, shards: Sequence[Shard]) -> TarIndex:
    """The index of the shards of a root: from the cache folder, and from the headers of new and changed shards."""
    digest = hashlib.sha256(os.path.abspath(root).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    name = f"shards-{digest}"
    old = _load(name)
    number = {shard: place for place, shard in enumerate(old.shards)} if old else {}
    if old and old.shards == tuple(shards):
        return old
    new = [shard for shard in shards if shard not in number]
    contents = dict(zip(new, _read_all(new), strict=True))
    index = _merge(shards, old, number, contents)
    _save(name, index)
    return index


def _merge(
    shards: Sequence[Shard], old: TarIndex | None, number: dict[Shard, int], contents: dict[Shard, _Content]
) -> TarIndex:
    """The index of `shards`: what the old index has of them, and the contents of the others."""
    place = {shard: i for i, shard in enumerate(shards)}
    columns = [(np.zeros(0, _KEY), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, np.uint32))]
    if old and old.shards:
        new_place = np.array([place.get(shard, -1) for shard in old.shards], np.int32)[old.shard]
        kept = new_place >= 0
        columns.append((old.key[kept], new_place[kept], old.offset[kept], old.size[kept]))
    for shard, content in contents.items():
        columns.append((content.key, np.full(len(content.key), place[shard], np.int32), content.offset, content.size))
    key, shard_of, offset, size = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((offset, shard_of, key))
    problems = tuple(
        contents[shard].problems if shard in contents else old.problems[number[shard]]  # type: ignore[union-attr]
        for shard in shards
    )
    found = {prefix for content in contents.values() for prefix in content.prefixes}.union(old.prefixes if old else ())
    prefixes = tuple(prefix for prefix in _PREFIXES if prefix in found)
    return TarIndex(tuple(shards), prefixes, problems, key[order], shard_of[order], offset[order], size[order])


# The cache


def _load(name: str) -> TarIndex | None:
    arrays = cache.load(name)
    if arrays is None:
        return None
    try:
        about = json.loads(str(arrays["about"]))
        if about["version"] != _VERSION:
            return None
        shards = tuple(Shard(*each) for each in about["shards"])
        problems = tuple(tuple((kind, example, count) for kind, example, count in each) for each in about["problems"])
        columns = [arrays[column] for column in ("key", "shard", "offset", "size")]
        return TarIndex(shards, tuple(about["prefixes"]), problems, *columns)
    except (KeyError, TypeError, ValueError):
        return None


def _save(name: str, index: TarIndex) -> None:
    shards = [(shard.path, shard.size, shard.mtime_ns) for shard in index.shards]
    about = {"version": _VERSION, "shards": shards, "prefixes": index.prefixes, "problems": index.problems}
    columns = {"key": index.key, "shard": index.shard, "offset": index.offset, "size": index.size}
    cache.save(name, about=np.array(json.dumps(about)), **columns)


# Reading headers


def _read_all(shards: Sequence[Shard]) -> list[_Content]:
    pool = ThreadPoolExecutor(_THREADS)
    try:
        return list(_with_progress(pool.map(_read_shard, shards), len(shards)))
    finally:
        pool.shutdown(cancel_futures=True)  # after an error the other shards are not read


def _with_progress(read: Iterable[_T], total: int) -> Iterator[_T]:
    """The headers of shards. In a terminal, a line with their number is shown after two seconds, until the end."""
    shown, next_time, line = sys.stderr.isatty(), time.monotonic() + 2.0, ""
    try:
        for done, each in enumerate(read, start=1):
            yield each
            if shown and (now := time.monotonic()) >= next_time:
                next_time, line = now + 0.2, f"reading tar headers, shards: {done:,} of {total:,}"
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
    finally:
        if line:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)


def _read_shard(shard: Shard) -> _Content:
    keys, offsets, sizes, problems = [], [], [], Problems()
    prefixes: set[str] = set()
    for member in _members(shard):
        name = member.name
        if not name.lower().endswith(IMAGE_SUFFIXES):
            continue
        if not member.isreg() or member.sparse is not None:
            problems.add(_SPECIAL, name)
            continue
        try:
            path = safe_path(name)
        except ValueError as error:
            problems.add(_UNSAFE, f"{shorten(name)!r}: {error}")
            continue
        if member.offset_data + member.size > shard.size:
            raise _damaged(shard, f"{printable(shorten(name))} is cut short")
        if path.startswith(_PREFIXES):
            prefixes.update(prefix for prefix in _PREFIXES if path.startswith(prefix))
        keys.append(_key(path))
        offsets.append(member.offset_data)
        sizes.append(min(member.size, 2**32 - 1))
    found = tuple((kind, ", ".join(problems.examples[kind]), count) for kind, count in problems.counts.items())
    key = np.frombuffer(b"".join(keys), _KEY)
    return _Content(key, np.array(offsets, np.int64), np.array(sizes, np.uint32), tuple(prefixes), found)


def _key(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_KEY.itemsize).digest()


def _members(shard: Shard) -> Iterator[tarfile.TarInfo]:
    """The members of a shard. A shard that is damaged or compressed is a `UserError`."""
    try:
        with open_regular(shard.path, buffering=0) as file:
            _check_magic(shard, file.read(6))
            file.seek(0)
            headers = _Headers(file)
            tar = tarfile.TarFile(fileobj=headers, encoding="utf-8", errors="surrogateescape")  # type: ignore[arg-type]
            end = 0
            while (member := tar.next()) is not None:
                if tar.offset <= end:  # a negative size: tarfile would read the same members again
                    raise _damaged(shard, f"the size of {printable(shorten(member.name))} is not valid")
                yield member
                end, headers.left = tar.offset, _MAX_HEADER
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps all of them
            file.seek(tar.offset)  # tarfile ends without an error at a header that is not valid
            last = file.read(_BLOCK)
            if last.strip(b"\0"):
                raise _damaged(shard, f"the header at byte {tar.offset:,} is not valid")
            if len(last) < _BLOCK:
                raise _damaged(shard, "it has no end: it is cut short")
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read the shard {shard.path}: {error.strerror or error}") from None
    except Exception as error:  # tarfile raises many types of exceptions for damaged headers
        raise _damaged(shard, printable(shorten(str(error)))) from None


def _check_magic(shard: Shard, start: bytes) -> None:
    for magic, kind in _MAGIC.items():
        if start.startswith(magic):
            raise UserError(f"{shard.path} is compressed ({kind}): an image in it has no position; unpack it to a .tar")


def _damaged(shard: Shard, what: str) -> UserError:
    return UserError(f"{shard.path} is not a complete tar file: {what}; copy or make it again")


class _Headers:
    """The file that tarfile reads headers from. It limits the bytes of the headers of one member.

    A header states how long the headers after it are. Some versions of tarfile read without end at the end of a file.
    """

    def __init__(self, file: IO[bytes]):
        self.file, self.left = file, _MAX_HEADER
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self.left -= max(size, 1)
        if self.left < 0:
            raise tarfile.ReadError(f"a header of more than {_MAX_HEADER:,} bytes")
        return self.file.read(size)
