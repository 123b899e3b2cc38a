"""Where the images of an export are: the files below a folder, and the paths that an export has for them."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from lifelabel.images.photographs import safe_path
from lifelabel.images.source import Problems
from lifelabel.streams.label_files import IMAGE_SUFFIXES

_SAMPLE = 200
"""The number of images that are searched to find the folder of the images of a file."""


def walk(root: Path, problems: Problems) -> Iterator[str]:
    """The paths of all files below a folder, relative to it. Hidden files and folders are left out.

    Each folder is listed once, also if links lead to it. Folders come before links, so a link to a folder below `root`
    does not replace it.
    """
    seen: set[tuple[int, int]] = set()
    folders, links = [""], list[str]()
    while folders or links:
        links.sort(reverse=True)
        prefix = folders.pop() if folders else links.pop()
        try:
            status = os.stat(root / prefix)
            if (status.st_dev, status.st_ino) in seen:
                problems.add("links to a folder that was already read", prefix)
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(root / prefix) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        (links if entry.is_symlink() else folders).append(f"{prefix}{entry.name}/")
                    else:
                        yield prefix + entry.name
        except OSError as error:
            problems.add("folders that cannot be read", f"{prefix}: {error.strerror}")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def is_absolute(text: str) -> bool:
    return text.startswith("/") or (text[1:2] == ":" and text[0].isalpha())


def common_folder(paths: Sequence[str]) -> str:
    """The folder that contains all of the absolute paths, with a slash at its end.

    >>> common_folder(["/data/photos/a/1.jpg", "/data/photos/b/1.jpg"])
    '/data/photos/'
    """
    folders = [path.split("/")[:-1] for path in paths]
    if not folders:
        return "/"
    low, high = min(folders), max(folders)
    same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    return "/".join(low[:same]) + "/"


def below(text: str, bases: Iterable[str]) -> str:
    """An absolute path relative to the first of the folders that contains it. Other paths are unchanged."""
    return next((text[len(base) :] for base in bases if is_absolute(text) and text.startswith(base)), text)


def prefixes_of(path: Path, root: Path) -> list[str]:
    """The folders that can have the images of a file, each with a slash at its end, relative to the root.

    An export has its images beside the file, in `images` or `data`, or there in a folder with the name of the subset.
    """
    folder = path.parent.absolute()
    own = f"{folder.relative_to(root.absolute()).as_posix()}/" if folder.is_relative_to(root.absolute()) else ""
    subsets = dict.fromkeys(("", f"{path.stem}/", f"{path.stem.rpartition('_')[2]}/"))
    outer = dict.fromkeys(("", own.removeprefix("./")))
    return [top + kind + subset for top in outer for kind in ("", "images/", "data/") for subset in subsets]


def best_place(names: Sequence[str], root: Path, prefixes: Sequence[str], kind: str) -> Callable[[str], str]:
    """The function from a name in the file to a path below the root that finds the most files; else no change.

    Label Studio puts uploads into folders and adds eight digits to their names. So the file name is tried too, with and
    without these digits.
    """
    places: list[Callable[[str], str]] = [functools.partial(_join, prefix) for prefix in prefixes]
    if kind.startswith("label-studio"):
        for change in (_file_name, _uploaded_name):
            places += [functools.partial(_join, prefix, change=change) for prefix in prefixes]
    sample = names[:_SAMPLE]
    return max(places, key=lambda place: sum(_is_file(root, place(name)) for name in sample), default=str)


def _join(prefix: str, name: str, change: Callable[[str], str] = str) -> str:
    return prefix + change(name)


def _file_name(name: str) -> str:
    return name.rpartition("/")[2]


def _uploaded_name(name: str) -> str:
    """The name that an uploaded file had before.

    >>> _uploaded_name("upload/3/0a1b2c3d-dog.jpg")
    'dog.jpg'
    """
    return re.sub("^[0-9a-f]{8}-", "", _file_name(name))


def _is_file(root: Path, name: str) -> bool:
    try:
        return os.path.isfile(root / safe_path(name))
    except ValueError:
        return False


def images_by_stem(root: Path) -> dict[str, str]:
    """The paths of the images in a folder and its subfolders. The keys are the paths without suffix."""
    images = (name for name in sorted(walk(root, Problems())) if name.lower().endswith(IMAGE_SUFFIXES))
    return {name.rpartition(".")[0]: name for name in images}
