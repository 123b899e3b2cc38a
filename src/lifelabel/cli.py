"""The command line. Heavy modules are imported by the command that needs them, so that --help answers at once."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from lifelabel.cli_common import check_fidelity, check_file, err, out, parse_seeds, parse_settings, print_whole, watcher
from lifelabel.cli_compare import commands as comparing
from lifelabel.cli_data import data
from lifelabel.cli_tune import commands as tuning
from lifelabel.errors import Stopped, UserError, plain
from lifelabel.version import __version__

if TYPE_CHECKING:
    from lifelabel.report.runs import FinishedRun

app = typer.Typer(
    help="Lifelong multi-label image recognition: a stream of tasks, partial labels, one pass, no image kept.",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data, name="data")
app.add_typer(comparing)
app.add_typer(tuning)

DEMO_METHODS = ("fine-tuning", "agcn", "multi-task")


def version(show: bool) -> None:
    if show:
        print(f"lifelabel {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    return None


@app.command(
    epilog="""
Examples:

`lifelabel train --stream scenes --method agcn --out runs/a`

`lifelabel train --method agcn --fidelity paper --seed 1 --out runs/paper`

`lifelabel train --set method.mix=0.1 --set stream.train_images=2000 --out runs/small`

`lifelabel train --print-config > my.yaml; lifelabel train --config my.yaml --out runs/b`

`lifelabel train --resume runs/a`

`lifelabel train --stream split-coco --root DIR --method agcn --out runs/coco`

`lifelabel train --stream photos.csv --root DIR --set stream.tasks=4 --out runs/mine`

`lifelabel train --stream Split-COCO.zip --root DIR --fidelity paper --weights resnet101.pth --out runs/d`
"""
)
def train(
    out_folder: Annotated[Path | None, typer.Option("--out", help="The run folder to make.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of options; flags win over it.")] = None,
    stream: Annotated[
        str | None,
        typer.Option(
            help="What to learn from: a name of `lifelabel list streams`, or a .yaml, .csv, .tsv, .parquet or .zip."
        ),
    ] = None,
    root: Annotated[str | None, typer.Option(metavar="DIR", help="The folder of the stream's images.")] = None,
    method: Annotated[str | None, typer.Option(help="How to learn: `lifelabel list methods`.")] = None,
    fidelity: Annotated[str | None, typer.Option(help="tuned (default), paper, release or plain.")] = None,
    seed: Annotated[str | None, typer.Option(metavar="INT", help="Image order, augmentation, first weights.")] = None,
    batch_size: Annotated[str | None, typer.Option(metavar="INT", help="Images a step.")] = None,
    lr: Annotated[str | None, typer.Option(metavar="FLOAT", help="Learning rate of the head.")] = None,
    backbone_lr: Annotated[
        str | None, typer.Option(metavar="FLOAT", help="Learning rate of the backbone, first task.")
    ] = None,
    later_backbone_lr: Annotated[str | None, typer.Option(metavar="FLOAT", help="The same in later tasks.")] = None,
    batch_norm: Annotated[str | None, typer.Option(help="running, frozen or first-task.")] = None,
    lambdas: Annotated[
        str | None, typer.Option(metavar="L1,L2,L3", help="Loss weights of AGCN, as 0.07,0.93,1000.")
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="Image features: `lifelabel list backbones`.")] = None,
    weights: Annotated[str | None, typer.Option(help="First weights: none, imagenet, or a file.")] = None,
    allow_seen_weights: Annotated[
        bool, typer.Option("--allow-seen-weights", help="Accept weights trained on the stream's own classes.")
    ] = False,
    image_size: Annotated[str | None, typer.Option(metavar="INT", help="Pixels a side.")] = None,
    augment: Annotated[str | None, typer.Option(help="none, flip or crop-flip.")] = None,
    workers: Annotated[str | None, typer.Option(metavar="INT", help="Processes that decode images ahead.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first image that cannot be read.")] = False,
    words: Annotated[str | None, typer.Option(help="A GloVe text file for the label words.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    precision: Annotated[str | None, typer.Option(help="auto, fp32 or bf16.")] = None,
    compile: Annotated[
        str | None, typer.Option(help="auto, on or off: steps as CUDA graphs, the backbone compiled.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any option as NAME=VALUE (`stream.NAME` and `method.NAME` for theirs)."
        ),
    ] = None,
    save_scores: Annotated[
        bool, typer.Option("--save-scores", help="Keep the final scores and labels in scores.npz: `lifelabel metrics`.")
    ] = False,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print every option as YAML and stop.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the last line.")] = False,
) -> None:
    """Train one method over one stream of tasks, each image once, and evaluate after every task."""
    from lifelabel import engine
    from lifelabel.config import Config, merge, read_yaml

    flags: dict[str, Any] = {
        "stream": stream, "method": method, "fidelity": fidelity, "seed": seed, "batch_size": batch_size, "lr": lr,
        "backbone_lr": backbone_lr, "later_backbone_lr": later_backbone_lr, "batch_norm": batch_norm,
        "backbone": backbone, "weights": weights, "image_size": image_size, "augment": augment, "workers": workers,
        "words": words, "device": device, "precision": precision, "compile": compile, "strict": strict or None,
        "save_scores": save_scores or None,
        "allow_seen_weights": allow_seen_weights or None, "stream_options": {"root": root} if root else None,
    }  # fmt: skip
    given = {name: value for name, value in flags.items() if value is not None}
    if lambdas is not None:
        given["method_options"] = {"lambdas": lambdas}
    given = merge(given, parse_settings(set_ or []))
    if resume is not None:
        if given or config or out_folder or overwrite or print_config:
            raise UserError("--resume takes its options from the run's own config.yaml: give it alone")
        finish(engine.resume(resume, watcher(quiet)).folder)
        return
    from_file = read_yaml(config) if config else {}
    check_fidelity(config, from_file, given)
    check_file(config, from_file, {"method": method, "stream": stream})
    values = merge(from_file, given)
    if print_config:
        print(Config.make(values).to_yaml(), end="")
        return
    if out_folder is None:
        raise UserError("no run folder: give --out FOLDER (or --resume FOLDER, or --print-config)")
    finish(engine.train(out_folder, values, overwrite=overwrite, watch=watcher(quiet)).folder)


@app.command(epilog="Examples:\n\n`lifelabel demo`\n\n`lifelabel demo --seeds 0-2 --out runs/results`")
def demo(
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the runs and the report.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, as 0 or 0-2 or 0,3,5.")] = "0",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Redo runs that are there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the report.")] = False,
) -> None:
    """Fine-tuning, AGCN and multi-task on the embedded scenes: a table and a picture in about a minute.

    Runs that are finished are not redone, and one that was stopped goes on.
    """
    chosen = parse_seeds(seeds)  # a mistake shows before torch is imported
    from lifelabel.report.runs import read_run
    from lifelabel.runner import Planned, default_jobs, run_all

    planned = [
        Planned(f"{method}, seed {seed}", out_folder / f"{method}-{seed}", {"method": method, "seed": seed})
        for seed in chosen
        for method in DEMO_METHODS
    ]
    again = f"lifelabel demo --out {out_folder} --seeds {seeds}"
    console = None if quiet else err
    for outcome in run_all(planned, default_jobs(), overwrite=overwrite, console=console, again=again):
        if outcome.error:
            raise UserError(f"{outcome.planned.name}: {outcome.error}")
    show_report([read_run(run.folder) for run in planned], out_folder)


@app.command(epilog="Example:\n\n`lifelabel report runs/demo/agcn-0 runs/a --out runs/report`")
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders of runs; seeds of one method share a row.")
    ],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for table.md and report.png.")] = Path(
        "runs/report"
    ),
) -> None:
    """A table and a picture of finished runs, read from their folders."""
    from lifelabel.report.runs import find_runs, read_run

    show_report([read_run(path) for path in find_runs(runs)], out_folder)


class Listing(str, Enum):
    methods, streams, backbones, metrics, presets = "methods", "streams", "backbones", "metrics", "presets"


@app.command("list", epilog="Example:\n\n`lifelabel list methods`")
def list_(what: Annotated[Listing, typer.Argument(help="What to list.")]) -> None:
    """What there is, a line each."""
    for name, line in catalogue(what).items():
        print(f"{name:<20} {line}")


def catalogue(what: Listing) -> dict[str, str]:
    if what is Listing.methods:
        from lifelabel.methods import METHODS

        return {name: method.summary for name, method in METHODS.items()}
    if what is Listing.streams:
        from lifelabel.streams import STREAMS

        return {name: source.summary for name, source in STREAMS.items()}
    if what is Listing.backbones:
        from lifelabel.backbones import BACKBONES, FAMILIES

        return {name: line for name, (line, _) in {**BACKBONES, **FAMILIES}.items()}
    if what is Listing.presets:
        from lifelabel.methods import METHODS
        from lifelabel.presets import KINDS, described

        told = {f"{kind}/{method}": described(kind, method) for kind in KINDS for method in METHODS}
        return {name: f"{story.reached}: {story.command}" for name, story in told.items() if story}
    from lifelabel.metrics import CONVENTIONS

    return {name: f"{convention.help} ({convention.who})" for name, convention in CONVENTIONS.items()}


def finish(folder: Path) -> None:
    from lifelabel.report.runs import COLUMNS, cell, read_run

    run = read_run(folder)
    mean_ap, cf1, of1, forgetting = (cell(column, [run]) for column in COLUMNS[:4])
    print(f"{run.metrics['method']}: mAP {mean_ap}  CF1 {cf1}  OF1 {of1}  forgetting {forgetting}  → {folder}")


def show_report(runs: list[FinishedRun], folder: Path) -> None:
    from lifelabel.report.picture import draw
    from lifelabel.report.runs import COLUMNS, CONVENTIONS, markdown, rows

    try:
        folder.mkdir(parents=True, exist_ok=True)
        draw(runs, folder / "report.png")
        (folder / "table.md").write_text(markdown(runs), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    table = Table(box=box.SIMPLE, collapse_padding=True, pad_edge=False)
    table.add_column("method", overflow="fold", max_width=30)
    for column in COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows(runs, compact=True):
        table.add_row(*map(Text, row))
    print_whole(table)
    out.print(CONVENTIONS, highlight=False)
    written = f"table: {folder / 'table.md'}   picture: {folder / 'report.png'}"
    out.print(written, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """The command `lifelabel`: a user's mistake is one line and exit code 2; a stop is one line and 130."""
    code = None
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except UserError as error:
        fail(f"error: {error}", 2)
    except Stopped as stop:
        fail(str(stop), 130)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        if type(error).__name__ == "Abort":
            code = 130
        elif hasattr(error, "format_message"):  # what typer raises for wrong usage, whichever click it carries
            fail(f"error: {error.format_message().rstrip('.')}; see --help", 2)
        else:
            raise
    if code == 130:
        run = sys.argv[1:2] != ["data"]
        fail("stopped at once" + ("; a run goes on from its last checkpoint with --resume" if run else ""), 130)
    sys.exit(code or 0)


def fail(line: str, code: int) -> None:
    err.print(
        plain(" ".join(line.split())), style="red" if code == 2 else None, highlight=False, markup=False, soft_wrap=True
    )
    sys.exit(code)
