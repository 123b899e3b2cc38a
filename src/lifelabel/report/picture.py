"""Pictures of finished runs: learning curves, and the correlation matrix beside the truth."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.report.runs import FinishedRun, by_label

COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#bcbd22", "#17becf", "#000000",
    "#00429d", "#a0522d",
)  # fmt: skip
MARKERS = "os^Dv*PX<>hp"
FEW = 6
"""Curves up to which each has a band from its lowest to its highest run, and the legend one column."""


def draw(
    runs: Sequence[FinishedRun], path: str | Path, groups: Mapping[str, Sequence[FinishedRun]] | None = None
) -> None:
    """Learning curves of every group (by default, of every label) and, where a run has one, its last matrix beside the
    true one."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    groups = by_label(runs) if groups is None else groups
    first = next(((run, archive) for run in runs if (archive := run.matrices())), None)
    name = next((name for name, group in groups.items() if first and first[0] in group), "")
    matrices = _matrices(name, *first) if first else {}
    width = [1.3] + [1.0] * len(matrices)
    figure, axes = plt.subplots(
        1,
        len(width),
        figsize=(4.6 * sum(width), 5.2 if len(groups) <= FEW else 6.2),
        width_ratios=width,
        squeeze=False,
        layout="constrained",
    )
    _curves(axes[0, 0], groups)
    classes = first[1]["classes"].tolist() if first else []
    shown = None
    for axis, (title, matrix) in zip(axes[0, 1:], matrices.items(), strict=True):
        shown = _matrix(axis, matrix, classes, title)
    if shown is not None:
        figure.colorbar(shown, ax=axes[0, 1:].tolist(), shrink=0.8, label="P(row | column)")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _matrices(name: str, run: FinishedRun, archive: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    title = f"matrix of {name}, seed {run.metrics['seed']}, after the last task"
    found = {textwrap.fill(title, 44): archive[f"task_{len(run.metrics['tasks'])}"]}
    return {**found, "the true matrix": archive["truth"]} if "truth" in archive else found


def _curves(axis: Any, groups: Mapping[str, Sequence[FinishedRun]]) -> None:
    few = len(groups) <= FEW
    looks = [{"marker": mark, "color": colour} for mark, colour in zip(MARKERS, COLOURS, strict=True)]
    for number, (name, group) in enumerate(groups.items()):
        if len({len(run.curve()) for run in group}) > 1:
            raise UserError(f"runs of '{name}' have different numbers of tasks: report them apart")
        curves = np.array([run.curve() for run in group], dtype=float)
        tasks = np.arange(1, curves.shape[1] + 1)
        mean = curves.mean(0)
        joint = len(group[0].metrics["per_task"]) < len(tasks)
        style: dict[str, Any] = {"linestyle": "--", "color": "0.4"} if joint else looks[number % len(looks)]
        label = textwrap.fill(f"{mean[-1]:.1f}  {name}", 60 if few else 28)
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


def _matrix(axis: Any, matrix: np.ndarray, classes: list[str], title: str) -> Any:
    off = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)  # the diagonal is 1 by definition
    shown = axis.imshow(off, vmin=0, vmax=1, cmap="viridis")
    if len(classes) <= 40:
        axis.set_xticks(range(len(classes)), classes, rotation=90, fontsize=7)
        axis.set_yticks(range(len(classes)), classes, fontsize=7)
    axis.set_title(title, fontsize=10)
    return shown
