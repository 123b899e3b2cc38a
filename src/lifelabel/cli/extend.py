"""`lifelabel extend`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import make_callback, print_class_table
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import FinishedRunArgument, GivenOptions, OptionFlags, OverwriteRun, Quiet
from lifelabel.config.run_options import RunOptions
from lifelabel.options import declared
from lifelabel.parallel.torchrun import is_first_process
from lifelabel.utils.processes import start_fork_server
from lifelabel.utils.text import counted

_FIXED = tuple(name for name in declared(RunOptions, "flag") if name not in declared(RunOptions, "resume"))


@command(
    "extend",
    """
lifelabel extend runs/mine june.csv --root photos --out runs/june
lifelabel extend runs/june july.csv --root photos --out runs/july
lifelabel predict runs/july new.jpg
""",
    OptionFlags(without=_FIXED),
)
def _extend(
    run: FinishedRunArgument,
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="New photographs: a .csv, .tsv or .parquet table of images and labels."),
    ],
    options: GivenOptions,
    out_folder: Annotated[Path, typer.Option("--out", help="The new run folder.")],
    overwrite: OverwriteRun = False,
    quiet: Quiet = False,
) -> None:
    """Learn new classes from new photographs, without old ones. The new run can be used and extended like any other.

    Classes of the table that the run does not know are new: they form one task. Labels of old classes count too, if the
    table names these classes. Method and options are those of the run. Part of the new photographs is held out to
    compare the old classes before and after.
    """
    start_fork_server("lifelabel.engine.label_server")
    from lifelabel.engine.extension import extend

    given = options.resolve()
    result = extend(run, table, out_folder, given, overwrite=overwrite, callback=make_callback(quiet))
    if is_first_process():
        print_extension(result.metrics, out_folder, quiet)


def print_extension(metrics: Mapping[str, Any], folder: Path, quiet: bool) -> None:
    """The result of an extension: the AP of the held-out classes, unless `quiet`, and the line of before and after."""
    before, after = metrics["per_task"][0]["ap"], metrics["final"]["ap"]
    old = [name for name, value in before.items() if value is not None]
    new = [name for name in after if name not in before]
    if not quiet:
        shown = {name: value for name, value in after.items() if value is not None}
        print_class_table(metrics, shown, {"AP before": [before.get(name) for name in shown]})
    change = f"{_mean(before, old)} before and {_mean(after, old)} after" if old else "not known"
    print_line(
        f"{metrics['method']}: {counted(len(new), 'new classes')}, {len(after)} in all; mAP of the new classes "
        f"{_mean(after, new)}, of the old ones {change}  → {folder}"
    )
    if not old and not quiet:
        print_line(
            "the held-out images have no label of an old class: measure the old classes on other images with "
            f"`lifelabel evaluate {shlex.quote(str(folder))} TABLE --root DIR`"
        )


def _mean(ap: Mapping[str, float | None], names: Collection[str]) -> str:
    values = [value for name in names if (value := ap[name]) is not None]
    return f"{100 * sum(values) / len(values):.1f}" if values else "–"
