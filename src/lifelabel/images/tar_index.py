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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from lifelabel.errors import UserError
from lifelabel.images.decode import IMAGE_SUFFIXES
from lifelabel.images.photographs import FOLDERS, safe_path, spellings
from lifelabel.images.source import Problems
from lifelabel.utils import cache
from lifelabel.utils.files import open_regular
from lifelabel.utils.text import printable, shorten

_VERSION = 2
_KEY = np.dtype("S16")
"""The hash of a name: an order exists for this type, and searchsorted supports it."""
_MEMBER = np.dtype([("key", _KEY), ("shard", "<i4"), ("offset", "<i8"), ("size", "<u4")])
"""One image: the number of its shard, its first byte there, and its bytes."""
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


class Shard(NamedTuple):
    """One tar file as it was when its headers were read."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class TarIndex:
    """The images of some shards, sorted by the hash of their name, then by shard and position.

    A name can occur several times. The last member counts, as if the shards were unpacked one after the other.
    """

    shards: tuple[Shard, ...]
    prefixes: tuple[str, ...]
    """The usual folders that images are in."""
    problems: tuple[list[tuple[str, str, int]], ...]
    """The problems of each shard: kind, example and number."""
    members: np.ndarray

    def find(self, names: Sequence[str]) -> np.ndarray:
        """The position of each image in the index; -1 if no shard has it.

        A name is searched as in a folder: as it is, in the usual folders, and in the spellings of COCO.
        """
        found, key = np.full(len(names), -1, np.int64), np.ascontiguousarray(self.members["key"])
        for start in range(0, len(names), _CHUNK):
            part = found[start : start + _CHUNK]
            spelled = [["".join(each) for each in spellings(name)] for name in names[start : start + _CHUNK]]
            for which in range(_SPELLINGS):
                for prefix in ("", *self.prefixes):
                    left = [row for row in np.flatnonzero(part < 0).tolist() if len(spelled[row]) > which]
                    wanted = np.array([_key(prefix + spelled[row][which]) for row in left], _KEY)
                    last = np.searchsorted(key, wanted, side="right") - 1
                    part[left] = np.where(np.searchsorted(key, wanted) <= last, last, -1)
        return found

    def add_problems(self, to: Problems) -> None:
        """Report what was found in the shards."""
        for shard, problems in zip(self.shards, self.problems, strict=True):
            for kind, example, count in problems:
                to.add(kind, f"{Path(shard.path).name}: {example}", count)
        key = self.members["key"]
        if repeated := int(np.count_nonzero(key[1:] == key[:-1])):
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
    if old is not None and old.shards == tuple(shards):
        return old
    parts = [] if old is None else [old]
    read = {shard for part in parts for shard in part.shards}
    parts += _read_all([shard for shard in dict.fromkeys(shards) if shard not in read])
    index = _join(shards, parts)
    about = {"version": _VERSION, "shards": index.shards, "prefixes": index.prefixes, "problems": index.problems}
    cache.save(name, about=np.array(json.dumps(about)), members=index.members)
    return index


def _load(name: str) -> TarIndex | None:
    """The index in the cache folder; None if there is none that this version can read."""
    arrays = cache.load(name)
    if arrays is None:
        return None
    try:
        about = json.loads(str(arrays["about"]))
        if about["version"] != _VERSION:
            return None
        shards = tuple(Shard(*each) for each in about["shards"])
        return TarIndex(shards, tuple(about["prefixes"]), tuple(about["problems"]), arrays["members"])
    except (KeyError, TypeError, ValueError):
        return None


def _join(shards: Sequence[Shard], parts: Sequence[TarIndex]) -> TarIndex:
    """The index of `shards`, which are in `parts`, perhaps with others."""
    number = {shard: place for place, shard in enumerate(shards)}
    members = []
    for part in parts:
        new_number = np.array([number.get(shard, -1) for shard in part.shards], np.int32)
        renumbered = part.members.copy()
        renumbered["shard"] = new_number[part.members["shard"]]
        members.append(renumbered[renumbered["shard"] >= 0])
    joined = np.concatenate(members)
    joined = joined[np.lexsort((joined["offset"], joined["shard"], joined["key"]))]
    problems = {shard: found for part in parts for shard, found in zip(part.shards, part.problems, strict=True)}
    used = {prefix for part in parts for prefix in part.prefixes}
    prefixes = tuple(prefix for prefix in _PREFIXES if prefix in used)
    return TarIndex(tuple(shards), prefixes, tuple(problems[shard] for shard in shards), joined)


# Reading headers


def _read_all(shards: Sequence[Shard]) -> list[TarIndex]:
    """The content of each shard. In a terminal, a line with their number is shown after two seconds, until the end."""
    parts: list[TarIndex] = []
    shown, next_time, line = sys.stderr.isatty(), time.monotonic() + 2.0, ""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        for part in pool.map(_read_shard, shards):
            parts.append(part)
            if shown and (now := time.monotonic()) >= next_time:
                next_time, line = now + 0.2, f"reading tar headers, shards: {len(parts):,} of {len(shards):,}"
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
    finally:
        if line:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)
        pool.shutdown(cancel_futures=True)  # after an error the other shards are not read
    return parts


def _read_shard(shard: Shard) -> TarIndex:
    members, prefixes, problems = [], set[str](), Problems()
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
        members.append((_key(path), 0, member.offset_data, min(member.size, 2**32 - 1)))
    found = [(kind, ", ".join(problems.examples[kind]), count) for kind, count in problems.counts.items()]
    return TarIndex((shard,), tuple(prefixes), (found,), np.array(members, _MEMBER))


def _key(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_KEY.itemsize).digest()


def _members(shard: Shard) -> Iterator[tarfile.TarInfo]:
    """The members of a shard. A shard that is damaged or compressed is a `UserError`."""
    try:
        with open_regular(shard.path, buffering=0) as file:
            start = file.read(6)
            for magic, kind in _MAGIC.items():
                if start.startswith(magic):
                    raise UserError(
                        f"{shard.path} is compressed ({kind}): an image in it has no position; unpack it to a .tar"
                    )
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
