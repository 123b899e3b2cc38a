"""Figures of one run: its forgetting, and the AP of its classes after their own task and at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.report.vega import (
    COLOURS,
    GRAY,
    POINT,
    TASK_LABEL,
    Figure,
    chart_names,
    chart_spec,
    chart_text,
    percent_channel,
    rounded,
    slug,
    task_cells_param,
    title,
    tooltip,
)
from lifelabel.runs.details import RunDetails, read_details
from lifelabel.runs.finished import FinishedRun
from lifelabel.runs.names import METRICS
from lifelabel.utils.text import task_text

_MAX_CHANGES = 25
"""Of many classes, this many that lost most and that gained most are drawn."""


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
    scale = {"domain": list(range(1, tasks + 1)), "paddingInner": 0, "paddingOuter": 0}
    axis = {"labelExpr": TASK_LABEL, "labelAngle": 0, "ticks": False, "domain": False, "labelOverlap": "greedy"}
    shared = {"type": "ordinal", "scale": scale, "axis": axis}
    colour = {
        "field": "v", "type": "quantitative", "scale": {"scheme": "viridis", "domain": [0, 100]},
        "legend": {"title": None, "gradientLength": 200},
    }  # fmt: skip
    number = {
        "text": {"field": "v", "format": ".1f" if tasks <= 12 else ".0f"},
        "color": {"condition": {"test": "datum.v > 55", "value": "#111111"}, "value": "#ffffff"},
    }
    spec = chart_spec(
        tasks * max(16, min(44, 480 // tasks)),
        cells,
        params=[
            {"name": "method", "value": chart_text(label, 60)},
            {"name": "own", "value": [own.get(task) for task in range(tasks + 1)]},
            task_cells_param(run.task_names, tasks),
        ],
        title=title("method + ': mAP (%) of the classes of each task'"),
        transform=[
            {"calculate": "own[datum.j]", "as": "own"},
            *({"calculate": f"taskCells[datum.{each} - 1]", "as": f"{each}Name"} for each in "tj"),
            {"calculate": "isValid(datum.own) ? datum.v - datum.own : null", "as": "change"},
        ],
        encoding={
            "x": {**shared, "field": "j", "title": "classes of task"},
            "y": {**shared, "field": "t", "title": "after task"},
            "tooltip": tooltip(
                tName="after task", jName="classes of task", v=("mAP (%)", ".2f"),
                own=("after their own task (%)", ".2f"), change=("change", "+.2f"),
            ),
        },
        layer=[
            {"mark": "rect", "encoding": {"color": colour}},
            {"mark": {"type": "text", "fontSize": 12 if tasks <= 12 else 9}, "encoding": number},
        ],
    )  # fmt: skip
    last = {cell["j"]: cell["v"] for cell in cells if cell["t"] == tasks}
    each = "; ".join(
        f"{task_text(j, run.task_names)} from {own[j]:.1f} to {last[j]:.1f}" for j in own if j in last and j < tasks
    )
    alt = f"Heat map of mAP (%) of the classes of each task after each of {tasks} tasks, for {chart_text(label, 60)}."
    alt += f" From their own task to the last: {each}." if each else ""
    return Figure(f"forgetting-{slug(label)}", "Forgetting", alt, spec, (), seeds_note([run]), width=520, max_width=680)


def class_changes(run: FinishedRun, label: str) -> Figure | None:
    """The AP of each class after its own task and after the last one, the largest loss first."""
    details = read_details(run)
    found = sorted(_changes(run, details), key=lambda each: each["b"] - each["a"]) if details else []
    if not found:
        return None
    drawn = found if len(found) <= 2 * _MAX_CHANGES else found[:_MAX_CHANGES] + found[-_MAX_CHANGES:]
    ap = percent_channel("AP (%)")
    styles = {"after its own task": (GRAY, "square"), "after the last task": (COLOURS[0], "circle")}
    color, shape = (
        {"type": "nominal", "title": None, "scale": {"domain": [*styles], "range": list(each)}}
        for each in zip(*styles.values(), strict=True)
    )
    points = [
        {
            "mark": {**POINT, "size": 60},
            "encoding": {
                "x": {**ap, "field": name}, "color": {"datum": when, **color}, "shape": {"datum": when, **shape},
            },
        }
        for name, when in zip("ab", styles, strict=True)
    ]  # fmt: skip
    spec = chart_spec(
        16 * len(drawn) + 10,
        [{"c": c, **{key: each[key] for key in "tab"}} for c, each in enumerate(drawn)],
        params=[
            {"name": "method", "value": chart_text(label, 60)},
            {"name": "names", "value": chart_names(each["name"] for each in drawn)},
        ],
        title=title("method"),
        transform=[
            {"calculate": "names[datum.c]", "as": "name"},
            {"calculate": "datum.b - datum.a", "as": "change"},
        ],
        encoding={
            "y": {
                "field": "c", "type": "ordinal", "title": None,
                "axis": {"labelExpr": "names[datum.value]", "labelFontSize": 10, "ticks": False, "grid": True},
            },
            "tooltip": tooltip(
                name="class", t="task", a=("AP after its own task (%)", ".1f"), b=("AP after the last task (%)", ".1f"),
                change=("change", "+.1f"),
            ),
        },
        layer=[
            {
                "mark": {"type": "rule", "color": GRAY, "strokeWidth": 2},
                "encoding": {"x": {**ap, "field": "a"}, "x2": {"field": "b"}},
            },
            *points,
        ],
    )  # fmt: skip
    first, last = found[0], found[-1]
    alt = f"AP of {len(found)} classes after their own task and after the last task, for {chart_text(label, 60)}."
    for each, word in ((first, "lost"), (last, "gained")):
        if (each["b"] < each["a"]) if word == "lost" else (each["b"] > each["a"]):
            alt += f" {chart_text(each['name'], 40)} {word} most: from {each['a']} to {each['b']} %."
    note = f"{seeds_note([run])} The classes of the last task are left out"
    first_task = details.tasks[0].task if details else 1
    note += f", and those of the tasks before task {first_task}, learned in another run." if first_task > 1 else "."
    if len(drawn) < len(found):
        note += f" Of {len(found)} classes, the {_MAX_CHANGES} that lost most and the {_MAX_CHANGES} that gained most."
    return Figure(
        f"class-changes-{slug(label)}", "Classes that gained and lost", alt, spec, note=note, width=520,
        max_width=840,
    )  # fmt: skip


def _changes(run: FinishedRun, details: RunDetails) -> list[dict[str, Any]]:
    """For each class but those of the last task: its task, its AP (%) after that task and after the last one."""
    last, names, changes = details.tasks[-1], [str(name) for task in run.metrics["tasks"] for name in task], []
    ends = np.cumsum([len(task) for task in run.metrics["tasks"]])
    for task in details.tasks[:-1]:
        for c in range(ends[task.task - 1] - len(run.metrics["tasks"][task.task - 1]), ends[task.task - 1]):
            own, final = (rounded(100 * float(each.ap[c]), 1) for each in (task, last))
            if own is not None and final is not None:
                changes.append({"t": task.task, "a": own, "b": final, "name": names[c]})
    return changes


def seeds_note(runs: Iterable[FinishedRun]) -> str:
    """Which of the runs of a method a figure of one run shows."""
    seeds = sorted({run.seed for run in runs})
    return f"Seed {seeds[0]}." if len(seeds) == 1 else f"Seeds {', '.join(map(str, seeds))}: the lowest of each method."


@contextlib.contextmanager
def reading(run: FinishedRun) -> Iterator[None]:
    """Reads of metrics.json that fail with an error that names the run."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        raise UserError(f"{METRICS} of {run.path} is damaged, or of another version of lifelabel") from None
