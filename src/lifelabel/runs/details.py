"""The details of a finished run, read from its folder: see `lifelabel.engine.evaluator`. The files are untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lifelabel.errors import UserError
from lifelabel.metrics.curves import BINS, RECALLS
from lifelabel.runs import names
from lifelabel.runs.finished import FinishedRun
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.arrays import read_arrays
from lifelabel.utils.files import below

MAX_EXAMPLES = 256
_MAX_EXAMPLE_BYTES = 1 << 25
_OTHER_BYTES = 1 << 16
"""Headers and small arrays of a file."""


@dataclass(frozen=True)
class TaskDetails:
    """What was measured on all test images after one task."""

    task: int
    """The number of the task, from 1."""
    ap: np.ndarray
    """The average precision of each class so far. NaN: it has no positive image."""
    counts: np.ndarray
    """Pairs of image and class, tasks x 2 x 100: by task of the class, label (0 or 1), and probability bin."""
    scores: np.ndarray
    """The probabilities of the example images, examples x classes."""


@dataclass(frozen=True)
class Example:
    """A test image with a small picture."""

    index: int
    """Its row in `TaskDetails.scores`."""
    name: str
    labels: np.ndarray
    known: np.ndarray
    """For each class, whether the label is known."""
    jpeg: bytes


@dataclass(frozen=True)
class RunDetails:
    """The details of a run: after each of its tasks, of each class after the last one, and examples."""

    tasks: tuple[TaskDetails, ...]
    precision: np.ndarray
    """The precision of each class where its recall reaches 0, 0.01 … 1. NaN: it has no positive image."""
    thresholds: np.ndarray
    """The probability from which images are predicted there."""
    examples: tuple[Example, ...]
    """The most confident mistakes after the last task are first."""


def read_details(run: FinishedRun) -> RunDetails | None:
    """The details of a run; None if its folder has none."""
    folder, sizes = RunFolder(run.path) / names.DETAILS, run.sizes
    if names.DETAILS in run.unread or not (folder / names.details_of_task(len(sizes))).exists():
        return None
    try:
        numbers = range(len(sizes) + 1 - len(run.metrics["per_task"]), len(sizes) + 1)
        files = {n: read_arrays(below(folder, names.details_of_task(n)), _task_bytes(sizes[:n])) for n in numbers}
        tasks = tuple(_task(number, arrays, sizes[:number]) for number, arrays in files.items())
        last, shape = files[len(sizes)], (sum(sizes), RECALLS)
        precision, thresholds = (_floats(last[name], shape) for name in ("precision", "thresholds"))
        pictures = below(folder, names.EXAMPLES)
        stored = read_arrays(pictures, _MAX_EXAMPLE_BYTES) if pictures.exists() else None
        examples = _examples(stored, tasks[-1].scores.shape) if stored else ()
    except (KeyError, IndexError, TypeError, ValueError):
        raise UserError(
            f"{folder} does not hold the details of this run: train it again, or remove the folder"
        ) from None
    return RunDetails(tasks, precision, thresholds, examples)


def _task_bytes(sizes: list[int]) -> int:
    """The most bytes of the arrays of a task: at most 8 for each number."""
    numbers = sum(sizes) * (1 + MAX_EXAMPLES + 2 * RECALLS) + len(sizes) * 2 * BINS
    return 8 * numbers + _OTHER_BYTES


def _task(number: int, arrays: Mapping[str, np.ndarray], sizes: list[int]) -> TaskDetails:
    counts, scores = arrays["counts"], arrays["scores"]
    if counts.shape != (len(sizes), 2, BINS) or counts.dtype.kind not in "iu" or not _fit(counts):
        raise ValueError("counts")
    return TaskDetails(
        number,
        _floats(arrays["ap"], (sum(sizes),)),
        counts.astype(np.int64),
        _floats(scores, (len(scores), sum(sizes))),
    )


def _fit(counts: np.ndarray) -> bool:
    """Whether their sums fit into 64 bits."""
    return bool(counts.min() >= 0 and counts.max() < 1 << 40)


def _floats(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array of fractions, with NaN for unknown ones."""
    if array.shape != shape or array.dtype.kind != "f":
        raise ValueError("shape or type")
    values = array.astype(np.float32)
    if ((values < 0) | (values > 1)).any():
        raise ValueError("not a fraction")
    return values


def _examples(arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> tuple[Example, ...]:
    chosen, names, ends = arrays["chosen"], arrays["names"], arrays["picture_ends"]
    labels, known, data = arrays["labels"], arrays["known"], arrays["pictures"]
    flags = all(each.shape == (len(chosen), shape[1]) and each.dtype == bool for each in (labels, known))
    whole = all(each.shape == (len(chosen),) and each.dtype.kind == "i" for each in (chosen, ends))
    if not (flags and whole and names.shape == chosen.shape and names.dtype.kind == "U" and data.dtype == np.uint8):
        raise ValueError("examples")
    if len(chosen) and not (chosen.min() >= 0 and chosen.max() < shape[0]):
        raise ValueError("examples")
    files = [part.tobytes() for part in np.split(data, ends)][: len(chosen)]
    return tuple(
        Example(int(index), str(name), *each)
        for index, name, *each in zip(chosen, names, labels, known, files, strict=True)
    )
