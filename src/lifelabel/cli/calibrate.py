"""`lifelabel calibrate`: probabilities and thresholds of a finished model, fitted on labelled images."""

from __future__ import annotations

import dataclasses
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifelabel.cli import labelled
from lifelabel.cli.common import CONTEXT
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import Plugins, load_plugins
from lifelabel.errors import UserError, unknown
from lifelabel.utils.text import task_cell

if TYPE_CHECKING:
    import numpy as np

    from lifelabel.model.calibration import Calibration, Rule
    from lifelabel.model.labelled_scores import LabelledScores
    from lifelabel.model.model import Model

__all__ = ["commands"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)

_FEW_IMAGES = 100
_DEFAULT_PRECISION = 0.9
_NAMED = 200
"""Characters of a list of classes."""


@commands.command(
    "calibrate",
    epilog="""
Examples:

`lifelabel calibrate runs/mine photos.csv --root photos` (the rows that the run held out)

`lifelabel calibrate runs/mine new-photos.csv --root new-photos --precision 0.95 --out models/careful`

`lifelabel calibrate runs/mine new-photos.csv --cost 1:5` (a missed label costs as much as 5 wrong ones)

`lifelabel calibrate runs/mine new-photos.csv --by none --dry-run`
""",
)
def _calibrate(
    run: labelled.RunFolderArgument,
    table: labelled.TableArgument = None,
    stream: labelled.StreamName = None,
    root: labelled.Root = None,
    set_: labelled.StreamSettings = None,
    rows: labelled.Rows = None,
    merge_case: labelled.MergeCase = False,
    alias: labelled.Alias = None,
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
        str,
        typer.Option(metavar="HOW", help="platt: fit sigmoid(slope × logit + shift); none: leave probabilities."),
    ] = "platt",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the figures, and change nothing.")] = False,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="A new folder for a copy of the model [default: change the model]."),
    ] = None,
    device: labelled.Device = "auto",
    batch_size: labelled.BatchSize = None,
    workers: labelled.Workers = None,
    plugin: Plugins = None,
) -> None:
    """Fit the probabilities and the thresholds of a finished model on labelled images, and store them in the model.

    Use images that the run was not trained on. The order of images by probability does not change, and neither does
    mAP. Figures before and after are those of cross-validation: each image is judged by a fit that has not seen it.
    """
    rule = _rule(by, precision, cost)
    if probabilities not in ("platt", "none"):
        raise unknown("probabilities", probabilities, ("platt", "none"))
    if probabilities == rule.by == "none":
        raise UserError("--probabilities none --by none: there is nothing to fit")
    load_plugins(plugin)
    from lifelabel.model.calibration import Calibration, cross_validate, fit_probabilities, fit_thresholds
    from lifelabel.model.files import find_model
    from lifelabel.model.model import load

    target = out_folder or find_model(run)
    if out_folder is not None and out_folder.exists() and (not out_folder.is_dir() or any(out_folder.iterdir())):
        raise UserError(f"{out_folder} is not an empty folder: choose another --out")
    if not dry_run:
        labelled.check_writable(target)
    model = load(run, device)
    given = labelled.read_labelled(run, table, stream, root, set_, rows, model.info, merge_case, alias)
    scores = labelled.score(model, given.images, batch_size, workers)
    if not scores.labels.any():
        raise UserError(f"no image of {given.images.name} has a label of the model: there is nothing to fit")
    fit = probabilities == "platt"
    data = scores.labels, scores.known
    after = cross_validate(scores.logits, *data, rule, fit)
    found = fit_probabilities(scores.logits, *data) if fit else Calibration.identity(len(model.classes))
    thresholds, unreached = fit_thresholds(found.logits(scores.logits), *data, rule, fit)
    columns = _compare(model, scores, after)
    about = {
        "by": str(rule), "probabilities": probabilities, "images": len(scores),
        "images_of": {
            "name": given.images.name, "rows": given.images.kind, "fingerprint": given.images.fingerprint(),
            "trained_on": given.trained_on,
        },
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "cross_validation": columns,
    }  # fmt: skip
    calibration = {"slope": found.slope.tolist(), "shift": found.shift.tolist(), **about}
    limits = None if thresholds is None else tuple(thresholds.tolist())
    if not dry_run:  # before the first line of output, whose reader may end, as in `| head -1`
        model.info = dataclasses.replace(model.info, calibration=calibration, thresholds=limits)
        model.save(target)
    _print(model, scores, given, columns, found, thresholds)
    _print_notes(model, scores, given, rule, unreached)
    written = f"written to {target}: `lifelabel predict` uses it from now on"
    print_line("nothing was changed (--dry-run)" if dry_run else written)


def _rule(by: str | None, precision: float | None, cost: str | None) -> Rule:
    """The rule of the flags. `--precision` and `--cost` choose their rule."""
    from lifelabel.model.calibration import BY, Rule

    if by is not None and by not in BY:
        raise unknown("rule", by, BY)
    implied = [name for name, value in (("precision", precision), ("cost", cost)) if value is not None]
    chosen = by or (implied[0] if implied else "f1")
    for name in implied:
        if name != chosen:
            raise UserError(f"--{name} has no meaning with --by {chosen}: leave one of them out")
    if precision is not None and not 0 < precision < 1:
        raise UserError(f"--precision must be between 0 and 1, not {precision:g}")
    if chosen == "cost" and cost is None:
        raise UserError("--by cost needs the costs: give --cost FP:FN, such as 1:5")
    return Rule(chosen, precision or _DEFAULT_PRECISION, _costs(cost) if cost is not None else (1.0, 1.0))


def _costs(text: str) -> tuple[float, float]:
    """The two costs in a text such as 1:5.

    >>> _costs("1:2.5")
    (1.0, 2.5)
    """
    try:
        wrong, missed = map(float, text.split(":"))
    except ValueError:
        raise UserError(f"--cost takes FP:FN, such as 1:5, not '{text}'") from None
    if not (0 < wrong < 1e9 and 0 < missed < 1e9):
        raise UserError(f"--cost {text}: both costs must be above 0")
    return wrong, missed


def _compare(model: Model, scores: LabelledScores, after: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """The figures of plain probabilities at 0.5, of the model as it is if it is calibrated, and after the fit."""
    import numpy as np

    from lifelabel.metrics.functions import without_nan
    from lifelabel.model.calibration import Calibration, figures

    def at(logits: np.ndarray, limits: float | np.ndarray) -> dict[str, Any]:
        p = Calibration.identity(logits.shape[1]).probabilities(logits)
        return figures(p, scores.labels, scores.known, p >= limits)

    found = {"before": at(scores.logits, 0.5)}
    info = model.info
    if info.calibration is not None or info.thresholds is not None:
        limits = 0.5 if info.thresholds is None else np.array(info.thresholds)
        found["now"] = at(scores.calibrated(model), limits)
    return without_nan({**found, "after": after})


def _print(
    model: Model, scores: LabelledScores, given: labelled.Labelled, columns: dict[str, dict[str, float | None]],
    found: Calibration, thresholds: np.ndarray | None,
) -> None:  # fmt: skip
    from rich import box

    from lifelabel.metrics.functions import average_precision
    from lifelabel.report.grids import rich_grid
    from lifelabel.report.per_class import per_class_table

    print_line(f"{model.info.label}: {len(scores):,} images ({given.images.kind} of {given.images.name})")
    names = {"before": "uncalibrated, at 0.5", "now": "the model as it is", "after": "after (cross-validated)"}
    rows = [[name, *(_figure(name, columns[key][name]) for key in columns)] for name in columns["after"]]
    print_table(rich_grid(["", *(names[key] for key in columns)], rows, 1, box=box.SIMPLE))
    import numpy as np

    common = scores.common
    ap = average_precision(np.where(scores.known, scores.logits, -np.inf)[:, common], scores.labels[:, common])
    tasks = [task_cell(model.info.task_of_class[k] + 1, model.info.task_names) for k in common]
    more = {
        "positives": scores.labels[:, common].sum(0).tolist(),
        "slope": [f"{found.slope[k]:.2f}" for k in common],
        "shift": [f"{found.shift[k]:.2f}" for k in common],
        "threshold": [f"{0.5 if thresholds is None else thresholds[k]:.3f}" for k in common],
    }
    print_table(per_class_table([model.classes[k] for k in common], tasks, ap.tolist(), more))


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if name in ("ECE", "ECE_class", "Brier", "log_loss") else f"{100 * value:.2f} %"


def _print_notes(
    model: Model, scores: LabelledScores, given: labelled.Labelled, rule: Rule, unreached: np.ndarray
) -> None:
    from lifelabel.model.calibration import FEW_POSITIVES
    from lifelabel.report.stream_text import listed

    positives = scores.labels.sum(0)
    few = [model.classes[k] for k in scores.common if positives[k] < FEW_POSITIVES]
    common = set(scores.common.tolist())
    others = [name for k, name in enumerate(model.classes) if k not in common]
    lines = [line for line in given.notes if not given.trained_on]
    if given.trained_on:
        lines.append("the run was trained on some of these images: it is too sure of them; use other images")
    if len(scores) < _FEW_IMAGES:
        lines.append(f"{len(scores):,} images are few: some hundreds give better thresholds")
    for names, text in (
        (few, f"classes have fewer than {FEW_POSITIVES} positives: they borrow from the other classes"),
        (others, "classes of the model are not in the set: they get the values that all classes have in common"),
        (scores.ignored, "classes of the set are not classes of the model: their labels are ignored"),
        (
            [model.classes[k] for k in unreached],
            f"classes cannot reach {rule} on these images: their threshold is high",
        ),
    ):
        if names:
            lines.append(f"{len(names):,} {text}: {listed(names, _NAMED)}")
    if scores.skipped:
        name, reason = scores.skipped[0]
        lines.append(f"{len(scores.skipped):,} images cannot be read and are left out ({name}: {reason} …)")
    for line in lines:
        print_line(f"note: {line}", "yellow")
