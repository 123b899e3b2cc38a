"""`lifelabel report` and `lifelabel list`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.common import CONTEXT, make_folder
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import Plugins, load_plugins

if TYPE_CHECKING:
    from lifelabel.report.tables import ResultTable

__all__ = ["commands", "show_table"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)


@commands.command("report", epilog="Example:\n\n`lifelabel report runs/demo/agcn-s0 runs/a --out runs/report`")
def _report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, or folders that contain runs; seeds of one method share a row."),
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the tables and the figure.")] = Path(
        "runs/report"
    ),
    plugin: Plugins = None,
) -> None:
    """Make a table and a figure of finished runs, from their folders. Runs of plug-ins need no `--plugin`."""
    load_plugins(plugin)
    from lifelabel.report.runs import find_runs, read_run
    from lifelabel.report.tables import ResultTable

    show_table(ResultTable.from_runs([read_run(path) for path in find_runs(runs)]), out_folder)


def show_table(table: ResultTable, folder: Path) -> None:
    """Write a table in all formats and its figure into `folder`, and print the table with its notes."""
    from lifelabel.report.figures import draw_runs
    from lifelabel.report.tables import notes, terminal, write_tables

    if table.runs:
        with make_folder(folder):
            written = write_tables(table, folder)
            draw_runs({row.name: row.runs for row in table.rows if row.runs}, folder / "report.png")
        for each in terminal(table):
            print_table(each)
        for line in notes(table):
            print_line(line)
    for failure in table.failures:
        print_line(f"not finished: {failure.name}: {failure.reason}", "red")
    if table.runs:
        print_line(f"written to {folder}: {', '.join(written)}, report.png")


class _Listing(str, Enum):
    methods, streams, backbones, metrics, presets = "methods", "streams", "backbones", "metrics", "presets"


@commands.command(
    "list", epilog="Examples:\n\n`lifelabel list methods`\n\n`lifelabel list methods --plugin my_method.py`"
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
