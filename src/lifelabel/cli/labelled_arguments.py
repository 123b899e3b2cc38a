"""The arguments that `lifelabel evaluate` and `lifelabel calibrate` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.common import stream_settings

__all__ = [
    "Alias", "BatchSize", "Device", "IncludeTrained", "MergeCase", "Root", "Rows", "RunFolderArgument", "StreamName",
    "StreamSettings", "TableArgument", "Workers", "options",
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
MergeCase = Annotated[
    bool,
    typer.Option(
        "--merge-case",
        help="A class of the table whose name differs from that of the model only in case, spaces, underscores or "
        "hyphens is the class of the model.",
    ),
]
Alias = Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a class of the table. Repeatable.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
BatchSize = Annotated[int | None, typer.Option(help="Images at a time [default: by image size].")]
Workers = Annotated[
    int | None, typer.Option(help="Processes that decode images [default: the number of cores for a GPU, else 0].")
]


def options(settings: list[str] | None, merge_case: bool, alias: list[str] | None) -> dict[str, Any]:
    """The options of the table or of the stream, from the flags."""
    names = ({"merge_case": True} if merge_case else {}) | ({"alias": alias} if alias else {})
    return stream_settings(settings or []) | names
