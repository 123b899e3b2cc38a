"""The labelled images that `lifelabel evaluate` and `lifelabel calibrate` take: a table or a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lifelabel.cli.common import progress_bar, stream_settings
from lifelabel.errors import UserError, unknown

if TYPE_CHECKING:
    from lifelabel.model.files import ModelInfo
    from lifelabel.model.labelled_scores import LabelledScores
    from lifelabel.model.model import Model
    from lifelabel.streams.labelled import LabelledSet

__all__ = [
    "BatchSize", "Device", "Labelled", "Root", "Rows", "RunFolderArgument", "StreamName", "StreamSettings",
    "TableArgument", "Workers", "check_writable", "read_labelled", "score",
]  # fmt: skip

RunFolderArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of a model.", show_default=False)
]
TableArgument = Annotated[
    Path | None,
    typer.Argument(metavar="TABLE", help="A table of images and labels (.csv, .tsv, .parquet); or give --stream."),
]
StreamName = Annotated[
    str | None,
    typer.Option(
        "--stream",
        metavar="STREAM",
        help="A stream in place of a table: a name of `lifelabel list streams`, or a .yaml or .zip file.",
    ),
]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder of the images [default: the folder of the table].")
]
StreamSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="stream.NAME=VALUE", help="An option of the stream or of the table, such as stream.separator."
    ),
]
Rows = Annotated[
    str | None,
    typer.Option(
        metavar="ROWS",
        help="test, train or all [default: test; a table without a column `split`: all, but if the run was trained on "
        "this table, the rows that it held out].",
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
BatchSize = Annotated[int | None, typer.Option(help="Images at a time [default: by image size].")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images [default: the number of cores for a GPU, else 0].")
]


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
    run: Path,
    table: Path | None,
    stream: str | None,
    root: Path | None,
    settings: Sequence[str] | None,
    rows: str | None,
    info: ModelInfo,
) -> Labelled:
    """The images of a table or of a stream. `info` is that of the model in `run`."""
    from lifelabel.streams.labelled import ROWS
    from lifelabel.streams.shards import is_root

    if (table is None) == (stream is None):
        raise UserError("give the labelled images: a TABLE, or --stream NAME (one of them)")
    if rows is not None and rows not in ROWS:
        raise unknown("rows", rows, ROWS)
    if root is not None and not is_root(root):
        raise UserError(f"there is no folder {root}: give another --root DIR")
    options = stream_settings(list(settings or []))
    if root is not None:
        options["root"] = str(root)
    if stream is not None:
        found = _from_stream(stream, options, rows or "test", info)
    else:
        assert table is not None
        found = _from_table(run, table, options, rows or "test", info)
    return found._replace(notes=[*found.notes, *found.images.problems.lines()])


def _from_stream(name: str, options: dict[str, Any], rows: str, info: ModelInfo) -> Labelled:
    from lifelabel import streams
    from lifelabel.registry import resolve_name
    from lifelabel.streams.labelled import from_stream

    stream = streams.build(resolve_name(name), options)
    trained_on = rows != "test" and stream.fingerprint == info.stream.get("fingerprint")
    return Labelled(from_stream(stream, rows), [_TRAINED_ON] if trained_on else [], trained_on)


def _from_table(run: Path, path: Path, options: dict[str, Any], rows: str, info: ModelInfo) -> Labelled:
    from lifelabel.options import read
    from lifelabel.streams import STREAMS
    from lifelabel.streams.labelled import from_table

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
    from lifelabel.config.config import read_yaml

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
    from lifelabel.nn.weights import sha256

    if not tables or not path.is_file() or path.stat().st_size > _MAX_HASHED:
        return None
    digest = sha256(path)
    for each in tables:
        share, seed, separator = each.get("test_share"), each.get("seed"), each.get("separator")
        good = isinstance(share, int | float) and 0 <= share <= 1 and isinstance(seed, int)
        if good and isinstance(separator, str) and each.get("sha256") == digest:
            return {"test_share": share, "seed": seed, "separator": separator}
    return None


def score(model: Model, images: LabelledSet, batch_size: int | None, workers: int | None) -> LabelledScores:
    """Score the images, with a progress bar."""
    from lifelabel.model.labelled_scores import score_labelled
    from lifelabel.utils.memory import keep_freed_memory

    if workers is not None and workers < 0:
        raise UserError(f"--workers must be at least 0, not {workers}")
    keep_freed_memory()
    with progress_bar("scoring images") as progress:
        return score_labelled(model, images, progress, batch_size, workers)


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written, before the images are scored."""
    nearest = folder.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise UserError(f"cannot write to {folder}: choose another --out")
