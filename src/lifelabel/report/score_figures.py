"""Figures of scores: learning curves, forgetting, and the classes after their own task and after the last one.

`rows` are those of the table. `runs` has one run of each label; a run without the data of a figure is left out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lifelabel.metrics.curves import BINS
from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.report.tables import Row
from lifelabel.report.vega import (
    COLOURS,
    GRAY,
    LINE,
    POINT,
    TASK_LABEL,
    Control,
    Figure,
    calculate,
    chart_names,
    chart_spec,
    chart_text,
    method_styles,
    names_channel,
    percent_channel,
    rounded,
    slug,
    task_cells,
    thousandths,
    title,
    tooltip,
)
from lifelabel.runs.details import RunDetails, TaskDetails, read_details
from lifelabel.runs.finished import FinishedRun, check_same_tasks
from lifelabel.utils.text import task_text

_FEW_CURVES = 6
"""Up to this many curves, each has a band from its lowest to its highest run. More bands would hide each other."""
_MAX_BARS = 50
"""Of many classes, this many of the highest and of the lowest are drawn."""
_MAX_CHANGES = 25
"""Of many classes, this many that lost most and that gained most are drawn."""
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


def seeds_note(runs: Iterable[FinishedRun]) -> str:
    """Which of the runs of a method a figure of one run shows."""
    seeds = sorted({run.seed for run in runs})
    return f"Seed {seeds[0]}." if len(seeds) == 1 else f"Seeds {', '.join(map(str, seeds))}: the lowest of each method."


# Tasks


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
        {
            "methods": names,
            "metric": 0,
            "metrics": list(HEADLINE),
            "shown": list(range(len(rows))),
            "taskCells": task_cells(_common_names(rows), tasks),
            "final": [[rounded(mean, 1) for mean in of_metric] for of_metric in means],
        },
        title=title("metrics[metric] + ' of the classes seen so far (%)'"),
        transform=[
            {"filter": "datum.s == metric && indexof(shown, datum.m) >= 0"},
            *calculate(name="methods[datum.m]", taskCell="taskCells[datum.t - 1]"),
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
        first = len(row.runs[0].tasks) - len(curves[0]) + 1
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


def forgetting(run: FinishedRun, label: str) -> Figure | None:
    """mAP of the classes of each task after each task. A run of one task, or of all at once, has no forgetting."""
    tasks = len(run.tasks)
    if run.joint or tasks < 2:
        return None
    cells = [
        {"t": t, "j": j, "v": round(100 * value, 2)}
        for t, row in enumerate(run.metrics.get("by_task", {}).get("mAP", []), 1)
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
        {
            "method": chart_text(label, 60),
            "own": [own.get(task) for task in range(tasks + 1)],
            "taskCells": task_cells(run.task_names, tasks),
        },
        title=title("method + ': mAP (%) of the classes of each task'"),
        transform=calculate(
            own="own[datum.j]", tName="taskCells[datum.t - 1]", jName="taskCells[datum.j - 1]",
            change="isValid(datum.own) ? datum.v - datum.own : null",
        ),
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


# Classes


def class_ap(runs: _Runs) -> Figure | None:
    """The AP of each class after the last task, the highest first."""
    found = {number: ap for number, run in enumerate(runs.values()) if (ap := run.ap)}
    if not found:
        return None
    names = list(dict.fromkeys(name for ap in found.values() for name in ap))
    chosen = best_method(runs.values(), found)
    bar = {
        "y": names_channel("c", sort={"field": "rank", "op": "min"}),
        "x": percent_channel("ap", "AP (%)"),
        "tooltip": tooltip(name="class", ap=("AP (%)", ".1f"), rank="rank"),
    }
    spec = chart_spec(
        15 * min(2 * _MAX_BARS, max(len(ap) for ap in found.values())) + 10,
        [
            {"m": number, "v": thousandths(np.array([ap.get(name, np.nan) for name in names]))}
            for number, ap in found.items()
        ],
        {"methods": chart_names(runs), "names": chart_names(names), "method": chosen},
        title=title("'AP of each class: ' + methods[method]"),
        transform=[
            {"filter": "datum.m == method"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}]},
            {"filter": "isValid(datum.p)"},
            *calculate(c="datum.k - 1", name="names[datum.c]", ap="datum.p / 10"),
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
        "class-ap", "AP of each class", alt, spec, note=note, width=520, max_width=840,
        **_one_at_a_time(runs, found, chosen),
    )  # fmt: skip


def class_changes(run: FinishedRun, label: str) -> Figure | None:
    """The AP of each class after its own task and after the last one, the largest loss first."""
    details = read_details(run)
    found = sorted(_changes(run, details), key=lambda each: each["b"] - each["a"]) if details else []
    if not details or not found:
        return None
    drawn = found if len(found) <= 2 * _MAX_CHANGES else found[:_MAX_CHANGES] + found[-_MAX_CHANGES:]
    styles = {"after its own task": (GRAY, "square"), "after the last task": (COLOURS[0], "circle")}
    color, shape = (
        {"type": "nominal", "title": None, "scale": {"domain": [*styles], "range": list(each)}}
        for each in zip(*styles.values(), strict=True)
    )
    x = {name: percent_channel(name, "AP (%)") for name in "ab"}
    points = [
        {
            "mark": {**POINT, "size": 60},
            "encoding": {"x": x[name], "color": {"datum": when, **color}, "shape": {"datum": when, **shape}},
        }
        for name, when in zip("ab", styles, strict=True)
    ]
    spec = chart_spec(
        16 * len(drawn) + 10,
        [{"c": c, **{key: each[key] for key in "tab"}} for c, each in enumerate(drawn)],
        {"method": chart_text(label, 60), "names": chart_names(each["name"] for each in drawn)},
        title=title("method"),
        transform=calculate(name="names[datum.c]", change="datum.b - datum.a"),
        encoding={
            "y": names_channel("c", {"grid": True}),
            "tooltip": tooltip(
                name="class", t="task", a=("AP after its own task (%)", ".1f"), b=("AP after the last task (%)", ".1f"),
                change=("change", "+.1f"),
            ),
        },
        layer=[
            {
                "mark": {"type": "rule", "color": GRAY, "strokeWidth": 2},
                "encoding": {"x": x["a"], "x2": {"field": "b"}},
            },
            *points,
        ],
    )  # fmt: skip
    alt = f"AP of {len(found)} classes after their own task and after the last task, for {chart_text(label, 60)}."
    for each, word, sign in ((found[0], "lost", -1), (found[-1], "gained", 1)):
        if sign * (each["b"] - each["a"]) > 0:
            alt += f" {chart_text(each['name'], 40)} {word} most: from {each['a']} to {each['b']} %."
    note = f"{seeds_note([run])} The classes of the last task are left out"
    first_task = details.tasks[0].task
    note += f", and those of the tasks before task {first_task}, learned in another run." if first_task > 1 else "."
    if len(drawn) < len(found):
        note += f" Of {len(found)} classes, the {_MAX_CHANGES} that lost most and the {_MAX_CHANGES} that gained most."
    return Figure(
        f"class-changes-{slug(label)}", "Classes that gained and lost", alt, spec, note=note, width=520,
        max_width=840,
    )  # fmt: skip


def _changes(run: FinishedRun, details: RunDetails) -> list[dict[str, Any]]:
    """For each class but those of the last task: its task, its AP (%) after that task and after the last one."""
    last, names, changes = details.tasks[-1], run.classes, []
    starts = np.cumsum([0, *run.sizes])
    for task in details.tasks[:-1]:
        for c in range(starts[task.task - 1], starts[task.task]):
            own, final = (rounded(100 * float(each.ap[c]), 1) for each in (task, last))
            if own is not None and final is not None:
                changes.append({"t": task.task, "a": own, "b": final, "name": names[c]})
    return changes


def precision_recall(runs: _Runs) -> Figure | None:
    """Precision over recall of a class after the last task, and the mean over the classes."""
    details, labels = _details(runs), list(runs)
    classes: dict[str, int] = {}
    for number in details:
        for name in runs[labels[number]].classes:
            classes.setdefault(name, len(classes) + 1)
    step = next(s for s in (1, 2, 4, 5, 10) if len(classes) * len(details) * (100 // s + 1) <= _MAX_POINTS or s == 10)
    values: list[dict[str, Any]] = []
    ap = np.full((len(classes) + 1, len(runs)), np.nan)
    for number, found in details.items():
        columns = [classes[name] for name in runs[labels[number]].classes]
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
    spec = chart_spec(
        320,
        values,
        {"methods": chart_names(runs), "names": names, "ap": [thousandths(row) for row in ap], "chosen": 0},
        title=title("'Class: ' + names[chosen]"),
        transform=[
            {"filter": "datum.c == chosen"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}], "groupby": ["m"]},
            *calculate(recall=f"(datum.k - 1) * {step}", precision="datum.p / 10"),
            *calculate(name="methods[datum.m]", score="ap[chosen][datum.m] / 10"),
        ],
        mark=LINE,
        encoding={
            "x": percent_channel("recall", "recall (%)", grid=False),
            "y": percent_channel("precision", "precision (%)"),
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
        {
            "methods": chart_names(runs),
            "errors": [rounded(errors.get(number), 3) for number in range(len(runs))],
            "method": chosen,
        },
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
        "reliability", "Reliability", alt, spec, note=note, width=440, max_width=560,
        **_one_at_a_time(runs, errors, chosen),
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
        {"methods": chart_names(runs), "threshold": 0.5},
        title=title("'false-positive rate (%) at threshold ' + format(threshold, '.2f')"),
        transform=calculate(rate="datum.v[round(threshold * 20) - 1]", name="methods[datum.m]"),
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


def _one_at_a_time(runs: _Runs, numbers: Iterable[int], chosen: int) -> dict[str, Any]:
    """The choice of a method by its number, if there are several, and a file for each."""
    options = tuple((number, chart_names(runs)[number]) for number in numbers)
    control = Control("method", "choice", "method", options, chosen)
    static = {f"-{slug(list(runs)[number])}": {"method": number} for number, _ in options}
    return {"controls": (control,) if len(options) > 1 else (), "static": static}


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
