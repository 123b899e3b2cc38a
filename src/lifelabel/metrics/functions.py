"""Multi-label metrics as pure functions of scores and labels.

The same scores give different numbers under different conventions: the threshold of F1, what CF1 averages, and the AP
of a class without positives differ. So the name of every metric states its convention: see `METRICS`. Scores and labels
are torch tensors or numpy arrays of shape (images, classes). Labels are 0 or 1. Results are fractions, not percentages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lifelabel.errors import UserError, reason
from lifelabel.metrics.over_tasks import BUILT_IN
from lifelabel.registry import Registry

_Array: TypeAlias = Tensor | npt.NDArray[Any]

_CHUNK = 1 << 23
"""Scores that `_ap_on_device` ranks at a time (whole classes, at least one). It bounds memory."""
_BINS = 15
"""Parts of equal width into which probabilities are divided for the calibration error."""


def _tensor(array: _Array) -> Tensor:
    if isinstance(array, Tensor):
        tensor = array.detach()
    else:
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    return tensor.cpu() if tensor.device.type == "mps" else tensor  # mps has no float64


def _pair(scores: _Array, labels: _Array) -> tuple[Tensor, Tensor]:
    """Checked (images, classes) tensors on the device of the scores: labels as bool, half precision as float32."""
    s, y = _tensor(scores), _tensor(labels)
    if s.ndim != 2 or s.shape != y.shape:
        raise ValueError(f"scores {tuple(s.shape)} and labels {tuple(y.shape)} must both be (images, classes)")
    if s.dtype in (torch.bfloat16, torch.float16):
        s = s.float()
    if s.is_floating_point() and s.numel() and bool(s.amax().isnan()):  # amax is NaN if any score is
        raise ValueError(f"scores hold {int(s.isnan().sum())} NaN: they have no order, so no metric is defined")
    y = y.to(s.device)
    if y.dtype != torch.bool:
        if not bool(((y == 0) | (y == 1)).all()):
            raise ValueError("labels must be 0 or 1")
        y = y == 1
    return s, y


def _ap_on_cpu(scores: npt.NDArray[Any], hits: npt.NDArray[np.bool_]) -> float:
    """Average precision of one class: the mean over its positives of hits / images with no lower score.

    Only the scores are sorted, no indices: np.sort takes half the time of np.argsort for 41,146 float32 scores.
    """
    positives = np.sort(scores[hits])
    if not len(positives):
        return math.nan
    ranked = np.sort(scores)
    with np.errstate(all="ignore"):
        spread = ranked[-1] - ranked[0]
    # With only ties or with infinities, one term per threshold has smaller rounding errors than one per positive.
    if not 0 < spread < math.inf:
        return float(_ap_on_device(torch.from_numpy(scores[None]), torch.from_numpy(hits[None])))
    no_lower = len(scores) - ranked.searchsorted(positives)
    hits_no_lower = len(positives) - positives.searchsorted(positives)
    return float((hits_no_lower / no_lower).sum()) / len(positives)


def _ap_on_device(scores: Tensor, hits: Tensor) -> Tensor:
    """Average precision of each row of (classes, images), on the device of the scores."""
    scores, order = scores.sort(dim=1, descending=True)
    hits = hits.gather(1, order)
    last = torch.ones_like(hits)  # the last of several equal scores, which are one threshold
    last[:, :-1] = scores[:, 1:] != scores[:, :-1]
    del scores, order
    correct = hits.cumsum(1, dtype=torch.float64)
    reached = torch.where(last, correct, 0.0).cummax(1).values
    gained = reached.diff(dim=1, prepend=reached.new_zeros(len(reached), 1))
    rank = torch.arange(1, hits.shape[1] + 1, dtype=torch.float64, device=hits.device)
    return gained.mul_(correct).div_(rank).sum(1) / correct[:, -1]  # 0 / 0 = NaN: no positives


def _ap(scores: Tensor, labels: Tensor) -> Tensor:
    images, classes = scores.shape
    if images == 0 or classes == 0:
        return torch.full((classes,), math.nan, dtype=torch.float64, device=scores.device)
    if scores.device.type == "cpu" and scores.is_floating_point():
        columns = zip(scores.numpy().T, labels.numpy().T, strict=True)
        return torch.tensor([_ap_on_cpu(column, hits) for column, hits in columns], dtype=torch.float64)
    width = max(1, _CHUNK // images)
    chunks = [slice(start, start + width) for start in range(0, classes, width)]
    return torch.cat([_ap_on_device(scores[:, c].T.contiguous(), labels[:, c].T.contiguous()) for c in chunks])


def average_precision(scores: _Array, labels: _Array) -> Tensor:
    """Average precision of every class, (C,) float64: sum over thresholds of (R_n - R_{n-1}) P_n, as in scikit-learn.

    Equal scores are one threshold, so the order of the images has no effect. Only the order of the scores counts:
    logits, half precision and infinities are accepted, NaN raises ValueError. Without positives, the AP of a class is
    NaN.

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


def mean_average_precision(scores: _Array, labels: _Array, empty: Literal["ignore", "zero"] = "ignore") -> float:
    """Mean AP over the classes (mAP). Classes without positives are left out ('ignore') or count 0 ('zero').

    'ignore' is the convention of AGCN (A.5), ML-GCN and PRS; 'zero' is that of KRT, CSC, ASL and torchmetrics >= 1.4.
    Without any positive, both are NaN.

    >>> scores, labels = np.array([[0.9, 0.3], [0.1, 0.4]]), np.array([[1, 0], [0, 0]])
    >>> mean_average_precision(scores, labels), mean_average_precision(scores, labels, empty="zero")
    (1.0, 0.5)
    """
    return _mean_ap(average_precision(scores, labels), empty)


@dataclass(frozen=True, eq=False)
class Counts:
    """Images per class, each (C,) int64: correctly predicted (N^c), predicted (N^p), and with the label (N^g)."""

    correct: Tensor
    predicted: Tensor
    truth: Tensor


def _check_range(p: Tensor) -> None:
    if p.numel() and not (float(p.min()) >= 0 and float(p.max()) <= 1):
        raise ValueError(f"probabilities run from {float(p.min()):g} to {float(p.max()):g}: take the sigmoid of logits")


def _counts(p: Tensor, y: Tensor, threshold: float | _Array) -> Counts:
    _check_range(p)
    limit = threshold if isinstance(threshold, float | int) else _tensor(threshold).to(p.device)
    step = max(1, _CHUNK // max(p.shape[1], 1))  # torch converts a boolean tensor to int64 before it adds its values
    sums = torch.zeros(3, p.shape[1], dtype=torch.int64, device=p.device)
    for start in range(0, len(p), step):
        predicted, positive = p[start : start + step] >= limit, y[start : start + step]
        sums += torch.stack([(predicted & positive).sum(0), predicted.sum(0), positive.sum(0)])
    return Counts(*sums)


def counts(probabilities: _Array, labels: _Array, threshold: float | _Array = 0.5) -> Counts:
    """N^c, N^p and N^g of every class. Predicted means probability >= threshold (0.5: logit >= 0).

    The threshold is one number, or an array of one number per class.

    >>> n = counts(np.array([[0.9, 0.5], [0.6, 0.4]]), np.array([[1, 0], [0, 1]]))
    >>> n.correct.tolist(), n.predicted.tolist(), n.truth.tolist()
    ([1, 0], [2, 1], [1, 1])
    """
    return _counts(*_pair(probabilities, labels), threshold)


def _harmonic(a: float, b: float) -> float:
    return 2 * a * b / (a + b) if a + b != 0 else 0.0


def _a5(n: Counts) -> dict[str, float]:
    correct, predicted, truth = n.correct.double(), n.predicted.double(), n.truth.double()
    has_positives = n.truth > 0
    cp = float((correct / predicted.clamp(min=1))[has_positives].mean())  # the mean of an empty tensor is NaN
    cr = float((correct / truth)[has_positives].mean())
    all_correct, all_predicted, all_truth = float(correct.sum()), float(predicted.sum()), float(truth.sum())
    op = all_correct / all_predicted if all_predicted else 0.0
    or_ = all_correct / all_truth if all_truth else math.nan
    return {"CP": cp, "CR": cr, "CF1": _harmonic(cp, cr), "OP": op, "OR": or_, "OF1": _harmonic(op, or_)}


def precision_recall_f1(probabilities: _Array, labels: _Array, threshold: float | _Array = 0.5) -> dict[str, float]:
    """CP, CR, CF1 (per class) and OP, OR, OF1 (overall) by the formulas of the AGCN paper, A.5.

    CP and CR are the means of precision and recall over the classes. CF1 is the harmonic mean of CP and CR, not the
    mean of the F1 of each class (`mean_f1`). OP and OR are computed from the sums over the classes. OF1 is the harmonic
    mean of OP and OR.

    The paper does not define these cases. The precision of a class that is never predicted is 0. A class without
    positives is left out of CP and CR, as it is left out of mAP, but its predictions lower OP. If nothing is predicted,
    OP is 0. An F1 of 0/0 is 0. Without any positive, all values except OP are NaN.

    >>> p, y = np.array([[0.9, 0.6], [0.7, 0.1], [0.2, 0.3]]), np.array([[1, 1], [0, 1], [0, 0]])
    >>> {k: round(v, 3) for k, v in precision_recall_f1(p, y).items()}
    {'CP': 0.75, 'CR': 0.75, 'CF1': 0.75, 'OP': 0.667, 'OR': 0.667, 'OF1': 0.667}
    """
    return _a5(counts(probabilities, labels, threshold))


def _mean_f1(n: Counts) -> float:
    return float((2 * n.correct.double() / (n.predicted + n.truth).clamp(min=1)).mean())


def mean_f1(probabilities: _Array, labels: _Array, threshold: float = 0.5) -> float:
    """Mean over the classes of their F1 (KRT, CSC, ASL, L3A, macro F1 of torchmetrics). Without positives, F1 is 0.

    >>> round(mean_f1(np.array([[0.9, 0.6], [0.7, 0.1]]), np.array([[1, 0], [0, 0]])), 3)
    0.333
    """
    return _mean_f1(counts(probabilities, labels, threshold))


def _known_triple(probabilities: _Array, labels: _Array, known: _Array | None) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities and labels as float64, with 0 in place of unknown ones, and which labels are known."""
    p, y = _pair(probabilities, labels)
    _check_range(p)
    k = torch.ones_like(y) if known is None else _pair(p, known)[1]
    return p.double() * k, (y & k).double(), k


def _bin_sums(p: Tensor, y: Tensor) -> Tensor:
    """The sum of (probability - label) in each bin of each class, C x bins."""
    place = (p * _BINS).long().clamp(max=_BINS - 1) + _BINS * torch.arange(p.shape[1], device=p.device)
    sums = p.new_zeros(p.shape[1] * _BINS)
    return sums.index_add_(0, place.flatten(), (p - y).flatten()).reshape(-1, _BINS)


def class_calibration_errors(probabilities: _Array, labels: _Array, known: _Array | None = None) -> Tensor:
    """The expected calibration error of every class on its own, (C,) float64. NaN without known labels.

    >>> class_calibration_errors(np.array([[0.5, 1.0], [0.5, 0.0]]), np.array([[1, 0], [0, 0]])).tolist()
    [0.0, 0.5]
    """
    p, y, k = _known_triple(probabilities, labels, known)
    return _bin_sums(p, y).abs().sum(1) / k.sum(0)


def calibration_figures(probabilities: _Array, labels: _Array, known: _Array | None = None) -> dict[str, float]:
    """Figures of probabilities over all `known` pairs of image and class. NaN without pairs.

    - ECE, the expected calibration error: pairs are divided by probability into 15 bins of equal width. It is the mean
      over the pairs of the absolute difference between the mean probability and the share of positives in their bin.
    - ECE_class: the mean of the calibration errors of the classes.
    - Brier: the mean of (probability - label)².
    - log_loss: the mean of -log of the probability of the true label. Probabilities are limited to 1e-15 … 1 - 1e-15.

    >>> calibration_figures(np.array([[0.75], [0.75], [0.75], [0.75]]), np.array([[1], [1], [0], [0]]))["ECE"]
    0.25
    """
    p, y, k = _known_triple(probabilities, labels, known)
    sums, pairs = _bin_sums(p, y), int(k.sum()) or math.nan
    losses = torch.nn.functional.binary_cross_entropy(p.clamp(1e-15, 1 - 1e-15), y, k.double(), reduction="sum")
    return {
        "ECE": float(sums.sum(0).abs().sum()) / pairs,
        "ECE_class": float((sums.abs().sum(1) / k.sum(0)).nanmean()),
        "Brier": float(((p - y) ** 2).sum()) / pairs,
        "log_loss": float(losses) / pairs,
    }


@dataclass(frozen=True, eq=False)
class Scored:
    """Probabilities with their labels, checked once. AP is computed once, and the counts once per threshold.

    AP ranks by `scores`: the logits if they are known, because large logits differ when their probabilities are all 1.
    """

    probabilities: Tensor
    labels: Tensor
    scores: Tensor
    _counts: dict[float, Counts] = field(default_factory=dict, repr=False)

    @classmethod
    def from_probabilities(cls, probabilities: _Array, labels: _Array) -> Scored:
        """Scores are the probabilities."""
        p, y = _pair(probabilities, labels)
        return cls(p, y, p)

    @classmethod
    def from_logits(cls, logits: _Array, labels: _Array) -> Scored:
        """Scores are the logits, probabilities are their sigmoid in float64.

        >>> Scored.from_logits(np.array([[50.0], [40.0]]), np.array([[1], [0]])).ap.tolist()
        [1.0]
        """
        scores, y = _pair(logits, labels)
        return cls(scores.to(torch.float64, copy=True).sigmoid_(), y, scores)

    @cached_property
    def ap(self) -> Tensor:
        """Average precision of every class, (C,) float64."""
        return _ap(self.scores, self.labels)

    def headline(self) -> dict[str, float]:
        """mAP, CP, CR, CF1, OP, OR and OF1 by A.5 of the AGCN paper."""
        return {"mAP": _mean_ap(self.ap, "ignore"), **_a5(self.counts(0.5))}

    def all_metrics(self) -> dict[str, float]:
        """The values of all `METRICS`. An error in the function of a plug-in becomes one line."""
        values = {}
        for name, metric in METRICS.items():
            try:
                values[name] = float(metric.function(self))
            except Exception as error:
                if name in BUILT_IN:
                    raise
                raise UserError(f"the metric '{name}' of a plug-in failed: {reason(error)}") from error
        return values

    def counts(self, threshold: float) -> Counts:
        """N^c, N^p and N^g of every class at a threshold."""
        if threshold not in self._counts:
            self._counts[threshold] = _counts(self.probabilities, self.labels, threshold)
        return self._counts[threshold]


@dataclass(frozen=True)
class Metric:
    """A metric: who reports it, one line of help, and the function that computes it.

    >>> METRICS["of1@0.8"](np.array([[0.9], [0.85]]), np.array([[1], [0]]))
    0.6666666666666666
    """

    reported_by: str
    help: str
    function: Callable[[Scored], float]

    def __call__(self, probabilities: _Array, labels: _Array) -> float:
        return self.function(Scored.from_probabilities(probabilities, labels))


def _from_a5(name: str, threshold: float) -> Callable[[Scored], float]:
    return lambda scored: _a5(scored.counts(threshold))[name]


def _from_mean_f1(threshold: float) -> Callable[[Scored], float]:
    return lambda scored: _mean_f1(scored.counts(threshold))


_A5, _KRT = "AGCN, ML-GCN, PRS", "KRT, CSC, MULTI-LANE, ASL"
_MEAN, _OVERALL = "mean of the per-class F1, no positives = 0", "F1 of OP and OR"

METRICS: Registry[Metric] = Registry("metric", lambda item: isinstance(item, Metric), "a lifelabel.metrics.Metric")

for _name, _metric in {
    "mAP": Metric(_A5, "mean AP over the classes that have positives", lambda scored: _mean_ap(scored.ap, "ignore")),
    "mAP_empty_zero": Metric(
        f"{_KRT}, L3A, torchmetrics >= 1.4",
        "mean AP over all classes, no positives = 0",
        lambda scored: _mean_ap(scored.ap, "zero"),
    ),
    "CP": Metric(_A5, "mean precision of the classes that have positives, at 0.5", _from_a5("CP", 0.5)),
    "CR": Metric(_A5, "mean recall of the classes that have positives, at 0.5", _from_a5("CR", 0.5)),
    "cf1_harmonic@0.5": Metric(_A5, "harmonic mean of CP and CR, at 0.5", _from_a5("CF1", 0.5)),
    "cf1_mean@0.5": Metric("torchmetrics (macro)", f"{_MEAN}, at 0.5", _from_mean_f1(0.5)),
    "cf1_mean@0.525": Metric("L3A", f"{_MEAN}, at 0.525", _from_mean_f1(0.525)),
    "cf1_mean@0.8": Metric(_KRT, f"{_MEAN}, at 0.8", _from_mean_f1(0.8)),
    "OP": Metric(_A5, "precision over all image-label pairs, at 0.5", _from_a5("OP", 0.5)),
    "OR": Metric(_A5, "recall over all image-label pairs, at 0.5", _from_a5("OR", 0.5)),
    "of1@0.5": Metric(f"{_A5}, torchmetrics (micro)", f"{_OVERALL}, at 0.5", _from_a5("OF1", 0.5)),
    "of1@0.525": Metric("L3A", f"{_OVERALL}, at 0.525", _from_a5("OF1", 0.525)),
    "of1@0.8": Metric(_KRT, f"{_OVERALL}, at 0.8", _from_a5("OF1", 0.8)),
}.items():
    METRICS.register(_name, _metric)

METRICS.set_built_in()


def all_metrics(probabilities: _Array, labels: _Array) -> dict[str, float]:
    """The values of all `METRICS` for one set of probabilities.

    >>> figures = all_metrics(np.array([[0.9, 0.6], [0.7, 0.1]]), np.array([[1, 1], [0, 0]]))
    >>> figures["mAP"], round(figures["cf1_harmonic@0.5"], 3), figures["cf1_mean@0.8"]
    (1.0, 0.857, 0.5)
    """
    return Scored.from_probabilities(probabilities, labels).all_metrics()


def headline(probabilities: _Array, labels: _Array) -> dict[str, float]:
    """mAP, CP, CR, CF1, OP, OR and OF1 by A.5 of the AGCN paper, at threshold 0.5.

    >>> p = np.array([[0.9, 0.2], [0.6, 0.7], [0.1, 0.4]])
    >>> y = np.array([[1, 0], [0, 1], [1, 1]])
    >>> {name: round(value, 3) for name, value in headline(p, y).items()}
    {'mAP': 0.917, 'CP': 0.75, 'CR': 0.5, 'CF1': 0.6, 'OP': 0.667, 'OR': 0.5, 'OF1': 0.571}
    """
    return Scored.from_probabilities(probabilities, labels).headline()
