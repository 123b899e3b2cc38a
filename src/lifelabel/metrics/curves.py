"""Curves of scores against labels: precision over recall, and the number of pairs by probability."""

from __future__ import annotations

import numpy as np

BINS = 100
"""Parts of equal width that `score_counts` divides probabilities into."""
RECALLS = 101
"""The recalls of `precision_over_recall`: 0, 0.01 … 1."""


def score_counts(probabilities: np.ndarray, labels: np.ndarray, known: np.ndarray | None = None) -> np.ndarray:
    """The number of negative and of positive pairs of image and class by probability, 2 x BINS. Unknown ones are out.

    >>> score_counts(np.array([[0.999], [0.5]]), np.array([[True], [False]]))[:, [50, 99]].tolist()
    [[1, 0], [0, 1]]
    """
    place = (probabilities * BINS).astype(np.int64).clip(0, BINS - 1) + BINS * labels.astype(bool)
    return np.bincount(place.ravel() if known is None else place[known], minlength=2 * BINS).reshape(2, BINS)


def precision_over_recall(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each class, the precision where its recall reaches 0, 0.01 … 1, and the lowest score there; C x RECALLS.

    At recall 0 it is that of the first positive. A class without positives is NaN.

    >>> precision, lowest = precision_over_recall(np.array([[3.0], [2.0], [1.0]]), np.array([[1], [0], [1]]))
    >>> precision[0, [0, 50, 51]].tolist(), lowest[0, [0, 50, 51]].tolist()
    ([1.0, 1.0, 0.6666666865348816], [3.0, 3.0, 1.0])
    """
    precision, lowest = (np.full((scores.shape[1], RECALLS), np.nan, np.float32) for _ in range(2))
    for k, (column, hits) in enumerate(zip(scores.T, labels.T.astype(bool), strict=True)):
        positives, ranked = np.sort(column[hits]), np.sort(column)
        if len(positives):
            needed = np.maximum(1, -(-np.arange(RECALLS) * len(positives) // (RECALLS - 1)))  # rounded up
            lowest[k] = limit = positives[len(positives) - needed]
            found = len(positives) - positives.searchsorted(limit)
            precision[k] = found / (len(ranked) - ranked.searchsorted(limit))
    return precision, lowest
