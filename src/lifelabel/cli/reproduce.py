"""`lifelabel reproduce`: the tables and figures of the AGCN paper, beside runs that this command trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import make_folder, parse_methods, parse_seeds
from lifelabel.cli.completion import complete_list, complete_name, method_names
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import GivenOptions, OptionFlags, Quiet, Seeds
from lifelabel.cli.many_runs import Place, RepeatRuns, given_command, train_plans
from lifelabel.config.run_options import VARIED
from lifelabel.errors import UserError, unknown
from lifelabel.report.paper_claims import REGIMES, TARGETS
from lifelabel.utils.files import below
from lifelabel.utils.processes import start_fork_server

if TYPE_CHECKING:
    from lifelabel.report.tables import ResultTable
    from lifelabel.search.paper_runs import Reproduction
    from lifelabel.search.planned_run import Outcome

_PICTURES = ("fig3", "fig4", "a6")
"""The targets that are pictures in the paper: the report of their runs has them."""


@dataclass(frozen=True)
class _AnyPlace(Place):
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train nothing: print the runs and an estimate of their hours on this machine; with --on slurm the "
            "job script.",
        ),
    ] = False
    prints_script: ClassVar[bool] = False


@command(
    "reproduce",
    """
lifelabel reproduce table1
lifelabel reproduce table1 --root coco --words glove.6B.300d.txt --seeds 0-4 --out runs/paper
lifelabel reproduce table1 --stream coco/Split-COCO.zip --root coco --backbone resnet50 --image-size 224
lifelabel reproduce table2 --root coco --lr 3e-4  # the rate of the graph; linear heads keep theirs
lifelabel reproduce table3 --regime ours --seeds 0
lifelabel reproduce fig3 --root coco --dry-run
lifelabel reproduce a6 --stream split-wide --root nus-wide --on slurm --slurm partition=gpu --device cuda
""",
    OptionFlags(without=("fidelity", *VARIED)),
)
def _reproduce(
    place: _AnyPlace,
    options: GivenOptions,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="table1, table2, table3, fig3, fig4 or a6 (the matrix after each task).",
            autocompletion=complete_name(lambda: TARGETS),
        ),
    ],
    regime: Annotated[
        str,
        typer.Option(
            help="The options: those of the authors' code (`authors`), the equations as printed (`paper`), or our "
            "tuned ones (`ours`): the fidelities release, paper and tuned.",
            autocompletion=complete_name(lambda: REGIMES),
        ),
    ] = "authors",
    seeds: Seeds = "0-2",
    methods: Annotated[
        str,
        typer.Option(help="all, or methods of the target, as er,prs,agcn.", autocompletion=complete_list(method_names)),
    ] = "all",
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the tables.")] = Path(
        "runs/reproduce"
    ),
    existing_only: Annotated[
        bool, typer.Option("--existing-only", help="Train nothing: compare the runs that are finished.")
    ] = False,
    overwrite: RepeatRuns = False,
    quiet: Quiet = False,
) -> None:
    """Train the runs of a table or figure of the AGCN paper, and print its figures beside ours.

    Every claim of the paper gets a verdict. Figures are compared in both conventions that the paper's can have: after
    the last task (its text), and the mean over test sets (its code). `--root` is the folder of COCO; without it and
    without `--stream`, the runs are on the embedded stream scenes. All targets share their runs: finished runs are not
    repeated, and stopped runs continue.
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    if regime not in REGIMES:
        raise unknown("regime", regime, REGIMES)
    if existing_only and (overwrite or place.is_cluster or place.dry_run):
        flag = "--overwrite" if overwrite else "--on" if place.is_cluster else "--dry-run"
        raise UserError(f"--existing-only trains nothing: leave out {flag}")
    given, chosen = options.resolve(), parse_seeds(seeds)
    if "stream" not in given and (given.get("stream_options") or {}).get("root"):
        given["stream"] = "split-coco"
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.paper_runs import reproduction
    from lifelabel.search.planned_run import existing_outcome

    some = [] if methods == "all" else parse_methods(methods)
    planned = reproduction(target, regime, chosen, out_folder, given, some, not place.is_cluster)
    if place.dry_run and not place.is_cluster:
        _print_estimate(planned)
        return
    outcomes: Sequence[Outcome | None]
    if existing_only:
        outcomes = [existing_outcome(run) for run in planned.plan.runs]
    elif (found := train_plans([planned.plan], place, out_folder, overwrite=overwrite, quiet=quiet)) is not None:
        outcomes = found[0]
    else:
        return
    table = planned.plan.table(outcomes, planned.title, planned.head, costs=False)
    if not table.runs and not table.failures:
        raise UserError(f"{planned.plan.out} has no finished run of these methods and seeds: leave out --existing-only")
    if table.runs:
        folder = below(out_folder, f"{planned.plan.out.name}-{target}")
        _show(planned, table, folder, quiet)
    for failure in table.failures:
        print_line(f"not finished: {failure.name}: {failure.reason}", "red")
    if table.failures:
        raise typer.Exit(1)


def _show(planned: Reproduction, table: ResultTable, folder: Path, quiet: bool) -> None:
    """Print the comparison with the paper, and write it. A target that is a picture has a report too."""
    from lifelabel.cli.report import write_page
    from lifelabel.report.reproduction import make_document, write
    from lifelabel.report.text_tables import rich_table
    from lifelabel.report.vega import chart_obstacle

    shown = given_command({"--overwrite", "--quiet", "-q"})
    document = make_document(planned.target, table, shown, planned.plan.shared["stream"] == "scenes")
    for each in document.tables:
        print_table(rich_table(each))
    for note in (*document.notes, document.reading):
        print_line(note)
    with make_folder(folder):
        written = write(document, table, folder)
    if planned.target in _PICTURES:
        obstacle = chart_obstacle()
        written += [f"no pictures: the report {obstacle}"] if obstacle else write_page(table, folder, quiet)
    print_line(f"written to {folder}: {', '.join(written)}")


def _print_estimate(planned: Reproduction) -> None:
    from lifelabel.search.paper_runs import estimate

    expected = estimate(planned)
    missing = 0.0
    for run in planned.plan.runs:
        found = expected[run.folder]
        missing += 0 if found.finished else found.seconds
        state = "finished in" if found.finished else "about"
        print_line(f"{run.folder}  {state} {found.seconds / 3600:.2f} h  {run.name}")
    print_line(
        f"{len(planned.plan.runs)} runs; the missing ones take about {missing / 3600:.1f} hours, one at a time on this "
        "machine. A step of the backbone was timed; the decoding of images is not counted"
    )
