"""Calibrate a finished model on labelled images: what `lifelabel calibrate` does."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.engine.labelled_images import Labelled, check_writable, read_labelled, score
from lifelabel.errors import UserError, unknown
from lifelabel.metrics.over_tasks import without_nan
from lifelabel.model.calibration import (
    BY,
    Calibration,
    Rule,
    cross_validate,
    figures,
    fit_probabilities,
    fit_thresholds,
)
from lifelabel.model.labelled_scores import LabelledScores
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import find_model

_DEFAULT_PRECISION = 0.9


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibrated model, and the figures of the fit."""

    model: Model
    folder: Path | None
    """Where the model was written; None with `dry_run`."""
    figures: dict[str, dict[str, float | None]]
    """Calibration errors, CF1 and OF1: `before`, `now` if the model was calibrated already, and `after`."""
    rule: Rule
    images: Labelled
    scores: LabelledScores
    calibration: Calibration
    thresholds: np.ndarray | None
    unreached: np.ndarray
    """The columns of the classes that cannot reach the precision."""


def calibrate(
    run: str | Path, table: str | Path | None = None, *, stream: str | None = None, root: str | Path | None = None,
    stream_options: Mapping[str, Any] | None = None, rows: str | None = None, include_trained: bool = False,
    by: str | None = None, precision: float | None = None, cost: str | None = None, probabilities: str = "platt",
    dry_run: bool = False, out: str | Path | None = None, device: str = "auto", batch_size: int | None = None,
    workers: int | None = None, progress: Callable[[int, int], None] | None = None,
) -> Calibrated:  # fmt: skip
    """Fit the probabilities and the thresholds of a finished model on labelled images, and store them in the model.

    Keywords have the names of the flags of `lifelabel calibrate`; `stream_options` has what `--set stream.NAME=VALUE`
    sets. With `out` a copy of the model is written, and with `dry_run` nothing. `progress` is called with the number of
    images so far and the number of all.
    """
    run, table, out = Path(run), table and Path(table), out and Path(out)
    rule = _rule(by, precision, cost)
    if probabilities not in ("platt", "none"):
        raise unknown("probabilities", probabilities, ("platt", "none"))
    if probabilities == rule.by == "none":
        raise UserError("--probabilities none --by none: there is nothing to fit")
    target = out or find_model(run)
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: choose another --out")
    if not dry_run:
        check_writable(target)
    model = load(run, device)
    given = read_labelled(
        run, table or None, stream, root, stream_options, rows, model, include_trained, progress, "val"
    )
    scores = score(model, given.images, batch_size, workers, progress)
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
    model.info = dataclasses.replace(model.info, calibration=calibration, thresholds=limits)
    if not dry_run:
        model.save(target)
    written = None if dry_run else target
    return Calibrated(model, written, columns, rule, given, scores, found, thresholds, unreached)


def _rule(by: str | None, precision: float | None, cost: str | None) -> Rule:
    """The rule of the flags. `--precision` and `--cost` choose their rule."""
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

    def at(logits: np.ndarray, limits: float | np.ndarray) -> dict[str, Any]:
        p = Calibration.identity(logits.shape[1]).probabilities(logits)
        return figures(p, scores.labels, scores.known, p >= limits)

    found = {"before": at(scores.logits, 0.5)}
    info = model.info
    if info.calibration is not None or info.thresholds is not None:
        limits = 0.5 if info.thresholds is None else np.array(info.thresholds)
        found["now"] = at(scores.calibrated(model), limits)
    return without_nan({**found, "after": after})
