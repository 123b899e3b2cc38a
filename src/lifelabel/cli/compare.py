"""`lifelabel compare`, `lifelabel study` and `lifelabel demo`: many runs on one stream, in one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import parse_convention, parse_methods, parse_seeds, read_config
from lifelabel.cli.completion import complete_name, study_names
from lifelabel.cli.flags import ConfigFile, ConventionName, GivenOptions, Methods, OptionFlags, Quiet, Seeds
from lifelabel.cli.many_runs import Place, RepeatRuns, train_plans
from lifelabel.config.run_options import VARIED
from lifelabel.errors import unknown
from lifelabel.utils.processes import start_fork_server
from lifelabel.utils.text import counted

if TYPE_CHECKING:
    from lifelabel.search.comparison import Variant

_DEMO_METHODS = ("fine-tuning", "agcn", "multi-task")

_OutFolder = Annotated[Path, typer.Option("--out", help="Folder for the runs and the tables.")]


@dataclass(frozen=True)
class _Comparison:
    """How the runs of a comparison are planned and shown."""

    seeds: Seeds = "0-2"
    orders: Annotated[
        int,
        typer.Option(
            help="Orders: that of the stream, and K - 1 random ones; of all classes if tasks overlap (Bx-Cy), else of "
            "the tasks.",
            metavar="K",
        ),
    ] = 1
    convention: ConventionName = "paper"
    config: ConfigFile = None
    overwrite: RepeatRuns = False
    quiet: Quiet = False

    def run(
        self, variants: tuple[Variant, ...], out: Path, place: Place, given: dict[str, Any],
        title: Callable[[str], str], **columns: Any,
    ) -> None:  # fmt: skip
        """Train the missing runs, and show their table. `title` makes its title from the name of the stream."""
        from lifelabel.cli.report import show_table
        from lifelabel.search.comparison import make_plan

        convention, seeds = parse_convention(self.convention), parse_seeds(self.seeds)
        file, here = read_config(self.config, given), not place.is_cluster
        plan = make_plan(variants, seeds, self.orders, out, file, given, str(self.config), here)
        outcomes = train_plans([plan], place, out, overwrite=self.overwrite, quiet=self.quiet)
        if outcomes is None:
            return
        name = title(plan.shared.get("stream", "scenes"))
        table = plan.table(outcomes[0], title=name, convention=convention, **columns)
        show_table(table, out, self.quiet)
        if table.failures:
            raise typer.Exit(1)


@command(
    "compare",
    """
lifelabel compare
lifelabel compare --methods er,lwf,agcn --seeds 0-4 --orders 3 --out runs/three
lifelabel compare --stream split-coco --root DIR --words glove.6B.300d.txt --seeds 0-4 --out runs/coco
lifelabel compare --stream voc-b0-c4 --root DIR --methods er,lwf --orders 5 --epochs 20 --out runs/orders
lifelabel compare --methods er,prs --set method.buffer_images=500 --jobs 2 --out runs/small-buffer
lifelabel compare --methods fine-tuning,my_method.py:MyMethod --out runs/mine
lifelabel compare --on slurm --slurm partition=gpu --slurm time=4:00:00 --device cuda --jobs 8 --out runs/cluster
lifelabel compare --on slurm --slurm partition=gpu --device cuda --dry-run --out runs/cluster
""",
    OptionFlags(without=tuple(VARIED), stream_argument=True),
)
def _compare(
    comparison: _Comparison,
    place: Place,
    options: GivenOptions,
    methods: Methods = "all",
    out_folder: _OutFolder = Path("runs/compare"),
) -> None:
    """Compare methods on one stream, as in the paper's Table 1: tables, figures and a report.

    Finished runs are not repeated, and stopped runs continue. A run that fails is listed under the table.
    """
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.comparison import method_variants

    given = options.resolve()
    variants = method_variants(parse_methods(methods))
    comparison.run(variants, out_folder, place, given, lambda on: f"{counted(len(variants), 'methods')} on {on}")


@command(
    "study",
    """
lifelabel study acm
lifelabel study lambdas --seeds 0-4 --out runs/lambdas
lifelabel study acm --stream split-coco --root DIR --words glove.6B.300d.txt --out runs/acm-coco
lifelabel study weighted-ridge --stream split-coco --root DIR --seeds 0 --out runs/ridge-coco
lifelabel study acm --on slurm --slurm partition=gpu --device cuda --out runs/acm-cluster
""",
    OptionFlags(without=tuple(VARIED)),
)
def _study(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="acm (Table 2), lambdas (Table 3) or weighted-ridge.",
            autocompletion=complete_name(study_names),
        ),
    ],
    comparison: _Comparison,
    place: Place,
    options: GivenOptions,
    out_folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the runs and the tables [default: runs/study-STUDY].")
    ] = None,
) -> None:
    """Compare variants of one method.

    `acm` and `lambdas` are the paper's ablations of AGCN (Tables 2 and 3). Each row of `weighted-ridge`
    changes one option of that method.

    Finished runs are not repeated, and stopped runs continue. A run that fails is listed under the table.
    """
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.comparison import study_variants
    from lifelabel.search.studies import STUDIES

    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    study, out = STUDIES[name], out_folder or Path(f"runs/study-{name}")
    columns = {"head": study.head, "forgetting": study.forgetting, "errors": study.errors, "costs": study.costs}
    variants, given = study_variants(name), options.resolve()
    comparison.run(variants, out, place, given, lambda on: f"{study.title}, on {on}", **columns)


@command(
    "demo",
    """
lifelabel demo
lifelabel demo --seeds 0-2 --out runs/results
""",
)
def _demo(
    out_folder: _OutFolder = Path("runs/demo"),
    seeds: Seeds = "0",
    overwrite: RepeatRuns = False,
    quiet: Quiet = False,
) -> None:
    """Compare fine-tuning, AGCN and multi-task on the embedded stream: a report in about a minute.

    Finished runs are not repeated, and stopped runs continue.
    """
    parse_seeds(seeds)  # a mistake is reported before torch is imported
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.search.comparison import method_variants

    comparison = _Comparison(seeds, overwrite=overwrite, quiet=quiet)
    comparison.run(method_variants(_DEMO_METHODS), out_folder, Place(), {}, "Demo on {}".format, errors=True)
