"""Calibration of a finished model: probabilities and per-class thresholds, fitted on labelled images.

The probability of class c is sigmoid(slope_c * logit + shift_c). The pairs (log slope, shift) of the classes have a
common normal distribution, which is fitted too. So the values of a class with few positives are
close to those of the others. A slope is always positive: the order of the images, and with it the average precision,
does not change.

All arrays are images x classes. `known` marks the labels that are known; None: all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.metrics.functions import calibration_figures, precision_recall_f1

BY = ("f1", "precision", "cost", "none")
"""How thresholds are chosen."""
FEW_POSITIVES = 10
"""When the threshold of a class is chosen, the images of all classes count as much as this many positives of it."""
_EXPECTED_POSITIVES = 30
"""The same for the counts that are expected by the calibrated probabilities of the class."""
_CHUNK = 1 << 17
"""Scores that are computed at a time. They fit the cache, and memory is bounded."""
_START_SD = np.array([0.5, 1.0])
"""The standard deviations of log slope and shift over the classes, before any class is seen."""
_START_WEIGHT = 2.0
"""The classes that `_START_SD` counts as much as."""
_MEAN_SD = np.array([2.0, 4.0])
"""How far the common log slope and shift may be from 0: without data, the probabilities stay as they are."""
_MAX_LOG_SLOPE = 10.0
_MAX_STEP = 1.0
_ROUNDS, _STEPS = 20, 50
_GRID = np.linspace(-20.0, 20.0, 4001)
"""Calibrated logits at which the predictions of all classes together are counted."""
_LIMITS = (1e-9, 1 - 1e-7)
"""The lowest and the highest threshold."""
_FOLDS = 5


@dataclass(frozen=True, eq=False)
class Calibration:
    """The slope and the shift of each class.

    >>> float(Calibration(np.array([2.0]), np.array([1.0])).probabilities(np.array([[-0.5]]))[0, 0])
    0.5
    """

    slope: np.ndarray
    shift: np.ndarray

    @staticmethod
    def identity(classes: int) -> Calibration:
        """The calibration that changes nothing."""
        return Calibration(np.ones(classes), np.zeros(classes))

    def logits(self, logits: np.ndarray) -> np.ndarray:
        """Calibrated logits, float64."""
        return logits.astype(np.float64) * self.slope + self.shift

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        return _sigmoid(self.logits(logits))


@dataclass(frozen=True)
class Rule:
    """How thresholds are chosen: `by` is one of `BY`; `precision` and `costs` (FP, FN) are those of the user."""

    by: str = "f1"
    precision: float = 0.9
    costs: tuple[float, float] = (1.0, 1.0)

    def __str__(self) -> str:
        values = {"precision": f" {self.precision:g}", "cost": f" {self.costs[0]:g}:{self.costs[1]:g}"}
        return self.by + values.get(self.by, "")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0, -x))


# Probabilities


def fit_probabilities(logits: np.ndarray, labels: np.ndarray, known: np.ndarray | None = None) -> Calibration:
    """The slope and the shift of each class, by penalised logistic regression.

    The common distribution is fitted by expectation maximisation: the classes by their most probable parameters, then
    its means and variances by those of the classes that have positives and negatives. A class with only one of them
    gets the common slope, and a shift between the common one and that of its data.
    """
    known = np.ones(labels.shape, bool) if known is None else known
    positives = (labels & known).sum(0)
    # classes x images: the scores of some classes are then one part of the memory
    of_classes = [np.ascontiguousarray(array.T) for array in (logits, labels, known)]
    both = (positives > 0) & (positives < known.sum(0))
    mean, variance = np.zeros(2), _START_SD**2
    values = np.zeros((logits.shape[1], 2))
    for _ in range(_ROUNDS):
        values[~both, 0] = mean[0]
        values, covariance = _fit_classes(values, mean, variance, both, *of_classes)
        before = np.concatenate([mean, np.sqrt(variance)])
        count = int(both.sum())
        mean = values[both].sum(0) / variance / (count / variance + 1 / _MEAN_SD**2)
        spread = ((values[both] - mean) ** 2 + covariance[both]).sum(0)
        variance = (spread + _START_WEIGHT * _START_SD**2) / (count + _START_WEIGHT)
        if np.abs(np.concatenate([mean, np.sqrt(variance)]) - before).max() < 1e-3:
            break
    return Calibration(np.exp(values[:, 0]), values[:, 1])


def _fit_classes(
    values: np.ndarray, mean: np.ndarray, variance: np.ndarray, both: np.ndarray, logits: np.ndarray,
    labels: np.ndarray, known: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The most probable (log slope, shift) of each class, from `values` on, and their variances.

    Levenberg-Marquardt steps, each with the damping of its class. The log slope of classes outside `both` is fixed.
    """
    values, damping = values.copy(), np.full(len(values), 1e-3)
    loss, gradient, hessian = _losses(values, mean, variance, both, logits, labels, known)
    for _ in range(_STEPS):
        damped = hessian + damping[:, None, None] * hessian * np.eye(2)
        step = -np.linalg.solve(damped, gradient[..., None])[..., 0]
        step = step.clip(-_MAX_STEP, _MAX_STEP)
        tried = values + step
        tried[:, 0] = tried[:, 0].clip(-_MAX_LOG_SLOPE, _MAX_LOG_SLOPE)
        found = _losses(tried, mean, variance, both, logits, labels, known)
        better = found[0] <= loss
        values = np.where(better[:, None], tried, values)
        loss, gradient, hessian = (
            np.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip(found, (loss, gradient, hessian), strict=True)
        )
        damping = np.where(better, np.maximum(damping / 10, 1e-9), damping * 10)
        if (np.abs(step).max(1) < 1e-6).all():
            break
    return values, np.linalg.inv(hessian)[:, [0, 1], [0, 1]]


def _losses(
    values: np.ndarray, mean: np.ndarray, variance: np.ndarray, both: np.ndarray, logits: np.ndarray,
    labels: np.ndarray, known: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """For each class the penalised loss, its gradient (2) and its expected Hessian (2 x 2) at (log slope, shift).

    The arrays are classes x images.
    """
    off = values - mean
    loss, gradient = (off**2 / variance).sum(1) / 2, off / variance
    hessian = np.broadcast_to(np.diag(1 / variance), (len(values), 2, 2)).copy()
    for part in _chunks(logits.shape):
        scaled = logits[part] * np.exp(values[part, :1])
        x = scaled + values[part, 1:]
        scaled *= both[part, None]  # without positives and negatives, the slope stays as it is
        small = np.exp(-np.abs(x))
        p = np.where(x >= 0, 1.0, small) / (1 + small)
        losses = np.maximum(x, 0) + np.log1p(small) - labels[part] * x
        residual, information = p - labels[part], p * (1 - p)
        for array in (losses, residual, information):
            array *= known[part]
        loss[part] += losses.sum(1)
        gradient[part] += np.stack([np.einsum("ij,ij->i", residual, scaled), residual.sum(1)], 1)
        weighted = information * scaled
        cross = weighted.sum(1)
        hessian[part, 0, 0] += np.einsum("ij,ij->i", weighted, scaled)
        hessian[part, 0, 1] += cross
        hessian[part, 1, 0] += cross
        hessian[part, 1, 1] += information.sum(1)
    return loss, gradient, hessian


def _chunks(shape: tuple[int, ...]) -> Iterator[slice]:
    """The rows of an array in groups of at most `_CHUNK` numbers, at least one row each."""
    rows = max(1, _CHUNK // max(1, shape[1]))
    yield from (slice(start, start + rows) for start in range(0, shape[0], rows))


# Thresholds


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Possible thresholds, as ascending logits, and the counts at each: correct and predicted; and all positives."""

    cut: np.ndarray
    correct: np.ndarray
    predicted: np.ndarray
    positives: float

    def plus(self, other: _Cuts, positives: float) -> _Cuts:
        """The same cuts, with the counts of `other` added, in the proportion of so many positives.

        Between the cuts of `other` its counts are interpolated.
        """
        weight = positives / max(other.positives, 1e-12)
        correct, predicted = (np.interp(self.cut, other.cut, counts) for counts in (other.correct, other.predicted))
        return _Cuts(
            self.cut, self.correct + weight * correct, self.predicted + weight * predicted,
            self.positives + weight * other.positives,
        )  # fmt: skip


def fit_thresholds(
    logits: np.ndarray, labels: np.ndarray, known: np.ndarray | None, rule: Rule, is_calibrated: bool
) -> tuple[np.ndarray | None, np.ndarray]:
    """The threshold of each class as a probability, and the classes that cannot reach the precision of the rule.

    `logits` are calibrated. None: the rule has no thresholds.

    f1: the threshold of the highest F1. cost: that of the lowest cost of mistakes; for calibrated probabilities this is
    FP / (FP + FN). Few images make the counts of a class uncertain. So the counts of all classes are added with the
    weight of `FEW_POSITIVES` positives, and those that calibrated probabilities predict with the weight of
    `_EXPECTED_POSITIVES`. A class without positives gets the threshold of all classes together.

    precision: the lowest threshold at which `_cautious_precision` reaches the given one. A class that cannot reach it
    gets the threshold of all classes together, or the lowest without a mistake on the given images if this is higher.
    """
    classes, none = logits.shape[1], np.zeros(0, np.int64)
    if rule.by == "none":
        return None, none
    if rule.by == "cost" and is_calibrated:
        false_positive, false_negative = rule.costs
        return np.full(classes, false_positive / (false_positive + false_negative)).clip(*_LIMITS), none
    known = np.ones(labels.shape, bool) if known is None else known
    pool = _pool(logits, labels, known)
    if rule.by == "precision":
        cuts, reached = _precise_cuts(logits, labels, known, pool, rule.precision)
        return _sigmoid(cuts).clip(*_LIMITS), np.flatnonzero(~reached)
    if not pool.positives:
        raise UserError("no image has a label of the model: thresholds need images of its classes")
    value = _f1 if rule.by == "f1" else _negative_cost(rule.costs)
    best = np.full(classes, _highest(pool, value))
    for column in range(classes):
        rows = known[:, column]
        x, y = logits[rows, column], labels[rows, column]
        if y.any():
            counts = _cuts(x, y).plus(pool, FEW_POSITIVES)
            if is_calibrated:
                counts = counts.plus(_cuts(x, _sigmoid(x)), _EXPECTED_POSITIVES)
            best[column] = _highest(counts, value)
    return _sigmoid(best).clip(*_LIMITS), none


def _highest(cuts: _Cuts, value: Callable[[_Cuts], np.ndarray]) -> float:
    """The cut of the highest value; of several, the highest cut."""
    return float(cuts.cut[len(cuts.cut) - 1 - value(cuts)[::-1].argmax()])


def _f1(cuts: _Cuts) -> np.ndarray:
    return 2 * cuts.correct / np.maximum(cuts.predicted + cuts.positives, 1e-12)


def _negative_cost(costs: tuple[float, float]) -> Callable[[_Cuts], np.ndarray]:
    return lambda cuts: -(costs[0] * (cuts.predicted - cuts.correct) + costs[1] * (cuts.positives - cuts.correct))


def _cautious_precision(cuts: _Cuts) -> np.ndarray:
    """The lower end of Wilson's interval of one standard error. For n correct predictions of n it is n / (n + 1)."""
    n, correct = cuts.predicted, cuts.correct
    return (correct + 0.5 - np.sqrt(correct * (n - correct) / np.maximum(n, 1e-12) + 0.25)) / (n + 1)


def _precise_cuts(
    logits: np.ndarray, labels: np.ndarray, known: np.ndarray, pool: _Cuts, precision: float
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest cut of each class that reaches the precision, and whether it is reached."""
    in_pool = np.flatnonzero(_cautious_precision(pool) >= precision)
    common = pool.cut[in_pool[0]] if len(in_pool) else -np.inf
    best, reached = np.empty(logits.shape[1]), np.zeros(logits.shape[1], bool)
    for column in range(logits.shape[1]):
        rows = known[:, column]
        x, y = logits[rows, column], labels[rows, column]
        if not len(x):
            best[column] = common if len(in_pool) else _GRID[-1]
            continue
        own = _cuts(x, y)
        enough = np.flatnonzero(_cautious_precision(own) >= precision)
        reached[column] = bool(len(enough))
        without_mistake = own.cut[own.predicted == own.correct]
        best[column] = own.cut[enough[0]] if len(enough) else max(common, without_mistake[0])
    return best, reached


def _cuts(x: np.ndarray, y: np.ndarray) -> _Cuts:
    """The counts of a class at cuts between its different scores, and below and above all of them.

    A cut is not at a score: the smallest rounding error would change the prediction. `y` may be probabilities.
    """
    order = np.argsort(x, kind="stable")
    x, below = x[order], np.concatenate([[0], np.cumsum(y[order], dtype=np.float64)])
    first = np.flatnonzero(np.diff(x, prepend=-np.inf) > 0)  # of several equal scores, which are one threshold
    ends = x[:1] - 1, x[-1:] + 1
    cut = np.concatenate([ends[0], (x[first[1:] - 1] + x[first[1:]]) / 2, ends[1]])
    at = np.append(first, len(x))
    return _Cuts(cut, below[-1] - below[at], (len(x) - at).astype(np.float64), float(below[-1]))


def _pool(logits: np.ndarray, labels: np.ndarray, known: np.ndarray) -> _Cuts:
    """The counts of all classes together, on a grid in ascending order."""
    predicted, correct = np.zeros(len(_GRID)), np.zeros(len(_GRID))
    for part in _chunks(logits.shape):
        place = np.searchsorted(_GRID, logits[part], side="right") - 1  # the last cut that is not above a score
        used = (place >= 0) & known[part]
        predicted += np.bincount(place[used], minlength=len(_GRID))
        correct += np.bincount(place[used & labels[part]], minlength=len(_GRID))
    positives = float((labels & known).sum())
    return _Cuts(_GRID, correct[::-1].cumsum()[::-1], predicted[::-1].cumsum()[::-1], positives)


# How well it works


def cross_validate(logits: np.ndarray, labels: np.ndarray, known: np.ndarray, rule: Rule, fit: bool) -> dict[str, Any]:
    """The figures of images that the fit has not seen: the images are divided into five parts, always the same.

    With `fit`, probabilities are fitted; otherwise they stay as they are.
    """
    folds = min(_FOLDS, len(logits))
    if folds < 2:
        raise UserError("there is 1 image: give at least 2, and better some hundreds")
    fold = np.random.default_rng(0).permutation(np.arange(len(logits)) % folds)
    probabilities, predicted = np.empty(logits.shape), np.empty(logits.shape, bool)
    for number in range(folds):
        rest, part = fold != number, fold == number
        given = logits[rest], labels[rest], known[rest]
        calibration = fit_probabilities(*given) if fit else Calibration.identity(logits.shape[1])
        thresholds, _ = fit_thresholds(calibration.logits(given[0]), *given[1:], rule, fit)
        probabilities[part] = calibration.probabilities(logits[part])
        predicted[part] = probabilities[part] >= (0.5 if thresholds is None else thresholds)
    return figures(probabilities, labels, known, predicted)


def figures(probabilities: np.ndarray, labels: np.ndarray, known: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """The calibration errors, the Brier score and the log loss of probabilities, and CF1 and OF1 of predictions."""
    f1 = precision_recall_f1((predicted & known).astype(np.float32), labels & known)
    return {
        **calibration_figures(probabilities, labels, known),
        **{name: f1[name] for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")},
    }
