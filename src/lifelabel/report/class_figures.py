"""Figures of the classes after the last task: AP, its change, precision over recall, and probabilities.

`runs` has one run for each label. A run without the data of a figure is left out of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lifelabel.metrics.curves import BINS
from lifelabel.report.figure_parts import (
    COLOURS,
    GRAY,
    best_method,
    chart_names,
    method_choice,
    method_styles,
    methods_param,
    reading,
    rounded,
    seeds_note,
    thousandths,
    title,
)
from lifelabel.report.vega import Control, Figure, chart_text, slug
from lifelabel.runs.details import RunDetails, TaskDetails, read_details
from lifelabel.runs.finished import FinishedRun

__all__ = ["class_ap", "class_changes", "false_positives", "precision_recall", "reliability"]

_MAX_BARS, _MAX_CHANGES = 50, 25
"""Of many classes, this many of the highest and of the lowest are drawn."""
_MAX_POINTS = 60_000
"""Points of the curves of all classes and methods. More classes have fewer points each."""
_SHARES = 10
"""Bins of the reliability diagram."""
_THRESHOLDS = [number / 20 for number in range(1, 20)]
_GAP = 6
"""Pixels between the numbers of a horizontal axis. Where there is less, on a phone, every second number is drawn."""
_AP = {
    "type": "quantitative", "title": "AP (%)", "scale": {"domain": [0, 100]}, "axis": {"labelSeparation": _GAP},
}  # fmt: skip
_Runs = Mapping[str, FinishedRun]


def class_ap(runs: _Runs) -> Figure | None:
    """The AP of each class after the last task, the highest first."""
    found = {number: ap for number, run in enumerate(runs.values()) if (ap := _final_ap(run))}
    if not found:
        return None
    names = list(dict.fromkeys(name for ap in found.values() for name in ap))
    chosen = best_method(runs.values(), found)
    values = [
        {"m": number, "v": thousandths(np.array([ap.get(name, np.nan) for name in names]))}
        for number, ap in found.items()
    ]
    spec: dict[str, Any] = {
        "params": [
            methods_param(runs),
            {"name": "names", "value": chart_names(names)},
            {"name": "method", "value": chosen},
        ],
        "title": title("'AP of each class: ' + methods[method]"),
        "width": "container",
        "height": 15 * min(2 * _MAX_BARS, max(len(ap) for ap in found.values())) + 10,
        "data": {"values": values},
        "transform": [
            {"filter": "datum.m == method"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}]},
            {"filter": "isValid(datum.p)"},
            {"calculate": "datum.k - 1", "as": "c"},
            {"calculate": "names[datum.c]", "as": "name"},
            {"calculate": "datum.p / 10", "as": "ap"},
            {"window": [{"op": "row_number", "as": "rank"}], "sort": [{"field": "p", "order": "descending"}]},
            {"joinaggregate": [{"op": "count", "as": "all"}, {"op": "mean", "field": "ap", "as": "mean"}]},
            {"filter": f"datum.rank <= {_MAX_BARS} || datum.rank > datum.all - {_MAX_BARS}"},
        ],
        "layer": [
            {
                "mark": {"type": "bar", "color": COLOURS[0]},
                "encoding": {
                    "y": {
                        "field": "c", "type": "ordinal", "title": None, "sort": {"field": "rank", "op": "min"},
                        "axis": {"labelExpr": "names[datum.value]", "labelFontSize": 10, "ticks": False},
                    },
                    "x": {**_AP, "field": "ap"},
                    "tooltip": [
                        {"field": "name", "title": "class"},
                        {"field": "ap", "title": "AP (%)", "format": ".1f"},
                        {"field": "rank"},
                    ],
                },
            },
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": {"x": {"aggregate": "min", "field": "mean", "type": "quantitative"}},
            },
        ],
    }  # fmt: skip
    means = {number: 100 * sum(ap.values()) / len(ap) for number, ap in found.items()}
    note = f"{seeds_note(runs.values())} The dashed line is the mean over the classes."
    if any(len(ap) > 2 * _MAX_BARS for ap in found.values()):
        note += f" Only the {_MAX_BARS} highest and the {_MAX_BARS} lowest classes are drawn."
    return Figure(
        "class-ap",
        "AP of each class",
        f"Bars of the AP of {len(names)} classes, the highest first. Mean over the classes (%): {_each(runs, means)}.",
        spec,
        method_choice(runs, [*found], chosen),
        note,
        _files(runs, found),
        width=520,
        max_width=840,
    )


def class_changes(run: FinishedRun, label: str) -> Figure | None:
    """The AP of each class after its own task and after the last one, the largest loss first."""
    details = read_details(run)
    found = sorted(_changes(run, details), key=lambda each: each["b"] - each["a"]) if details else []
    if not found:
        return None
    drawn = found if len(found) <= 2 * _MAX_CHANGES else found[:_MAX_CHANGES] + found[-_MAX_CHANGES:]
    values = [{"c": position, **each} for position, each in enumerate(drawn)]
    y = {
        "field": "c", "type": "ordinal", "title": None,
        "axis": {"labelExpr": "names[datum.value]", "labelFontSize": 10, "ticks": False, "grid": True},
    }  # fmt: skip
    styles = {"after its own task": (GRAY, "square"), "after the last task": (COLOURS[0], "circle")}
    color, shape = (
        {
            "type": "nominal",
            "title": None,
            "scale": {"domain": [*styles], "range": [each[n] for each in styles.values()]},
        }
        for n in (0, 1)
    )
    spec = {
        "params": [
            {"name": "method", "value": chart_text(label, 60)},
            {"name": "names", "value": chart_names(each["name"] for each in drawn)},
        ],
        "title": title("method"),
        "width": "container",
        "height": 16 * len(drawn) + 10,
        "data": {"values": [{key: value for key, value in each.items() if key != "name"} for each in values]},
        "transform": [
            {"calculate": "names[datum.c]", "as": "name"},
            {"calculate": "datum.b - datum.a", "as": "change"},
        ],
        "encoding": {
            "y": y,
            "tooltip": [
                {"field": "name", "title": "class"},
                {"field": "t", "title": "task"},
                {"field": "a", "title": "AP after its own task (%)", "format": ".1f"},
                {"field": "b", "title": "AP after the last task (%)", "format": ".1f"},
                {"field": "change", "format": "+.1f"},
            ],
        },
        "layer": [
            {
                "mark": {"type": "rule", "color": GRAY, "strokeWidth": 2},
                "encoding": {"x": {**_AP, "field": "a"}, "x2": {"field": "b"}},
            },
            *(
                {
                    "mark": {"type": "point", "filled": True, "size": 60, "opacity": 1},
                    "encoding": {
                        "x": {**_AP, "field": name},
                        "color": {"datum": when, **color},
                        "shape": {"datum": when, **shape},
                    },
                }
                for name, when in zip("ab", styles, strict=True)
            ),
        ],
    }  # fmt: skip
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


def precision_recall(runs: _Runs) -> Figure | None:
    """Precision over recall of a class after the last task, and the mean over the classes."""
    details = _details(runs)
    labels = list(runs)
    classes: dict[str, int] = {}
    for number in details:
        for name in _names(runs[labels[number]]):
            classes.setdefault(name, len(classes) + 1)
    step = next(s for s in (1, 2, 4, 5, 10) if len(classes) * len(details) * (100 // s + 1) <= _MAX_POINTS or s == 10)
    values: list[dict[str, Any]] = []
    ap = np.full((len(classes) + 1, len(runs)), np.nan)
    for number, found in details.items():
        known = ~np.isnan(found.precision).any(1)
        curves = [
            (classes[name], found.precision[c]) for c, name in enumerate(_names(runs[labels[number]])) if known[c]
        ]
        if known.any():
            curves.append((0, found.precision[known].mean(0)))
            ap[0, number] = np.nanmean(found.tasks[-1].ap)
        for c, name in enumerate(_names(runs[labels[number]])):
            ap[classes[name], number] = found.tasks[-1].ap[c]
        values += [{"m": number, "c": c, "v": thousandths(curve[::step])} for c, curve in curves]
    if not values:
        return None
    score = "ap[chosen][datum.value]"
    label = f"(isValid({score}) ? 'AP ' + format({score} / 10, '.1f') + '  ' : '') + methods[datum.value]"
    style = method_styles([run.joint for run in runs.values()], [*details], label)
    for channel in style.values():
        channel["legend"]["symbolSize"] = 400  # long enough to show the dashes
    spec = {
        "params": [
            methods_param(runs),
            {"name": "names", "value": ["mean of all classes", *chart_names(classes)]},
            {"name": "ap", "value": [thousandths(row) for row in ap]},
            {"name": "chosen", "value": 0},
        ],
        "title": title("'Class: ' + names[chosen]"),
        "width": "container",
        "height": 320,
        "data": {"values": values},
        "transform": [
            {"filter": "datum.c == chosen"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}], "groupby": ["m"]},
            {"calculate": f"(datum.k - 1) * {step}", "as": "recall"},
            {"calculate": "datum.p / 10", "as": "precision"},
            {"calculate": "methods[datum.m]", "as": "name"},
            {"calculate": "ap[chosen][datum.m] / 10", "as": "score"},
        ],
        "mark": {"type": "line", "strokeWidth": 1.8},
        "encoding": {
            "x": {
                "field": "recall", "type": "quantitative", "title": "recall (%)", "scale": {"domain": [0, 100]},
                "axis": {"grid": False, "labelSeparation": _GAP},
            },
            "y": {
                "field": "precision", "type": "quantitative", "title": "precision (%)", "scale": {"domain": [0, 100]},
            },
            "color": style["color"],
            "strokeDash": style["strokeDash"],
            "tooltip": [
                {"field": "name", "title": "method"},
                {"field": "score", "title": "AP (%)", "format": ".1f"},
            ],
        },
    }  # fmt: skip
    options = ((0, "mean of all classes"), *zip(classes.values(), chart_names(classes), strict=True))
    means = {number: 100 * ap[0, number] for number in details if not np.isnan(ap[0, number])}
    return Figure(
        "precision-recall",
        "Precision and recall",
        f"Precision over recall of {len(classes)} classes or their mean. Mean AP (%): {_each(runs, means)}.",
        spec,
        (Control("chosen", "choice", "class", options, 0),),
        f"{seeds_note(runs.values())} All test images, after the last task.",
        width=560,
        max_width=840,
    )


def reliability(runs: _Runs) -> Figure | None:
    """The share of positive labels over the probability, after the last task."""
    values, errors = [], {}
    for number, found in _details(runs).items():
        rows, errors[number] = _shares(found.tasks[-1])
        values += [{"m": number, **row} for row in rows]
    if not values:
        return None
    chosen = best_method(runs.values(), errors)
    axes = {
        name: {
            "field": name, "type": "quantitative", "title": text, "scale": {"domain": [0, 1]},
            "axis": {"tickCount": 5},
        }
        for name, text in (("x", "mean probability"), ("y", "share of positive labels"))
    }  # fmt: skip
    position = {"x": axes["x"], "y": axes["y"]}
    mine = [{"filter": "datum.m == method"}]
    spec = {
        "params": [
            methods_param(runs),
            {"name": "errors", "value": [rounded(errors.get(number), 3) for number in range(len(runs))]},
            {"name": "method", "value": chosen},
        ],
        "title": title("methods[method] + ': expected calibration error ' + format(errors[method], '.3f')"),
        "width": "container",
        "height": 380,
        "data": {"values": values},
        "layer": [
            {
                "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
                "mark": {"type": "line", "color": GRAY, "strokeDash": [4, 3], "strokeWidth": 1},
                "encoding": position,
            },
            {"transform": mine, "mark": {"type": "line", "color": COLOURS[0]}, "encoding": position},
            {
                "transform": mine,
                "mark": {"type": "point", "filled": True, "color": COLOURS[0], "size": 70, "opacity": 1},
                "encoding": {**position, "tooltip": [
                    {"field": "bin", "title": "probability"},
                    {"field": "x", "title": "mean probability", "format": ".3f"},
                    {"field": "y", "title": "share of positive labels", "format": ".3f"},
                    {"field": "n", "title": "pairs of image and class", "format": ","},
                ]},
            },
            {
                "transform": mine,
                "mark": {
                    "type": "text", "fontSize": 10, "dy": -9, "dx": {"expr": "datum.x < 0.08 ? 0 : -3"},
                    "align": {"expr": "datum.x < 0.08 ? 'left' : 'right'"},
                },
                "encoding": {**position, "text": {"field": "n", "format": ".3~s"}},
            },
        ],
    }  # fmt: skip
    return Figure(
        "reliability",
        "Reliability",
        "Share of positive labels over the mean probability in ten bins; calibrated probabilities lie on the diagonal. "
        f"Expected calibration error: {_each(runs, errors, 3)}.",
        spec,
        method_choice(runs, [*errors], chosen),
        f"{seeds_note(runs.values())} The numbers at the points count pairs of a test image and a class. The mean "
        f"probability of a bin is computed from the centres of {BINS} narrower bins.",
        _files(runs, errors),
        width=440,
        max_width=560,
    )


def false_positives(runs: _Runs) -> Figure | None:
    """The false-positive rate of the classes of earlier tasks after each task."""
    values: list[dict[str, Any]] = [
        {"m": number, "t": task.task, "v": rates}
        for number, found in _details(runs).items()
        for task in found.tasks
        if (rates := _false_positive_rates(task))
    ]
    if not values:
        return None
    numbers = sorted({value["m"] for value in values})
    style = method_styles([run.joint for run in runs.values()], numbers)
    tasks = max(value["t"] for value in values)
    y = {"field": "rate", "type": "quantitative", "title": None, "axis": {"tickCount": 5}}
    spec = {
        "params": [methods_param(runs), {"name": "threshold", "value": 0.5}],
        "title": title("'false-positive rate (%) at threshold ' + format(threshold, '.2f')"),
        "width": "container",
        "height": 280,
        "data": {"values": values},
        "transform": [
            {"calculate": "datum.v[round(threshold * 20) - 1]", "as": "rate"},
            {"calculate": "methods[datum.m]", "as": "name"},
        ],
        "encoding": {
            "x": {
                "field": "t", "type": "quantitative", "title": "tasks learned",
                "scale": {"domain": [2, tasks] if tasks > 2 else [1, 3], "nice": False, "padding": 12},
                "axis": {"values": [*range(2, tasks + 1)], "format": "d", "grid": False, "labelOverlap": "greedy"},
            },
            "y": y,
            "color": style["color"],
        },
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.8}, "encoding": {"strokeDash": style["strokeDash"]}},
            {
                "mark": {"type": "point", "filled": True, "size": 55, "opacity": 1},
                "encoding": {"shape": style["shape"], "tooltip": [
                    {"field": "name", "title": "method"},
                    {"field": "t", "title": "after task"},
                    {"field": "rate", "title": "false-positive rate (%)", "format": ".3~g"},
                ]},
            },
        ],
    }  # fmt: skip
    half = _THRESHOLDS.index(0.5)
    last = {value["m"]: value["v"][half] for value in values if value["t"] == tasks}
    return Figure(
        "false-positives",
        "False positives of earlier classes",
        f"Share of negative labels of earlier classes that are predicted, after each of {tasks} tasks. After the last "
        f"task at threshold 0.5 (%): {_each(runs, last, 2)}.",
        spec,
        (Control("threshold", "slider", "threshold", (_THRESHOLDS[0], _THRESHOLDS[-1], 0.05), 0.5),),
        seeds_note(runs.values()),
    )


# Parts


def _final_ap(run: FinishedRun) -> dict[str, float]:
    """The AP of each class that has a positive test image."""
    with reading(run):
        return {
            str(name): float(ap)
            for name, ap in (run.metrics["final"].get("ap") or {}).items()
            if ap is not None and 0 <= ap <= 1
        }


def _names(run: FinishedRun) -> list[str]:
    with reading(run):
        return [str(name) for task in run.metrics["tasks"] for name in task]


def _details(runs: _Runs) -> dict[int, RunDetails]:
    """The details of each run that has them, by the number of the run."""
    return {number: found for number, run in enumerate(runs.values()) if (found := read_details(run))}


def _changes(run: FinishedRun, details: RunDetails) -> list[dict[str, Any]]:
    """For each class but those of the last task: its task, its AP (%) after that task and after the last one."""
    last, names, changes = details.tasks[-1], _names(run), []
    ends = np.cumsum([len(task) for task in run.metrics["tasks"]])
    for task in details.tasks[:-1]:
        for c in range(ends[task.task - 1] - len(run.metrics["tasks"][task.task - 1]), ends[task.task - 1]):
            own, final = (rounded(100 * float(each.ap[c]), 1) for each in (task, last))
            if own is not None and final is not None:
                changes.append({"t": task.task, "a": own, "b": final, "name": names[c]})
    return changes


def _shares(task: TaskDetails) -> tuple[list[dict[str, Any]], float]:
    """The bins of the reliability diagram, and the mean of their |share - probability| weighted by the pairs."""
    pairs = task.counts.sum(0).reshape(2, _SHARES, -1)
    centres = ((np.arange(BINS) + 0.5) / BINS).reshape(_SHARES, -1)
    rows, error = [], 0.0
    for b in range(_SHARES):
        total = int(pairs[:, b].sum())
        if total:
            mean = float((pairs[:, b].sum(0) * centres[b]).sum() / total)
            share = float(pairs[1, b].sum() / total)
            error += total * abs(share - mean)
            name = f"{b / _SHARES:.1f} to {(b + 1) / _SHARES:.1f}"
            rows.append({"bin": name, "x": round(mean, 3), "y": round(share, 3), "n": total})
    return rows, error / max(int(pairs.sum()), 1)


def _false_positive_rates(task: TaskDetails) -> list[float]:
    """The share (%) of the negative labels of earlier classes at or above each threshold; empty without any."""
    negatives = task.counts[: task.task - 1, 0].sum(0)
    total = negatives.sum()
    above = [negatives[round(threshold * BINS) :].sum() for threshold in _THRESHOLDS]
    return [float(f"{100 * count / total:.3g}") for count in above] if total else []


def _each(runs: _Runs, values: Mapping[int, float], digits: int = 1) -> str:
    names = chart_names(runs)
    return ", ".join(f"{names[number]} {value:.{digits}f}" for number, value in values.items())


def _files(runs: _Runs, numbers: Sequence[int] | Mapping[int, Any]) -> dict[str, dict[str, int]]:
    """One file for each method."""
    labels = list(runs)
    return {f"-{slug(labels[number])}": {"method": number} for number in numbers}
