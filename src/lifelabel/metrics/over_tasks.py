"""Figures over the tasks of a run: forgetting and means. The names of all figures. Torch is not imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lifelabel.utils.text import BELOW_ZERO

HEADLINE = ("mAP", "CF1", "OF1")
"""The metrics of the paper's tables."""
BUILT_IN = (
    "mAP", "mAP_empty_zero", "CP", "CR", "cf1_harmonic@0.5", "cf1_mean@0.5", "cf1_mean@0.525", "cf1_mean@0.8", "OP",
    "OR", "of1@0.5", "of1@0.525", "of1@0.8",
)  # fmt: skip
"""The names of `lifelabel.metrics.METRICS` that are not from plug-ins."""


@dataclass(frozen=True)
class Convention:
    """How publications summarise the scores of a run over its tasks, and the names of these figures of a run."""

    name: str
    head: str
    """In the head of a column of scores, after the name of the metric."""
    note: str
    """What the figures are, for the text under a table."""
    of_scores: str = ""
    """What the names of its scores begin with."""
    of_forgetting: str | None = None
    """What the names of its forgetting begin with. None: the convention has none."""

    def score(self, metric: str) -> str:
        """The name of a score in `FinishedRun.figures`.

        >>> CONVENTIONS["authors"].score("mAP"), CONVENTIONS["authors"].forgetting("mAP")
        ('cumulative_mean_mAP', 'relative_forgetting_mAP')
        """
        return self.of_scores + metric

    def forgetting(self, metric: str) -> str | None:
        return None if self.of_forgetting is None else self.of_forgetting + metric


CONVENTIONS = {
    each.name: each
    for each in (
        Convention(
            "paper",
            "final",
            "mAP, CF1 and OF1 in % after the last task, on the whole test set, by A.5 of the AGCN paper. Forgetting, "
            f"by A.5, is by how much the metric of earlier tasks is below its best value; {BELOW_ZERO}.",
            of_forgetting="forgetting_",
        ),
        Convention(
            "authors",
            "mean over test sets",
            "mAP, CF1 and OF1 in % after the last task, as the mean over the cumulative test sets, by the code of the "
            "AGCN authors. Relative forgetting, by the same code, is the share of the score right after a task that is "
            f"lost after the last one, in %; {BELOW_ZERO}.",
            of_scores="cumulative_mean_",
            of_forgetting="relative_forgetting_",
        ),
        Convention(
            "average",
            "mean over tasks",
            "mAP, CF1 and OF1 in % as the mean over the tasks: right after each task, of the classes so far, on the "
            "cumulative test set. KRT, CSC and later publications call this the average.",
            of_scores="average_",
        ),
    )
}
"""How scores are summarised, by name."""
PAPER = CONVENTIONS["paper"]
"""The default of tables."""

_Values: TypeAlias = Any
"""A sequence of numbers, numpy array or tensor. NaN and None are unknown values."""
_Table: TypeAlias = Any


def _floats(values: Any) -> npt.NDArray[np.float64]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64)


def mean_of_known(values: _Values) -> float:
    """The mean of the values that are known: NaN and None are left out. NaN if no value is known.

    >>> mean_of_known([0.5, None, 0.25])
    0.375
    """
    terms = _floats(values)
    known = terms[~np.isnan(terms)]
    return float(known.mean()) if len(known) else math.nan


def forgetting(a: _Table) -> float:
    """Forgetting by A.5: the mean over tasks j < T of the highest a[l][j] with l < T, minus a[T][j].

    a[t][j] is any metric on task j after task t. Entries above the diagonal (t < j) are not read. A value below zero
    means that later tasks helped. NaN entries (a task without positives) are left out. With one task the result is NaN.

    >>> nan = math.nan
    >>> round(forgetting([[0.8, nan, nan], [0.9, 0.6, nan], [0.5, 0.7, 0.9]]), 3)  # (0.9 - 0.5 + 0.6 - 0.7) / 2
    0.15
    """
    table = _floats(a)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"forgetting takes a square array (tasks, tasks), not {table.shape}")
    earlier = np.where(np.tri(len(table), dtype=bool), table, math.nan)[:-1, :-1]
    return mean_of_known(np.fmax.reduce(earlier, axis=0, initial=math.nan) - table[-1:, :-1].ravel())


def relative_forgetting(initial: _Values, final: _Values) -> float:
    """Forgetting by the code of the AGCN authors: the mean over tasks j < T of (initial[j] - final[j]) / initial[j].

    initial[j] is the metric on the cumulative test set j right after task j, and final[j] is the metric on the same set
    after the last task. Both have T entries; the last is not read. Terms with initial[j] = 0 and NaN terms are left
    out. NaN if no term is left.

    >>> round(relative_forgetting([0.8, 0.5, 0.6], [0.6, 0.5, 0.6]), 3)
    0.125
    """
    before, after = _floats(initial), _floats(final)
    if before.ndim != 1 or before.shape != after.shape:
        raise ValueError(f"initial {before.shape} and final {after.shape} must have one length: one value per task")
    before, after = before[:-1], after[:-1]
    nonzero = before != 0
    return mean_of_known((before[nonzero] - after[nonzero]) / before[nonzero])


def without_nan(value: Any) -> Any:
    """The same nested dicts and lists with None in place of NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
