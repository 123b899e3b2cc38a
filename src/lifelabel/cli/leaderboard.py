"""`lifelabel leaderboard`: all methods on several streams, tuned and plain, on one page."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import make_folder, parse_convention, parse_methods, parse_seeds
from lifelabel.cli.completion import complete_list, complete_name, stream_names
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import ConventionName, GivenOptions, Methods, OptionFlags, Quiet, Seeds
from lifelabel.cli.many_runs import Place, RepeatRuns, given_command, train_plans
from lifelabel.config.fidelities import FIDELITIES
from lifelabel.config.run_options import VARIED
from lifelabel.errors import UserError, unknown
from lifelabel.utils.files import below, read_limited, write_text
from lifelabel.utils.processes import start_fork_server

if TYPE_CHECKING:
    from lifelabel.metrics.over_tasks import Convention
    from lifelabel.report.leaderboard_page import StreamBoard
    from lifelabel.search.comparison import Board
    from lifelabel.search.planned_run import Outcome, PlannedRun

_COMMAND, _MAX_COMMAND = "command.txt", 1 << 20
"""The file with the command that trained the runs, and its largest size in bytes."""


@command(
    "leaderboard",
    """
lifelabel leaderboard
lifelabel leaderboard --methods er,lwf,agcn --seeds 0-4 --out runs/three
lifelabel leaderboard --stream scenes --stream coco/Split-COCO --stream coco-b0-c10 --root coco --words glove.txt
lifelabel leaderboard --on slurm --slurm partition=gpu --device cuda --jobs 8
lifelabel leaderboard --page-only
""",
    OptionFlags(without=("stream", "fidelity", *VARIED)),
)
def _leaderboard(
    place: Place,
    options: GivenOptions,
    stream: Annotated[
        list[str] | None,
        typer.Option(
            help="What to learn from, as in `lifelabel train`. Repeatable. [default: scenes]",
            autocompletion=complete_name(stream_names),
            metavar="TEXT",
        ),
    ] = None,
    methods: Methods = "all",
    seeds: Seeds = "0-2",
    fidelities: Annotated[
        str,
        typer.Option(
            help="Sets of options, as tuned,plain. The first one ranks the methods.",
            autocompletion=complete_list(lambda: FIDELITIES),
        ),
    ] = "tuned,plain",
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the page.")] = Path(
        "runs/leaderboard"
    ),
    convention: ConventionName = "paper",
    page_only: Annotated[
        bool,
        typer.Option(
            "--page-only",
            help="Train nothing: write the page from the runs that are there, with the options they have.",
        ),
    ] = False,
    overwrite: RepeatRuns = False,
    quiet: Quiet = False,
) -> None:
    """Rank all methods on one or more streams, tuned and plain: a page, a picture and the published rankings that hold.

    Options apply to all runs. An option of a stream, such as `--root`, is given to the streams that have it. Backbone,
    weights, pooling, normalization, image size and words are given to photographs only.

    Finished runs are not repeated, and stopped runs continue. A run that fails is listed on the page.
    """
    if page_only and (overwrite or place.is_cluster):
        raise UserError(f"--page-only trains nothing: leave out {'--overwrite' if overwrite else '--on'}")
    given = options.resolve()
    chosen, by = _parse_fidelities(fidelities), parse_convention(convention)
    parse_seeds(seeds)  # a mistake is reported before torch is imported
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.registry import resolve_name
    from lifelabel.search.comparison import check_streams, existing_boards, make_boards
    from lifelabel.search.planned_run import existing_outcome

    streams = [resolve_name(name) for name in stream or ("scenes",)]
    what = (streams, chosen, parse_methods(methods), parse_seeds(seeds), out_folder)
    if page_only:
        boards = existing_boards(*what)
        found = [_existing(plan.runs) for board in boards for plan in board.plans.values()]
        _show(_tables(boards, found, by), out_folder)
        return
    boards = make_boards(*what, given, not place.is_cluster)
    plans = [plan for board in boards for plan in board.plans.values()]
    if not place.is_cluster:
        check_streams(b for b in boards if overwrite or None in map(existing_outcome, b.runs))
    outcomes = train_plans(plans, place, out_folder, overwrite=overwrite, quiet=quiet)
    if outcomes is not None:
        write_text(out_folder / _COMMAND, given_command({"--overwrite", "--quiet", "-q"}) + "\n")
        _show(_tables(boards, outcomes, by), out_folder)


def _parse_fidelities(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in FIDELITIES:
            raise unknown("fidelity", name, FIDELITIES)
    return list(dict.fromkeys(names))


def _existing(planned: Sequence[PlannedRun]) -> list[Outcome | None]:
    """The outcomes of runs that exist; None for the others. Files of the data may be elsewhere, or not exist."""
    from lifelabel.config.config import Config
    from lifelabel.runs.folder import RunFolder
    from lifelabel.search.planned_run import Outcome, differences

    found: list[Outcome | None] = []
    of_row: dict[tuple[Path, str], Config] = {}
    for plan in planned:
        folder = RunFolder(plan.folder)
        if not folder.is_run:
            found.append(None)
            continue
        reason = None
        try:
            config = Config.make(folder.read_config())
            for name in ("method", "fidelity", "seed"):
                if getattr(config, name) != plan.values[name]:
                    reason = f"{plan.folder} holds a run with another {name}: move it to another folder"
            first = of_row.setdefault((plan.folder.parent, config.method), config)
            if not reason and (other := differences(dataclasses.replace(config, seed=first.seed), first)):
                reason = (
                    f"{plan.folder} differs from the other runs of its row ({', '.join(other[:3])}): train it again"
                )
        except UserError as error:
            reason = str(error)
        found.append(Outcome(plan, reason))
    return found


def _tables(
    boards: Sequence[Board], outcomes: Sequence[Sequence[Outcome | None]], convention: Convention
) -> list[StreamBoard]:
    """The tables of all boards, from the outcomes of each plan."""
    from lifelabel.report.leaderboard_page import StreamBoard

    of_plan = iter(outcomes)
    return [
        StreamBoard(
            board.stream,
            {
                name: plan.table(next(of_plan), title=board.stream, convention=convention)
                for name, plan in board.plans.items()
            },
        )
        for board in boards
    ]


def _show(boards: Sequence[StreamBoard], folder: Path) -> None:
    """Write the page, the CSV file and the picture, and print the tables."""
    from lifelabel.report.cost_figures import leaderboard_spec
    from lifelabel.report.leaderboard_page import PICTURE, ranking_summary, terminal_table, write_page
    from lifelabel.report.vega import chart_obstacle, write_spec

    tables = [table for board in boards for table in board.tables.values()]
    failures = [failure for table in tables for failure in table.failures]
    runs, planned = (sum(len(table.runs) for table in tables), sum(row.planned for t in tables for row in t.rows))
    if not runs:
        raise UserError(failures[0].reason if failures else f"{folder} has no run of these streams, methods and seeds")
    obstacle, picture = chart_obstacle(), []
    with make_folder(folder):
        spec = (
            None
            if obstacle
            else leaderboard_spec({board.name: board.first.rows for board in boards}, boards[0].first.convention)
        )
        if spec:
            picture = write_spec(spec, folder, PICTURE, (".svg", ".png"))
        written = write_page(boards, folder, _page_command(folder), picture)
    for board in boards:
        if (shown := board.with_runs()).first.rows:
            print_table(terminal_table(shown))
    for name, titles in ranking_summary(boards).items():
        print_line(f"published rankings, {name[0].lower()}{name[1:]}: {len(titles)}")
    for failure in failures:
        print_line(f"not finished: {failure.name}: {failure.reason}", "red")
    print_line(f"{runs} of {planned} runs; written to {folder}: {', '.join([*written, *picture])}")
    if obstacle:
        print_line(f"the picture {obstacle}")
    if failures:
        raise typer.Exit(1)


def _page_command(folder: Path) -> str:
    """The command that trained the runs of a folder, or the one that was given if it is not known."""
    with contextlib.suppress(UserError):
        return read_limited(below(folder, _COMMAND), _MAX_COMMAND).decode(errors="replace").strip()
    return given_command({"--page-only", "--quiet", "-q"})
