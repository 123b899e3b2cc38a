"""The metrics of one set of scores under every convention of the literature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.metrics.functions import METRICS, Scored
from lifelabel.metrics.over_tasks import HEADLINE, without_nan
from lifelabel.runs import names as run_names
from lifelabel.utils.arrays import Header, array_names, read_arrays, read_headers
from lifelabel.utils.text import printable, shorten

_MAX_SCORES = 100_000_000
"""The maximum number of scores in a file."""
_MAX_BYTES = 17 * _MAX_SCORES
"""Bytes of scores and labels of at most 8 bytes each, and of their headers."""
_BLOCK = 1 << 22
"""Scores that are checked at a time."""


@dataclass(frozen=True)
class _Family:
    """Publications with the same conventions: the kind of CF1, the AP of an empty class, and three names of METRICS."""

    who: str
    cf1: str
    empty: str
    figures: tuple[str, str, str]

    @property
    def threshold(self) -> str:
        return self.figures[2].partition("@")[2]

    def compute(self, scored: Scored) -> dict[str, float]:
        """mAP, CF1 and OF1 under the conventions of this group of publications, as fractions."""
        return {name: METRICS[metric].function(scored) for name, metric in zip(HEADLINE, self.figures, strict=True)}


_HARMONIC, _MEAN = "harmonic mean", "mean of F1"

FAMILIES = (
    _Family("AGCN, ML-GCN, PRS", _HARMONIC, "left out", ("mAP", "cf1_harmonic@0.5", "of1@0.5")),
    _Family("KRT, CSC, MULTI-LANE, ASL", _MEAN, "0", ("mAP_empty_zero", "cf1_mean@0.8", "of1@0.8")),
    _Family("L3A", _MEAN, "0", ("mAP_empty_zero", "cf1_mean@0.525", "of1@0.525")),
    _Family("torchmetrics ≥ 1.4", _MEAN, "0", ("mAP_empty_zero", "cf1_mean@0.5", "of1@0.5")),
    _Family("torchmetrics < 1.4", _MEAN, "left out", ("mAP", "cf1_mean@0.5", "of1@0.5")),
)


@dataclass(frozen=True, eq=False)
class ScoreSet:
    """Checked scores (images x classes) and their labels. `kind` is "logits" or "probabilities"."""

    values: np.ndarray
    labels: np.ndarray
    kind: str

    def scored(self, rows: np.ndarray | None = None) -> Scored:
        """All images, or those of the given rows."""
        chosen = slice(None) if rows is None else rows
        make = Scored.from_logits if self.kind == "logits" else Scored.from_probabilities
        return make(self.values[chosen], self.labels[chosen])


def read_scores(path: Path) -> ScoreSet:
    """Read `labels`, and `logits`, `probabilities` or `scores`, from an .npz file or from a run folder.

    `scores` are probabilities if all of them are in 0 … 1, otherwise logits.
    """
    if path.is_dir():
        if not (path / run_names.SCORES).exists():
            raise UserError(f"{path} holds no {run_names.SCORES}: train with --save-scores, or give an .npz file")
        path = path / run_names.SCORES
    names = array_names(path)
    given = [name for name in ("logits", "probabilities", "scores") if name in names]
    if len(given) != 1 or "labels" not in names:
        raise UserError(
            f"{path} must hold `labels` and one of `logits`, `probabilities` and `scores`; it holds "
            f"{shorten(printable(', '.join(names))) or 'nothing'}"
        )
    wanted = {given[0], "labels"}
    _check_headers(given[0], read_headers(path, _MAX_BYTES, wanted), path)
    arrays = read_arrays(path, _MAX_BYTES, wanted)
    return _checked(given[0], arrays[given[0]], arrays["labels"], path)


def _check_headers(name: str, headers: Mapping[str, Header], path: Path) -> None:
    """Check types and shapes before the arrays are read."""
    values, labels = headers[name], headers["labels"]
    for each, header in ((name, values), ("labels", labels)):
        if header.dtype.kind not in "biuf":
            raise UserError(f"{path}: {each} must be numbers, not {shorten(str(header.dtype))}")
        if math.prod(header.shape) > _MAX_SCORES:
            shape = shorten(_shape_text(header.shape))
            raise UserError(f"{path}: {each} is {shape}, more than {_MAX_SCORES:,} numbers")
    shape = _shape_text(values.shape)
    if len(values.shape) != 2 or values.shape != labels.shape:
        raise UserError(
            f"{path}: {name} is {shape} and labels {_shape_text(labels.shape)}: both must be images × classes"
        )
    if not math.prod(values.shape):
        raise UserError(f"{path}: {name} is {shape}: there is nothing to score")


def _checked(name: str, values: np.ndarray, labels: np.ndarray, path: Path) -> ScoreSet:
    """Check both arrays and convert them to the types that the metrics take, in blocks of rows."""
    kind = np.float32 if values.dtype.itemsize <= 4 and values.dtype.kind == "f" else np.float64
    values = values.astype(kind, copy=False)
    is_positive, inside = np.empty(values.shape, bool), True
    step = max(1, _BLOCK // values.shape[1])
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        is_nan = np.isnan(values[rows])
        if is_nan.any():
            row, column = np.argwhere(is_nan)[0]
            count = sum(int(np.isnan(values[first : first + step]).sum()) for first in range(0, len(values), step))
            raise UserError(f"{path}: {name} holds {count:,} NaN, the first for image {start + row}, class {column}")
        is_positive[rows] = labels[rows] == 1
        wrong = (labels[rows] != 0) & ~is_positive[rows]
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            value = f"{labels[start + row, column]:g}"
            raise UserError(f"{path}: labels must be 0 or 1; image {start + row}, class {column} has {value}")
        inside &= bool(((values[rows] >= 0) & (values[rows] <= 1)).all())
    if name == "probabilities" and not inside:
        low_high = f"{values.min():g} to {values.max():g}"
        raise UserError(f"{path}: probabilities run from {low_high}: if they are logits, name the array `logits`")
    return ScoreSet(values, is_positive, "probabilities" if inside and name != "logits" else "logits")


def compare(scores: ScoreSet) -> dict[str, Any]:
    """The figures of every group, ready for JSON: on all images, and on the images that have at least one label."""
    labelled = np.flatnonzero(scores.labels.any(1))
    found = {"all": _figures(scores.scored())}
    # if every image has a label, the second set is the first one
    whole = len(labelled) == len(scores.labels)
    found["labelled"] = found["all"] if whole else _figures(scores.scored(labelled))
    return {
        "images": len(scores.labels),
        "labelled_images": len(labelled),
        "classes": scores.labels.shape[1],
        "empty_classes": int((~scores.labels.any(0)).sum()),
        "scores": scores.kind,
        "families": [
            {
                "who": family.who, "threshold": float(family.threshold), "cf1": family.cf1, "empty_class": family.empty,
                **{part: families[n] for part, (families, _) in found.items()},
            }
            for n, family in enumerate(FAMILIES)
        ],
        "conventions": {part: conventions for part, (_, conventions) in found.items()},
    }  # fmt: skip


def _figures(scored: Scored) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figures of every group and of every metric. The probabilities are in memory only until they are computed."""
    return [without_nan(family.compute(scored)) for family in FAMILIES], without_nan(scored.all_metrics())


def spread(compared: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The lowest and the highest value of a figure over groups and sets of images; None if it has no value."""
    values = [family[part][name] for family in compared["families"] for part in ("all", "labelled")]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _shape_text(shape: Iterable[int]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "a single number"
