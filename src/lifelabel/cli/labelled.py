"""The labelled images that `lifelabel evaluate` and `lifelabel calibrate` take: a table or a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from lifelabel.cli.common import progress_bar, stream_settings
from lifelabel.errors import UserError
from lifelabel.utils.text import printable

if TYPE_CHECKING:
    from lifelabel.model.labelled_scores import LabelledScores
    from lifelabel.model.model import Model
    from lifelabel.streams.labelled import LabelledSet, Trained

__all__ = [
    "BatchSize", "Device", "IncludeTrained", "Labelled", "Root", "Rows", "RunFolderArgument", "StreamName",
    "StreamSettings", "TableArgument", "Workers", "check_writable", "read_labelled", "score",
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
        help="test, val, train or all [default: test, and to calibrate val; a table without a column `split`: all].",
    ),
]
IncludeTrained = Annotated[
    bool,
    typer.Option("--include-trained", help="Use images that the model was trained on, too: figures are then too high."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
BatchSize = Annotated[int | None, typer.Option(help="Images at a time [default: by image size].")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images [default: the number of cores for a GPU, else 0].")
]


_TABLE_OPTIONS = ("root", "separator")


class Labelled(NamedTuple):
    """A set of labelled images, notes about their choice, and whether the model was trained on some of them."""

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
    model: Model,
    include_trained: bool,
    first: str = "test",
) -> Labelled:
    """The images of a table or of a stream. Without `rows`, the `first` rows of a table, if it has some."""
    from lifelabel import streams
    from lifelabel.registry import resolve_name
    from lifelabel.streams.labelled import Trained, check_rows, from_stream, from_table
    from lifelabel.streams.shards import is_root

    if (table is None) == (stream is None):
        raise UserError("give the labelled images: a TABLE, or --stream NAME (one of them)")
    rows = check_rows(rows)
    if root is not None and not is_root(root):
        raise UserError(f"there is no folder {root}: give another --root DIR")
    options = stream_settings(list(settings or []))
    if root is not None:
        options["root"] = str(root)
    with progress_bar("comparing images with those of the training") as progress:
        tasks = dict(zip(model.classes, model.info.task_of_class, strict=True))
        trained = Trained(model.trained_images(), tasks, include_trained, progress)
        if stream is not None:
            found = from_stream(streams.build(resolve_name(stream), options), rows, trained)
        else:
            assert table is not None
            values = _table_options(run, table, options)
            folder = None if values.root is None else Path(values.root)
            found = from_table(table, folder, rows, separator=values.separator, first=first, trained=trained)
    return Labelled(found, _notes(found, trained), trained.included and found.found > 0)


def _notes(found: LabelledSet, trained: Trained) -> list[str]:
    if trained.images is None:
        return ["the model does not say on which images it was trained: figures on those are too high"]
    notes = []
    if found.found:
        shown = ", ".join(map(printable, found.examples)) + (", …" if found.found > len(found.examples) else "")
        if trained.included:
            notes.append(f"{found.found:,} of these images are training images ({shown}): the figures are too high")
        else:
            notes.append(
                f"{found.found:,} images are training images and are left out ({shown}); --include-trained uses them"
            )
    if found.namesakes:
        notes.append(
            f"{found.namesakes:,} images have the name of a training image, but other pixels: if they are resized or "
            "edited copies of training images, the figures are too high"
        )
    return notes


def _table_options(run: Path, path: Path, options: Mapping[str, Any]) -> Any:
    """The options of a table. The defaults are those of the run, if it was trained on this file."""
    from lifelabel.options import read
    from lifelabel.streams import STREAMS

    values: Any = read(STREAMS["table"].Options, {**_own_options(run, path), **options}, "stream", "the table")
    for name in options:
        if name not in _TABLE_OPTIONS:
            allowed = ", ".join(f"stream.{each}" for each in _TABLE_OPTIONS)
            raise UserError(f"stream.{name} cannot be set for a table here: the options are {allowed}")
    return values


def _own_options(run: Path, table: Path) -> dict[str, Any]:
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
    return {}


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
