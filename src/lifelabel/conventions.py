"""One set of scores under every convention of the literature, side by side. The formulas are those of `metrics`."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError, plain, short
from lifelabel.metrics import CONVENTIONS, Scored, without_nan

LARGEST = 100_000_000
"""Scores in a file, at most."""
FIGURES = ("mAP", "CF1", "OF1")


@dataclass(frozen=True)
class Family:
    """Who reports so: how CF1 is made, what a class without positives is in mAP, and the three of CONVENTIONS."""

    who: str
    cf1: str
    empty: str
    figures: tuple[str, str, str]

    @property
    def threshold(self) -> str:
        return self.figures[2].partition("@")[2]

    def of(self, scored: Scored) -> dict[str, float]:
        """mAP, CF1 and OF1 as this family has them, as fractions."""
        return {name: CONVENTIONS[by].function(scored) for name, by in zip(FIGURES, self.figures, strict=True)}


_HARMONIC, _MEAN = "harmonic mean", "mean of F1"

FAMILIES = (
    Family("AGCN, ML-GCN, PRS", _HARMONIC, "left out", ("mAP", "cf1_harmonic@0.5", "of1@0.5")),
    Family("KRT, CSC, MULTI-LANE, ASL", _MEAN, "0", ("mAP_empty_zero", "cf1_mean@0.8", "of1@0.8")),
    Family("L3A", _MEAN, "0", ("mAP_empty_zero", "cf1_mean@0.525", "of1@0.525")),
    Family("torchmetrics ≥ 1.4", _MEAN, "0", ("mAP_empty_zero", "cf1_mean@0.5", "of1@0.5")),
    Family("torchmetrics < 1.4", _MEAN, "left out", ("mAP", "cf1_mean@0.5", "of1@0.5")),
)


@dataclass(frozen=True, eq=False)
class ScoreFile:
    """Scores (images x classes) and their labels, checked; `kind` says whether they are logits or probabilities."""

    values: np.ndarray
    labels: np.ndarray
    kind: str

    @property
    def labelled(self) -> np.ndarray:
        """The images that show a class."""
        return np.flatnonzero(self.labels.any(1))

    def scored(self, rows: np.ndarray | None = None) -> Scored:
        """All images, or some, ready for every convention."""
        where = slice(None) if rows is None else rows
        make = Scored.of_logits if self.kind == "logits" else Scored.of
        return make(self.values[where], self.labels[where])


def read_scores(path: Path) -> ScoreFile:
    """The scores in an .npz, or in a run folder: `labels`, and `logits`, `probabilities` or `scores`.

    `scores` are probabilities if all of them lie in 0 … 1, else logits.
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
                    f"{short(plain(', '.join(sorted(names)))) or 'nothing'}"
                )
            values, labels = _array(archive, given[0], path), _array(archive, "labels", path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, NotImplementedError, RuntimeError):
        raise UserError(f"{path} is not an .npz file of plain arrays, or it is damaged") from None
    return _checked(given[0], values, labels, path)


def _array(archive: zipfile.ZipFile, name: str, path: Path) -> np.ndarray:
    """One array; its header is looked at before any of it is read."""
    with archive.open(f"{name}.npy") as member:
        first = np.lib.format.read_magic(member) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(member)
    if dtype.kind not in "biuf":
        raise UserError(f"{path}: {name} must be numbers, not {short(str(dtype))}")
    if math.prod(shape) > LARGEST:
        raise UserError(f"{path}: {name} is {short(_by(shape))}, more than {LARGEST:,} numbers")
    with archive.open(f"{name}.npy") as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _checked(name: str, values: np.ndarray, labels: np.ndarray, path: Path) -> ScoreFile:
    """Both arrays as metrics take them, or a line that says what is wrong with them."""
    if values.ndim != 2 or values.shape != labels.shape:
        raise UserError(
            f"{path}: {name} is {_by(values.shape)} and labels {_by(labels.shape)}: both must be images × classes"
        )
    if not values.size:
        raise UserError(f"{path}: {name} is {_by(values.shape)}: there is nothing to score")
    values = values.astype(np.float32 if values.dtype.itemsize <= 4 and values.dtype.kind == "f" else np.float64)
    unordered = np.isnan(values)
    if unordered.any():
        row, column = np.argwhere(unordered)[0]
        raise UserError(f"{path}: {name} holds {unordered.sum():,} NaN, the first for image {row}, class {column}")
    wrong = (labels != 0) & (labels != 1)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise UserError(f"{path}: labels must be 0 or 1; image {row}, class {column} has {labels[row, column]:g}")
    inside = bool(((values >= 0) & (values <= 1)).all())
    if name == "probabilities" and not inside:
        span = f"{values.min():g} to {values.max():g}"
        raise UserError(f"{path}: probabilities run from {span}: call them `logits` if that is what they are")
    kind = "probabilities" if inside and name != "logits" else "logits"
    return ScoreFile(values, labels == 1, kind)


def compare(scores: ScoreFile) -> dict[str, Any]:
    """Every family's figures on all images and on those that show a class; JSON takes it as it stands."""
    parts = {"all": scores.scored(), "labelled": scores.scored(scores.labelled)}
    return {
        "images": len(scores.labels),
        "labelled_images": len(scores.labelled),
        "classes": scores.labels.shape[1],
        "empty_classes": int((~scores.labels.any(0)).sum()),
        "scores": scores.kind,
        "families": [
            {
                "who": family.who, "threshold": float(family.threshold), "cf1": family.cf1, "empty_class": family.empty,
                **{part: without_nan(family.of(scored)) for part, scored in parts.items()},
            }
            for family in FAMILIES
        ],
        "conventions": {part: without_nan(scored.conventions()) for part, scored in parts.items()},
    }  # fmt: skip


def spread(compared: dict[str, Any], name: str) -> tuple[float, float] | None:
    """The least and the most that a figure comes to, over families and images; None where it does not exist."""
    found = [family[part][name] for family in compared["families"] for part in ("all", "labelled")]
    known = [value for value in found if value is not None]
    return (min(known), max(known)) if known else None


def _by(shape: Iterable[int]) -> str:
    return " × ".join(f"{size:,}" for size in shape) or "a single number"
