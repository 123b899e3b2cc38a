"""The scores of a model for labelled images. Classes are matched by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lifelabel.errors import UserError
from lifelabel.model.calibration import Calibration
from lifelabel.model.model import Model
from lifelabel.streams.labelled_set import LabelledPart, LabelledSet
from lifelabel.utils.text import printable, shorten


@dataclass(frozen=True, eq=False)
class LabelledScores:
    """The logits of the images that could be read, and their labels: images x classes of the model.

    `known` marks the labels that the set states. `common` are the classes that both have, `ignored` are the names of
    the classes that only the set has.
    """

    logits: np.ndarray
    labels: np.ndarray
    known: np.ndarray
    common: np.ndarray
    ignored: list[str]
    part: np.ndarray
    """For each image, the part of the set that has it."""
    position: np.ndarray
    """For each image, its position in that part."""
    skipped: list[tuple[str, str]]
    """The name of each image that could not be read, and the reason."""

    def __len__(self) -> int:
        return len(self.logits)

    def calibrated(self, model: Model) -> np.ndarray:
        """Logits whose sigmoid is the model's probability. Within a class, they have the order of the raw logits."""
        given = model.info.calibration
        if given is None:
            return self.logits
        slope, shift = (np.array(given[name], np.float64) for name in ("slope", "shift"))
        return Calibration(slope, shift).logits(self.logits)


def score_labelled(
    model: Model,
    labelled: LabelledSet,
    progress: Callable[[int, int], None] | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
) -> LabelledScores:
    """Score all images of a set. Raises `UserError` if it has no class of the model, or if no image can be read."""
    column_of = {name: column for column, name in enumerate(labelled.classes)}
    common = np.array([k for k, name in enumerate(model.classes) if name in column_of], np.int64)
    if not len(common):
        theirs, ours = (printable(shorten(", ".join(names))) for names in (labelled.classes, model.classes))
        raise UserError(
            f"{labelled.name} and the model have no class in common (the set: {theirs}; the model: {ours}): the names "
            "of the classes must be the same"
        )
    of_set = np.array([column_of[model.classes[k]] for k in common], np.int64)
    done, total, found, skipped = 0, len(labelled), [], []
    for number, part in enumerate(labelled.parts):

        def advance(count: int, _: int, before: int = done) -> None:
            if progress is not None:
                progress(before + count, total)

        logits, good, bad = model.score_source(part.images, part.rows, advance, batch_size, workers)
        done += len(part)
        skipped += [(part.images.name(row), reason) for row, reason in bad]
        labels, known = _dense(part, good, common, of_set, len(model.classes))
        found.append((logits, labels, known, np.full(len(good), number), good))
    logits, labels, known, parts, positions = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    if not len(logits):
        name, reason = skipped[0]
        raise UserError(
            f"none of the images of {labelled.name} can be read ({printable(shorten(name))}: {reason}): check --root"
        )
    if not np.isfinite(logits).all():
        raise UserError("the scores of the model are not finite: it cannot be used")
    shared = {model.classes[k] for k in common}
    ignored = [name for name in labelled.classes if name not in shared]
    return LabelledScores(logits, labels, known, common, ignored, parts, positions, skipped)


def _dense(
    part: LabelledPart, good: np.ndarray, common: np.ndarray, of_set: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """The labels of the readable images for the classes of the model, and which of them are known."""
    labels, known = np.zeros((len(good), classes), bool), np.zeros((len(good), classes), bool)
    labels[:, common] = part.labels.take(good).select_classes(of_set).dense()
    known[:, common] = True
    if part.unknown is not None:
        known[:, common] = ~part.unknown.take(good).select_classes(of_set).dense()
    return labels & known, known
