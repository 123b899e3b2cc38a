"""`lifelabel compare` and `lifelabel study`: many runs on one stream, and the paper's tables of them."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifelabel.cli_common import (
    check_fidelity,
    check_file,
    err,
    out,
    parse_methods,
    parse_seeds,
    parse_settings,
    print_whole,
    side_by_side,
)
from lifelabel.errors import UserError, plain, unknown

if TYPE_CHECKING:
    from lifelabel.report.leaderboard import Board, Failure, Row
    from lifelabel.runner import Outcome, Planned

commands = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})

VARIED = {"method": "--methods", "seed": "--seeds", "task_order": "--orders"}
MAX_ORDERS = 1000


@dataclass(frozen=True)
class Study:
    """Variants of one method, as data: a title, the heads of the first columns, and the rows with their options."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], dict[str, Any]], ...]
    method: str = "agcn"
    forgetting: bool = True
    errors: bool = False


STUDIES = {
    "acm": Study(
        "What the blocks of the matrix are worth (the paper's Table 2, and the graph switched off)",
        ("matrix", "A^{t-1} & B^t", "R^t & Q^t"),
        (
            (("A = I", "×", "×"), {"adjacency": "identity"}),
            (("A^{t-1} & B^t", "√", "×"), {"blocks": "intra"}),
            (("+ R^t & Q^t", "√", "√"), {"blocks": "all"}),
            (("without context", "√", "√"), {"blocks": "all", "context": 0.0}),
        ),
        forgetting=False,
        errors=True,
    ),
    "lambdas": Study(
        "What the loss weights are worth (the paper's Table 3)",
        ("λ1", "λ2", "λ3"),
        (
            (("0.05", "0.95", "0"), {"lambdas": (0.05, 0.95, 0)}),
            (("0.07", "0.93", "0"), {"lambdas": (0.07, 0.93, 0)}),
            (("0.09", "0.91", "0"), {"lambdas": (0.09, 0.91, 0)}),
            (("0.07", "0.93", "10^4"), {"lambdas": (0.07, 0.93, 1e4)}),
            (("0.07", "0.93", "10^5"), {"lambdas": (0.07, 0.93, 1e5)}),
            (("0.07", "0.93", "10^6"), {"lambdas": (0.07, 0.93, 1e6)}),
        ),
    ),
}


@dataclass(frozen=True)
class Variant:
    """One row of the table to come: what stands before its figures, its method, its own options, its folders' name."""

    cells: tuple[str, ...]
    method: str
    options: dict[str, Any]
    folder: str


@dataclass(frozen=True)
class Plan:
    """The runs of a table: every variant with every seed and every order of tasks, and what all of them share."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    orders: int
    shared: dict[str, Any]
    """Options of every run; those of a method reach the methods that have them."""
    out: Path

    def runs(self, variant: Variant) -> list[Planned]:
        from lifelabel.config import merge
        from lifelabel.methods import METHODS
        from lifelabel.runner import Planned

        declared = {field.name for field in dataclasses.fields(METHODS[variant.method].Options)}
        given = {k: v for k, v in (self.shared.get("method_options") or {}).items() if k in declared}
        base = merge(self.shared, {"method": variant.method})
        base["method_options"] = {**given, **variant.options}
        planned = []
        for order in range(self.orders):
            for seed in self.seeds:
                name = f"{', '.join(variant.cells)}, seed {seed}" + (f", task order {order}" if order else "")
                folder = self.out / (variant.folder + (f"-o{order}" if order else "") + f"-s{seed}")
                planned.append(Planned(name, folder, {**base, "seed": seed, "task_order": order}))
        return planned


Stream = Annotated[
    str | None,
    typer.Option(help="What to learn from: a name of `lifelabel list streams`, or a file [default: scenes]."),
]
Methods = Annotated[str, typer.Option(help="all, or names of `lifelabel list methods`, as er,lwf,agcn.")]
Seeds = Annotated[str, typer.Option(help="Seeds, as 0 or 0-2 or 0,3,5.")]
Orders = Annotated[int, typer.Option(help="Orders of the tasks: the stream's own, and K - 1 random ones.", metavar="K")]
Jobs = Annotated[
    int | None, typer.Option(help="Runs side by side [default: one on each GPU, or on each core, up to 8].")
]
Fidelity = Annotated[str | None, typer.Option(help="tuned (default), paper, release or plain.")]
ConfigFile = Annotated[Path | None, typer.Option(help="A YAML file of options; flags win over it.")]
Root = Annotated[str | None, typer.Option(metavar="DIR", help="The folder of the stream's images.")]
Words = Annotated[str | None, typer.Option(help="A GloVe text file for the label words.")]
Weights = Annotated[str | None, typer.Option(help="First weights: none, imagenet, or a file.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Workers = Annotated[str | None, typer.Option(metavar="INT", help="Processes a run that decode images ahead.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE",
        help="Any option as NAME=VALUE; `stream.NAME` is the stream's, `method.NAME` of every method that has it.",
    ),
]  # fmt: skip
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Redo runs that are there.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")]


@commands.command(
    epilog="""
Examples:

`lifelabel compare`

`lifelabel compare --methods er,lwf,agcn --seeds 0-4 --orders 3 --out runs/three`

`lifelabel compare --stream split-coco --root DIR --words glove.6B.300d.txt --seeds 0-4 --out runs/coco`

`lifelabel compare --methods er,prs --set method.buffer_images=500 --jobs 2 --out runs/small-buffer`
"""
)
def compare(
    stream: Stream = None,
    methods: Methods = "all",
    seeds: Seeds = "0-2",
    orders: Orders = 1,
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the tables.")] = Path(
        "runs/compare"
    ),
    jobs: Jobs = None,
    fidelity: Fidelity = None,
    config: ConfigFile = None,
    root: Root = None,
    words: Words = None,
    weights: Weights = None,
    device: Device = None,
    workers: Workers = None,
    set_: Settings = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Methods on equal terms on one stream: the paper's Table 1, as Markdown, CSV, LaTeX and JSON, and a picture.

    Runs that are finished are not redone, and one that was stopped goes on. A run that fails is listed under the table.
    """
    from lifelabel.methods import METHODS

    chosen = set(parse_methods(methods))
    variants = tuple(Variant((name,), name, {}, name) for name in METHODS if name in chosen)
    flags = flags_of(stream, fidelity, root, words, weights, device, workers)
    plan = make_plan(variants, seeds, orders, out_folder, config, flags, set_ or [])
    shown = {"title": f"{len(variants)} methods on {plan.shared.get('stream', 'scenes')}", "head": ("method",)}
    carry_out(plan, jobs, overwrite, quiet, shown)


@commands.command(
    epilog="""
Examples:

`lifelabel study acm`

`lifelabel study lambdas --seeds 0-4 --out runs/lambdas`

`lifelabel study acm --stream split-coco --root DIR --words glove.6B.300d.txt --out runs/acm-coco`
"""
)
def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="acm (Table 2) or lambdas (Table 3).")],
    stream: Stream = None,
    seeds: Seeds = "0-2",
    orders: Orders = 1,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs and the tables [default: runs/study-STUDY].")
    ] = None,
    jobs: Jobs = None,
    fidelity: Fidelity = None,
    config: ConfigFile = None,
    root: Root = None,
    words: Words = None,
    weights: Weights = None,
    device: Device = None,
    workers: Workers = None,
    set_: Settings = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Variants of AGCN side by side, as in the paper's ablations: `acm` (Table 2), `lambdas` (Table 3).

    Runs that are finished are not redone, and one that was stopped goes on. A run that fails is listed under the table.
    """
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    asked = STUDIES[name]
    variants = tuple(
        Variant(cells, asked.method, options, f"{name}-{number}")
        for number, (cells, options) in enumerate(asked.rows, start=1)
    )
    flags = flags_of(stream, fidelity, root, words, weights, device, workers)
    plan = make_plan(variants, seeds, orders, out_folder or Path(f"runs/study-{name}"), config, flags, set_ or [])
    title = f"{asked.title}, on {plan.shared.get('stream', 'scenes')}"
    shown = {"title": title, "head": asked.head, "forgetting": asked.forgetting, "errors": asked.errors, "costs": False}
    carry_out(plan, jobs, overwrite, quiet, shown)


# What is to be run


def flags_of(stream: str | None, fidelity: str | None, root: str | None, *more: str | None) -> dict[str, Any]:
    """Options that were given as flags of their own."""
    flags = {"stream": stream, "fidelity": fidelity, "stream_options": {"root": root} if root else None}
    flags |= dict(zip(("words", "weights", "device", "workers"), more, strict=True))
    return {name: value for name, value in flags.items() if value is not None}


def make_plan(
    variants: tuple[Variant, ...], seeds: str, orders: int, folder: Path, config: Path | None, flags: dict[str, Any],
    settings: list[str],
) -> Plan:  # fmt: skip
    """The runs that are asked for, every option checked before the first begins."""
    from lifelabel.config import Config, merge, read_yaml, resolve_device

    if not 1 <= orders <= MAX_ORDERS:
        raise UserError(f"--orders must be 1 to {MAX_ORDERS}, not {orders}")
    from_file = read_yaml(config) if config else {}
    given = merge(flags, parse_settings(settings))
    check_file(config, from_file, {"stream": flags.get("stream")})
    check_fidelity(config, from_file, given)
    shared = merge(from_file, given)
    if {shared.get("method")} == {variant.method for variant in variants}:
        del shared["method"]  # as in a preset: the only one that there is
    for name, flag in VARIED.items():
        if name in shared:
            where = f"--set {name}" if name in given else f"{config}: {name}"
            raise UserError(f"{where}: that is what differs between the runs; take it out, and give {flag}")
    check_method_options(variants, shared.get("method_options") or {})
    plan = Plan(variants, tuple(dict.fromkeys(parse_seeds(seeds))), orders, shared, folder)
    for variant in variants:
        device = Config.make(plan.runs(variant)[0].values).device
        if device != "auto":  # to find out what that is would wake a GPU in this process
            resolve_device(device)
    return plan


def check_method_options(variants: Sequence[Variant], given: Any) -> None:
    """An option of a method must be one that a chosen method has, and that the rows do not set themselves."""
    from lifelabel.methods import METHODS

    if not isinstance(given, dict):
        raise UserError("method_options must hold `option: value` lines")
    declared = {f.name for variant in variants for f in dataclasses.fields(METHODS[variant.method].Options)}
    for name in given:
        if name not in declared:
            raise unknown("option of the chosen methods", name, declared)
        if any(name in variant.options for variant in variants):
            raise UserError(f"method.{name} is what the rows of this study differ in: take it out")


# Doing it, and showing it


def carry_out(plan: Plan, jobs: int | None, overwrite: bool, quiet: bool, shown: dict[str, Any]) -> None:
    from lifelabel.report.leaderboard import Board
    from lifelabel.runner import run_all

    jobs = side_by_side(jobs, plan.shared.get("device", "auto"))
    planned = [plan.runs(variant) for variant in plan.variants]
    again = shlex.join(["lifelabel", *(word for word in sys.argv[1:] if word != "--overwrite")])
    console = None if quiet else err
    outcomes = run_all(
        [run for runs in planned for run in runs], jobs, overwrite=overwrite, console=console, again=again
    )
    rows, failures = [], []
    for variant, runs in zip(plan.variants, planned, strict=True):
        row, failed = row_of(variant, [outcomes.pop(0) for _ in runs])
        rows.append(row)
        failures += failed
    show(Board(rows=tuple(rows), failures=tuple(failures), **shown), plan.out)
    if failures:
        raise typer.Exit(1)


def row_of(variant: Variant, outcomes: Sequence[Outcome]) -> tuple[Row, list[Failure]]:
    from lifelabel.methods import METHODS
    from lifelabel.report.leaderboard import Failure, Row
    from lifelabel.report.runs import read_run

    runs, failures = [], []
    for outcome in outcomes:
        plan, reason = outcome.planned, outcome.error
        try:
            if not reason:
                runs.append(read_run(plan.folder))
        except UserError as error:
            reason = str(error)
        if reason:
            failures.append(Failure(plan.name, plan.folder, reason))
    return Row(variant.cells, tuple(runs), len(outcomes), METHODS[variant.method].joint), failures


def show(board: Board, folder: Path) -> None:
    """Write the tables and the picture, and print the table with what a reader must know."""
    from lifelabel.report import leaderboard
    from lifelabel.report.picture import draw
    from lifelabel.runfolder import RunFolder

    if board.runs:
        at = RunFolder(folder)
        at.write_text("table.md", leaderboard.markdown(board))
        at.write_text("table.csv", leaderboard.csv_text(board))
        at.write_text("table.tex", leaderboard.latex(board))
        at.write_json("table.json", leaderboard.to_json(board))
        draw(board.runs, folder / "report.png", {row.name: row.runs for row in board.rows if row.runs})
        for table in leaderboard.terminal(board):
            print_whole(table)
        for line in leaderboard.notes(board):
            say(line)
    for failure in board.failures:
        say(f"not finished: {failure.name}: {failure.reason}", "red")
    if board.runs:
        say(f"written to {folder}: table.md, table.csv, table.tex, table.json, report.png")


def say(line: str, style: str | None = None) -> None:
    out.print(plain(line), style=style, highlight=False, markup=False, soft_wrap=True)
