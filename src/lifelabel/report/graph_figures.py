"""The graph of the labels of one run."""

from __future__ import annotations

from typing import Any

import numpy as np

from lifelabel.report.figure_parts import COLOURS, GRAY, SHAPES, seeds_note, thousandths, title
from lifelabel.report.matrices import MIN_RELATION, RunMatrices, off_diagonal, run_matrices, strongest_text
from lifelabel.report.matrix_figures import matrix_params, task_slider
from lifelabel.report.vega import Control, Figure, chart_text, slug
from lifelabel.runs.finished import FinishedRun

__all__ = ["label_graph"]

_MAX_LINES = 400


def label_graph(run: FinishedRun, label: str) -> Figure | None:
    """The strongest relations between classes as lines between points on a circle."""
    found = run_matrices(run)
    if not found:
        return None
    tasks, count = list(found.by_task), len(found.names)
    lines, left_out = _lines(found)
    strengths = sorted((line["p"] for line in lines if line["to"] == tasks[-1]), reverse=True)
    default = _slider_value(strengths[min(len(strengths) - 1, count)] / 1000) if strengths else 0.5
    spec = {
        "params": [*matrix_params(found, label), {"name": "threshold", "value": default}],
        "title": title("method + ', after ' + taskTexts[task - 1] + ': P of at least ' + format(threshold, '.2f')"),
        "width": "container",
        "height": 500,
        "layer": [_edges(lines, count), *_nodes(found)],
    }
    return Figure(
        f"label-graph-{slug(label)}",
        "Label graph",
        f"Graph of {count} labels on a circle in the order of the tasks, for {chart_text(label, 60)}: a line between "
        f"two labels is wider the higher P(one | other) is.{strongest_text(run)}",
        spec,
        (*task_slider(tasks), Control("threshold", "slider", "P of at least", (MIN_RELATION, 1, 0.05), default)),
        " ".join(
            filter(None, [seeds_note([run]), "A line has the higher P of both directions.", left_out, found.note])
        ),
        width=540,
        max_width=700,
    )


def _edges(lines: list[dict[str, Any]], count: int) -> dict[str, Any]:
    strength = {"field": "strength", "type": "quantitative", "legend": None}
    return {
        "data": {"values": lines},
        "transform": [
            {"filter": "datum.from <= task && task <= datum.to && datum.p >= 1000 * threshold - 0.01"},
            {"calculate": "datum.p / 1000", "as": "strength"},
            {"calculate": "names[datum.i] + ' given ' + names[datum.j]", "as": "pair"},
            {"calculate": "isValid(datum.q) ? datum.q / 1000 : null", "as": "back"},
            *_place("i", count),
            *_place("j", count),
        ],
        "mark": {"type": "rule", "color": GRAY, "strokeCap": "round"},
        "encoding": {
            **_position("i"),
            "x2": {"field": "xj"},
            "y2": {"field": "yj"},
            "strokeWidth": {**strength, "scale": {"domain": [0, 1], "range": [0.3, 4], "clamp": True}},
            "opacity": {**strength, "scale": {"domain": [0, 1], "range": [0.25, 0.85], "clamp": True}},
            "tooltip": [
                {"field": "pair"},
                {"field": "strength", "title": "P", "format": ".3f"},
                {"field": "back", "title": "P in the other direction", "format": ".3f"},
            ],
        },
    }


def _nodes(found: RunMatrices) -> list[dict[str, Any]]:
    """A point for each class of the tasks so far, by task, and its name further from the centre."""
    count, tasks = len(found.names), sorted(set(found.task_of.tolist()))
    ranges = {
        "color": [COLOURS[n % len(COLOURS)] for n in range(len(tasks))],
        "shape": [SHAPES[(n + n // len(COLOURS)) % len(SHAPES)] for n in range(len(tasks))],
    }
    nodes = {
        "data": {"sequence": {"start": 0, "stop": count, "as": "i"}},
        "transform": [
            {"calculate": "taskOf[datum.i]", "as": "task"},
            {"filter": "datum.task <= task"},
            {"calculate": "names[datum.i]", "as": "name"},
            {"calculate": "taskTexts[datum.task - 1]", "as": "taskText"},
            *_place("i", count),
            *({"calculate": f"1.06 * datum.{axis}i", "as": f"{axis}o"} for axis in ("x", "y")),
        ],
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 80 if count <= 60 else 40, "opacity": 1},
        "encoding": {
            **_position("i"),
            **{
                channel: {"field": "task", "type": "nominal", "scale": {"domain": tasks, "range": values}}
                for channel, values in ranges.items()
            },
            "tooltip": [{"field": "name", "title": "class"}, {"field": "taskText", "title": "task"}],
        },
    }
    names = {
        "mark": {
            "type": "text", "baseline": "middle", "limit": {"expr": "0.12 * min(width, height)"},
            "fontSize": 11 if count <= 60 else 8,
            "align": {"expr": f"datum.i < {count / 2} ? 'left' : 'right'"},
            "angle": {"expr": f"datum.i * {360 / count} - (datum.i < {count / 2} ? 90 : 270)"},
        },
        "encoding": {"text": {"field": "name"}, **_position("o")},
    }  # fmt: skip
    return [{**nodes, **points}, {**nodes, **names}]


def _place(name: str, count: int) -> list[dict[str, Any]]:
    """The place on the circle of the class whose number is the field `name`."""
    angle = f"2 * PI * datum.{name} / {count}"
    return [{"calculate": f"{f}({angle})", "as": f"{axis}{name}"} for axis, f in (("x", "sin"), ("y", "cos"))]


def _position(name: str) -> dict[str, Any]:
    """The channels of a place. The circle is round at any width: the longer side has the larger domain.

    A chart that is hidden while it is drawn has the width 0.
    """
    sides = {"x": "1.4 * max(1, width / height)", "y": "1.4 * max(1, height / max(1, width))"}
    return {
        axis: {
            "field": f"{axis}{name}", "type": "quantitative", "axis": None,
            "scale": {"domain": {"expr": f"[-{side}, {side}]"}, "nice": False},
        }
        for axis, side in sides.items()
    }  # fmt: skip


def _lines(found: RunMatrices) -> tuple[list[dict[str, Any]], str]:
    """The lines of the label graph, from the first to the last task in which they are equal; what is left out."""
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    cut, earlier = False, 0
    for task, values in found.by_task.items():
        known = off_diagonal(values)
        pairs = np.argwhere((known >= MIN_RELATION) & ((known > known.T) | (np.triu(known == known.T))))
        order = np.argsort(-known[tuple(pairs.T)], kind="stable")
        cut |= len(order) > _MAX_LINES
        for i, j in pairs[order[:_MAX_LINES]].tolist():
            p, q = thousandths(values[[i, j], [j, i]])
            line = {"from": task, "to": task, "i": i, "j": j, "p": p, "q": q}
            same = lines.setdefault((i, j), [])
            if same and (same[-1]["to"], same[-1]["p"], same[-1]["q"]) == (earlier, p, q):
                same[-1]["to"] = task
            else:
                same.append(line)
        earlier = task
    note = f"At most {_MAX_LINES} lines after each task." if cut else ""
    return [line for same in lines.values() for line in same], note


def _slider_value(value: float) -> float:
    """A multiple of 0.05 from 0.05 to 0.95."""
    return min(0.95, max(MIN_RELATION, round(round(value / 0.05) * 0.05, 2)))
