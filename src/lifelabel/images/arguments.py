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

__all__ = ["STDIN", "image_files"]

STDIN = "-"
_BLOCK = 100_000
"""Files of a folder that are sorted at a time. It bounds memory."""
_OnProblem = Callable[[str, str], None]


def image_files(arguments: Sequence[str], on_problem: _OnProblem, without: Path | None = None) -> Iterator[str]:
    """The paths of the images. `on_problem` is called with each argument that names no file and each folder that
    cannot be read, and the reason.

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
            find = functools.partial(_in_folder, argument, is_written)
            yield from _or_problem(find, argument, "no image in this folder", on_problem)
        elif os.path.lexists(argument):
            yield argument
        elif glob.has_magic(argument):
            find = functools.partial(_matching, argument, is_written)
            yield from _or_problem(find, argument, "no image matches", on_problem)
        else:
            on_problem(argument, "no such file")


def _inside(folder: Path | None) -> Callable[[str], bool]:
    """Whether a folder is `folder` or below it."""
    if folder is None:
        return lambda path: False
    target = Path(os.path.realpath(folder))
    return functools.lru_cache(maxsize=1000)(lambda path: Path(os.path.realpath(path)).is_relative_to(target))


def _or_problem(
    find: Callable[[_OnProblem], Iterator[str]], argument: str, reason: str, on_problem: _OnProblem
) -> Iterator[str]:
    """The files that `find` lists. If it lists none and calls its function for no problem, `reason` is the problem."""
    nothing = True

    def add(path: str, why: str) -> None:
        nonlocal nothing
        nothing = False
        on_problem(path, why)

    for path in find(add):
        nothing = False
        yield path
    if nothing:
        on_problem(argument, reason)


def _in_folder(folder: str, is_written: Callable[[str], bool], on_problem: _OnProblem) -> Iterator[str]:
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
        except OSError as error:
            on_problem(folder, f"cannot be read ({error.strerror})")

    yield from _sorted(files())
    for inner in sorted(folders):
        yield from _in_folder(inner, is_written, on_problem)


def _matching(pattern: str, is_written: Callable[[str], bool], on_problem: _OnProblem) -> Iterator[str]:
    for path in _sorted(glob.iglob(pattern, recursive=True)):
        if os.path.isdir(path):
            if "**" not in pattern:  # with **, the files in it match too
                yield from _in_folder(path, is_written, on_problem)
        elif _is_image(path) and not is_written(os.path.dirname(path) or "."):
            yield path


def _is_image(name: str) -> bool:
    """Whether a file is to be opened. HEIC cannot be read, but is not left out without a message."""
    return os.path.splitext(name)[1].lower() in (*IMAGE_SUFFIXES, *HEIC_SUFFIXES)


def _sorted(paths: Iterable[str]) -> Iterator[str]:
    """The paths in order, up to 100,000 of them; more are sorted in blocks."""
    left = iter(paths)
    while block := sorted(islice(left, _BLOCK)):
        yield from block
