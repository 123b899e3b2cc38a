"""`lifelabel train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import make_callback, print_class_table, read_config
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import ConfigFile, GivenOptions, OptionFlags, OverwriteRun, Quiet
from lifelabel.errors import UserError
from lifelabel.parallel.torchrun import is_first_process
from lifelabel.utils.processes import start_fork_server


@command(
    "train",
    """
lifelabel train --stream scenes --method agcn --out runs/a
lifelabel train --method agcn --fidelity paper --seed 1 --out runs/paper
lifelabel train --set method.mix=0.1 --set stream.train_images=2000 --out runs/small
lifelabel train --print-config > my.yaml; lifelabel train --config my.yaml --out runs/b
lifelabel train --resume runs/a
lifelabel train --stream split-coco --root DIR --method agcn --out runs/coco
lifelabel train --stream coco-b0-c10 --root DIR --epochs 20 --out runs/offline
lifelabel train --stream cocoseq --root DIR --set stream.lists=LISTS --method prs --out runs/cocoseq
lifelabel train photos.csv --root DIR --tasks 4 --out runs/mine
lifelabel train --method my_method.py:MyMethod --out runs/my-method
torchrun --nproc-per-node 8 -m lifelabel train --stream split-coco --root DIR --out runs/coco
""",
    OptionFlags(stream_argument=True),
)
def _train(
    options: GivenOptions,
    out_folder: Annotated[Path | None, typer.Option("--out", help="The new run folder.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    config: ConfigFile = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print every option as YAML and stop.")] = False,
    overwrite: OverwriteRun = False,
    quiet: Quiet = False,
) -> None:
    """Train one method on one stream of tasks, with each image once, and evaluate it after every task.

    With --epochs, overlapping protocols show the images of each task several times.
    """
    if not print_config:
        start_fork_server("lifelabel.engine.label_server")
    from lifelabel.config.config import Config, merge
    from lifelabel.engine import run
    from lifelabel.runs.folder import RunFolder
    from lifelabel.runs.names import CONFIG

    given = options.resolve()
    if resume is not None:
        if given or config or out_folder or overwrite or print_config:
            raise UserError(f"--resume takes its options from the run's own {CONFIG}: give only --plugin with it")
        folder = RunFolder(resume)
        if folder.is_run and folder.is_finished:
            _print_next_steps(resume)
        else:
            _print_result(run.resume(resume, make_callback(quiet)).folder, quiet)
        return
    values = merge(read_config(config, given), given)
    if print_config:
        print(Config.make(values).to_yaml(), end="")
        return
    if out_folder is None:
        raise UserError("no run folder: give --out FOLDER (or --resume FOLDER, or --print-config)")
    _print_result(run.train(out_folder, values, overwrite=overwrite, callback=make_callback(quiet)).folder, quiet)


def _print_result(folder: Path, quiet: bool) -> None:
    """The average precision of each class, unless `quiet`, and the result on the last line."""
    if not is_first_process():
        return
    from lifelabel.cli.extend import print_extension
    from lifelabel.report.tables import one_line
    from lifelabel.runs.finished import read_run

    run = read_run(folder)
    first, *later = run.metrics["per_task"]
    if later and "ap" in first:  # the AP before the new tasks
        print_extension(run.metrics, folder, quiet)
        return
    if not quiet:
        print_class_table(run.metrics, run.metrics["final"]["ap"])
    print_line(f"{run.metrics['method']}: {one_line(run)}  → {folder}")


def _print_next_steps(folder: Path) -> None:
    """A finished run has nothing to resume: what to do with it. No file is changed, and no stream is built."""
    if not is_first_process():
        return
    from lifelabel.runs.finished import read_run

    score, path = read_run(folder).figures()["mAP"], shlex.quote(str(folder))
    result = "mAP –" if score is None else f"mAP {score:.2f}"
    print_line(
        f"{folder} is finished ({result}): nothing to resume; predict labels with `lifelabel predict {path} IMAGES`, "
        f"or add classes with `lifelabel extend {path} TABLE --root DIR --out NEW`"
    )
