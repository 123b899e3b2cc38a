"""The streams that `--stream` accepts by name, with their options."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError, unknown
from lifelabel.images.shards import add_problems, folder_of, is_root
from lifelabel.options import option, read, with_defaults
from lifelabel.registry import Registry
from lifelabel.streams import coco, manifest, nus_wide, published, scenes, table, voc
from lifelabel.streams import prs_lists as prs
from lifelabel.streams.blurry import BLURRY_HELP, blur
from lifelabel.streams.collection import Collection
from lifelabel.streams.protocols import ProtocolOptions, make_stream
from lifelabel.streams.stream import LABELS, LABELS_HELP, Stream
from lifelabel.utils.text import MAX_TASK_NAME, printable, shorten


@dataclass(frozen=True)
class Source:
    """A named stream: one line of help, its dataclass of options, and the function that builds it from them."""

    summary: str
    Options: type
    build: Callable[[Any], Stream]
    photographs: bool = True
    """Whether its images are photographs. Photographs have their own defaults and presets."""
    of_paper: bool = False
    """Whether it is a stream of the AGCN paper. AGCN is the default method there."""


_path = functools.partial(option, None, path=True, label=False)
_images = functools.partial(_path, flag="Data")
_DATASET_ROOT = "the folder of the images or of their tar shards, and of the label files of the data set"


@dataclass(frozen=True)
class _DatasetOptions(ProtocolOptions):
    root: str | None = _images(_DATASET_ROOT)


@dataclass(frozen=True)
class _NusWideOptions(_DatasetOptions):
    split: str = option(
        "official",
        "test images: those of the official split, or a share of all images drawn by the seed",
        choices=("official", "share"),
    )
    test_share: float = option(0.221, "share of test images, with split=share", above=0, high=0.9)


@dataclass(frozen=True)
class _VocOptions(_DatasetOptions):
    year: str = option("2007", "which VOC: 2007 (trainval, test) or 2012 (train, val)", choices=("2007", "2012"))
    difficult: str = option(
        "positive", "whether objects marked difficult count as present", choices=("positive", "negative")
    )


@dataclass(frozen=True)
class _TableOptions(ProtocolOptions):
    file: str | None = _path("the table: CSV, TSV or Parquet")
    root: str | None = _images("the folder of the images or of their tar shards; none: the folder of the table")
    test_share: float = option(
        0.2, "share of the images used for test if the table has no column 'split'", above=0, high=0.9
    )
    separator: str = option(";", "what separates the labels in the column 'labels'", label=False)
    merge_case: bool = option(
        False,
        "make one class of names in a table that differ only in case, spaces, underscores or hyphens: the name that "
        "the model has, else the most frequent one",
        label=False,
        flag="Data",
    )
    alias: tuple[str, ...] = option(
        (),
        "OLD=NEW: rename a class of a table, also to the name of another, which joins them",
        label=False,
        flag="Data",
    )
    negatives: bool = option(
        True, "whether training images without a label of their task are used, as negative examples of its classes"
    )
    learned: tuple[str, ...] = option(
        (),
        "tasks that a run learned before, each a JSON list of its classes, or an object with its name and this list; "
        "set by `lifelabel extend`",
        label=False,
    )


@dataclass(frozen=True)
class _FileOptions:
    file: str | None = _path("the file or folder that describes the stream")
    root: str | None = _images("the folder of the images or of their tar shards")
    labels: str | None = option(None, f"{LABELS_HELP}; none: as the file states", choices=LABELS)
    seed: int = option(0, "seed of blurry", low=0)
    blurry: float = option(0.0, BLURRY_HELP, low=0, high=0.9)


@dataclass(frozen=True)
class _ListsOptions:
    lists: str | None = _path("the folder of the lists that PRS publishes (JSON)")
    root: str | None = _images(_DATASET_ROOT)
    test: str = option(
        "balanced",
        "test images: PRS's balanced ones, or those with the original distribution of the data set",
        choices=tuple(prs.TESTS),
    )
    labels: str = option("known", LABELS_HELP, choices=LABELS)  # PRS trains with the labels of all classes
    seed: int = option(0, "seed of blurry", low=0)
    blurry: float = option(0.0, BLURRY_HELP, low=0, high=0.9)


def _root(options: Any, name: str) -> Path:
    if options.root is None:
        raise UserError(f"stream {name} needs the folder of its images and labels: give --root DIR")
    path = Path(options.root).expanduser()
    if not is_root(path):
        raise UserError(f"stream {name}: there is no folder {path}; give another --root DIR")
    return path


def _read_labels(root: Path, read: Callable[..., Collection], *options: Any) -> Collection:
    """A data set whose label files are in the root, or in the folder of its shards."""
    folder = folder_of(root)
    found = read(folder, *options)
    return found if folder == root else dataclasses.replace(found, root=root)


def _optional_root(options: Any, name: str) -> Path | None:
    return None if options.root is None else _root(options, name)


def _file(options: Any, name: str) -> Path:
    if options.file is None:
        raise UserError(f"stream {name} needs a file: give its path in place of the name '{name}'")
    path = Path(options.file).expanduser()
    if not path.exists():
        raise UserError(f"there is no {path}: give the path of the file or folder that describes the stream")
    return path


def _coco(name: str, options: _DatasetOptions) -> Stream:
    found = _read_labels(_root(options, name), coco.read)
    return make_stream(found, options, name, "coco", default_tasks=8)


def _nus_wide(name: str, options: _NusWideOptions) -> Stream:
    found = _read_labels(_root(options, name), nus_wide.read, options.split, options.test_share, options.seed)
    stream = make_stream(found, options, name, "nus-wide", default_tasks=9)
    share = {"test_share": options.test_share} if options.split == "share" else {}
    return dataclasses.replace(stream, rules={**stream.rules, "split": options.split, **share})


def _voc(name: str, options: _VocOptions) -> Stream:
    found = _read_labels(_root(options, name), voc.read, options.year, options.difficult)
    stream = make_stream(found, options, name, "voc", default_tasks=5)
    return dataclasses.replace(stream, rules={**stream.rules, "year": options.year, "difficult": options.difficult})


def _table(name: str, options: _TableOptions) -> Stream:
    path, root = _file(options, name), _optional_root(options, name)
    learned = [_learned_task(text) for text in options.learned]
    names = [name for _, classes in learned for name in classes]
    if len(set(names)) < len(names):
        raise UserError("stream.learned names a class twice: it is set by `lifelabel extend`")
    found = table.read(
        path, root, test_share=options.test_share, seed=options.seed, separator=options.separator,
        alias=options.alias, merge_case=options.merge_case, known=names,
    )  # fmt: skip
    return make_stream(
        found, options, path.stem, default_tasks=1 if learned else 5, learned=learned, negatives=options.negatives
    )


def _learned_task(text: str) -> tuple[str, list[str]]:
    """The name of a task (empty for none) and its classes, from a JSON list or an object `{name: list}`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    name, classes = next(iter(found.items())) if isinstance(found, dict) and len(found) == 1 else ("", found)
    if not isinstance(classes, list) or not classes or not all(isinstance(each, str) for each in classes):
        raise UserError(f"stream.learned must hold JSON lists of class names, not '{shorten(text)}'")
    return printable(name)[:MAX_TASK_NAME], classes


def _lists(name: str, options: _ListsOptions) -> Stream:
    root, dataset = _root(options, name), "coco" if name == "cocoseq" else "nus-wide"
    if options.lists is None:
        raise UserError(f"stream {name} needs the folder of the lists that PRS publishes: --set stream.lists=DIR")
    return prs.read(root, Path(options.lists).expanduser(), dataset, options.test, options.labels)


def _described(name: str, options: _FileOptions) -> Stream:
    """A stream that a file describes, with the visible labels of the options."""
    read = manifest.read if name == "manifest" else published.read
    stream, labels = read(_file(options, name), _optional_root(options, name)), options.labels
    if labels in (None, stream.labels):
        return stream
    if labels == "known" and not stream.train.complete:
        raise UserError(
            f"stream.labels=known: the labels of {stream.name} are known for an image's own task only; leave it out, "
            "or, for a published split, give the --root of the data set with its annotations"
        )
    return dataclasses.replace(stream, labels=labels, rules={**stream.rules, "labels": labels})


STREAMS: Registry[Source] = Registry(
    "stream",
    lambda item: isinstance(item, Source) and dataclasses.is_dataclass(item.Options),
    "a lifelabel.streams.Source with a dataclass of options",
)


def _add(
    name: str, summary: str, build: Callable[[str, Any], Stream], Options: type, of_paper: bool = False, **defaults: Any
) -> None:
    """Register a stream. `build` gets its name and its options, which have the given defaults."""
    Options = with_defaults(Options, **defaults) if defaults else Options
    STREAMS.register(name, Source(summary, Options, functools.partial(build, name), of_paper=of_paper))


def _add_overlapping(
    dataset: str, build: Callable[[str, Any], Stream], Options: type, sizes: Mapping[tuple[int, int], str]
) -> None:
    """Register benchmarks Bx-Cy: x classes in the first task (0: as in the others), then y per task."""
    for (base, step), summary in sizes.items():
        order: dict[str, Any] = {"protocol": "overlap", "order": "alphabetical", "base": base, "step": step}
        _add(f"{dataset}-b{base}-c{step}", summary, build, Options, **order)


_SCENES = "procedural images of everyday things, no download; P(C_i|C_j) is known"
STREAMS.register("scenes", Source(_SCENES, scenes.ScenesOptions, scenes.build, photographs=False))
_add(
    "split-coco", "COCO, the paper's protocol: top 40 classes, 10 tasks of 4, disjoint images",
    _coco, _DatasetOptions, of_paper=True, order="paper",
)  # fmt: skip
_add(
    "split-wide", "NUS-WIDE, the paper's protocol: top 21 concepts, 7 tasks of 3, disjoint images",
    _nus_wide, _NusWideOptions, of_paper=True, order="paper", split="share",
)  # fmt: skip
_add_overlapping("coco", _coco, _DatasetOptions, {
    (0, 10): "COCO, 80 classes alphabetically, 8 tasks of 10, overlapping images",
    (0, 5): "COCO, 80 classes alphabetically, 16 tasks of 5, overlapping images",
    (20, 4): "the same with 20 classes in the first task, then 15 tasks of 4",
    (40, 10): "the same with 40 classes in the first task, then 4 tasks of 10",
})  # fmt: skip
_add_overlapping("voc", _voc, _VocOptions, {
    (0, 4): "VOC 2007, 20 classes alphabetically, 5 tasks of 4, overlapping images",
    (4, 2): "the same with 4 classes in the first task, then 8 tasks of 2",
    (5, 3): "the same with 5 classes in the first task, then 5 tasks of 3",
    (10, 2): "the same with 10 classes in the first task, then 5 tasks of 2",
})  # fmt: skip
_add("cocoseq", "COCO, the lists of PRS: 70 classes, 4 tasks, disjoint images, balanced test", _lists, _ListsOptions)
_add(
    "nuswideseq", "NUS-WIDE, the lists of PRS: 49 concepts, 6 tasks, disjoint images, balanced test",
    _lists, _ListsOptions,
)  # fmt: skip
_add("coco", "COCO 2014 or 2017 with your own protocol options", _coco, _DatasetOptions)
_add("nus-wide", "NUS-WIDE with your own protocol options", _nus_wide, _NusWideOptions)
_add("voc", "PASCAL VOC 2007 or 2012 with your own protocol options", _voc, _VocOptions)
_add(
    "table", "your own photographs: a CSV, TSV or Parquet table of images and labels (--stream FILE.csv)",
    _table, _TableOptions, order="frequency", labels="known",
)  # fmt: skip
_add(
    "published", "the authors' Split-COCO or Split-WIDE, a folder or zip (--stream FILE.zip)",
    _described, _FileOptions, of_paper=True,
)  # fmt: skip
_add("manifest", "a stream written by `lifelabel data build` (--stream FILE.yaml)", _described, _FileOptions)
STREAMS.set_built_in()

_SUFFIXES = {
    ".yaml": "manifest", ".yml": "manifest", ".zip": "published",
    ".csv": "table", ".tsv": "table", ".txt": "table", ".parquet": "table", ".pq": "table",
}  # fmt: skip


def resolve(stream: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and options of a stream. `stream` is a name, or the path of a file or folder that describes a stream.

    >>> resolve("photos.csv", {"tasks": 3})
    ('table', {'tasks': 3, 'file': 'photos.csv'})
    """
    if stream in STREAMS:
        return stream, dict(options)
    path = Path(stream)
    kind = _SUFFIXES.get(path.suffix.lower()) or ("published" if os.path.isdir(path) else None)
    if kind is None:
        raise unknown("stream", stream, [*STREAMS, "FILE.csv", "FILE.yaml", "FILE.zip"])
    return kind, {**options, "file": stream}


def is_overlapping(stream: str, options: Any) -> bool:
    """Whether the tasks of a stream overlap, by its name and its options. The stream is not built.

    >>> is_overlapping("voc-b0-c4", STREAMS["voc-b0-c4"].Options()), is_overlapping("voc", STREAMS["voc"].Options())
    (True, False)
    """
    if stream == "manifest" and options.file is not None:
        return manifest.read_rules(Path(options.file).expanduser()).get("protocol") == "overlap"
    return getattr(options, "protocol", "") == "overlap"


def build(stream: str, options: Mapping[str, Any]) -> Stream:
    """Build a stream from its name, or from the path of a file that describes it, and its options.

    >>> build("scenes", {"train_images": 100, "test_images": 20}).classes[:4]
    ('sky', 'boat', 'house', 'cup')
    """
    name, given = resolve(stream, options)
    chosen: Any = read(STREAMS[name].Options, given, "stream", f"stream {name}")
    built = STREAMS[name].build(chosen)
    if not isinstance(built, Stream):
        raise UserError(f"stream {name}: its function must return a lifelabel.Stream, not a {type(built).__name__}")
    if share := getattr(chosen, "blurry", 0.0):
        built = blur(built, share, chosen.seed)
    add_problems(built.problems, built.train.images, built.test.images)
    return built
