"""`lifelabel calibrate`: probabilities and thresholds of a finished model, fitted on labelled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import progress_bar
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import Inference, LabelledImages, Plugins, load_plugins
from lifelabel.utils.text import counted, task_cell

if TYPE_CHECKING:
    from lifelabel.engine.calibrator import Calibrated

_FEW_IMAGES = 100
_NAMED = 200
"""Characters of a list of classes."""


@command(
    "calibrate",
    """
lifelabel calibrate runs/mine photos.csv --root photos  # the rows that the run held out
lifelabel calibrate runs/mine new-photos.csv --root new-photos --precision 0.95 --out models/careful
lifelabel calibrate runs/mine new-photos.csv --cost 1:5  # a missed label costs as much as 5 wrong ones
lifelabel calibrate runs/mine new-photos.csv --by none --dry-run
""",
)
def _calibrate(
    images: LabelledImages,
    inference: Inference,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="How thresholds are chosen: f1 (highest F1 of the class), precision, cost, or none (0.5 for all) "
            "[default: f1].",
        ),
    ] = None,
    precision: Annotated[
        float | None, typer.Option(metavar="P", help="The precision that labels must reach [default: 0.9].")
    ] = None,
    cost: Annotated[
        str | None, typer.Option(metavar="FP:FN", help="The costs of a wrong and of a missed label, such as 1:5.")
    ] = None,
    probabilities: Annotated[
        str, typer.Option(metavar="HOW", help="platt: fit sigmoid(slope × logit + shift); none: leave probabilities.")
    ] = "platt",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the figures, and change nothing.")] = False,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="A new folder for a copy of the model [default: change the model]."),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Fit the probabilities and the thresholds of a finished model on labelled images, and store them in the model.

    Use images that the run was not trained on. The order of images by probability does not change, and neither does
    mAP. Figures before and after are those of cross-validation: each image is judged by a fit that has not seen it.
    """
    load_plugins(plugin)
    from lifelabel.engine.calibrator import calibrate

    with progress_bar("images") as progress:
        found = calibrate(
            images.run, **images.arguments(), **inference.arguments(), by=by, precision=precision, cost=cost,
            probabilities=probabilities, dry_run=dry_run, out=out_folder, progress=progress,
        )  # fmt: skip
    _print(found)
    _print_notes(found)
    written = f"written to {found.folder}: `lifelabel predict` uses it from now on"
    print_line("nothing was changed (--dry-run)" if dry_run else written)


def _print(found: Calibrated) -> None:
    from rich import box

    from lifelabel.metrics.functions import average_precision
    from lifelabel.report.text_tables import per_class_table, rich_grid

    model, scores, columns, set_of = found.model, found.scores, found.figures, found.images.images
    print_line(f"{model.info.label}: {counted(len(scores), 'images')} ({set_of.kind} of {set_of.name})")
    names = {"before": "uncalibrated, at 0.5", "now": "the model as it is", "after": "after (cross-validated)"}
    rows = [[name, *(_figure(name, columns[key][name]) for key in columns)] for name in columns["after"]]
    print_table(rich_grid(["", *(names[key] for key in columns)], rows, 1, box=box.SIMPLE))
    import numpy as np

    common = scores.common
    ap = average_precision(np.where(scores.known, scores.logits, -np.inf)[:, common], scores.labels[:, common])
    tasks = [task_cell(model.info.task_of_class[k] + 1, model.info.task_names) for k in common]
    more = {
        "positives": scores.labels[:, common].sum(0).tolist(),
        "slope": [f"{found.calibration.slope[k]:.2f}" for k in common],
        "shift": [f"{found.calibration.shift[k]:.2f}" for k in common],
        "threshold": [f"{0.5 if found.thresholds is None else found.thresholds[k]:.3f}" for k in common],
    }
    print_table(per_class_table([model.classes[k] for k in common], tasks, ap.tolist(), more))


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if name in ("ECE", "ECE_class", "Brier", "log_loss") else f"{100 * value:.2f} %"


def _print_notes(found: Calibrated) -> None:
    from lifelabel.model.calibration import FEW_POSITIVES
    from lifelabel.report.stream_text import listed

    model, scores, given = found.model, found.scores, found.images
    positives = scores.labels.sum(0)
    few = [model.classes[k] for k in scores.common if positives[k] < FEW_POSITIVES]
    common = set(scores.common.tolist())
    others = [name for k, name in enumerate(model.classes) if k not in common]
    lines = [*given.notes]
    if given.trained_on:
        lines.append("the model is too sure of its training images: use other images")
    if len(scores) < _FEW_IMAGES:
        lines.append(f"{counted(len(scores), 'images are')} few: some hundreds give better thresholds")
    for names, text in (
        (few, f"classes with fewer than {FEW_POSITIVES} positives, whose calibration depends on the other classes"),
        (others, "classes that only the model has, with the values that all classes have in common"),
        (scores.ignored, "classes that only the set has, whose labels are ignored"),
        (
            [model.classes[k] for k in found.unreached],
            f"classes that cannot reach {found.rule} here, with a high threshold",
        ),
    ):
        if names:
            lines.append(f"{counted(len(names), text)}: {listed(names, _NAMED)}")
    if scores.skipped:
        name, reason = scores.skipped[0]
        skipped = counted(len(scores.skipped), "images that cannot be read, left out")
        lines.append(f"{skipped} ({name}: {reason} …)")
    for line in lines:
        print_line(f"note: {line}", "yellow")
