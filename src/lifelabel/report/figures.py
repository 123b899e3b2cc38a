"""Figures of finished runs: learning curves, and the correlation matrix next to the true one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.report.charts import chart_text, new_figure, save_figure
from lifelabel.report.runs import FinishedRun, check_same_tasks

__all__ = ["draw_runs"]

_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#000000",
    "#00429d", "#a0522d", "#7f7f7f",
)  # fmt: skip
_MARKERS = "os^Dv*PX<>hpd"
_FEW_CURVES = 6
"""Up to this many curves, each has a band from its lowest to its highest run, and the legend has one column."""
_MAX_NAMED_CLASSES = 40


def draw_runs(groups: Mapping[str, Sequence[FinishedRun]], path: Path) -> None:
    """Draw the learning curve of each group of runs. If a run has a matrix, its last one is next to the true one."""
    for name, group in groups.items():
        check_same_tasks(name, group)
    runs = ((name, run) for name, group in groups.items() for run in group)
    with_matrix = next(((name, run, arrays) for name, run in runs if (arrays := run.matrices())), None)
    matrices = _matrices(*with_matrix) if with_matrix else {}
    width = [1.3] + [1.0] * len(matrices)
    size = 4.6 * sum(width), 5.2 if len(groups) <= _FEW_CURVES else 6.2
    figure, axes = new_figure(*size, columns=len(width), width_ratios=width)
    _draw_curves(axes[0], groups)
    classes = with_matrix[2]["classes"].tolist() if with_matrix else []
    image = None
    for axis, (title, matrix) in zip(axes[1:], matrices.items(), strict=True):
        image = _draw_matrix(axis, matrix, classes, title)
    if image is not None:
        figure.colorbar(image, ax=list(axes[1:]), shrink=0.8, label="P(row | column)")
    save_figure(figure, path)


def _matrices(name: str, run: FinishedRun, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The matrices to draw, by title."""
    title = chart_text(f"matrix after the last task, seed {run.seed}: {name}", 120, wrap=44)
    last = {title: arrays[f"task_{len(run.metrics['tasks'])}"]}
    return {**last, "the true matrix": arrays["truth"]} if "truth" in arrays else last


def _draw_curves(axis: Any, groups: Mapping[str, Sequence[FinishedRun]]) -> None:
    few = len(groups) <= _FEW_CURVES
    styles = [{"marker": marker, "color": colour} for marker, colour in zip(_MARKERS, _COLOURS, strict=True)]
    for number, (name, group) in enumerate(groups.items()):
        curves = np.array([run.curve() for run in group], dtype=float)
        tasks = np.arange(1, curves.shape[1] + 1)
        mean = curves.mean(0)
        style: dict[str, Any] = {"linestyle": "--", "color": "0.4"} if group[0].joint else styles[number % len(styles)]
        label = chart_text(f"{mean[-1]:.1f}  {name}", 130, wrap=60 if few else 28)
        axis.plot(tasks, mean, label=label, linewidth=1.5 if few else 1.2, markersize=6 if few else 5, **style)
        if len(group) > 1 and few:
            axis.fill_between(tasks, curves.min(0), curves.max(0), color=style["color"], alpha=0.15)
        axis.set_xticks(tasks)
    axis.set(xlabel="tasks learned", ylabel="mAP of the classes seen so far (%)", title="learning curves")
    axis.grid(alpha=0.3)
    axis.legend(
        title="final mAP, method", loc="upper left", bbox_to_anchor=(0, -0.13), borderaxespad=0,
        ncols=1 if few else 2, fontsize=9 if few else 8,
    )  # fmt: skip


def _draw_matrix(axis: Any, matrix: np.ndarray, classes: list[str], title: str) -> Any:
    off_diagonal = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)  # the diagonal is 1 by definition
    image = axis.imshow(off_diagonal, vmin=0, vmax=1, cmap="viridis")
    if len(classes) <= _MAX_NAMED_CLASSES:
        names = [chart_text(name, 24) for name in classes]
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_title(title, fontsize=10)
    return image
