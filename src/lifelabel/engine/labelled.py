"""The labelled images on which a finished model is evaluated or calibrated: a table or a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lifelabel import streams
from lifelabel.config.config import read_yaml
from lifelabel.errors import UserError, unknown
from lifelabel.model.files import ModelInfo
from lifelabel.model.labelled_scores import LabelledScores, score_labelled
from lifelabel.model.model import Model
from lifelabel.nn.weights import sha256
from lifelabel.options import read
from lifelabel.registry import resolve_name
from lifelabel.streams import STREAMS
from lifelabel.streams.labelled import ROWS, LabelledSet, from_stream, from_table
from lifelabel.streams.shards import is_root
from lifelabel.utils.memory import keep_freed_memory

__all__ = ["Labelled", "check_writable", "read_labelled", "score"]


_TRAINED_ON = "the run was trained on some of these images: the figures are too high"

_MAYBE_TRAINED_ON = (
    "if the model was trained on {}, the figures are too high: --set stream.test_share=0.2 uses only the rows that a "
    "run holds out (with its test_share and seed)"
)


_TABLE_OPTIONS = ("root", "separator", "test_share", "seed")
_MAX_HASHED = 1 << 30


class Labelled(NamedTuple):
    """A set of labelled images, notes about their choice, and whether the run was trained on some of them."""

    images: LabelledSet
    notes: list[str]
    trained_on: bool


def read_labelled(
    run: Path, table: Path | None, stream: str | None, options: Mapping[str, Any], rows: str | None, info: ModelInfo
) -> Labelled:
    """The images of a table or of a stream, with the options of either. `info` is that of the model in `run`."""
    if (table is None) == (stream is None):
        raise UserError("give the labelled images: a TABLE, or --stream NAME (one of them)")
    if rows is not None and rows not in ROWS:
        raise unknown("rows", rows, ROWS)
    root = options.get("root")
    if root is not None and not is_root(Path(root)):
        raise UserError(f"there is no folder {root}: give another --root DIR")
    if stream is not None:
        return _from_stream(stream, dict(options), rows or "test", info)
    assert table is not None
    return _from_table(run, table, dict(options), rows or "test", info)


def _from_stream(name: str, options: dict[str, Any], rows: str, info: ModelInfo) -> Labelled:
    stream = streams.build(resolve_name(name), options)
    trained_on = rows != "test" and stream.fingerprint == info.stream.get("fingerprint")
    return Labelled(from_stream(stream, rows), [_TRAINED_ON] if trained_on else [], trained_on)


def _from_table(run: Path, path: Path, options: dict[str, Any], rows: str, info: ModelInfo) -> Labelled:
    tables = _earlier_tables(info)
    own = _own_options(run, path)
    if own is None:
        own = _earlier_options(tables, path)
    kind = STREAMS["table"].Options
    values: Any = read(kind, {**(own or {}), **options}, "stream", "the table")
    for name in options:
        if name not in _TABLE_OPTIONS:
            allowed = ", ".join(f"stream.{each}" for each in _TABLE_OPTIONS)
            raise UserError(f"stream.{name} cannot be set for a table here: the options are {allowed}")
    if own is not None:
        trained_with: Any = read(kind, own, "stream", "the table")
        for name in ("test_share", "seed"):
            if getattr(values, name) != (right := getattr(trained_with, name)):
                raise UserError(
                    f"the run was trained on {path.name} with {name} {right:g}: another value would choose training "
                    f"rows; remove stream.{name}"
                )
    share = values.test_share if own is not None or "test_share" in options else None
    root = None if values.root is None else Path(values.root)
    found = from_table(path, root, rows, test_share=share, seed=values.seed, separator=values.separator)
    if own is None:
        # the run folder is not there, but a run calls its stream as the table
        named = info.stream.get("name") == path.stem or any(each.get("file") == path.name for each in tables)
        doubt = found.kind == "all rows" and named
        return Labelled(found, [_MAYBE_TRAINED_ON.format(path.name)] if doubt else [], False)
    if rows != "test":
        return Labelled(found, [_TRAINED_ON], True)
    chosen = f"its column 'split', or test_share {values.test_share:g} and seed {values.seed}"
    return Labelled(found, [f"the run was trained on {path.name}: only its held-out rows are used ({chosen})"], False)


def _own_options(run: Path, table: Path) -> dict[str, Any] | None:
    """The options of the table, if the run was trained on it."""
    for folder in (run, run.resolve().parent):  # the model folder of a run is below it
        if not (folder / "config.yaml").is_file():
            continue
        with contextlib.suppress(UserError, OSError):
            config = read_yaml(folder / "config.yaml")
            options = config.get("stream_options")
            if config.get("stream") == "table" and isinstance(options, Mapping):
                file = options.get("file")
                if isinstance(file, str) and Path(file).resolve() == table.resolve():
                    return {name: options[name] for name in _TABLE_OPTIONS if name in options}
    return None


def _earlier_tables(info: ModelInfo) -> list[Mapping[str, Any]]:
    """The tables of the runs that this one extends. The values are untrusted."""
    found: Any = info.training
    for name in ("extends", "tables"):
        found = found.get(name) if isinstance(found, dict) else None
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _earlier_options(tables: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Any] | None:
    """The options of the table with the content of `path`, if there is one."""
    if not tables or not path.is_file() or path.stat().st_size > _MAX_HASHED:
        return None
    digest = sha256(path)
    for each in tables:
        share, seed, separator = each.get("test_share"), each.get("seed"), each.get("separator")
        good = isinstance(share, int | float) and 0 <= share <= 1 and isinstance(seed, int)
        if good and isinstance(separator, str) and each.get("sha256") == digest:
            return {"test_share": share, "seed": seed, "separator": separator}
    return None


def score(
    model: Model, images: LabelledSet, batch_size: int | None, workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> LabelledScores:  # fmt: skip
    """Score the images. `progress` is called with the number of images so far and the number of all."""
    if workers is not None and workers < 0:
        raise UserError(f"--workers must be at least 0, not {workers}")
    keep_freed_memory()
    return score_labelled(model, images, progress, batch_size, workers)


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the images are scored."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"cannot write to {folder}: choose another --out")
