"""Figures of finished runs. Here are the learning curves; all others can be imported from here too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.report.class_figures import class_ap, class_changes, false_positives, precision_recall, reliability
from lifelabel.report.cost_figures import cost
from lifelabel.report.figure_parts import TASK_LABEL, method_styles, methods_param, rounded, task_cells_param, title
from lifelabel.report.graph_figures import label_graph
from lifelabel.report.matrix_figures import forgetting, matrix
from lifelabel.report.tables import Row
from lifelabel.report.vega import Control, Figure
from lifelabel.runs.finished import check_same_tasks

__all__ = [
    "class_ap", "class_changes", "cost", "false_positives", "forgetting",
    "label_graph", "learning_curves", "matrix", "precision_recall", "reliability",
]  # fmt: skip

_FEW_CURVES = 6
"""Up to this many curves, each has a band from its lowest to its highest run. More bands would hide each other."""


def learning_curves(rows: Sequence[Row]) -> Figure | None:
    """A metric of the classes seen so far after each task: the mean over the runs, and the lowest and highest."""
    rows = [row for row in rows if row.runs]
    for row in rows:
        check_same_tasks(row.name, row.runs)
    values = [point for number, row in enumerate(rows) for point in _curve_points(number, row)]
    if not values:
        return None
    last = {s: [row.stats[name].mean for row in rows] for s, name in enumerate(HEADLINE)}
    params = [
        methods_param(row.name for row in rows),
        {"name": "metric", "value": 0},
        {"name": "metrics", "value": list(HEADLINE)},
        {"name": "shown", "value": list(range(len(rows)))},
        task_cells_param(_common_names(rows), max(value["t"] for value in values)),
        {"name": "final", "value": [[rounded(mean, 1) for mean in means] for means in last.values()]},
    ]
    tasks = max(value["t"] for value in values)
    x = {
        "field": "t", "type": "quantitative", "title": "tasks learned",
        "scale": {"domain": [1, tasks] if tasks > 1 else [0, 2], "nice": False, "padding": 12},
        "axis": {"values": list(range(1, tasks + 1)), "labelExpr": TASK_LABEL, "grid": False, "labelOverlap": "greedy"},
    }  # fmt: skip
    y = {"field": "v", "type": "quantitative", "title": None, "scale": {"zero": False}, "axis": {"tickCount": 6}}
    score = "final[metric][datum.value]"
    label = f"(isValid({score}) ? format({score}, '.1f') + '  ' : '') + methods[datum.value]"
    style = method_styles([row.joint for row in rows], range(len(rows)), label)
    band = f"length(shown) <= {_FEW_CURVES} ? 0.16 : 0"
    bands = [
        {
            "transform": [{"filter": "datum.n > 1"}],
            "mark": {"type": "area", "opacity": {"expr": band}, "interpolate": "linear"},
            "encoding": {"y": {**y, "field": "l"}, "y2": {"field": "h"}, "color": style["color"]},
        }
    ]
    several = any(value["n"] > 1 for value in values)
    layers = [
        *(bands if several else []),  # without data, Vega warns
        {
            "mark": {"type": "line", "strokeWidth": 1.8},
            "encoding": {"y": y, "color": style["color"], "strokeDash": style["strokeDash"]},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
            "encoding": {"y": y, "color": style["color"], "shape": style["shape"], "tooltip": [
                {"field": "name", "title": "method"},
                {"field": "taskCell", "title": "after task"},
                {"field": "v", "title": "mean (%)", "format": ".2f"},
                {"field": "l", "title": "lowest (%)", "format": ".2f"},
                {"field": "h", "title": "highest (%)", "format": ".2f"},
                {"field": "n", "title": "runs"},
            ]},
        },
    ]  # fmt: skip
    spec = {
        "params": params,
        "title": title("metrics[metric] + ' of the classes seen so far (%)'"),
        "width": "container",
        "height": 320,
        "data": {"values": values},
        "transform": [
            {"filter": "datum.s == metric && indexof(shown, datum.m) >= 0"},
            {"calculate": "methods[datum.m]", "as": "name"},
            {"calculate": "taskCells[datum.t - 1]", "as": "taskCell"},
        ],
        "encoding": {"x": x},
        "layer": layers,
    }
    options = tuple(enumerate(params[0]["value"]))
    controls = (
        Control("metric", "choice", "metric", tuple(enumerate(HEADLINE)), 0),
        Control("shown", "checks", "methods", options, [number for number, _ in options]),
    )
    each = ", ".join(f"{name} {mean:.1f}" for (_, name), mean in zip(options, last[0], strict=True) if mean is not None)
    alt = f"Learning curves over {tasks} tasks, of mAP, CF1 or OF1. mAP (%) after the last task: {each}."
    note = "Lines are means over the runs of a method."
    if several:
        note += f" With at most {_FEW_CURVES} methods, bands reach from the lowest to the highest run."
    return Figure(
        "learning-curves", "Learning curves", alt, spec, controls, note,
        {f"-{name}": {"metric": number} for number, name in enumerate(HEADLINE)},
    )  # fmt: skip


def _common_names(rows: Sequence[Row]) -> list[str]:
    """The names of the tasks, if all runs have the same ones."""
    names = [run.task_names for row in rows for run in row.runs]
    return names[0] if all(each == names[0] for each in names) else []


def _curve_points(number: int, row: Row) -> list[dict[str, Any]]:
    """The points of the curves of a row: method, task, metric, mean, lowest, highest and number of the runs."""
    points = []
    for metric, name in enumerate(HEADLINE):
        curves = [run.curve(name) for run in row.runs]
        first = len(row.runs[0].metrics["tasks"]) - len(curves[0]) + 1
        for task, found in enumerate(zip(*curves, strict=True), first):
            known = [value for value in found if value is not None]
            if known:
                v, low, high = (rounded(value, 2) for value in (sum(known) / len(known), min(known), max(known)))
                points.append({"m": number, "t": task, "s": metric, "v": v, "l": low, "h": high, "n": len(known)})
    return points
