"""`lifelabel compare`, `lifelabel study` and `lifelabel demo`: many runs on one stream, in one table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifelabel.cli.cluster import DryRun, On, Place, SbatchOptions
from lifelabel.cli.common import (
    CONTEXT,
    check_fidelity,
    check_file,
    make_display,
    parse_methods,
    parse_seeds,
)
from lifelabel.cli.completion import complete_list, complete_name, method_names, study_names
from lifelabel.cli.flags import Plugins, Settings, given_options, with_option_flags
from lifelabel.cli.report import show_table
from lifelabel.config.run_options import VARIED
from lifelabel.errors import UserError, unknown

if TYPE_CHECKING:
    from lifelabel.report.tables import Failure, Row
    from lifelabel.search.comparison import Plan, Variant
    from lifelabel.search.scheduler import Outcome
from lifelabel.utils.processes import start_fork_server
from lifelabel.utils.text import counted

__all__ = ["Jobs", "Overwrite", "Quiet", "Seeds", "commands", "given_command", "read_row"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)

_DEMO_METHODS = ("fine-tuning", "agcn", "multi-task")

Seeds = Annotated[str, typer.Option(help="Seeds, as 0 or 0-2 or 0,3,5.")]
_Orders = Annotated[
    int,
    typer.Option(
        help="Orders: that of the stream, and K - 1 random ones; of all classes if tasks overlap (Bx-Cy), else of the "
        "tasks.",
        metavar="K",
    ),
]
Jobs = Annotated[
    int | None,
    typer.Option(help="Runs at a time [default: one on each GPU, or on each core, up to 8; on a cluster 256]."),
]
_ConfigFile = Annotated[Path | None, typer.Option(help="A YAML file of options; flags win over it.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Repeat runs that exist.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")]


@commands.command(
    "compare",
    epilog="""
Examples:

`lifelabel compare`

`lifelabel compare --methods er,lwf,agcn --seeds 0-4 --orders 3 --out runs/three`

`lifelabel compare --stream split-coco --root DIR --words glove.6B.300d.txt --seeds 0-4 --out runs/coco`

`lifelabel compare --stream voc-b0-c4 --root DIR --methods er,lwf --orders 5 --epochs 20 --out runs/orders`

`lifelabel compare --methods er,prs --set method.buffer_images=500 --jobs 2 --out runs/small-buffer`

`lifelabel compare --methods fine-tuning,my_method.py:MyMethod --out runs/mine`

`lifelabel compare --on slurm --slurm partition=gpu --slurm time=4:00:00 --device cuda --jobs 8 --out runs/cluster`

`lifelabel compare --on slurm --slurm partition=gpu --device cuda --dry-run --out runs/cluster`
""",
)
@with_option_flags(without=tuple(VARIED), stream_argument=True)
def _compare(
    methods: Annotated[
        str,
        typer.Option(
            help="all, or names of `lifelabel list methods`, as er,lwf,agcn.",
            autocompletion=complete_list(method_names),
        ),
    ] = "all",
    seeds: Seeds = "0-2",
    orders: _Orders = 1,
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the tables.")] = Path(
        "runs/compare"
    ),
    jobs: Jobs = None,
    on: On = "local",
    slurm: SbatchOptions = None,
    dry_run: DryRun = False,
    config: _ConfigFile = None,
    set_: Settings = None,
    plugin: Plugins = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Compare methods on one stream, as in the paper's Table 1: tables, figures and a report.

    Finished runs are not repeated, and stopped runs continue. A run that fails is listed under the table.
    """
    place = Place(on, slurm or (), dry_run)
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.comparison import method_variants

    given = given_options(flags, set_, plugin)
    variants = method_variants(parse_methods(methods))
    plan = _make_plan(variants, seeds, orders, out_folder, config, given, place)
    title = f"{counted(len(variants), 'methods')} on {plan.shared.get('stream', 'scenes')}"
    layout = {"title": title, "head": ("method",)}
    _run(plan, place, jobs, overwrite, quiet, layout)


@commands.command(
    "study",
    epilog="""
Examples:

`lifelabel study acm`

`lifelabel study lambdas --seeds 0-4 --out runs/lambdas`

`lifelabel study acm --stream split-coco --root DIR --words glove.6B.300d.txt --out runs/acm-coco`

`lifelabel study weighted-ridge --stream split-coco --root DIR --seeds 0 --out runs/ridge-coco`

`lifelabel study acm --on slurm --slurm partition=gpu --device cuda --out runs/acm-cluster`
""",
)
@with_option_flags(without=tuple(VARIED))
def _study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="acm (Table 2), lambdas (Table 3) or weighted-ridge.",
            autocompletion=complete_name(study_names),
        ),
    ],
    seeds: Seeds = "0-2",
    orders: _Orders = 1,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs and the tables [default: runs/study-STUDY].")
    ] = None,
    jobs: Jobs = None,
    on: On = "local",
    slurm: SbatchOptions = None,
    dry_run: DryRun = False,
    config: _ConfigFile = None,
    set_: Settings = None,
    plugin: Plugins = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Compare variants of one method.

    `acm` and `lambdas` are the paper's ablations of AGCN (Tables 2 and 3). Each row of `weighted-ridge`
    changes one option of that method.

    Finished runs are not repeated, and stopped runs continue. A run that fails is listed under the table.
    """
    place = Place(on, slurm or (), dry_run)
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.comparison import study_variants
    from lifelabel.search.studies import STUDIES

    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    chosen, given = STUDIES[name], given_options(flags, set_, plugin)
    folder = out_folder or Path(f"runs/study-{name}")
    plan = _make_plan(study_variants(name), seeds, orders, folder, config, given, place)
    title = f"{chosen.title}, on {plan.shared.get('stream', 'scenes')}"
    columns = {"forgetting": chosen.forgetting, "errors": chosen.errors, "costs": chosen.costs}
    _run(plan, place, jobs, overwrite, quiet, {"title": title, "head": chosen.head, **columns})


@commands.command("demo", epilog="Examples:\n\n`lifelabel demo`\n\n`lifelabel demo --seeds 0-2 --out runs/results`")
def _demo(
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the tables.")] = Path("runs/demo"),
    seeds: Seeds = "0",
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Compare fine-tuning, AGCN and multi-task on the embedded stream: a report in about a minute.

    Finished runs are not repeated, and stopped runs continue.
    """
    parse_seeds(seeds)  # a mistake is reported before torch is imported
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.comparison import method_variants

    plan = _make_plan(method_variants(_DEMO_METHODS), seeds, 1, out_folder, None, {}, Place())
    _run(plan, Place(), None, overwrite, quiet, {"title": "Demo on scenes", "head": ("method",), "errors": True})


def _make_plan(
    variants: tuple[Variant, ...], seeds: str, orders: int, folder: Path, config: Path | None, given: dict[str, Any],
    place: Place,
) -> Plan:  # fmt: skip
    from lifelabel.search.comparison import make_plan
    from lifelabel.utils.yaml_reader import read_yaml

    from_file = read_yaml(config) if config else {}
    check_file(config, from_file, {"stream": given.get("stream")})
    check_fidelity(config, from_file, given)
    on_this_machine = not place.is_cluster
    return make_plan(variants, parse_seeds(seeds), orders, folder, from_file, given, str(config), on_this_machine)


def _run(plan: Plan, place: Place, jobs: int | None, overwrite: bool, quiet: bool, layout: dict[str, Any]) -> None:
    """Train the missing runs of a plan, and show the table."""
    from lifelabel.report.tables import ResultTable

    device = plan.shared.get("device", "auto")
    jobs = place.check_jobs(jobs, device)
    planned = [plan.runs(variant) for variant in plan.variants]
    every_run = [run for runs in planned for run in runs]
    if place.dry_run:
        place.print_script(every_run, jobs, plan.out, device)
        return
    command = given_command({"--overwrite"})
    run_all = place.runner(plan.out, device)
    outcomes = run_all(every_run, jobs, overwrite=overwrite, display=make_display(quiet), command=command)
    remaining = iter(outcomes)
    rows, failures = [], []
    for variant, runs in zip(plan.variants, planned, strict=True):
        row, failed = read_row(variant.cells, variant.method, [next(remaining) for _ in runs])
        rows.append(row)
        failures += failed
    show_table(ResultTable(rows=tuple(rows), failures=tuple(failures), **layout), plan.out, quiet)
    if failures:
        raise typer.Exit(1)


def given_command(without: set[str]) -> str:
    """The command that was given, without some flags."""
    return shlex.join(["lifelabel", *(word for word in sys.argv[1:] if word not in without)])


def read_row(cells: tuple[str, ...], method: str, outcomes: Sequence[Outcome | None]) -> tuple[Row, list[Failure]]:
    """The row of a variant of a method, and its runs that failed or are damaged. None: a run that was not started."""
    from lifelabel.methods import METHODS
    from lifelabel.report.tables import Failure, Row
    from lifelabel.runs.finished import read_run

    runs, failures = [], []
    for outcome in filter(None, outcomes):
        plan, reason = outcome.planned, outcome.error
        try:
            if not reason:
                runs.append(read_run(plan.folder))
        except UserError as error:
            reason = str(error)
        if reason:
            failures.append(Failure(plan.name, plan.folder, reason))
    return Row(cells, tuple(runs), len(outcomes), METHODS[method].joint), failures
