"""The correlation matrices of a run, as arrays and in words."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lifelabel.report.figure_parts import chart_names
from lifelabel.report.vega import chart_text
from lifelabel.runs.finished import FinishedRun
from lifelabel.utils.text import task_text

__all__ = [
    "MIN_RELATION", "Change", "Relation", "RunMatrices", "changed_relations", "off_diagonal", "run_matrices",
    "strongest_relations", "strongest_text",
]  # fmt: skip

_MAX_CLASSES = 120
MIN_RELATION = 0.05
"""Weaker relations are neither lines of the graph nor in the text."""


class Relation(NamedTuple):
    """P(class `i` | class `j`), as the matrix after the last task has it, and in truth if that is known."""

    i: str
    j: str
    p: float
    truth: float | None


class Change(NamedTuple):
    """An entry of two old classes, P(`i` | `j`), that `task` changed."""

    i: str
    j: str
    task: str
    before: float
    after: float


class RunMatrices(NamedTuple):
    """The matrices of a run by number of the task, restricted to the classes that are drawn."""

    names: list[str]
    task_of: np.ndarray
    """The task of each class, from 1."""
    by_task: dict[int, np.ndarray]
    truth: np.ndarray | None
    note: str
    """Which classes are drawn, if not all."""
    task_texts: list[str]
    """How charts call each task, from the first."""


def run_matrices(run: FinishedRun) -> RunMatrices | None:
    """The matrices of a run, with the classes of the strongest relations if there are too many to draw."""
    arrays = run.matrices()
    if not arrays or len(arrays["classes"]) < 2:
        return None
    sizes = [len(task) for task in run.metrics["tasks"]]
    task_of = np.repeat(np.arange(1, len(sizes) + 1), sizes)[arrays["kept"]]
    last = off_diagonal(arrays[f"task_{len(sizes)}"])
    strength = np.maximum(last.max(0), last.max(1))
    kept = np.sort(np.argsort(-strength, kind="stable")[:_MAX_CLASSES])
    by_task = {}
    for task in range(1, len(sizes) + 1):
        if f"task_{task}" in arrays:
            inside = kept[task_of[kept] <= task]
            by_task[task] = arrays[f"task_{task}"][np.ix_(inside, inside)].astype(float)
    note = (
        f"The {len(kept)} classes with the strongest relations, of {sum(sizes)}, in the order of the tasks."
        if len(kept) < sum(sizes)
        else ""
    )
    truth = arrays["truth"][np.ix_(kept, kept)].astype(float) if "truth" in arrays else None
    names = chart_names(arrays["classes"][kept].tolist())
    texts = [chart_text(task_text(number, run.task_names), 30) for number in range(1, len(sizes) + 1)]
    return RunMatrices(names, task_of[kept], by_task, truth, note, texts)


def off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """The matrix with -1 on its diagonal and where it is unknown."""
    return np.where(np.eye(len(matrix), dtype=bool) | ~np.isfinite(matrix), -1.0, matrix)


def strongest_text(run: FinishedRun) -> str:
    found = strongest_relations(run, 3)
    each = "; ".join(f"{chart_text(r.i, 40)} given {chart_text(r.j, 40)} {r.p:.2f}" for r in found)
    return f" The strongest: {each}." if each else ""


def strongest_relations(run: FinishedRun, count: int = 12) -> list[Relation]:
    """The relations of the highest probability, one of each pair of classes. Empty without a matrix."""
    arrays = run.matrices()
    if not arrays:
        return []
    last = off_diagonal(arrays[f"task_{len(run.metrics['tasks'])}"])
    last = np.where(last >= last.T, last, -1)
    last[np.triu(last == last.T)] = -1  # of two equal directions, one
    order = np.argsort(-last, axis=None, kind="stable")[:count]
    names, truth = arrays["classes"].tolist(), arrays.get("truth")
    found = []
    for i, j in zip(*np.unravel_index(order, last.shape), strict=True):
        if last[i, j] >= MIN_RELATION:
            known = None if truth is None or not np.isfinite(truth[i, j]) else float(truth[i, j])
            found.append(Relation(names[i], names[j], float(last[i, j]), known))
    return found


def changed_relations(run: FinishedRun, most: int = 20) -> tuple[int, list[Change]]:
    """The number of entries of old classes that a later task changed, and the `most` largest changes.

    Only the classes in `FinishedRun.matrices` are compared.
    """
    arrays = run.matrices()
    names, count, changes = arrays["classes"].tolist() if arrays else [], 0, []
    tasks = [task for task in range(1, len(run.metrics["tasks"]) + 1) if f"task_{task}" in arrays]
    for earlier, task in pairwise(tasks):
        before, after = arrays[f"task_{earlier}"], arrays[f"task_{task}"]
        size = len(before)
        different = ~np.isclose(before, after[:size, :size], rtol=0, atol=1e-6, equal_nan=True)
        np.fill_diagonal(different, False)
        count += int(different.sum())
        sizes = np.nan_to_num(np.abs(after[:size, :size] - before.astype(float)))  # NaN: known in one matrix only
        largest = np.argsort(np.where(different, -sizes, 1), axis=None, kind="stable")[: min(most, different.sum())]
        changes += [
            Change(names[i], names[j], task_text(task, run.task_names), float(before[i, j]), float(after[i, j]))
            for i, j in zip(*np.unravel_index(largest, different.shape), strict=True)
        ]
    order = np.argsort([-np.nan_to_num(abs(change.after - change.before)) for change in changes], kind="stable")
    return count, [changes[n] for n in order[:most]]
