"""Figures of finished runs. Here are the learning curves and the costs; all others can be imported from here too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lifelabel.metrics.functions import HEADLINE
from lifelabel.report.class_figures import class_ap, class_changes, false_positives, precision_recall, reliability
from lifelabel.report.figure_parts import method_styles, methods_param, rounded, title
from lifelabel.report.graph_figures import label_graph
from lifelabel.report.matrix_figures import forgetting, matrix
from lifelabel.report.runs import check_same_tasks
from lifelabel.report.tables import Row
from lifelabel.report.vega import Control, Figure, chart_text

__all__ = [
    "class_ap", "class_changes", "cost", "false_positives", "forgetting",
    "label_graph", "learning_curves", "matrix", "precision_recall", "reliability",
]  # fmt: skip

_FEW_CURVES = 6
"""Up to this many curves, each has a band from its lowest to its highest run. More bands would hide each other."""
_LABEL_GAP = 14
"""Pixels from one text to the next."""
_SMALL = 0.1
"""MB up to which the axis of stored bytes is linear."""


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
        {"name": "final", "value": [[rounded(mean, 1) for mean in means] for means in last.values()]},
    ]
    tasks = max(value["t"] for value in values)
    x = {
        "field": "t", "type": "quantitative", "title": "tasks learned",
        "scale": {"domain": [1, tasks] if tasks > 1 else [0, 2], "nice": False, "padding": 12},
        "axis": {"values": list(range(1, tasks + 1)), "format": "d", "grid": False, "labelOverlap": "greedy"},
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
                {"field": "t", "title": "after task"},
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


def cost(rows: Sequence[Row]) -> Figure | None:
    """mAP after the last task over what a method stores in addition to its network."""
    rows = [row for row in rows if row.runs]
    points: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        scores = [score for run in row.runs if (score := run.figures()["mAP"]) is not None]
        stored = row.stats["stored_bytes"].mean
        if scores and stored is not None and stored >= 0:
            three = {"v": sum(scores) / len(scores), "l": min(scores), "h": max(scores)}
            point = {"m": number, "x": float(f"{stored / 1e6:.4g}"), "n": len(scores)}
            points.append(point | {name: rounded(value, 2) for name, value in three.items()})
    if len(points) < 2:
        return None
    height = max(320, _LABEL_GAP * (len(points) + 2))
    low, high = min(point["l"] for point in points), max(point["h"] for point in points)
    margin = max(0.1 * (high - low), 1)
    low, high = low - margin, high + margin
    most = max(point["x"] for point in points)
    for point, place in zip(points, _spread([point["v"] for point in points], low, high, height), strict=True):
        point["place"] = place
        # the text is right of the point, and left of it near the right border
        point["right"] = int(math.log1p(point["x"] / _SMALL) <= 0.5 * math.log1p(most / _SMALL))
    ticks = [0, *(10.0**power for power in range(-1, max(0, math.ceil(math.log10(max(most, 1)))) + 1))]
    x = {
        "field": "x", "type": "quantitative", "title": "stored in addition to the network (MB)",
        "scale": {
            "type": "symlog", "constant": _SMALL, "domain": [0, max(ticks[-1], most)], "nice": False, "padding": 12,
        },
        "axis": {"values": ticks, "format": ",.2~f", "grid": False},
    }  # fmt: skip
    y = {"type": "quantitative", "scale": {"domain": [rounded(low, 2), rounded(high, 2)], "nice": False}}
    mean = {**y, "field": "v", "title": "mAP after the last task (%)"}
    styles = method_styles([row.joint for row in rows], [point["m"] for point in points])
    style = {channel: {**styles[channel], "legend": None} for channel in ("color", "shape")}
    spec = {
        "params": [methods_param(row.name for row in rows)],
        "width": "container",
        "height": height,
        "data": {"values": points},
        "transform": [{"calculate": "methods[datum.m]", "as": "name"}],
        "encoding": {"x": x},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 0.7, "x2Offset": {"expr": "datum.right ? 13 : -13"}},
                "encoding": {"y": mean, "x2": {"field": "x"}, "y2": {"field": "place"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 2},
                "encoding": {"y": {**y, "field": "l"}, "y2": {"field": "h"}, "color": style["color"]},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1},
                "encoding": {"y": mean, **style, "tooltip": [
                    {"field": "name", "title": "method"},
                    {"field": "x", "title": "stored (MB)", "format": ",.4~g"},
                    {"field": "v", "title": "mean mAP (%)", "format": ".2f"},
                    {"field": "l", "title": "lowest (%)", "format": ".2f"},
                    {"field": "h", "title": "highest (%)", "format": ".2f"},
                    {"field": "n", "title": "runs"},
                ]},
            },
            {
                "mark": {
                    "type": "text", "baseline": "middle", "limit": {"expr": "0.45 * width"},
                    "dx": {"expr": "datum.right ? 16 : -16"}, "align": {"expr": "datum.right ? 'left' : 'right'"},
                },
                "encoding": {"y": {**y, "field": "place"}, "text": {"field": "name"}},
            },
        ],
    }  # fmt: skip
    names = [chart_text(rows[point["m"]].name, 60) for point in points]
    each = ", ".join(f"{name} {p['x']:g} MB and {p['v']:.1f}" for name, p in zip(names, points, strict=True))
    note = "Points are means over the runs; vertical lines reach from the lowest to the highest run."
    return Figure("cost", "mAP and stored bytes", f"mAP (%) over stored megabytes: {each}.", spec, note=note)


def _spread(values: Sequence[float], low: float, high: float, height: int) -> list[float]:
    """Places for the texts of points, near them and far enough from each other to be read."""
    gap = _LABEL_GAP * (high - low) / height
    order = sorted(range(len(values)), key=lambda number: values[number])
    places = [values[number] for number in order]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + gap)
    top = high - gap / 2
    for n in reversed(range(len(places))):
        places[n] = min(places[n], top)
        top = places[n] - gap
    return [round(place, 3) for _, place in sorted(zip(order, places, strict=True))]
