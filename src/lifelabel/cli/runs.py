"""`lifelabel runs`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.console import err, print_line, print_table
from lifelabel.errors import UserError
from lifelabel.utils.text import BELOW_ZERO

if TYPE_CHECKING:
    from lifelabel.runs.listing import ListedRun

_HEADS = (
    "folder", "stream", "method", "state", "seed", "mAP", "CF1", "OF1", "forgetting", "s", "date", "commit",
)  # fmt: skip
_LEFT = 4


@command(
    "runs",
    """
lifelabel runs
lifelabel runs /data/runs --unfinished
lifelabel runs --json > runs.json
""",
)
def _runs(
    folder: Annotated[Path, typer.Argument(help="The folder to search, with all folders in it.")] = Path("runs"),
    unfinished: Annotated[bool, typer.Option("--unfinished", help="Only runs that are not finished.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list with one object per run.")] = False,
) -> None:
    """List all runs in a folder, finished or not. Scores and forgetting are in %, and fractions with `--json`."""
    from lifelabel.runs.listing import list_runs

    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that contains the runs")
    found = list(
        list_runs(folder, lambda error: print_line(f"cannot read {error.filename}: {error.strerror}", "yellow", err))
    )
    if unfinished:
        found = [run for run in found if run.state != "finished"]
    if as_json:
        print(json.dumps(list(map(dataclasses.asdict, found)), indent=1))
    elif not found:
        print_line(f"no {'unfinished ' if unfinished else ''}runs in {folder}")
    else:
        _print(found)


def _print(runs: list[ListedRun]) -> None:
    from rich import box

    from lifelabel.report.text_tables import rich_grid

    print_table(rich_grid(_HEADS, map(_cells, runs), _LEFT, max_width=40, box=box.SIMPLE))
    if any((run.forgetting or 0) < 0 for run in runs):
        print_line(f"forgetting {BELOW_ZERO}")


def _cells(run: ListedRun) -> list[str]:
    scores = [None if value is None else f"{100 * value:.1f}" for value in (run.mAP, run.CF1, run.OF1, run.forgetting)]
    seconds = None if run.seconds is None else f"{run.seconds:,.0f}"
    commit = run.commit and run.commit[:7] + ("+" if run.commit.endswith("+") else "")
    cells = [run.folder, run.stream, run.label, run.state_text, run.seed, *scores, seconds, run.date, commit]
    return ["–" if cell is None else str(cell) for cell in cells]
