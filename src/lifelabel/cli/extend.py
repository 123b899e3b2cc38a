"""`lifelabel extend`."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.common import CONTEXT, make_callback
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import Plugins, Settings, given_options, with_option_flags
from lifelabel.config.run_options import RunOptions
from lifelabel.options import declared
from lifelabel.utils.processes import start_fork_server
from lifelabel.utils.text import task_cell
from lifelabel.utils.torchrun import is_first_process

__all__ = ["commands"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)

_FIXED = tuple(name for name in declared(RunOptions, "flag") if name not in declared(RunOptions, "resume"))


@commands.command(
    "extend",
    epilog="""
Examples:

`lifelabel extend runs/mine june.csv --root photos --out runs/june`

`lifelabel extend runs/june july.csv --root photos --out runs/july`

`lifelabel predict runs/july new.jpg`
""",
)
@with_option_flags(without=_FIXED)
def _extend(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    table: Annotated[
        str,
        typer.Argument(metavar="TABLE", help="New photographs: a .csv, .tsv or .parquet table of images and labels."),
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="The new run folder.")],
    set_: Settings = None,
    plugin: Plugins = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the last line.")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Learn new classes from new photographs, without old ones. The new run can be used and extended like any other.

    Classes of the table that the run does not know are new: they form one task. Labels of old classes count too, if the
    table names these classes. Method and options are those of the run. Part of the new photographs is held out to
    compare the old classes before and after.
    """
    start_fork_server("lifelabel.engine.label_server")
    from lifelabel.engine.extend import extend

    given = given_options(flags, set_, plugin)
    result = extend(run, table, out_folder, given, overwrite=overwrite, callback=make_callback(quiet))
    if not is_first_process():
        return
    metrics = result.metrics
    before, after = metrics["per_task"][0]["ap"], metrics["final"]["ap"]
    if not quiet:
        _print_classes(metrics["tasks"], metrics.get("task_names") or [], before, after)
    old = [name for name, value in before.items() if value is not None]
    new = [name for name in after if name not in before]
    change = f"{_mean(before, old)} before and {_mean(after, old)} after" if old else "not known"
    print_line(
        f"{metrics['method']}: {len(new)} new classes, {len(after)} in all; mAP of the new classes "
        f"{_mean(after, new)}, of the old ones {change}  → {out_folder}"
    )
    if not old and not quiet:
        print_line(
            f"the held-out images of {table} have no label of an old class: measure the old classes on other images "
            f"with `lifelabel evaluate {shlex.quote(str(out_folder))} TABLE --root DIR`"
        )


def _print_classes(
    tasks: Sequence[Sequence[str]], names: Sequence[str], before: Mapping[str, float | None],
    after: Mapping[str, float | None],
) -> None:  # fmt: skip
    """The AP of every class that the held-out images show: after the extension, and before it."""
    from lifelabel.report.per_class import per_class_table

    task_of = {name: task_cell(number, names) for number, classes in enumerate(tasks, 1) for name in classes}
    shown = [name for name in task_of if after[name] is not None]
    cells, values = [task_of[name] for name in shown], [after[name] for name in shown]
    print_table(per_class_table(shown, cells, values, {"AP before": [before.get(name) for name in shown]}))


def _mean(ap: Mapping[str, float | None], names: Collection[str]) -> str:
    values = [value for name in names if (value := ap[name]) is not None]
    return f"{100 * sum(values) / len(values):.1f}" if values else "–"
