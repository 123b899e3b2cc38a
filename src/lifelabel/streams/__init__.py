"""Every stream by name. A new one is a file here and a line below."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError, unknown
from lifelabel.options import option, read
from lifelabel.streams import coco, manifest, nus_wide, published, scenes, table, voc
from lifelabel.streams.base import BadImage, ImageSource, Labels, Names, Problems, Split, Stream, Task, TrainView
from lifelabel.streams.protocols import ProtocolOptions, make_stream


@dataclass(frozen=True)
class Source:
    """Where a stream comes from: a line of help, a dataclass of options, and what makes the stream from them."""

    summary: str
    Options: type
    build: Callable[[Any], Stream]
    photographs: bool = True
    """Whether its images are photographs, for which other options do well (`config.PHOTOGRAPHS`)."""


ROOT = "the folder that holds the images, and the label files where the source has its own"


@dataclass(frozen=True)
class CocoOptions(ProtocolOptions):
    root: str | None = option(None, ROOT)


@dataclass(frozen=True)
class NusWideOptions(ProtocolOptions):
    root: str | None = option(None, ROOT)
    split: str = option(
        "official",
        "test images: the data set's own split, or a share of all images drawn by the seed",
        choices=("official", "share"),
    )
    test_share: float = option(0.221, "for split share: the share of test images", above=0, high=0.9)


@dataclass(frozen=True)
class VocOptions(ProtocolOptions):
    root: str | None = option(None, ROOT)
    year: str = option("2007", "which VOC: 2007 (trainval, test) or 2012 (train, val)", choices=("2007", "2012"))
    difficult: str = option(
        "positive", "objects marked difficult count as present, or not", choices=("positive", "negative")
    )


@dataclass(frozen=True)
class TableOptions(ProtocolOptions):
    file: str | None = option(None, "the table: CSV, TSV or Parquet")
    root: str | None = option(None, "the folder of the images; none: the table's own")
    test_share: float = option(0.2, "share of images held out for test where the table has no split", above=0, high=0.9)


@dataclass(frozen=True)
class FileOptions:
    file: str | None = option(None, "the file or folder that describes the stream")
    root: str | None = option(None, "the folder of the images")


def _root(options: Any, name: str) -> Path:
    if options.root is None:
        raise UserError(f"stream {name} needs the folder of its images and labels: give --root DIR")
    path = Path(options.root).expanduser()
    if not path.is_dir():
        raise UserError(f"stream {name}: there is no folder {path}; give --root DIR")
    return path


def _optional_root(options: Any, name: str) -> Path | None:
    return None if options.root is None else _root(options, name)


def _file(options: Any, name: str) -> Path:
    if options.file is None:
        raise UserError(f"stream {name} needs a file: give its path in place of the name '{name}'")
    path = Path(options.file).expanduser()
    if not path.exists():
        raise UserError(f"there is no {path}: give the path of the file or folder that describes the stream")
    return path


def _coco(name: str) -> Callable[[CocoOptions], Stream]:
    return lambda options: make_stream(coco.read(_root(options, name)), options, name, "coco", tasks_else=8)


def _nus_wide(name: str) -> Callable[[NusWideOptions], Stream]:
    def build(options: NusWideOptions) -> Stream:
        found = nus_wide.read(_root(options, name), options.split, options.test_share, options.seed)
        stream = make_stream(found, options, name, "nus-wide", tasks_else=9)
        share = {"test_share": options.test_share} if options.split == "share" else {}
        return dataclasses.replace(stream, rules={**stream.rules, "split": options.split, **share})

    return build


def _voc(name: str) -> Callable[[VocOptions], Stream]:
    def build(options: VocOptions) -> Stream:
        found = voc.read(_root(options, name), options.year, options.difficult)
        stream = make_stream(found, options, name, "voc", tasks_else=5)
        return dataclasses.replace(stream, rules={**stream.rules, "year": options.year, "difficult": options.difficult})

    return build


def _table(options: TableOptions) -> Stream:
    path = _file(options, "table")
    root = _optional_root(options, "table")
    found = table.read(path, root, test_share=options.test_share, seed=options.seed)
    return make_stream(found, options, path.stem, tasks_else=5)


def _published(options: FileOptions) -> Stream:
    return published.read(_file(options, "published"), _optional_root(options, "published"))


def _manifest(options: FileOptions) -> Stream:
    return manifest.read(_file(options, "manifest"), _optional_root(options, "manifest"))


def _with(options: type, **defaults: Any) -> type:
    """The same options with other defaults."""
    fields = {f.name: f for f in dataclasses.fields(options)}
    changed = [
        (name, fields[name].type, dataclasses.field(default=value, metadata=fields[name].metadata))
        for name, value in defaults.items()
    ]
    return dataclasses.make_dataclass(
        options.__name__, changed, bases=(options,), frozen=True, namespace={"__module__": options.__module__}
    )


OVERLAP = {"protocol": "overlap", "order": "alphabetical"}

STREAMS: dict[str, Source] = {
    "scenes": Source(
        "procedural pictures of named things, no download; P(C_i|C_j) is known",
        scenes.ScenesOptions, scenes.build, photographs=False,
    ),
    "split-coco": Source(
        "COCO, the paper's protocol: top 40 classes, 10 tasks of 4, disjoint images",
        _with(CocoOptions, order="paper"), _coco("split-coco"),
    ),
    "split-wide": Source(
        "NUS-WIDE, the paper's protocol: top 21 concepts, 7 tasks of 3, disjoint images",
        _with(NusWideOptions, order="paper", split="share"), _nus_wide("split-wide"),
    ),
    "coco-b0-c10": Source(
        "COCO, 80 classes alphabetically, 8 tasks of 10, overlapping images",
        _with(CocoOptions, **OVERLAP, base=0, step=10), _coco("coco-b0-c10"),
    ),
    "coco-b40-c10": Source(
        "the same with 40 classes in the first task, then 4 tasks of 10",
        _with(CocoOptions, **OVERLAP, base=40, step=10), _coco("coco-b40-c10"),
    ),
    "voc-b0-c4": Source(
        "VOC 2007, 20 classes alphabetically, 5 tasks of 4, overlapping images",
        _with(VocOptions, **OVERLAP, base=0, step=4), _voc("voc-b0-c4"),
    ),
    "voc-b10-c2": Source(
        "the same with 10 classes in the first task, then 5 tasks of 2",
        _with(VocOptions, **OVERLAP, base=10, step=2), _voc("voc-b10-c2"),
    ),
    "coco": Source("COCO 2014 or 2017 under rules of your own", CocoOptions, _coco("coco")),
    "nus-wide": Source("NUS-WIDE under rules of your own", NusWideOptions, _nus_wide("nus-wide")),
    "voc": Source("PASCAL VOC 2007 or 2012 under rules of your own", VocOptions, _voc("voc")),
    "table": Source(
        "your own photographs: a CSV, TSV or Parquet table of images and labels (--stream FILE.csv)",
        _with(TableOptions, order="frequency"), _table,
    ),
    "published": Source(
        "the authors' Split-COCO or Split-WIDE, a folder or zip (--stream FILE.zip)", FileOptions, _published,
    ),
    "manifest": Source("a stream written by `lifelabel data build` (--stream FILE.yaml)", FileOptions, _manifest),
}  # fmt: skip

SUFFIXES = {
    ".yaml": "manifest", ".yml": "manifest", ".zip": "published",
    ".csv": "table", ".tsv": "table", ".txt": "table", ".parquet": "table", ".pq": "table",
}  # fmt: skip


def resolve(stream: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A stream's name and options, where `stream` is a name or the path of a file or folder that describes one.

    >>> resolve("photos.csv", {"tasks": 3})
    ('table', {'tasks': 3, 'file': 'photos.csv'})
    """
    if stream in STREAMS:
        return stream, dict(options)
    path = Path(stream)
    kind = SUFFIXES.get(path.suffix.lower()) or ("published" if path.is_dir() else None)
    if kind is None:
        raise unknown("stream", stream, [*STREAMS, "FILE.csv", "FILE.yaml", "FILE.zip"])
    return kind, {**options, "file": stream}


def build(stream: str, options: Mapping[str, Any]) -> Stream:
    """A stream by its name, or by the path of a file that describes one, and its own options.

    >>> build("scenes", {"train_images": 100, "test_images": 20}).classes[:4]
    ('sky', 'boat', 'house', 'cup')
    """
    name, given = resolve(stream, options)
    return STREAMS[name].build(read(STREAMS[name].Options, given, "stream", f"stream {name}"))


__all__ = [
    "STREAMS", "BadImage", "ImageSource", "Labels", "Names", "Problems", "Source", "Split", "Stream", "Task",
    "TrainView", "build", "resolve",
]  # fmt: skip
