"""The labelled images of `lifelabel evaluate` and `lifelabel calibrate`: their arguments and flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.common import stream_settings
from lifelabel.cli.flags import RunArgument


@dataclass(frozen=True)
class LabelledImages:
    """A finished model, and the images that it is evaluated or calibrated on."""

    run: RunArgument
    table: Annotated[
        Path | None,
        typer.Argument(metavar="TABLE", help="A table of images and labels (.csv, .tsv, .parquet); or give --stream."),
    ] = None
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="STREAM",
            help="A stream in place of a table: a name of `lifelabel list streams`, or a .yaml or .zip file.",
        ),
    ] = None
    root: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder of the images [default: the folder of the table].")
    ] = None
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="stream.NAME=VALUE", help="An option of the stream or of the table, as stream.separator."
        ),
    ] = None
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS",
            help="test, val, train or all [default: test, and to calibrate val; a table without a column `split`: "
            "all].",
        ),
    ] = None
    include_trained: Annotated[
        bool,
        typer.Option(
            "--include-trained", help="Use images that the model was trained on, too: figures are then too high."
        ),
    ] = False
    merge_case: Annotated[
        bool,
        typer.Option(
            "--merge-case",
            help="A class of the table whose name differs from that of the model only in case, spaces, underscores or "
            "hyphens is the class of the model.",
        ),
    ] = False
    alias: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a class of the table. Repeatable.")
    ] = None

    def arguments(self) -> dict[str, Any]:
        """The keywords of `lifelabel.evaluate` and `lifelabel.calibrate`."""
        names = ({"merge_case": True} if self.merge_case else {}) | ({"alias": self.alias} if self.alias else {})
        return {
            "table": self.table, "stream": self.stream, "root": self.root, "rows": self.rows,
            "include_trained": self.include_trained, "stream_options": stream_settings(self.set_ or []) | names,
        }  # fmt: skip
