"""A table of images and labels from folders of images or from the export of an annotation tool.

See docs/streams/convert.md for the formats, and docs/streams/table.md for the table.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lifelabel.errors import UserError, unknown
from lifelabel.images.decode import HEIC_SUFFIXES, IMAGE_SUFFIXES
from lifelabel.images.photographs import FileImages, safe_path
from lifelabel.images.source import Names, Problems
from lifelabel.streams.export_folders import YAML_SUFFIXES, is_metadata, is_yolo, read_image_folder, read_yolo
from lifelabel.streams.exports import READERS, kind_of
from lifelabel.streams.label_files import SPLITS, Entry, Export, load
from lifelabel.streams.table import class_name
from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import shorten

FORMATS = ("auto", "folders", "coco", "label-studio", "cvat", "fiftyone", "yolo", "imagefolder")
_TREE_FORMATS = ("auto", "folders", "cvat", "fiftyone")
"""Formats in which the classes can be folders."""
_COCO_FORMATS = ("auto", "coco", "label-studio", "cvat", "fiftyone")
"""COCO's own, and the tools that can export it."""
_FILE_SUFFIXES = (".json", ".csv", ".tsv")
_MAX_FILES = 100
_SAMPLE = 200
"""The number of images that are searched to find the folder of the images of a file."""
_UNLABELLED = "_unlabeled"
"""FiftyOne's folder for images without a label."""

_Rows = dict[str, tuple[tuple[str, ...], str | None]]
"""The labels and the split of each image, by its path."""


@dataclass(frozen=True)
class Conversion:
    """What `convert` found and wrote."""

    format: str
    root: Path
    """The folder of the images: `--root` of the table."""
    images: int
    found: int
    """The number of images that have a file under `root`."""
    classes: tuple[str, ...]
    labels: int
    splits: dict[str, int]
    """The number of images of each split; empty if the table has no column `split`."""
    problems: Problems


def convert(
    source: Path,
    out: Path,
    *,
    format: str = "auto",
    root: Path | None = None,
    field: str | None = None,
    overwrite: bool = False,
) -> Conversion:
    """Write the table `out` from a folder of class folders, or from an exported file or a folder of such files.

    `root` is the folder of the images, if they are not beside the export. `field` is the field of labels, if the export
    has several.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if out.suffix.lower() != ".csv":
        raise UserError(f"{out} must end in .csv: --stream recognises a table by its suffix")
    if out.exists() and (not overwrite or out.is_dir()):
        raise UserError(f"{out} exists: give another --out, or --overwrite")
    if not os.path.exists(source):
        raise UserError(f"there is no {source}: give a folder of images, or the export of an annotation tool")
    if out.exists() and out.samefile(source):
        raise UserError(f"--out {out} is the source itself: give another --out")
    if root is not None and not root.is_dir():
        raise UserError(f"there is no folder {root}: give another --root DIR")
    if format == "folders" and not source.is_dir():
        raise UserError(f"{source} is not a folder: --format folders needs a folder with one folder per class")
    problems = Problems()
    described = source.suffix.lower() in YAML_SUFFIXES or is_metadata(source.name)
    is_folder = described or format in ("folders", "yolo", "imagefolder")
    files = [] if is_folder else _read_files(source, format, field, problems)
    if files:
        kind, (root, entries) = files[0].kind, _placed(files, source, root, problems)
    elif data_set := _data_set(source, format, root, field, problems):
        kind, root, entries = data_set
    elif source.is_dir() and format in _TREE_FORMATS:
        if root is not None:
            raise UserError(f"the folders of {source} are the classes, so the images are in it: leave out --root")
        kind, root, entries = "folders", source, _read_folders(source, problems)
    else:
        raise UserError(f"{source} has no {format} export (.json or .csv): give the exported file")
    return _write(out, kind, root, _rows(entries, problems), problems)


def _rows(entries: Iterable[Entry], problems: Problems) -> _Rows:
    """The rows of the table. The labels of an image that occurs several times are united."""
    rows: _Rows = {}
    as_class = functools.cache(_class)
    for entry in entries:
        try:
            path = safe_path(entry.image)
            path.encode()  # a file name that is not UTF-8 cannot be in a table
        except ValueError as error:
            reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
            problems.add("images with a path that is not allowed", f"{shorten(entry.image)!r}: {reason}")
            continue
        if path != path.strip():
            problems.add("images with a path that begins or ends with a space", repr(shorten(path)))
            continue
        try:
            labels = tuple(dict.fromkeys(map(as_class, entry.labels)))
        except ValueError as error:
            problems.add("images with a class name that is not allowed", f"{path}: {error}")
            continue
        earlier, split = rows.get(path, ((), entry.split))
        if split != entry.split:
            problems.add("images that occur again in another split; the first one counts", path)
            continue
        if path in rows:
            problems.add("images that occur again; their labels are united", path)
        rows[path] = tuple(dict.fromkeys((*earlier, *labels))), split
    return rows


def _class(text: str) -> str:
    name = class_name(text)
    if ";" in name or name.startswith("?"):
        reason = "contains ';', which separates labels" if ";" in name else "begins with '?', which is reserved"
        raise UserError(f"class '{shorten(name)}' {reason} in a table: rename it in the source")
    return name


def _write(out: Path, kind: str, root: Path, rows: _Rows, problems: Problems) -> Conversion:
    """Write the table. It has a column `split` if the source has training images and other images."""
    stated = {split for _, split in rows.values() if split}
    has_splits = "train" in stated and len(stated) > 1
    if has_splits:
        left_out = [name for name, (_, split) in rows.items() if not split]
        problems.add_all("images without a split, left out because other images have one", left_out)
        rows = {name: row for name, row in rows.items() if row[1]}
    if not rows:
        raise UserError(f"{kind}: there is no image that can be used{problems.brief()}")
    classes = dict.fromkeys(name for labels, _ in rows.values() for name in labels)
    if not classes:
        raise UserError(f"{kind}: none of the images has a label{problems.brief()}")
    images = FileImages(root, Names(rows))
    problems.add_all("images without a file in the folder of images", list(rows), ~images.present)
    problems.add_from(images.problems)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {out.parent}: {error.strerror}; choose another --out") from None
    columns = 3 if has_splits else 2
    with atomic_write(out) as handle:
        text = io.TextIOWrapper(handle, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("image", "labels", "split")[:columns])
        writer.writerows((name, ";".join(labels), split)[:columns] for name, (labels, split) in rows.items())
        text.detach()
    splits = [split for _, split in rows.values()] if has_splits else []
    return Conversion(
        format=kind,
        root=root,
        images=len(rows),
        found=int(images.present.sum()),
        classes=tuple(classes),
        labels=sum(len(labels) for labels, _ in rows.values()),
        splits={split: splits.count(split) for split in ("train", "val", "test") if split in splits},
        problems=problems,
    )


# Folders of images


def _read_folders(source: Path, problems: Problems) -> Iterator[Entry]:
    """The images of class folders, or of class folders in the folders of splits."""
    names = sorted(_walk(source, problems))
    images = [name for name in names if name.lower().endswith(IMAGE_SUFFIXES)]
    others = [name for name in names if not name.lower().endswith(IMAGE_SUFFIXES)]
    _add_heic(others, problems)
    problems.add_all(
        "files that are not an image", [name for name in others if not name.lower().endswith(HEIC_SUFFIXES)]
    )
    tops = {name.partition("/")[0] for name in images if "/" in name}
    has_splits = all(top.lower() in SPLITS for top in tops) and any(name.count("/") > 1 for name in images)
    for name in images:
        top, _, rest = name.partition("/") if has_splits and "/" in name else ("", "", name)
        folder, slash, _ = rest.partition("/")
        if not slash or folder == _UNLABELLED:
            problems.add("images that are in no class folder", name)
        elif "\\" in name:
            problems.add("images with a path that is not allowed", f"{shorten(name)!r}: a backslash")
        else:
            yield Entry(name, (folder,), SPLITS[top.lower()] if top else None)


def _walk(root: Path, problems: Problems) -> Iterator[str]:
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
                    if entry.is_symlink() and os.path.isdir(entry):
                        links.append(f"{prefix}{entry.name}/")
                    elif entry.is_dir(follow_symlinks=False):
                        folders.append(f"{prefix}{entry.name}/")
                    else:
                        yield prefix + entry.name
        except OSError as error:
            problems.add("folders that cannot be read", f"{prefix}: {error.strerror}")


def _add_heic(names: Sequence[str], problems: Problems) -> None:
    found = [name for name in names if name.lower().endswith(HEIC_SUFFIXES)]
    problems.add_all("photographs in HEIC, which is not read; convert to JPEG first", found)


# Data sets that are a folder


def _data_set(
    source: Path, format: str, root: Path | None, field: str | None, problems: Problems
) -> tuple[str, Path, Iterator[Entry]] | None:
    """The format, the folder and the images of a YOLO data set or of an image folder; None if `source` is neither."""
    if format in ("folders", "coco"):
        return None
    folder = source if source.is_dir() else root or source.parent
    found = Problems()
    names = list(_walk(folder, found))
    is_yaml = source.suffix.lower() in YAML_SUFFIXES and not source.is_dir()
    if format == "yolo" or (format != "imagefolder" and (is_yaml or is_yolo(names))):
        kind, entries = "yolo", read_yolo(folder, source if is_yaml else None, names, problems)
    elif format == "imagefolder" or any(map(is_metadata, names)):
        if not any(map(is_metadata, names)):
            raise UserError(f"{folder} has no metadata.jsonl or metadata.csv: give --format folders, or add the file")
        kind, entries = "imagefolder", read_image_folder(folder, names, problems, field)
    else:
        return None
    if source.is_dir() and root is not None:
        raise UserError(f"{source} is a data set of the format {kind} with its images: leave out --root")
    problems.add_from(found)
    _add_heic(names, problems)
    return kind, folder, entries


# Exported files


class _File(NamedTuple):
    """An exported file: its layout, its entries, and the split that its name or its folder states."""

    path: Path
    kind: str
    entries: list[Entry]
    split: str | None


def _read_files(source: Path, format: str, field: str | None, problems: Problems) -> list[_File]:
    """The files of an export. Empty if `source` is a folder without a file of a known layout."""
    files, unused = [], []
    for path in _candidates(source):
        try:
            _check_suffix(path)
            content = load(path)
            kind = kind_of(content, path.suffix.lower() != ".json", format)
            if kind is None:
                unused.append(path)
                continue
            if format not in (_COCO_FORMATS if kind == "coco" else ("auto", kind.split()[0])):
                raise UserError(f"{path} is an export of another format ({kind}): leave out --format {format}")
            entries = READERS[kind](content, Export(path, problems, field))
        except UserError as error:
            hint = "; if its folders are classes, give --format folders" if source.is_dir() and format == "auto" else ""
            raise UserError(f"{error}{hint}") from None
        files.append(_File(path, kind, entries, _split_of(path, source)))
    if source in unused:
        hint = "give an export of COCO, Label Studio, CVAT (COCO or Datumaro) or FiftyOne"
        if source.suffix.lower() != ".json":
            hint = f"if it is a table already, use it as it is (lifelabel data inspect {source})"
        raise UserError(f"{source} is not an export that is known: {hint}")
    kinds = sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise UserError(f"{source} has exports of several formats ({', '.join(kinds)}): give one of the files")
    if files:
        problems.add_all("files that are not an export, not used", [path.name for path in unused])
    return sorted(files, key=lambda file: file.split != "train")  # an image in two splits is a training image


def _split_of(path: Path, source: Path) -> str | None:
    """The split in the name of a file (instances_train2017.json), else in that of its folder below the source."""
    words = {SPLITS[word] for word in re.split("[^a-z]+", path.stem.lower()) if word in SPLITS}
    if len(words) == 1:
        return words.pop()
    return SPLITS.get(path.parent.name.lower()) if source.is_dir() and path.parent != source else None


def _candidates(source: Path) -> list[Path]:
    """The files that can be an export: the source, or those in it and in its folders of annotations and splits."""
    if not source.is_dir():
        return [source]
    try:
        folders = [source, *(path for path in source.iterdir() if path.name.lower() in ("annotations", *SPLITS))]
        found = [
            path
            for folder in folders
            if folder.is_dir()
            for path in folder.iterdir()
            if path.suffix.lower() in _FILE_SUFFIXES and not path.name.startswith(".") and path.is_file()
        ]
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror}") from None
    if len(found) > _MAX_FILES:
        raise UserError(
            f"{source} has {len(found):,} JSON and CSV files: give one exported file, or --format folders if its "
            "folders are classes"
        )
    xml = source / "annotations.xml"
    return [xml] if not found and xml.is_file() else sorted(found)


def _check_suffix(path: Path) -> None:
    suffix = path.suffix.lower()
    if suffix == ".xml":
        raise UserError(
            f"{path}: XML cannot be read; export from CVAT as Datumaro 1.0 or COCO 1.0 (JSON), or as ImageNet 1.0 "
            "(folders)"
        )
    if suffix in (".zip", ".tar", ".gz", ".tgz"):
        raise UserError(f"{path} is an archive: unpack it and give the folder")
    if suffix not in _FILE_SUFFIXES:
        raise UserError(f"{path} cannot be read: give a folder of images, or an export as .json or .csv")


# Where the images of exported files are


def _placed(
    files: Sequence[_File], source: Path, root: Path | None, problems: Problems
) -> tuple[Path, Iterator[Entry]]:
    """The folder of the images, and the entries of all files with the paths of their images below it."""
    texts = [entry.image.replace("\\", "/") for file in files for entry in file.entries]
    absolute = [text for text in texts if _is_absolute(text)]
    folders = [text.split("/")[:-1] for text in absolute] or [[]]
    shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(min(folders), max(folders), strict=False))
    common = "/".join(part for part, _ in shared) + "/"
    if root is None and absolute and len(absolute) == len(texts):
        root = Path(common)
    elif root is None:
        folder = source if source.is_dir() else source.parent
        root = folder.parent if folder.name == "annotations" else folder
    bases = f"{root.absolute().as_posix().rstrip('/')}/", common
    by_stem = functools.cache(functools.partial(_images_by_stem, root))
    return root, (entry for file in files for entry in _entries(file, root, bases, by_stem, problems))


def _entries(
    file: _File, root: Path, bases: Sequence[str], by_stem: Callable[[], dict[str, str]], problems: Problems
) -> Iterator[Entry]:
    """The entries of a file with paths below the root. `bases` are the folders that absolute paths are relative to."""
    names = [_below(entry.image.replace("\\", "/"), bases) for entry in file.entries]
    prefixes = _prefixes_of(file.path, root)
    listed = [name for entry, name in zip(file.entries, names, strict=True) if not entry.is_id]
    place = _best_place(listed, root, prefixes, file.kind)
    for entry, name in zip(file.entries, names, strict=True):
        if not entry.is_id:
            path = place(name)
        elif not (path := next(filter(None, (by_stem().get(prefix + name) for prefix in prefixes)), "")):
            problems.add("images that have no file", f"{shorten(entry.image)} in {file.path.name}")
            continue
        yield entry._replace(image=path, split=entry.split or file.split)


def _is_absolute(text: str) -> bool:
    return text.startswith("/") or (text[1:2] == ":" and text[0].isalpha())


def _below(text: str, bases: Sequence[str]) -> str:
    """An absolute path relative to the first of the folders that contains it. Other paths are unchanged."""
    return next((text.removeprefix(base) for base in bases if _is_absolute(text) and text.startswith(base)), text)


def _prefixes_of(path: Path, root: Path) -> list[str]:
    """The folders that can have the images of a file, each with a slash at its end, relative to the root.

    An export has its images beside the file, in `images` or `data`, or there in a folder with the name of the subset.
    """
    folder = path.parent.absolute()
    own = f"{folder.relative_to(root.absolute()).as_posix()}/" if folder.is_relative_to(root.absolute()) else ""
    subsets = dict.fromkeys(("", f"{path.stem}/", f"{path.stem.rpartition('_')[2]}/"))
    outer = dict.fromkeys(("", own.removeprefix("./")))
    return [top + kind + subset for top in outer for kind in ("", "images/", "data/") for subset in subsets]


def _best_place(names: Sequence[str], root: Path, prefixes: Sequence[str], kind: str) -> Callable[[str], str]:
    """The function from a name in the file to a path below the root that finds the most files.

    Label Studio puts uploads into folders and adds eight digits to their names. So the file name is tried too, with and
    without these digits.
    """
    changes = (str, _file_name, _uploaded_name) if kind.startswith("label-studio") else (str,)
    places = [functools.partial(_place, prefix, change) for change in changes for prefix in prefixes]
    return max(places, key=lambda place: sum(_is_file(root, place(name)) for name in names[:_SAMPLE]))


def _place(prefix: str, change: Callable[[str], str], name: str) -> str:
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


def _images_by_stem(root: Path) -> dict[str, str]:
    """The paths of the images in a folder and its subfolders. The keys are the paths without suffix."""
    images = (name for name in sorted(_walk(root, Problems())) if name.lower().endswith(IMAGE_SUFFIXES))
    return {name.rpartition(".")[0]: name for name in images}
