"""The labelled images on which a finished model is evaluated or calibrated: a table or a stream."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lifelabel import streams
from lifelabel.errors import UserError
from lifelabel.images.shards import is_root
from lifelabel.model.labelled_scores import LabelledScores, score_labelled
from lifelabel.model.model import Model
from lifelabel.options import read
from lifelabel.registry import resolve_name
from lifelabel.runs.folder import RunFolder
from lifelabel.streams import STREAMS
from lifelabel.streams.labelled_set import LabelledSet, Trained, check_rows, from_stream, from_table
from lifelabel.utils.memory import keep_freed_memory
from lifelabel.utils.text import counted, printable

_TABLE_OPTIONS = ("root", "separator", "alias", "merge_case")


class Labelled(NamedTuple):
    """A set of labelled images, notes about their choice, and whether the model was trained on some of them."""

    images: LabelledSet
    notes: list[str]
    trained_on: bool


def read_labelled(
    run: Path, table: Path | None, stream: str | None, root: str | Path | None,
    stream_options: Mapping[str, Any] | None, rows: str | None, model: Model, include_trained: bool,
    progress: Callable[[int, int], None] | None = None, first: str = "test",
) -> Labelled:  # fmt: skip
    """The images of a table or of a stream, with the options of either. `root` is one of them.

    Without `rows`, the `first` rows of a table, if it has some. `progress` is that of the comparison with the training
    images.
    """
    if (table is None) == (stream is None):
        raise UserError("give the labelled images: a TABLE, or --stream NAME (one of them)")
    rows = check_rows(rows)
    options = {**(stream_options or {}), **({} if root is None else {"root": str(root)})}
    if options.get("root") is not None and not is_root(Path(options["root"])):
        raise UserError(f"there is no folder {options['root']}: give another --root DIR")
    tasks = dict(zip(model.classes, model.info.task_of_class, strict=True))
    trained = Trained(model.trained_images(), tasks, include_trained, progress)
    if stream is not None:
        found = from_stream(streams.build(resolve_name(stream), options), rows, trained)
    else:
        assert table is not None
        values = _table_options(run, table, options)
        folder = None if values.root is None else Path(values.root)
        names = {"alias": values.alias, "merge_case": values.merge_case, "known": model.classes}
        found = from_table(table, folder, rows, separator=values.separator, first=first, trained=trained, **names)
    return Labelled(found, [*_notes(found, trained), *found.problems.lines()], trained.included and found.found > 0)


def _notes(found: LabelledSet, trained: Trained) -> list[str]:
    if trained.images is None:
        return ["the model does not say on which images it was trained: figures on those are too high"]
    notes = []
    if found.found:
        shown = ", ".join(map(printable, found.examples)) + (", …" if found.found > len(found.examples) else "")
        if trained.included:
            notes.append(f"{found.found:,} of these images are training images ({shown}): the figures are too high")
        else:
            left_out = counted(found.found, "training images")
            notes.append(f"{left_out} of the model left out ({shown}); --include-trained uses them")
    if found.namesakes:
        notes.append(
            f"{counted(found.namesakes, 'images have')} the name of a training image, but other pixels: if they are "
            "resized or edited copies of training images, the figures are too high"
        )
    return notes


def _table_options(run: Path, path: Path, options: Mapping[str, Any]) -> Any:
    """The options of a table. The defaults are those of the run, if it was trained on this file."""
    values: Any = read(STREAMS["table"].Options, {**_own_options(run, path), **options}, "stream", "the table")
    for name in options:
        if name not in _TABLE_OPTIONS:
            allowed = ", ".join(f"stream.{each}" for each in _TABLE_OPTIONS)
            raise UserError(f"stream.{name} cannot be set for a table here: the options are {allowed}")
    return values


def _own_options(run: Path, table: Path) -> dict[str, Any]:
    """The options of the table, if the run was trained on it."""
    for folder in (run, run.resolve().parent):  # the model folder of a run is below it
        if not RunFolder(folder).is_run:
            continue
        with contextlib.suppress(UserError, OSError):
            config = RunFolder(folder).read_config()
            options = config.get("stream_options")
            if config.get("stream") == "table" and isinstance(options, Mapping):
                file = options.get("file")
                if isinstance(file, str) and Path(file).resolve() == table.resolve():
                    return {name: options[name] for name in _TABLE_OPTIONS if name in options}
    return {}


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
