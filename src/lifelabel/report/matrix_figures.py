"""Figures of one run: its correlation matrix and its forgetting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lifelabel.report.figure_parts import TASK_LABEL, reading, seeds_note, task_cells_param, thousandths, title
from lifelabel.report.matrices import RunMatrices, run_matrices, strongest_text
from lifelabel.report.vega import Control, Figure, chart_text, slug
from lifelabel.runs.finished import FinishedRun
from lifelabel.utils.text import task_text

__all__ = ["forgetting", "matrix", "matrix_params", "task_slider"]

_NAMES = 120
"""Pixels for the names of the rows."""
_MAX_SERIES = 40
"""Up to this many classes, the matrix after each task has its own file. One of a larger matrix takes a second."""


def matrix(run: FinishedRun, label: str) -> Figure | None:
    """The correlation matrix after each task; where the truth is known, beside it, and the error."""
    found = run_matrices(run)
    if not found:
        return None
    tasks, count, known = list(found.by_task), len(found.names), found.truth is not None
    height, wide = _height(found), _wide(found)
    shown = "look == 'truth' ? 'the true P(row | column)' : look == 'error' ? 'P(row | column) minus the true one' : "
    shown += "'P(row | column)' + (look == 'both' ? ', and the true one on the right' : '')"
    spec = {
        "params": [
            *matrix_params(found, label),
            {"name": "view", "value": "both" if known else "matrix"},
            {"name": "look", "expr": f"view == 'both' && width < {wide} ? 'matrix' : view"},
            {"name": "sizes", "value": [int((found.task_of <= task).sum()) for task in range(tasks[-1] + 1)]},
            {"name": "truth", "value": thousandths(found.truth) if found.truth is not None else []},
        ],
        "title": title(f"method + ', after ' + taskTexts[task - 1] + ': ' + ({shown})"),
        "width": "container",
        "height": height,
        "layer": [_cells(found), *_borders(found)],
    }
    controls = task_slider(tasks)
    in_files = tasks if count <= _MAX_SERIES else tasks[-1:]
    static: dict[str, dict[str, Any]] = {f"-task-{task}": {"task": task, "view": "matrix"} for task in in_files}
    note = f"{seeds_note([run])} {found.note}".strip()
    if known:
        views = {"both": "matrix and truth", "matrix": "matrix", "truth": "truth", "error": "error"}
        controls.append(Control("view", "choice", "show", tuple(views.items()), "both"))
        static |= {f"-{view}": {"view": view} for view in ("truth", "error")}
        static["-beside-truth"] = {"view": "both", "width": max(2 * height, wide) + _NAMES}
        note += " On a narrow screen, matrix and truth are shown one at a time."
    return Figure(
        f"matrix-{slug(label)}",
        "Correlation matrix",
        f"Heat map of P(row | column) for {count} classes after each of {len(tasks)} tasks, for "
        f"{chart_text(label, 60)}.{strongest_text(run)}",
        spec,
        tuple(controls),
        note,
        static,
        width=max(360, height + _NAMES),
        max_width=min(1100, max(560, (10 if known else 6) * height // 5 + _NAMES)),
    )


def matrix_params(found: RunMatrices, label: str) -> list[dict[str, Any]]:
    return [
        {"name": "task", "value": max(found.by_task)},
        {"name": "method", "value": chart_text(label, 60)},
        {"name": "names", "value": found.names},
        {"name": "taskOf", "value": found.task_of.tolist()},
        {"name": "taskTexts", "value": found.task_texts},
    ]


def task_slider(tasks: Sequence[int]) -> list[Control]:
    slider = Control("task", "slider", "after task", (tasks[0], tasks[-1], 1), tasks[-1], play=True)
    return [slider] if len(tasks) > 1 else []


def _height(found: RunMatrices) -> int:
    """The pixels of all rows."""
    count = len(found.names)
    return count * max(6, min(36, 560 // count))


def _wide(found: RunMatrices) -> int:
    """The width in pixels from which a chart shows the true matrix beside the other."""
    return max(400, _height(found) * 5 // 4)


def _bands(found: RunMatrices, channel: str) -> dict[str, Any]:
    """The scale of the classes in rows and columns. In a wide chart, the columns of the true matrix follow."""
    count = len(found.names)
    domain: Any = list(range(count))
    if channel == "x" and found.truth is not None:
        domain = {"expr": f"sequence(0, width < {_wide(found)} ? {count} : {2 * count + 1})"}
    return {"type": "ordinal", "scale": {"domain": domain, "paddingInner": 0, "paddingOuter": 0}}


def _cells(found: RunMatrices) -> dict[str, Any]:
    """The cells of the matrix after the chosen task, without the diagonal, which is 1 by definition."""
    count, known = len(found.names), found.truth is not None
    no_name = f"datum.value >= {count} && (look != 'both' || datum.value == {count})"
    axis = {
        "labelExpr": f"{no_name} ? '' : names[datum.value % {count + 1}]",
        "labelFontSize": max(6, min(11, _height(found) // count)), "labelOverlap": "greedy", "ticks": False,
        "domain": False, "labelLimit": 110 if count <= 40 else 75,
    }  # fmt: skip
    colour = {
        "field": "shown", "type": "quantitative",
        "scale": {
            "domain": {"expr": "look == 'error' ? [-1, 1] : [0, 1]"}, "clamp": True,
            "scheme": {"expr": "look == 'error' ? 'redblue' : 'viridis'"}, "reverse": {"expr": "look == 'error'"},
        },
        "legend": {"title": None, "gradientLength": 200, "tickCount": 5},
    }  # fmt: skip
    against_truth = [
        {"field": "b", "title": "truth", "format": ".3f"},
        {"field": "e", "title": "error", "format": "+.3f"},
    ]
    return {
        "data": {"values": _groups(found)},
        "transform": [
            {"filter": "datum.from <= task && task <= datum.to"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}]},
            {"calculate": "floor((datum.k - 1) / datum.size)", "as": "i"},
            {"calculate": "(datum.k - 1) % datum.size", "as": "j"},
            {"filter": "datum.i != datum.j && datum.i < sizes[task] && datum.j < sizes[task]"},
            {"calculate": "isValid(datum.p) ? datum.p / 1000 : null", "as": "a"},
            {"calculate": f"truth[datum.i * {count} + datum.j]", "as": "q"},
            {"calculate": "isValid(datum.q) ? datum.q / 1000 : null", "as": "b"},
            {"calculate": "isValid(datum.a) && isValid(datum.b) ? datum.a - datum.b : null", "as": "e"},
            {"calculate": "look == 'both' ? [0, 1] : look == 'truth' ? [1] : [0]", "as": "sides"},
            {"flatten": ["sides"], "as": ["side"]},
            {"calculate": "look == 'error' ? datum.e : datum.side ? datum.b : datum.a", "as": "shown"},
            {"calculate": f"datum.j + (look == 'both' ? {count + 1} * datum.side : 0)", "as": "place"},
            {"filter": "isValid(datum.shown)"},
            {"calculate": "names[datum.i] + ' (' + taskTexts[taskOf[datum.i] - 1] + ')'", "as": "row"},
            {"calculate": "names[datum.j] + ' (' + taskTexts[taskOf[datum.j] - 1] + ')'", "as": "column"},
        ],
        "mark": "rect",
        "encoding": {
            "x": {
                **_bands(found, "x"), "field": "place", "title": "column (given)", "axis": {**axis, "labelAngle": -90},
            },
            "y": {**_bands(found, "y"), "field": "i", "title": "row", "axis": axis},
            "color": colour,
            "tooltip": [
                {"field": "row", "type": "nominal"},
                {"field": "column", "type": "nominal"},
                {"field": "a", "title": "P(row | column)", "format": ".3f"},
                *(against_truth if known else []),
            ],
        },
    }  # fmt: skip


def _borders(found: RunMatrices) -> list[dict[str, Any]]:
    """Lines between the classes of different tasks."""
    count, borders = len(found.names), (np.flatnonzero(np.diff(found.task_of)) + 1).tolist()
    places = {"x": [*borders, *(count + 1 + border for border in borders)], "y": borders}
    return [
        {
            "data": {"values": [{"b": border} for border in places[channel]]},
            "transform": [{"filter": f"datum.b < {count} || look == 'both'"}],
            "mark": {"type": "rule", "color": "#9aa0a8"},
            "encoding": {channel: {**_bands(found, channel), "field": "b", "bandPosition": 0}},
        }
        for channel in ("x", "y")
    ]


def _groups(found: RunMatrices) -> list[dict[str, Any]]:
    """The matrices as flat lists. One that later matrices have as their first block is not repeated."""
    groups: list[dict[str, Any]] = []
    for task, values in reversed(found.by_task.items()):
        size = len(values)
        later = found.by_task[groups[-1]["to"]] if groups else None
        if later is not None and np.array_equal(later[:size, :size], values, equal_nan=True):
            groups[-1]["from"] = task
        else:
            groups.append({"from": task, "to": task, "size": size, "v": thousandths(values)})
    return groups


def forgetting(run: FinishedRun, label: str) -> Figure | None:
    """mAP of the classes of each task after each task. A run of one task, or of all at once, has no forgetting."""
    tasks = len(run.metrics["tasks"])
    if run.joint or tasks < 2:
        return None
    with reading(run):
        cells = [
            {"t": t, "j": j, "v": round(100 * value, 2)}
            for t, row in enumerate(run.metrics["by_task"].get("mAP", []), 1)
            for j, value in enumerate(row, 1)
            if value is not None
        ]
    if not cells:
        return None
    own = {int(cell["j"]): cell["v"] for cell in cells if cell["t"] == cell["j"]}
    params = [
        {"name": "method", "value": chart_text(label, 60)},
        {"name": "own", "value": [own.get(task) for task in range(tasks + 1)]},
        task_cells_param(run.task_names, tasks),
    ]
    scale = {"domain": list(range(1, tasks + 1)), "paddingInner": 0, "paddingOuter": 0}
    axis = {"labelExpr": TASK_LABEL, "labelAngle": 0, "ticks": False, "domain": False, "labelOverlap": "greedy"}
    shared = {"type": "ordinal", "scale": scale, "axis": axis}
    spec = {
        "params": params,
        "title": title("method + ': mAP (%) of the classes of each task'"),
        "width": "container",
        "height": tasks * max(16, min(44, 480 // tasks)),
        "data": {"values": cells},
        "transform": [
            {"calculate": "own[datum.j]", "as": "own"},
            *({"calculate": f"taskCells[datum.{each} - 1]", "as": f"{each}Name"} for each in "tj"),
            {"calculate": "isValid(datum.own) ? datum.v - datum.own : null", "as": "change"},
        ],
        "encoding": {
            "x": {**shared, "field": "j", "title": "classes of task"},
            "y": {**shared, "field": "t", "title": "after task"},
            "tooltip": [
                {"field": "tName", "title": "after task"},
                {"field": "jName", "title": "classes of task"},
                {"field": "v", "title": "mAP (%)", "format": ".2f"},
                {"field": "own", "title": "after their own task (%)", "format": ".2f"},
                {"field": "change", "title": "change", "format": "+.2f"},
            ],
        },
        "layer": [
            {
                "mark": "rect",
                "encoding": {"color": {
                    "field": "v", "type": "quantitative", "scale": {"scheme": "viridis", "domain": [0, 100]},
                    "legend": {"title": None, "gradientLength": 200},
                }},
            },
            {
                "mark": {"type": "text", "fontSize": 12 if tasks <= 12 else 9},
                "encoding": {
                    "text": {"field": "v", "format": ".1f" if tasks <= 12 else ".0f"},
                    "color": {"condition": {"test": "datum.v > 55", "value": "#111111"}, "value": "#ffffff"},
                },
            },
        ],
    }  # fmt: skip
    last = {cell["j"]: cell["v"] for cell in cells if cell["t"] == tasks}
    each = "; ".join(
        f"{task_text(j, run.task_names)} from {own[j]:.1f} to {last[j]:.1f}" for j in own if j in last and j < tasks
    )
    alt = f"Heat map of mAP (%) of the classes of each task after each of {tasks} tasks, for {chart_text(label, 60)}."
    alt += f" From their own task to the last: {each}." if each else ""
    return Figure(f"forgetting-{slug(label)}", "Forgetting", alt, spec, (), seeds_note([run]), width=520, max_width=680)
