"""Photographs in tar shards, read without unpacking. docs/streams/shards.md describes the layout.

A root is a folder, a tar file, or a pattern of tar files such as `shards/train-{000000..000099}.tar`. In a folder, an
image that is not a file is searched in the tar files of that folder. Members are found as files would be after
unpacking all shards, in the order of their names.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from lifelabel.errors import UserError
from lifelabel.images.decode import check_bytes, decode_image
from lifelabel.images.photographs import FileImages, names_in
from lifelabel.images.source import BadImage, ImageSource, Names, Problems
from lifelabel.images.tar_index import Shard, TarIndex, read_index, stat_shards
from lifelabel.utils.files import open_regular

_MAX_SHARDS = 1_000_000
_OPEN_SHARDS = 64
"""Shards that a process keeps open."""
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})", re.ASCII)
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def is_root(path: Path) -> bool:
    """Whether a path is a folder, a tar file, or a pattern of tar files."""
    return path.is_dir() or _names_shards(path)


def _names_shards(path: Path) -> bool:
    return path.name.lower().endswith((".tar", *_COMPRESSED)) and not path.is_dir()


def folder_of(root: Path) -> Path:
    """The folder of the label files of a data set: the root itself, or the folder of its shards."""
    return root.parent if _names_shards(root) else root


def find_images(root: Path | None, names: Names) -> FileImages:
    """The photographs `names`, as files under `root` or in tar shards."""
    if root is not None and _names_shards(root):
        return ShardImages(FileImages(None, names), _index(root, tuple(_expand(root))))
    files = FileImages(root, names)
    if root is None or files.present.all():  # a data set may have been unpacked beside its tar files
        return files
    shards = _tar_files(root, (".tar",))
    if shards:
        return ShardImages(files, _index(root, tuple(shards)))
    if not files.present.any() and (packed := _tar_files(root, _COMPRESSED)):
        raise _compressed(packed[0])
    return files


def add_problems(problems: Problems, *sources: ImageSource) -> None:
    """Report the problems of the files and shards of a stream, when all of its images have been found."""
    _index.cache_clear()  # with many images it is large
    files = [images for images in sources if isinstance(images, FileImages)]
    shards = [images.shard_problems for images in files if isinstance(images, ShardImages)]
    for found in [*shards[:1], *(images.problems for images in files)]:
        problems.add_from(found)


class ShardImages(FileImages):
    """Photographs of which some are members of tar shards, at `offset` in the shard with the number `shard`.

    The object holds paths and no open file. Each process opens the shards that it reads.
    """

    def __init__(self, files: FileImages, index: TarIndex):
        self.root, self.names, self.found = files.root, files.names, files.found
        self.problems, self.shards, self.shard_problems = files.problems, index.shards, Problems()
        index.add_problems(self.shard_problems)
        rows = np.flatnonzero(~files.present)
        places = index.find(self.names if len(rows) == len(files) else self.names.take(rows))
        self.shard = np.full(len(files), -1, np.int32)
        """-1 for an image that is a file, or absent."""
        self.offset, self.size = np.zeros(len(files), np.int64), np.zeros(len(files), np.uint32)
        rows, places = rows[places >= 0], places[places >= 0]
        for column, name in ((self.shard, "shard"), (self.offset, "offset"), (self.size, "size")):
            column[rows] = index.members[name][places]
        self.present = files.present | (self.shard >= 0)

    def take(self, rows: np.ndarray) -> FileImages:
        other = super().take(rows)
        assert isinstance(other, ShardImages)
        other.shard, other.offset, other.size = self.shard[rows], self.offset[rows], self.size[rows]
        return other

    def read(self, row: int, min_side: int = 0) -> Image.Image:
        number = int(self.shard[row])
        if number < 0:
            return super().read(row, min_side)
        size = int(self.size[row])
        check_bytes(size)
        try:
            data = os.pread(_open(self.shards[number]).file.fileno(), size, int(self.offset[row]))
        except OSError as error:
            raise BadImage(f"its shard cannot be read ({error.strerror})") from error
        if len(data) < size:
            raise BadImage("truncated")
        return decode_image(data, min_side)


class _OpenShard:
    """The file of a shard. It is closed when nothing refers to this object."""

    def __init__(self, path: str):
        self.file = open_regular(path, buffering=0)

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.file.close()


@functools.lru_cache(_OPEN_SHARDS)
def _open(shard: Shard) -> _OpenShard:
    status = os.stat(shard.path)
    if (status.st_size, status.st_mtime_ns) != (shard.size, shard.mtime_ns):
        raise BadImage("its shard has changed since the run began")
    return _OpenShard(shard.path)


@functools.lru_cache(1)
def _index(root: Path, paths: tuple[Path, ...]) -> TarIndex:
    """The index of the shards. Training and test images of a stream use the same one."""
    return read_index(root, stat_shards([path.absolute() for path in paths]))


def _tar_files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The tar files in a folder, sorted by name. Hidden files are left out."""
    names = sorted(name for name in names_in(folder) if not name.startswith("."))
    return [folder / name for name in names if name.lower().endswith(suffixes)]


def _expand(root: Path) -> Iterator[Path]:
    """The tar files that a root names.

    >>> [path.name for path in _expand(Path("{a,b}-{08..10}.tar"))]
    ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    if root.name.lower().endswith(_COMPRESSED):
        raise _compressed(root)
    if root.exists():
        yield root
        return
    texts = _BRACES.split(str(root))  # text, content of braces, text, …
    choices = [[text] if place % 2 == 0 else _choices(text) for place, text in enumerate(texts)]
    if not 0 < math.prod(map(len, choices)) <= _MAX_SHARDS:
        raise UserError(f"{root} names no shard, or more than {_MAX_SHARDS:,}: give a range such as {{000..099}}")
    yield from (Path("".join(parts)) for parts in itertools.product(*choices))


def _choices(text: str) -> Sequence[str]:
    """The texts that braces are expanded to: `08..10`, or `a,b`."""
    if not (numbers := _RANGE.fullmatch(text)):
        return text.split(",")
    first, last = numbers.groups()
    width = max(len(each) if each.startswith("0") else 0 for each in (first, last))
    return [f"{number:0{width}}" for number in range(int(first), min(int(last), int(first) + _MAX_SHARDS) + 1)]


def _compressed(path: Path) -> UserError:
    return UserError(f"{path} is compressed: shards must be .tar files, so unpack it to a .tar (gzip -d, zstd -d …)")
