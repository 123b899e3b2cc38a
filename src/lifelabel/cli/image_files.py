"""The image files that arguments of a command name: files, folders, patterns, and a list on stdin.

Files are listed one after the other, so that any number of them needs little memory.
"""

from __future__ import annotations

import functools
import glob
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

__all__ = ["STDIN", "image_files"]

STDIN = "-"
_SUFFIXES = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".webp",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".avif",
        ".mpo",
    )
)
_BLOCK = 100_000
"""Files of a folder that are sorted at a time. It bounds memory."""


def image_files(
    arguments: Sequence[str], on_problem: Callable[[str, str], None], without: Path | None = None
) -> Iterator[str]:
    """The paths of the images. `on_problem` is called with each argument that names no file, and the reason.

    Folders are searched with the folders in them, for image suffixes; hidden files and links to folders are left out. A
    pattern has `*`, `?`, `[…]` or `**`. The argument `-` is a list of paths on stdin, one per line. Files in the folder
    `without` are left out, so that images can be written there.
    """
    is_written = _inside(without)
    for argument in arguments:
        if argument == STDIN:
            lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer)
            yield from (line for line in lines if line)
        elif os.path.isdir(argument):
            yield from _or_problem(_in_folder(argument, is_written), argument, "no image in this folder", on_problem)
        elif os.path.lexists(argument):
            yield argument
        elif glob.has_magic(argument):
            yield from _or_problem(_matching(argument, is_written), argument, "no image matches", on_problem)
        else:
            on_problem(argument, "no such file")


def _inside(folder: Path | None) -> Callable[[str], bool]:
    """Whether a folder is `folder` or below it."""
    if folder is None:
        return lambda path: False
    target = Path(os.path.realpath(folder))
    return functools.lru_cache(maxsize=1000)(lambda path: Path(os.path.realpath(path)).is_relative_to(target))


def _or_problem(
    files: Iterator[str], argument: str, reason: str, on_problem: Callable[[str, str], None]
) -> Iterator[str]:
    first = next(files, None)
    if first is None:
        on_problem(argument, reason)
        return
    yield first
    yield from files


def _in_folder(folder: str, is_written: Callable[[str], bool]) -> Iterator[str]:
    """The images in a folder, sorted, then those in the folders in it."""
    if is_written(folder):
        return
    folders: list[str] = []

    def files() -> Iterator[str]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif _is_image(entry.name):
                        yield entry.path
        except OSError:
            return  # a folder that cannot be opened has no images for us

    yield from _sorted(files())
    for inner in sorted(folders):
        yield from _in_folder(inner, is_written)


def _matching(pattern: str, is_written: Callable[[str], bool]) -> Iterator[str]:
    for path in _sorted(glob.iglob(pattern, recursive=True)):
        if os.path.isdir(path):
            if "**" not in pattern:  # with **, the files in it match too
                yield from _in_folder(path, is_written)
        elif _is_image(path) and not is_written(os.path.dirname(path) or "."):
            yield path


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _SUFFIXES


def _sorted(paths: Iterable[str]) -> Iterator[str]:
    """The paths in order, up to 100,000 of them; more are sorted in blocks."""
    left = iter(paths)
    while block := sorted(islice(left, _BLOCK)):
        yield from block
