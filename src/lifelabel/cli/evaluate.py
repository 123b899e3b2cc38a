"""`lifelabel evaluate`: the figures of a finished model on labelled images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import file_name, progress_bar
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import Inference, LabelledImages, Plugins, load_plugins
from lifelabel.utils.files import below
from lifelabel.utils.text import counted


@command(
    "evaluate",
    """
lifelabel evaluate runs/mine photos.csv --root photos  # the rows that the run held out
lifelabel evaluate runs/mine new-photos.csv --root new-photos --threshold 0.8
lifelabel evaluate runs/a --stream scenes --out runs/a-scenes
lifelabel evaluate runs/coco --stream voc --root VOCdevkit --save-scores voc.npz; lifelabel metrics voc.npz
""",
)
def _evaluate(
    images: LabelledImages,
    inference: Inference,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="T", help="The threshold of all classes [default: those of the model, else 0.5]."),
    ] = None,
    save_scores: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Save logits and labels for `lifelabel metrics`.")
    ] = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="The folder of the results [default: RUN/evaluation].")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Evaluate a finished model on labelled images: all metrics, each class, and the worst mistakes.

    Classes are matched by name. Images that cannot be read are left out and listed.
    """
    load_plugins(plugin)
    from lifelabel.model.model_folder import find_model
    from lifelabel.report.evaluation import evaluate
    from lifelabel.report.vega import chart_obstacle
    from lifelabel.runs.names import EVALUATION_FILES

    folder = out_folder or _default_folder(images.run, find_model(images.run))
    with progress_bar("images") as progress:
        found = evaluate(
            images.run, **images.arguments(), **inference.arguments(), threshold=threshold, save_scores=save_scores,
            out=folder, progress=progress,
        )  # fmt: skip
    _print(found)
    written = ", ".join(name for name in EVALUATION_FILES if (folder / name).exists())
    print_line(f"written to {folder}: {written}" + (f"; scores in {save_scores}" if save_scores else ""))
    if obstacle := chart_obstacle():
        print_line(f"the chart of the classes {obstacle}")


def _default_folder(run: Path, model_folder: Path) -> Path:
    """`evaluation` in the run folder; in the current folder if RUN is a model folder or cannot be written."""
    if model_folder != run and os.access(run, os.W_OK):
        return below(run, "evaluation")
    resolved = run.resolve()
    name = resolved.parent.name if resolved.name == "model" else resolved.name
    return Path(f"evaluation-{file_name(name, 'model')}")


def _print(found: dict[str, Any]) -> None:
    from rich import box

    from lifelabel.cli.metrics import print_metrics
    from lifelabel.report import evaluation as text
    from lifelabel.report.text_tables import per_class_table, rich_grid

    given = found["set"]
    print_line(
        f"{found['model']['label']} on {counted(given['images'], 'images')} ({given['rows']} of {given['name']}), "
        f"{counted(found['classes']['evaluated'], 'classes')}. All in %."
    )
    heads, rows = text.headline_table(found)
    print_table(rich_grid(heads, rows, 1, box=box.SIMPLE))
    print_line(text.calibration_line(found["calibration"]))
    print_table(per_class_table(*text.per_class_columns(found)))
    for line in text.class_lines(found):
        print_line(line)
    print_line("")
    print_metrics(found["metrics"])
    print_line("")
    for line in text.notes(found):
        print_line(f"note: {line}", "yellow")
