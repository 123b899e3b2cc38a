"""The arguments that `lifelabel evaluate` and `lifelabel calibrate` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "BatchSize", "Device", "IncludeTrained", "Root", "Rows", "RunFolderArgument", "StreamName", "StreamSettings",
    "TableArgument", "Workers",
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
