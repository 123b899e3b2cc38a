"""`lifelabel report` and `lifelabel list`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import make_folder, parse_convention, progress_bar
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import ConventionName, Plugins, load_plugins
from lifelabel.errors import UserError

if TYPE_CHECKING:
    from lifelabel.report.tables import ResultTable


@command(
    "report",
    """
lifelabel report runs/demo/agcn-s0 runs/a --out runs/report
""",
)
def _report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that contain runs; seeds of one method share a row.")
    ],
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the report, the tables and the figures.")
    ] = Path("runs/report"),
    convention: ConventionName = "paper",
    plugin: Plugins = None,
) -> None:
    """Make a report of finished runs, from their folders: a page for the browser, tables and figures.

    Runs that are damaged or not finished are listed, and the exit code is 1. Runs of plug-ins need no `--plugin`.
    """
    load_plugins(plugin)
    chosen = parse_convention(convention)
    from lifelabel.report.tables import Failure, ResultTable
    from lifelabel.runs.finished import FinishedRun, find_runs, read_run

    found: list[FinishedRun] = []
    failures: list[Failure] = []
    for path in find_runs(runs):
        try:
            found.append(read_run(path))
        except UserError as error:
            failures.append(Failure(path.name, path, str(error)))
    if not found:
        raise UserError(failures[0].reason)
    show_table(replace(ResultTable.from_runs(found, chosen), failures=tuple(failures)), out_folder)
    if failures:
        raise typer.Exit(1)


def show_table(table: ResultTable, folder: Path, quiet: bool = False) -> None:
    """Write a table in all formats into `folder`, print it with its notes, and write its report and figures."""
    from lifelabel.report.page import REPORT
    from lifelabel.report.tables import notes, terminal, write_tables
    from lifelabel.report.vega import chart_obstacle

    if table.runs:
        with make_folder(folder):
            written = write_tables(table, folder)
        for each in terminal(table):
            print_table(each)
        for line in notes(table):
            print_line(line)
    for failure in table.failures:
        print_line(f"not finished: {failure.name}: {failure.reason}", "red")
    if table.runs:
        if obstacle := chart_obstacle():
            last = f"{REPORT} {obstacle}"
        else:
            written += write_page(table, folder, quiet)
            last = f"the report is {(folder / REPORT).resolve()}: open it in a browser"
        print_line(f"written to {folder}: {', '.join(written)}")
        print_line(last)


def write_page(table: ResultTable, folder: Path, quiet: bool) -> list[str]:
    """Write the report and its figures. Returns the names of its parts, of the figures their folder and number."""
    from lifelabel.report.page import write_report

    with make_folder(folder), nullcontext() if quiet else progress_bar("figures") as progress:
        page, *figures = write_report(table, folder, progress)
    return [page, f"figures/ ({len(figures)} files)"]


class _Listing(str, Enum):
    methods, streams, backbones, metrics, presets = "methods", "streams", "backbones", "metrics", "presets"


@command(
    "list",
    """
lifelabel list methods
lifelabel list methods --plugin my_method.py
""",
)
def _list(what: Annotated[_Listing, typer.Argument(help="What to list.")], plugin: Plugins = None) -> None:
    """List methods, streams, backbones, metrics or presets, one per line. Plug-ins are included."""
    load_plugins(plugin)
    for name, line in _catalogue(what).items():
        print_line(f"{name:<20} {line}")


def _catalogue(what: _Listing) -> dict[str, str]:
    if what is _Listing.methods:
        from lifelabel.methods import METHODS

        return {name: getattr(method, "summary", "") for name, method in METHODS.items()}
    if what is _Listing.streams:
        from lifelabel.streams import STREAMS

        return {name: source.summary for name, source in STREAMS.items()}
    if what is _Listing.backbones:
        from lifelabel.nn.backbones import BACKBONES, FAMILIES, summary_of

        return {name: summary_of(build) for name, build in BACKBONES.items()} | {
            name: line for name, (line, _) in FAMILIES.items()
        }
    if what is _Listing.presets:
        from lifelabel.config import presets
        from lifelabel.methods import METHODS

        origins = {f"{kind}/{method}": presets.origin(kind, method) for kind in presets.KINDS for method in METHODS}
        return {name: f"{origin.reached}: {origin.command}" for name, origin in origins.items() if origin}
    from lifelabel.metrics import METRICS

    return {name: f"{metric.help} ({metric.reported_by})" for name, metric in METRICS.items()}
