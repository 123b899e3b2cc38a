"""A table of images and labels from folders of images or from the export of an annotation tool.

See docs/streams/convert.md for the formats, and docs/streams/table.md for the table.
"""

from __future__ import annotations

import csv
import functools
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lifelabel.errors import UserError, unknown
from lifelabel.images.decode import HEIC_SUFFIXES
from lifelabel.images.photographs import FileImages, safe_path
from lifelabel.images.source import Names, Problems
from lifelabel.streams.export_folders import YAML_SUFFIXES, is_metadata, is_yolo, read_image_folder, read_yolo
from lifelabel.streams.export_paths import (
    below,
    best_place,
    common_folder,
    images_by_stem,
    is_absolute,
    prefixes_of,
    walk,
)
from lifelabel.streams.exports import READERS, kind_of
from lifelabel.streams.label_files import IMAGE_SUFFIXES, SPLITS, Entry, Export, load
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
_UNLABELLED = "_unlabeled"
"""FiftyOne's folder for images without a label."""


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
    problems = Problems()
    rows = _Rows(problems)
    described = source.suffix.lower() in YAML_SUFFIXES or is_metadata(source.name)
    files = [] if described or format in ("yolo", "imagefolder") else _read_files(source, format, field, problems)
    data_set = None if files else _data_set(source, format, root, field, problems)
    if data_set:
        kind, root, entries = data_set
        for entry in entries:
            rows.add(entry.image, entry)
    elif files:
        kind = files[0].kind
        root = _add_files(rows, files, source, root, problems)
    elif source.is_dir() and format in _TREE_FORMATS:
        if root is not None:
            raise UserError(f"the folders of {source} are the classes, so the images are in it: leave out --root")
        kind, root = "folders", source
        for entry in _read_folders(source, problems):
            rows.add(entry.image, entry)
    else:
        raise UserError(f"{source} has no {format} export (.json or .csv): give the exported file")
    return rows.write(out, kind, root)


class _Rows:
    """The rows of the table, one per image."""

    def __init__(self, problems: Problems):
        self.problems = problems
        self.rows: dict[str, tuple[tuple[str, ...], str | None]] = {}
        self.class_names: dict[str, str] = {}
        """The class name of each text in the source."""

    def add(self, name: str, entry: Entry) -> None:
        """Add one image called `name`. If it occurred before, its labels are united."""
        problems = self.problems
        try:
            path = safe_path(name)
            path.encode()  # a file name that is not UTF-8 cannot be in a table
        except ValueError as error:
            reason = "not UTF-8" if isinstance(error, UnicodeError) else str(error)
            problems.add("images with a path that is not allowed", f"{shorten(name)!r}: {reason}")
            return
        if path != path.strip():
            problems.add("images with a path that begins or ends with a space", repr(shorten(path)))
            return
        try:
            labels = tuple(dict.fromkeys(self._class(text) for text in entry.labels))
        except ValueError as error:
            problems.add("images with a class name that is not allowed", f"{path}: {error}")
            return
        earlier = self.rows.get(path)
        if earlier is None:
            self.rows[path] = labels, entry.split
        elif earlier[1] != entry.split:
            problems.add("images that occur again in another split; the first one counts", path)
        else:
            self.rows[path] = tuple(dict.fromkeys((*earlier[0], *labels))), entry.split
            problems.add("images that occur again; their labels are united", path)

    def _class(self, text: str) -> str:
        name = self.class_names.get(text)
        if name is None:
            name = class_name(text)
            if ";" in name or name.startswith("?"):
                reason = "contains ';', which separates labels" if ";" in name else "begins with '?', which is reserved"
                raise UserError(f"class '{shorten(name)}' {reason} in a table: rename it in the source")
            self.class_names[text] = name
        return name

    def write(self, out: Path, kind: str, root: Path) -> Conversion:
        """Write the table. It has a column `split` if the source has training images and other images."""
        stated = {split for _, split in self.rows.values() if split}
        has_splits = "train" in stated and len(stated) > 1
        if has_splits:
            left_out = [name for name, (_, split) in self.rows.items() if not split]
            self.problems.add_all("images without a split, left out because other images have one", left_out)
            self.rows = {name: row for name, row in self.rows.items() if row[1]}
        if not self.rows:
            raise UserError(f"{kind}: there is no image that can be used{self.problems.brief()}")
        classes = dict.fromkeys(name for labels, _ in self.rows.values() for name in labels)
        if not classes:
            raise UserError(f"{kind}: none of the images has a label{self.problems.brief()}")
        images = FileImages(root, Names(self.rows))
        present = images.present
        self.problems.add_all("images without a file in the folder of images", list(self.rows), ~present)
        self.problems.add_from(images.problems)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {out.parent}: {error.strerror}; choose another --out") from None
        with atomic_write(out) as handle:
            text = io.TextIOWrapper(handle, "utf-8", newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(["image", "labels", *(["split"] if has_splits else [])])
            for name, (labels, split) in self.rows.items():
                writer.writerow([name, ";".join(labels), *([split] if has_splits else [])])
            text.detach()
        counts = [split for _, split in self.rows.values()] if has_splits else []
        return Conversion(
            kind,
            root,
            len(self.rows),
            int(present.sum()),
            tuple(classes),
            sum(len(labels) for labels, _ in self.rows.values()),
            {split: counts.count(split) for split in ("train", "val", "test") if split in counts},
            self.problems,
        )


# Folders of images


def _read_folders(source: Path, problems: Problems) -> Iterator[Entry]:
    """The images of class folders, or of class folders in the folders of splits."""
    names = sorted(walk(source, problems))
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
    names = list(walk(folder, found))
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


@dataclass(frozen=True)
class _File:
    """An exported file: its layout, its entries, and the split that its name or its folder states."""

    path: Path
    kind: str
    entries: list[Entry]
    split: str | None


def _read_files(source: Path, format: str, field: str | None, problems: Problems) -> list[_File]:
    """The files of an export. Empty if `source` is a folder without a file of a known layout."""
    if format == "folders":
        if not source.is_dir():
            raise UserError(f"{source} is not a folder: --format folders needs a folder with one folder per class")
        return []
    paths = _candidates(source)
    if not paths and (source / "annotations.xml").is_file():
        paths = [source / "annotations.xml"]
    files, unused = [], []
    for path in paths:
        try:
            kind, entries = _read_file(path, format, field, problems)
        except UserError as error:
            hint = "; if its folders are classes, give --format folders" if source.is_dir() and format == "auto" else ""
            raise UserError(f"{error}{hint}") from None
        if kind is not None:
            files.append(_File(path, kind, entries, _split_of(path, source)))
        elif path == source:
            raise UserError(f"{path} is not an export that is known: {_hint(path)}")
        else:
            unused.append(path.name)
    kinds = sorted({file.kind for file in files})
    if len(kinds) > 1:
        raise UserError(f"{source} has exports of several formats ({', '.join(kinds)}): give one of the files")
    if files:
        problems.add_all("files that are not an export, not used", unused)
    return sorted(files, key=lambda file: file.split != "train")  # an image in two splits is a training image


def _read_file(path: Path, format: str, field: str | None, problems: Problems) -> tuple[str | None, list[Entry]]:
    """The layout of a file and its entries; None if the layout is not known."""
    _check_suffix(path)
    content = load(path)
    kind = kind_of(content, path.suffix.lower() != ".json", format)
    if kind is None:
        return None, []
    if format not in (_COCO_FORMATS if kind == "coco" else ("auto", kind.split()[0])):
        raise UserError(f"{path} is an export of another format ({kind}): leave out --format {format}")
    return kind, READERS[kind](content, Export(path, problems, field))


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
    return sorted(found)


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


def _hint(path: Path) -> str:
    if path.suffix.lower() != ".json":
        return f"if it is a table already, use it as it is (lifelabel data inspect {path})"
    return "give an export of COCO, Label Studio, CVAT (COCO or Datumaro) or FiftyOne"


def _add_files(rows: _Rows, files: Sequence[_File], source: Path, root: Path | None, problems: Problems) -> Path:
    """Add the entries of all files. Returns the folder of the images."""
    texts = [entry.image.replace("\\", "/") for file in files for entry in file.entries]
    absolute = [text for text in texts if is_absolute(text)]
    common = common_folder(absolute)
    if root is None and absolute and len(absolute) == len(texts):
        root = Path(common)
    elif root is None:
        folder = source if source.is_dir() else source.parent
        root = folder.parent if folder.name == "annotations" else folder
    bases = [f"{root.absolute().as_posix().rstrip('/')}/", common]
    images_below = functools.cache(lambda: images_by_stem(root))
    for file in files:
        named = [(entry, below(entry.image.replace("\\", "/"), bases)) for entry in file.entries]
        prefixes = prefixes_of(file.path, root)
        place = best_place([name for entry, name in named if not entry.is_id], root, prefixes, file.kind)
        for entry, name in named:
            if entry.is_id:
                found = (images_below().get(prefix + name) for prefix in prefixes)
                name = next((path for path in found if path), "")
                if not name:
                    problems.add("images that have no file", f"{shorten(entry.image)} in {file.path.name}")
                    continue
            else:
                name = place(name)
            rows.add(name, entry if entry.split else entry._replace(split=file.split))
    return root
