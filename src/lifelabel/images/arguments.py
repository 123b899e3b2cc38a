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

from lifelabel.images.decode import HEIC_SUFFIXES, IMAGE_SUFFIXES

STDIN = "-"
_BLOCK = 100_000
"""Files of a folder that are sorted at a time. It bounds memory."""
_Found = tuple[str, str]
"""An image and "", or a folder and the reason why it cannot be read."""


def image_files(
    arguments: Sequence[str], on_problem: Callable[[str, str], None], without: Path | None = None
) -> Iterator[str]:
    """The paths of the images. `on_problem` is called with each argument that names no file and each folder that
    cannot be read, and the reason.

    Folders are searched with the folders in them, for image suffixes; hidden files and links to folders are left out. A
    pattern has `*`, `?`, `[…]` or `**`. The argument `-` is a list of paths on stdin, one per line. Files in the folder
    `without` are left out, so that images can be written there.
    """
    is_written = _inside(without)
    for argument in arguments:
        found: Iterable[_Found] = ()
        nothing = "no such file"
        if argument == STDIN:
            lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in sys.stdin.buffer)
            found, nothing = ((line, "") for line in lines if line), ""
        elif os.path.isdir(argument):
            found, nothing = _in_folder(argument, is_written), "no image in this folder"
        elif os.path.lexists(argument):
            found = [(argument, "")]
        elif glob.has_magic(argument):
            found, nothing = _matching(argument, is_written), "no image matches"
        for path, problem in found:
            nothing = ""
            if problem:
                on_problem(path, problem)
            else:
                yield path
        if nothing:
            on_problem(argument, nothing)


def _inside(folder: Path | None) -> Callable[[str], bool]:
    """Whether a folder is `folder` or below it."""
    if folder is None:
        return lambda path: False
    target = Path(os.path.realpath(folder))
    return functools.lru_cache(maxsize=1000)(lambda path: Path(os.path.realpath(path)).is_relative_to(target))


def _in_folder(folder: str, is_written: Callable[[str], bool]) -> Iterator[_Found]:
    """The images in a folder, sorted, then those in the folders in it."""
    if is_written(folder):
        return
    folders: list[str] = []
    problem = ""

    def files() -> Iterator[str]:
        nonlocal problem
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif _is_image(entry.name):
                        yield entry.path
        except OSError as error:
            problem = f"cannot be read ({error.strerror})"

    yield from ((path, "") for path in _sorted(files()))
    if problem:
        yield folder, problem
    for inner in sorted(folders):
        yield from _in_folder(inner, is_written)


def _matching(pattern: str, is_written: Callable[[str], bool]) -> Iterator[_Found]:
    for path in _sorted(glob.iglob(pattern, recursive=True)):
        if os.path.isdir(path):
            if "**" not in pattern:  # with **, the files in it match too
                yield from _in_folder(path, is_written)
        elif _is_image(path) and not is_written(os.path.dirname(path) or "."):
            yield path, ""


def _is_image(name: str) -> bool:
    """Whether a file is to be opened. HEIC cannot be read, but is not left out without a message."""
    return os.path.splitext(name)[1].lower() in (*IMAGE_SUFFIXES, *HEIC_SUFFIXES)


def _sorted(paths: Iterable[str]) -> Iterator[str]:
    """The paths in order, up to 100,000 of them; more are sorted in blocks."""
    left = iter(paths)
    while block := sorted(islice(left, _BLOCK)):
        yield from block
