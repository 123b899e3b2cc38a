"""The metrics of one set of scores under every convention of the literature."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.metrics.functions import HEADLINE, METRICS, Scored, without_nan
from lifelabel.utils.text import printable, shorten

__all__ = ["FAMILIES", "ScoreSet", "compare", "read_scores", "spread"]

_MAX_SCORES = 100_000_000
"""The maximum number of scores in a file."""


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
        """mAP, CF1 and OF1 under the conventions of this family, as fractions."""
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

    @property
    def labelled(self) -> np.ndarray:
        """The images that have at least one label."""
        return np.flatnonzero(self.labels.any(1))

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
        if not (path / "scores.npz").exists():
            raise UserError(f"{path} holds no scores.npz: train with --save-scores, or give an .npz file")
        path = path / "scores.npz"
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")}
            given = [name for name in ("logits", "probabilities", "scores") if name in names]
            if len(given) != 1 or "labels" not in names:
                raise UserError(
                    f"{path} must hold `labels` and one of `logits`, `probabilities` and `scores`; it holds "
                    f"{shorten(printable(', '.join(sorted(names)))) or 'nothing'}"
                )
            values, labels = _array(archive, given[0], path), _array(archive, "labels", path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError, RuntimeError):
        raise UserError(f"{path} is not an .npz file of plain arrays, or it is damaged") from None
    return _checked(given[0], values, labels, path)


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """Read one array. Its header is checked first."""
    with archive.open(f"{name}.npy") as member:
        is_version_1 = np.lib.format.read_magic(member) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if is_version_1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(member)
    if dtype.kind not in "biuf":
        raise UserError(f"{path}: {name} must be numbers, not {shorten(str(dtype))}")
    if math.prod(shape) > _MAX_SCORES:
        raise UserError(f"{path}: {name} is {shorten(_shape_text(shape))}, more than {_MAX_SCORES:,} numbers")
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _checked(name: str, values: np.ndarray, labels: np.ndarray, path: Path) -> ScoreSet:
    """Check both arrays and convert them to the types that the metrics take."""
    shape = _shape_text(values.shape)
    if values.ndim != 2 or values.shape != labels.shape:
        raise UserError(
            f"{path}: {name} is {shape} and labels {_shape_text(labels.shape)}: both must be images × classes"
        )
    if not values.size:
        raise UserError(f"{path}: {name} is {shape}: there is nothing to score")
    values = values.astype(np.float32 if values.dtype.itemsize <= 4 and values.dtype.kind == "f" else np.float64)
    is_nan = np.isnan(values)
    if is_nan.any():
        row, column = np.argwhere(is_nan)[0]
        raise UserError(f"{path}: {name} holds {is_nan.sum():,} NaN, the first for image {row}, class {column}")
    wrong = (labels != 0) & (labels != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise UserError(f"{path}: labels must be 0 or 1; image {row}, class {column} has {labels[row, column]:g}")
    inside = bool(((values >= 0) & (values <= 1)).all())
    if name == "probabilities" and not inside:
        low_high = f"{values.min():g} to {values.max():g}"
        raise UserError(f"{path}: probabilities run from {low_high}: if they are logits, name the array `logits`")
    kind = "probabilities" if inside and name != "logits" else "logits"
    return ScoreSet(values, labels == 1, kind)


def compare(scores: ScoreSet) -> dict[str, Any]:
    """The figures of every family, ready for JSON: on all images, and on the images that have at least one label."""
    labelled, scored = scores.labelled, scores.scored()
    # if every image has a label, the second set is the first one
    parts = {"all": scored, "labelled": scored if len(labelled) == len(scores.labels) else scores.scored(labelled)}
    return {
        "images": len(scores.labels),
        "labelled_images": len(labelled),
        "classes": scores.labels.shape[1],
        "empty_classes": int((~scores.labels.any(0)).sum()),
        "scores": scores.kind,
        "families": [
            {
                "who": family.who, "threshold": float(family.threshold), "cf1": family.cf1, "empty_class": family.empty,
                **{part: without_nan(family.compute(images)) for part, images in parts.items()},
            }
            for family in FAMILIES
        ],
        "conventions": {part: without_nan(images.all_metrics()) for part, images in parts.items()},
    }  # fmt: skip


def spread(compared: Mapping[str, Any], name: str) -> tuple[float, float] | None:
    """The lowest and the highest value of a figure over families and sets of images; None if it has no value."""
    values = [family[part][name] for family in compared["families"] for part in ("all", "labelled")]
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def _shape_text(shape: Iterable[int]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "a single number"
