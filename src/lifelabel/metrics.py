"""Multi-label metrics as pure functions of scores and labels, each named by its convention.

The same scores give different numbers under different conventions (the threshold of F1, what CF1 averages, the AP of
a class without positives), so every number carries its convention in its name: see `CONVENTIONS`. Scores and labels
are (images, classes) torch tensors or numpy arrays, labels 0 or 1; figures are fractions, not per cent.

>>> p = np.array([[0.9, 0.2], [0.6, 0.7], [0.1, 0.4]])
>>> y = np.array([[1, 0], [0, 1], [1, 1]])
>>> {name: round(value, 3) for name, value in headline(p, y).items()}
{'mAP': 0.917, 'CP': 0.75, 'CR': 0.5, 'CF1': 0.6, 'OP': 0.667, 'OR': 0.5, 'OF1': 0.571}
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array: TypeAlias = Tensor | npt.NDArray[Any]

CHUNK = 1 << 23
"""How many scores `average_precision` ranks at a time (whole classes, at least one), so that memory stays bounded."""
LEVELS = 1 << 16
"""Into how many levels the scores of a class are cut before they are ranked."""
SHORT = 1 << 14
"""Images of a class from which on another thread pays."""


def _tensor(array: Array) -> Tensor:
    if isinstance(array, Tensor):
        tensor = array.detach()
    else:
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return tensor.cpu() if tensor.device.type == "mps" else tensor  # no float64 there


def _pair(scores: Array, labels: Array) -> tuple[Tensor, Tensor]:
    """Both as (images, classes) tensors on the scores' device, checked; labels as bool, half precision as float32."""
    s, y = _tensor(scores), _tensor(labels)
    if s.ndim != 2 or s.shape != y.shape:
        raise ValueError(f"scores {tuple(s.shape)} and labels {tuple(y.shape)} must both be (images, classes)")
    if s.dtype in (torch.bfloat16, torch.float16):
        s = s.float()
    if s.is_floating_point() and s.numel() and bool(s.amax().isnan()):  # a NaN is the greatest of all
        raise ValueError(f"scores hold {int(s.isnan().sum())} NaN: they have no order, so no metric is defined")
    y = y.to(s.device)
    if y.dtype != torch.bool:
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError("labels must be 0 or 1")
        y = y == 1
    return s, y


def _ap_of_rows(scores: Tensor, hits: Tensor) -> Tensor:
    """Average precision of each row of (classes, images)."""
    if scores.device.type != "cpu" or not scores.is_floating_point():
        return _ap_by_sorting(scores, hits)
    # few images a class: more than two threads would wait for each other between the short calls
    count = min(torch.get_num_threads(), max(2, scores.shape[1] // SHORT))
    parts = zip(np.array_split(scores.numpy(), count), np.array_split(hits.numpy(), count), strict=True)
    with ThreadPoolExecutor(count) as threads:
        found = threads.map(lambda part: [_ap_of_class(*row) for row in zip(*part, strict=True)], parts)
        return torch.tensor(list(itertools.chain(*found)), dtype=torch.float64)


def _ap_by_sorting(scores: Tensor, hits: Tensor) -> Tensor:
    scores, order = scores.sort(dim=1, descending=True)
    hits = hits.gather(1, order)
    last = torch.ones_like(hits)  # the last of a run of equal scores: the only places that are thresholds
    last[:, :-1] = scores[:, 1:] != scores[:, :-1]
    del scores, order
    correct = hits.cumsum(1, dtype=torch.float64)
    reached = torch.where(last, correct, 0.0).cummax(1).values
    gained = reached.diff(dim=1, prepend=reached.new_zeros(len(reached), 1))
    rank = torch.arange(1, hits.shape[1] + 1, dtype=torch.float64, device=hits.device)
    return gained.mul_(correct).div_(rank).sum(1) / correct[:, -1]  # 0 / 0 = NaN: no positives


def _ap_of_class(scores: npt.NDArray[Any], hits: npt.NDArray[np.bool_]) -> float:
    """The mean over the positives of hits / images among those that score no less, without sorting all scores.

    The images of each level are counted; only those in the level of a positive are compared by their scores.
    """
    positive = np.sort(scores.take(np.flatnonzero(hits)))
    if not len(positive):
        return math.nan
    low = scores.min()
    with np.errstate(all="ignore"):
        scale = scores.dtype.type(LEVELS - 1) / (scores.max() - low)
    if not (np.isfinite(scale) and scale > 0):  # all alike, or too far apart
        return float(_ap_by_sorting(torch.from_numpy(scores[None]), torch.from_numpy(hits[None])))

    def levels(of: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
        return ((of - low) * scale).astype(np.uint16)  # rounding keeps the order

    level, own = levels(scores), levels(positive)
    shared = np.zeros(LEVELS, bool)
    shared[own] = True
    near = np.sort(scores.take(np.flatnonzero(shared.take(level))))
    images = np.bincount(level, minlength=LEVELS)
    in_level = images.take(own)
    in_level[1:][own[1:] == own[:-1]] = 0  # each level once
    higher = len(scores) - images.cumsum().take(own)
    no_less = higher + in_level.cumsum() - near.searchsorted(positive)
    right = np.arange(len(positive), 0, -1)
    if (positive[1:] == positive[:-1]).any():
        right = len(positive) - positive.searchsorted(positive)
    return float((right / no_less).sum()) / len(positive)


def _ap(scores: Tensor, labels: Tensor) -> Tensor:
    images, classes = scores.shape
    if images == 0 or classes == 0:
        return torch.full((classes,), math.nan, dtype=torch.float64, device=scores.device)
    width = max(1, CHUNK // images)
    chunks = [slice(start, start + width) for start in range(0, classes, width)]
    return torch.cat([_ap_of_rows(scores[:, c].T.contiguous(), labels[:, c].T.contiguous()) for c in chunks])


def average_precision(scores: Array, labels: Array) -> Tensor:
    """Average precision of every class, (C,) float64: sum over thresholds of (R_n - R_{n-1}) P_n, as scikit-learn's.

    Equal scores are one threshold, so the order of the images never matters. Only the order of the scores counts:
    logits, half precision and infinities will do, NaN raises ValueError. A class without positives gets NaN.

    >>> scores = np.array([[3.0, 1.0, 0.5], [2.0, 1.0, 0.1], [1.0, 1.0, 0.9]])
    >>> average_precision(scores, np.array([[1, 1, 0], [0, 0, 0], [1, 0, 0]])).tolist()
    [0.8333333333333333, 0.3333333333333333, nan]
    """
    return _ap(*_pair(scores, labels))


def _mean_ap(ap: Tensor, empty: str) -> float:
    if empty not in ("ignore", "zero"):
        raise ValueError(f"empty must be 'ignore' or 'zero', not {empty!r}")
    if bool(ap.isnan().all()):
        return math.nan
    return float(ap.nanmean() if empty == "ignore" else ap.nan_to_num(0.0).mean())


def mean_average_precision(scores: Array, labels: Array, empty: Literal["ignore", "zero"] = "ignore") -> float:
    """mAP over the classes; those without positives are left out ('ignore') or count 0 ('zero').

    'ignore' is what AGCN (A.5), ML-GCN and PRS do; 'zero' is KRT, CSC, ASL and torchmetrics >= 1.4. NaN under both when
    no class has a positive.

    >>> scores, labels = np.array([[0.9, 0.3], [0.1, 0.4]]), np.array([[1, 0], [0, 0]])
    >>> mean_average_precision(scores, labels), mean_average_precision(scores, labels, empty="zero")
    (1.0, 0.5)
    """
    return _mean_ap(average_precision(scores, labels), empty)


@dataclass(frozen=True, eq=False)
class Counts:
    """Images per class, (C,) int64: N^c predicted rightly, N^p predicted and N^g that truly hold it."""

    correct: Tensor
    predicted: Tensor
    truth: Tensor


def _counts(p: Tensor, y: Tensor, threshold: float) -> Counts:
    if p.numel() and not (float(p.min()) >= 0 and float(p.max()) <= 1):
        raise ValueError(f"probabilities run from {float(p.min()):g} to {float(p.max()):g}: take the sigmoid of logits")
    predicted = p >= threshold
    return Counts((predicted & y).sum(0), predicted.sum(0), y.sum(0))


def counts(probabilities: Array, labels: Array, threshold: float = 0.5) -> Counts:
    """N^c, N^p and N^g of every class. Predicted means probability >= threshold (0.5: logit >= 0).

    >>> n = counts(np.array([[0.9, 0.5], [0.6, 0.4]]), np.array([[1, 0], [0, 1]]))
    >>> n.correct.tolist(), n.predicted.tolist(), n.truth.tolist()
    ([1, 0], [2, 1], [1, 1])
    """
    return _counts(*_pair(probabilities, labels), threshold)


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b != 0 else 0.0


def _a5(n: Counts) -> dict[str, float]:
    correct, predicted, truth = n.correct.double(), n.predicted.double(), n.truth.double()
    held = n.truth > 0
    cp = float((correct / predicted.clamp(min=1))[held].mean())  # the mean of nothing is NaN
    cr = float((correct / truth)[held].mean())
    right, said, there = float(correct.sum()), float(predicted.sum()), float(truth.sum())
    op = right / said if said else 0.0
    or_ = right / there if there else math.nan
    return {"CP": cp, "CR": cr, "CF1": _harmonic(cp, cr), "OP": op, "OR": or_, "OF1": _harmonic(op, or_)}


def precision_recall_f1(probabilities: Array, labels: Array, threshold: float = 0.5) -> dict[str, float]:
    """CP, CR, CF1 (per class) and OP, OR, OF1 (overall) by the formulas of the AGCN paper, A.5.

    CP and CR are means over classes, CF1 is *their* harmonic mean (not the mean of F1s: `mean_f1`); OP and OR come
    from the sums over classes. Where the paper is silent: a class that is never predicted has precision 0; a class
    without positives is left out of CP and CR, as it is from mAP, but predicting it still lowers OP; nothing predicted
    at all makes OP 0; an F1 of 0/0 is 0. Without a single positive everything but OP is NaN.

    >>> p, y = np.array([[0.9, 0.6], [0.7, 0.1], [0.2, 0.3]]), np.array([[1, 1], [0, 1], [0, 0]])
    >>> {k: round(v, 3) for k, v in precision_recall_f1(p, y).items()}
    {'CP': 0.75, 'CR': 0.75, 'CF1': 0.75, 'OP': 0.667, 'OR': 0.667, 'OF1': 0.667}
    """
    return _a5(counts(probabilities, labels, threshold))


def _mean_f1(n: Counts) -> float:
    return float((2 * n.correct.double() / (n.predicted + n.truth).clamp(min=1)).mean())


def mean_f1(probabilities: Array, labels: Array, threshold: float = 0.5) -> float:
    """The mean of the classes' F1 (KRT, CSC, ASL, L3A, torchmetrics' macro); a class without positives counts 0.

    >>> round(mean_f1(np.array([[0.9, 0.6], [0.7, 0.1]]), np.array([[1, 0], [0, 0]])), 3)
    0.333
    """
    return _mean_f1(counts(probabilities, labels, threshold))


@dataclass(frozen=True, eq=False)
class Scored:
    """Probabilities with their labels, checked once; AP is computed once and the counts once per threshold.

    AP ranks by `scores`, where they are finer than the probabilities: those of large logits are all 1.
    """

    probabilities: Tensor
    labels: Tensor
    scores: Tensor
    _known: dict[float, Counts] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, probabilities: Array, labels: Array) -> Scored:
        p, y = _pair(probabilities, labels)
        return cls(p, y, p)

    @classmethod
    def of_logits(cls, logits: Array, labels: Array) -> Scored:
        """Scores are the logits, probabilities their sigmoid, in float64.

        >>> Scored.of_logits(np.array([[50.0], [40.0]]), np.array([[1], [0]])).ap.tolist()
        [1.0]
        """
        z, y = _pair(logits, labels)
        return cls(z.double().sigmoid(), y, z)

    @cached_property
    def ap(self) -> Tensor:
        return _ap(self.scores, self.labels)

    def headline(self) -> dict[str, float]:
        """mAP, CP, CR, CF1, OP, OR and OF1 by A.5."""
        return {"mAP": _mean_ap(self.ap, "ignore"), **_a5(self.counts(0.5))}

    def conventions(self) -> dict[str, float]:
        """Every number of `CONVENTIONS`."""
        return {name: convention.function(self) for name, convention in CONVENTIONS.items()}

    def counts(self, threshold: float) -> Counts:
        if threshold not in self._known:
            self._known[threshold] = _counts(self.probabilities, self.labels, threshold)
        return self._known[threshold]


@dataclass(frozen=True)
class Convention:
    """One way to a number: who reports it, one line on what it is, and the function that computes it.

    >>> CONVENTIONS["of1@0.8"](np.array([[0.9], [0.85]]), np.array([[1], [0]]))
    0.6666666666666666
    """

    who: str
    help: str
    function: Callable[[Scored], float]

    def __call__(self, probabilities: Array, labels: Array) -> float:
        return self.function(Scored.of(probabilities, labels))


def _from_a5(name: str, threshold: float) -> Callable[[Scored], float]:
    return lambda scored: _a5(scored.counts(threshold))[name]


def _from_mean_f1(threshold: float) -> Callable[[Scored], float]:
    return lambda scored: _mean_f1(scored.counts(threshold))


_A5, _KRT = "AGCN, ML-GCN, PRS", "KRT, CSC, MULTI-LANE, ASL"
_MEAN, _OVERALL = "mean of the per-class F1, no positives = 0", "F1 of OP and OR"

CONVENTIONS: dict[str, Convention] = {
    "mAP": Convention(
        _A5, "mean AP over the classes that have positives", lambda scored: _mean_ap(scored.ap, "ignore")
    ),
    "mAP_empty_zero": Convention(
        f"{_KRT}, L3A, torchmetrics >= 1.4",
        "mean AP over all classes, no positives = 0",
        lambda scored: _mean_ap(scored.ap, "zero"),
    ),
    "CP": Convention(_A5, "mean precision of the classes that have positives, at 0.5", _from_a5("CP", 0.5)),
    "CR": Convention(_A5, "mean recall of the classes that have positives, at 0.5", _from_a5("CR", 0.5)),
    "cf1_harmonic@0.5": Convention(_A5, "harmonic mean of CP and CR, at 0.5", _from_a5("CF1", 0.5)),
    "cf1_mean@0.5": Convention("torchmetrics (macro)", f"{_MEAN}, at 0.5", _from_mean_f1(0.5)),
    "cf1_mean@0.525": Convention("L3A", f"{_MEAN}, at 0.525", _from_mean_f1(0.525)),
    "cf1_mean@0.8": Convention(_KRT, f"{_MEAN}, at 0.8", _from_mean_f1(0.8)),
    "OP": Convention(_A5, "precision over all image-label pairs, at 0.5", _from_a5("OP", 0.5)),
    "OR": Convention(_A5, "recall over all image-label pairs, at 0.5", _from_a5("OR", 0.5)),
    "of1@0.5": Convention(f"{_A5}, torchmetrics (micro)", f"{_OVERALL}, at 0.5", _from_a5("OF1", 0.5)),
    "of1@0.525": Convention("L3A", f"{_OVERALL}, at 0.525", _from_a5("OF1", 0.525)),
    "of1@0.8": Convention(_KRT, f"{_OVERALL}, at 0.8", _from_a5("OF1", 0.8)),
}


def all_conventions(probabilities: Array, labels: Array) -> dict[str, float]:
    """Every number of `CONVENTIONS` on one set of probabilities.

    >>> figures = all_conventions(np.array([[0.9, 0.6], [0.7, 0.1]]), np.array([[1, 1], [0, 0]]))
    >>> figures["mAP"], round(figures["cf1_harmonic@0.5"], 3), figures["cf1_mean@0.8"]
    (1.0, 0.857, 0.5)
    """
    return Scored.of(probabilities, labels).conventions()


def headline(probabilities: Array, labels: Array) -> dict[str, float]:
    """mAP, CP, CR, CF1, OP, OR and OF1 by A.5, as fractions: `mAP` and `precision_recall_f1` at 0.5.

    >>> headline(torch.tensor([[0.9], [0.2]]), torch.tensor([[1], [0]]))
    {'mAP': 1.0, 'CP': 1.0, 'CR': 1.0, 'CF1': 1.0, 'OP': 1.0, 'OR': 1.0, 'OF1': 1.0}
    """
    return Scored.of(probabilities, labels).headline()


def _floats(values: Array | Sequence[Any]) -> npt.NDArray[np.float64]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def mean_of_known(values: Array | Sequence[Any]) -> float:
    """The mean of the values that exist: NaN and None are left out, and the mean of nothing is NaN.

    >>> mean_of_known([0.5, None, 0.25])
    0.375
    """
    terms = _floats(values)
    known = terms[~np.isnan(terms)]
    return float(known.mean()) if len(known) else math.nan


def forgetting(a: Array | Sequence[Sequence[float]]) -> float:
    """Forgetting by A.5: the mean over tasks j < T of the best a[l][j] before the last task, less a[T][j].

    a[t][j] is any metric on task j after task t; what lies above the diagonal (t < j) is not read. Below zero means
    that learning on helped. NaN entries (a task without positives) are left out; with one task the result is NaN.

    >>> nan = math.nan
    >>> round(forgetting([[0.8, nan, nan], [0.9, 0.6, nan], [0.5, 0.7, 0.9]]), 3)  # (0.9 - 0.5 + 0.6 - 0.7) / 2
    0.15
    """
    table = _floats(a)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ValueError(f"forgetting needs a square table, tasks by tasks, not {table.shape}")
    earlier = np.where(np.tri(len(table), dtype=bool), table, math.nan)[:-1, :-1]
    return mean_of_known(np.fmax.reduce(earlier, axis=0, initial=math.nan) - table[-1:, :-1].ravel())


def relative_forgetting(own: Array | Sequence[float], final: Array | Sequence[float]) -> float:
    """Forgetting as the AGCN authors' code has it: the mean over tasks j < T of (own[j] - final[j]) / own[j].

    own[j] is the metric on the cumulative test set j right after task j, final[j] the same set scored after the last
    task; both have T entries and the last (no time to forget) is not read. Terms with own[j] = 0, where nothing could
    be forgotten, and NaN terms are left out; with none left the result is NaN.

    >>> round(relative_forgetting([0.8, 0.5, 0.6], [0.6, 0.5, 0.6]), 3)
    0.125
    """
    before, after = _floats(own), _floats(final)
    if before.ndim != 1 or before.shape != after.shape:
        raise ValueError(f"own {before.shape} and final {after.shape} must be of one length, a figure per task")
    before, after = before[:-1], after[:-1]
    some = before != 0
    return mean_of_known((before[some] - after[some]) / before[some])


def without_nan(value: Any) -> Any:
    """JSON has no NaN: a score that does not exist (a class without positives) is null."""
    if isinstance(value, dict):
        return {k: without_nan(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
