"""Figures that compare methods: learning curves, and the classes after the last task.

`rows` are those of the table. `runs` has one run of each label; a run without the data of a figure is left out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lifelabel.metrics.curves import BINS
from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.report.run_figures import reading, seeds_note
from lifelabel.report.tables import Row
from lifelabel.report.vega import (
    COLOURS,
    GRAY,
    LINE,
    POINT,
    TASK_LABEL,
    Control,
    Figure,
    chart_names,
    chart_spec,
    method_styles,
    methods_param,
    percent_channel,
    rounded,
    slug,
    task_cells_param,
    thousandths,
    title,
    tooltip,
)
from lifelabel.runs.details import RunDetails, TaskDetails, read_details
from lifelabel.runs.finished import FinishedRun, check_same_tasks

_FEW_CURVES = 6
"""Up to this many curves, each has a band from its lowest to its highest run. More bands would hide each other."""
_MAX_BARS = 50
"""Of many classes, this many of the highest and of the lowest are drawn."""
_MAX_POINTS = 60_000
"""Points of the curves of all classes and methods. More classes have fewer points each."""
_SHARES = 10
"""Bins of the reliability diagram."""
_THRESHOLDS = [number / 20 for number in range(1, 20)]
_Runs = Mapping[str, FinishedRun]


def best_method(runs: Iterable[FinishedRun], numbers: Iterable[int]) -> int:
    """The number of the run with the highest mAP, of those that are not upper bounds if there are any."""
    found = list(runs)
    return max(numbers, key=lambda number: (not found[number].joint, found[number].figures()["mAP"] or 0.0))


# Learning curves


def learning_curves(rows: Sequence[Row]) -> Figure | None:
    """A metric of the classes seen so far after each task: the mean over the runs, and the lowest and highest."""
    rows = [row for row in rows if row.runs]
    for row in rows:
        check_same_tasks(row.name, row.runs)
    values = [point for number, row in enumerate(rows) for point in _curve_points(number, row)]
    if not values:
        return None
    means = [[row.stats[name].mean for row in rows] for name in HEADLINE]
    tasks, several = max(value["t"] for value in values), any(value["n"] > 1 for value in values)
    score = "final[metric][datum.value]"
    label = f"(isValid({score}) ? format({score}, '.1f') + '  ' : '') + methods[datum.value]"
    style = method_styles([row.joint for row in rows], range(len(rows)), label)
    y = {"field": "v", "type": "quantitative", "title": None, "scale": {"zero": False}, "axis": {"tickCount": 6}}
    band = {
        "transform": [{"filter": "datum.n > 1"}],
        "mark": {"type": "area", "opacity": {"expr": f"length(shown) <= {_FEW_CURVES} ? 0.16 : 0"}},
        "encoding": {"y": {**y, "field": "l"}, "y2": {"field": "h"}},
    }
    tip = tooltip(
        name="method", taskCell="after task", v=("mean (%)", ".2f"), l=("lowest (%)", ".2f"),
        h=("highest (%)", ".2f"), n="runs",
    )  # fmt: skip
    names = chart_names(row.name for row in rows)
    spec = chart_spec(
        320,
        values,
        params=[
            {"name": "methods", "value": names},
            {"name": "metric", "value": 0},
            {"name": "metrics", "value": list(HEADLINE)},
            {"name": "shown", "value": list(range(len(rows)))},
            task_cells_param(_common_names(rows), tasks),
            {"name": "final", "value": [[rounded(mean, 1) for mean in of_metric] for of_metric in means]},
        ],
        title=title("metrics[metric] + ' of the classes seen so far (%)'"),
        transform=[
            {"filter": "datum.s == metric && indexof(shown, datum.m) >= 0"},
            {"calculate": "methods[datum.m]", "as": "name"},
            {"calculate": "taskCells[datum.t - 1]", "as": "taskCell"},
        ],
        encoding={"x": _tasks_axis(1, tasks, labelExpr=TASK_LABEL), "y": y, "color": style["color"]},
        layer=[*([band] if several else []), *_curves(style, tip)],  # without data of the band, Vega warns
    )
    controls = (
        Control("metric", "choice", "metric", tuple(enumerate(HEADLINE)), 0),
        Control("shown", "checks", "methods", tuple(enumerate(names)), [*range(len(names))]),
    )
    each = ", ".join(f"{name} {mean:.1f}" for name, mean in zip(names, means[0], strict=True) if mean is not None)
    alt = f"Learning curves over {tasks} tasks, of mAP, CF1 or OF1. mAP (%) after the last task: {each}."
    note = "Lines are means over the runs of a method."
    if several:
        note += f" With at most {_FEW_CURVES} methods, bands reach from the lowest to the highest run."
    static = {f"-{name}": {"metric": number} for number, name in enumerate(HEADLINE)}
    return Figure("learning-curves", "Learning curves", alt, spec, controls, note, static)


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


def _tasks_axis(first: int, last: int, **axis: Any) -> dict[str, Any]:
    """The channel x of the number of tasks learned."""
    return {
        "field": "t", "type": "quantitative", "title": "tasks learned",
        "scale": {"domain": [first, last] if last > first else [first - 1, first + 1], "nice": False, "padding": 12},
        "axis": {"values": [*range(first, last + 1)], "grid": False, "labelOverlap": "greedy", **axis},
    }  # fmt: skip


def _curves(style: Mapping[str, Any], tip: list[dict[str, str]]) -> list[dict[str, Any]]:
    """The layers of one curve for each method, with a point for each task."""
    return [
        {"mark": LINE, "encoding": {"strokeDash": style["strokeDash"]}},
        {"mark": POINT, "encoding": {"shape": style["shape"], "tooltip": tip}},
    ]


# Classes


def class_ap(runs: _Runs) -> Figure | None:
    """The AP of each class after the last task, the highest first."""
    found = {number: ap for number, run in enumerate(runs.values()) if (ap := _final_ap(run))}
    if not found:
        return None
    names = list(dict.fromkeys(name for ap in found.values() for name in ap))
    chosen = best_method(runs.values(), found)
    bar = {
        "y": {
            "field": "c", "type": "ordinal", "title": None, "sort": {"field": "rank", "op": "min"},
            "axis": {"labelExpr": "names[datum.value]", "labelFontSize": 10, "ticks": False},
        },
        "x": {**percent_channel("AP (%)"), "field": "ap"},
        "tooltip": tooltip(name="class", ap=("AP (%)", ".1f"), rank="rank"),
    }  # fmt: skip
    spec = chart_spec(
        15 * min(2 * _MAX_BARS, max(len(ap) for ap in found.values())) + 10,
        [
            {"m": number, "v": thousandths(np.array([ap.get(name, np.nan) for name in names]))}
            for number, ap in found.items()
        ],
        params=[
            methods_param(runs),
            {"name": "names", "value": chart_names(names)},
            {"name": "method", "value": chosen},
        ],
        title=title("'AP of each class: ' + methods[method]"),
        transform=[
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
        layer=[
            {"mark": {"type": "bar", "color": COLOURS[0]}, "encoding": bar},
            {
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": {"x": {"aggregate": "min", "field": "mean", "type": "quantitative"}},
            },
        ],
    )
    means = {number: 100 * sum(ap.values()) / len(ap) for number, ap in found.items()}
    alt = f"Bars of the AP of {len(names)} classes, the highest first. Mean over the classes (%): {_each(runs, means)}."
    note = f"{seeds_note(runs.values())} The dashed line is the mean over the classes."
    if any(len(ap) > 2 * _MAX_BARS for ap in found.values()):
        note += f" Only the {_MAX_BARS} highest and the {_MAX_BARS} lowest classes are drawn."
    return Figure(
        "class-ap", "AP of each class", alt, spec, _method_choice(runs, [*found], chosen), note, _files(runs, found),
        width=520, max_width=840,
    )  # fmt: skip


def precision_recall(runs: _Runs) -> Figure | None:
    """Precision over recall of a class after the last task, and the mean over the classes."""
    details, labels = _details(runs), list(runs)
    classes: dict[str, int] = {}
    for number in details:
        for name in _names(runs[labels[number]]):
            classes.setdefault(name, len(classes) + 1)
    step = next(s for s in (1, 2, 4, 5, 10) if len(classes) * len(details) * (100 // s + 1) <= _MAX_POINTS or s == 10)
    values: list[dict[str, Any]] = []
    ap = np.full((len(classes) + 1, len(runs)), np.nan)
    for number, found in details.items():
        columns = [classes[name] for name in _names(runs[labels[number]])]
        known = ~np.isnan(found.precision).any(1)
        curves = [(c, curve) for c, curve, has in zip(columns, found.precision, known, strict=True) if has]
        if known.any():
            curves.append((0, found.precision[known].mean(0)))
            ap[0, number] = np.nanmean(found.tasks[-1].ap)
        ap[columns, number] = found.tasks[-1].ap
        values += [{"m": number, "c": c, "v": thousandths(curve[::step])} for c, curve in curves]
    if not values:
        return None
    score = "ap[chosen][datum.value]"
    label = f"(isValid({score}) ? 'AP ' + format({score} / 10, '.1f') + '  ' : '') + methods[datum.value]"
    style = method_styles([run.joint for run in runs.values()], [*details], label)
    for channel in style.values():
        channel["legend"]["symbolSize"] = 400  # long enough to show the dashes
    names = ["mean of all classes", *chart_names(classes)]
    recall = percent_channel("recall (%)")
    spec = chart_spec(
        320,
        values,
        params=[
            methods_param(runs),
            {"name": "names", "value": names},
            {"name": "ap", "value": [thousandths(row) for row in ap]},
            {"name": "chosen", "value": 0},
        ],
        title=title("'Class: ' + names[chosen]"),
        transform=[
            {"filter": "datum.c == chosen"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}], "groupby": ["m"]},
            {"calculate": f"(datum.k - 1) * {step}", "as": "recall"},
            {"calculate": "datum.p / 10", "as": "precision"},
            {"calculate": "methods[datum.m]", "as": "name"},
            {"calculate": "ap[chosen][datum.m] / 10", "as": "score"},
        ],
        mark=LINE,
        encoding={
            "x": {**recall, "field": "recall", "axis": {**recall["axis"], "grid": False}},
            "y": {**percent_channel("precision (%)"), "field": "precision"},
            "color": style["color"],
            "strokeDash": style["strokeDash"],
            "tooltip": tooltip(name="method", score=("AP (%)", ".1f")),
        },
    )
    means = {number: 100 * ap[0, number] for number in details if not np.isnan(ap[0, number])}
    alt = f"Precision over recall of {len(classes)} classes or their mean. Mean AP (%): {_each(runs, means)}."
    return Figure(
        "precision-recall", "Precision and recall", alt, spec,
        (Control("chosen", "choice", "class", tuple(enumerate(names)), 0),),
        f"{seeds_note(runs.values())} All test images, after the last task.", width=560, max_width=840,
    )  # fmt: skip


def reliability(runs: _Runs) -> Figure | None:
    """The share of positive labels over the probability, after the last task."""
    values, errors = [], {}
    for number, found in _details(runs).items():
        rows, errors[number] = _shares(found.tasks[-1])
        values += [{"m": number, **row} for row in rows]
    if not values:
        return None
    chosen = best_method(runs.values(), errors)
    position = {
        name: {
            "field": name, "type": "quantitative", "title": text, "scale": {"domain": [0, 1]},
            "axis": {"tickCount": 5},
        }
        for name, text in (("x", "mean probability"), ("y", "share of positive labels"))
    }  # fmt: skip
    mine = [{"filter": "datum.m == method"}]
    diagonal = {
        "data": {"values": [{"x": 0, "y": 0}, {"x": 1, "y": 1}]},
        "mark": {"type": "line", "color": GRAY, "strokeDash": [4, 3], "strokeWidth": 1},
    }
    count = {
        "type": "text", "fontSize": 10, "dy": -9, "dx": {"expr": "datum.x < 0.08 ? 0 : -3"},
        "align": {"expr": "datum.x < 0.08 ? 'left' : 'right'"},
    }  # fmt: skip
    tip = tooltip(
        bin="probability", x=("mean probability", ".3f"), y=("share of positive labels", ".3f"),
        n=("pairs of image and class", ","),
    )  # fmt: skip
    spec = chart_spec(
        380,
        values,
        params=[
            methods_param(runs),
            {"name": "errors", "value": [rounded(errors.get(number), 3) for number in range(len(runs))]},
            {"name": "method", "value": chosen},
        ],
        title=title("methods[method] + ': expected calibration error ' + format(errors[method], '.3f')"),
        encoding=position,
        layer=[
            diagonal,
            {"transform": mine, "mark": {"type": "line", "color": COLOURS[0]}},
            {"transform": mine, "mark": {**POINT, "color": COLOURS[0], "size": 70}, "encoding": {"tooltip": tip}},
            {"transform": mine, "mark": count, "encoding": {"text": {"field": "n", "format": ".3~s"}}},
        ],
    )
    alt = (
        "Share of positive labels over the mean probability in ten bins; calibrated probabilities lie on the diagonal. "
        f"Expected calibration error: {_each(runs, errors, 3)}."
    )
    note = (
        f"{seeds_note(runs.values())} The numbers at the points count pairs of a test image and a class. The mean "
        f"probability of a bin is computed from the centres of {BINS} narrower bins."
    )
    return Figure(
        "reliability", "Reliability", alt, spec, _method_choice(runs, [*errors], chosen), note, _files(runs, errors),
        width=440, max_width=560,
    )  # fmt: skip


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
    style = method_styles([run.joint for run in runs.values()], sorted({value["m"] for value in values}))
    tasks = max(value["t"] for value in values)
    spec = chart_spec(
        280,
        values,
        params=[methods_param(runs), {"name": "threshold", "value": 0.5}],
        title=title("'false-positive rate (%) at threshold ' + format(threshold, '.2f')"),
        transform=[
            {"calculate": "datum.v[round(threshold * 20) - 1]", "as": "rate"},
            {"calculate": "methods[datum.m]", "as": "name"},
        ],
        encoding={
            "x": _tasks_axis(2, tasks, format="d"),
            "y": {"field": "rate", "type": "quantitative", "title": None, "axis": {"tickCount": 5}},
            "color": style["color"],
        },
        layer=_curves(style, tooltip(name="method", t="after task", rate=("false-positive rate (%)", ".3~g"))),
    )
    half = _THRESHOLDS.index(0.5)
    last = {value["m"]: value["v"][half] for value in values if value["t"] == tasks}
    alt = (
        f"Share of negative labels of earlier classes that are predicted, after each of {tasks} tasks. After the last "
        f"task at threshold 0.5 (%): {_each(runs, last, 2)}."
    )
    slider = Control("threshold", "slider", "threshold", (_THRESHOLDS[0], _THRESHOLDS[-1], 0.05), 0.5)
    name = "False positives of earlier classes"
    return Figure("false-positives", name, alt, spec, (slider,), seeds_note(runs.values()))


# Parts


def _method_choice(runs: _Runs, numbers: Sequence[int], chosen: int) -> tuple[Control, ...]:
    """The choice of a method by its number, if there are several."""
    names = chart_names(runs)
    options = tuple((number, names[number]) for number in numbers)
    return (Control("method", "choice", "method", options, chosen),) if len(numbers) > 1 else ()


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
