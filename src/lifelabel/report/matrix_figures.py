"""The correlation matrix of a run: as a heat map, as a graph of the labels, and in words."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lifelabel.report.score_figures import seeds_note
from lifelabel.report.vega import (
    COLOURS,
    GRAY,
    SHAPES,
    Control,
    Figure,
    calculate,
    chart_names,
    chart_spec,
    chart_text,
    slug,
    thousandths,
    title,
    tooltip,
)
from lifelabel.runs.finished import FinishedRun
from lifelabel.utils.text import task_text

_MAX_CLASSES = 120
"""Of more classes, those with the strongest relations are drawn."""
_MIN_RELATION = 0.05
"""Weaker relations are neither lines of the graph nor in the text."""
_MAX_LINES = 400
"""Lines of the graph after each task."""
_NAMES = 120
"""Pixels for the names of the rows."""
_MAX_SERIES = 40
"""Up to this many classes, the matrix after each task has its own file. One of a larger matrix takes a second."""


class Relation(NamedTuple):
    """P(class `i` | class `j`), as the matrix after the last task has it, and in truth if that is known."""

    i: str
    j: str
    p: float
    truth: float | None


class Change(NamedTuple):
    """An entry of two old classes, P(`i` | `j`), that `task` changed."""

    i: str
    j: str
    task: str
    before: float
    after: float


class _Matrices(NamedTuple):
    """The matrices of a run by number of the task, restricted to the classes that are drawn."""

    names: list[str]
    task_of: np.ndarray
    """The task of each class, from 1."""
    by_task: dict[int, np.ndarray]
    truth: np.ndarray | None
    note: str
    """Which classes are drawn, if not all."""
    task_texts: list[str]
    """How charts call each task, from the first."""

    @property
    def tasks(self) -> list[int]:
        return list(self.by_task)

    @property
    def height(self) -> int:
        """The pixels of all rows."""
        return len(self.names) * max(6, min(36, 560 // len(self.names)))

    @property
    def wide(self) -> int:
        """The width in pixels from which a chart shows the true matrix beside the other."""
        return max(400, self.height * 5 // 4)

    def params(self, label: str) -> dict[str, Any]:
        """The parameters of a figure, with the last task."""
        return {
            "task": self.tasks[-1], "method": chart_text(label, 60), "names": self.names,
            "taskOf": self.task_of.tolist(), "taskTexts": self.task_texts,
        }  # fmt: skip

    def task_slider(self) -> list[Control]:
        """The choice of a task, if there are several."""
        first, last = self.tasks[0], self.tasks[-1]
        slider = Control("task", "slider", "after task", (first, last, 1), last, play=True)
        return [slider] if len(self.tasks) > 1 else []


def _run_matrices(run: FinishedRun) -> _Matrices | None:
    """The matrices of a run, with the classes of the strongest relations if there are too many to draw."""
    arrays = run.matrices
    if not arrays or len(arrays["classes"]) < 2:
        return None
    numbers, total = range(1, len(run.tasks) + 1), sum(run.sizes)
    task_of = np.repeat(numbers, run.sizes)[arrays["kept"]]
    last = _off_diagonal(arrays[f"task_{len(run.tasks)}"])
    strength = np.maximum(last.max(0), last.max(1))
    kept = np.sort(np.argsort(-strength, kind="stable")[:_MAX_CLASSES])
    by_task = {}
    for task in numbers:
        if f"task_{task}" in arrays:
            inside = kept[task_of[kept] <= task]
            by_task[task] = arrays[f"task_{task}"][np.ix_(inside, inside)].astype(float)
    note = f"The {len(kept)} classes with the strongest relations, of {total}, in the order of the tasks."
    truth = arrays["truth"][np.ix_(kept, kept)].astype(float) if "truth" in arrays else None
    names = chart_names(arrays["classes"][kept].tolist())
    texts = [chart_text(task_text(number, run.task_names), 30) for number in numbers]
    return _Matrices(names, task_of[kept], by_task, truth, note if len(kept) < total else "", texts)


def _off_diagonal(matrix: np.ndarray) -> np.ndarray:
    """The matrix with -1 on its diagonal and where it is unknown."""
    return np.where(np.eye(len(matrix), dtype=bool) | ~np.isfinite(matrix), -1.0, matrix)


def _strongest_text(run: FinishedRun) -> str:
    found = strongest_relations(run, 3)
    each = "; ".join(f"{chart_text(r.i, 40)} given {chart_text(r.j, 40)} {r.p:.2f}" for r in found)
    return f" The strongest: {each}." if each else ""


def strongest_relations(run: FinishedRun, count: int = 12) -> list[Relation]:
    """The relations of the highest probability, one of each pair of classes. Empty without a matrix."""
    arrays = run.matrices
    if not arrays:
        return []
    last = _off_diagonal(arrays[f"task_{len(run.tasks)}"])
    last = np.where(last >= last.T, last, -1)
    last[np.triu(last == last.T)] = -1  # of two equal directions, one
    order = np.argsort(-last, axis=None, kind="stable")[:count]
    names, truth = arrays["classes"].tolist(), arrays.get("truth")
    found = []
    for i, j in zip(*np.unravel_index(order, last.shape), strict=True):
        if last[i, j] >= _MIN_RELATION:
            known = None if truth is None or not np.isfinite(truth[i, j]) else float(truth[i, j])
            found.append(Relation(names[i], names[j], float(last[i, j]), known))
    return found


def changed_relations(run: FinishedRun, most: int = 20) -> tuple[int, list[Change]]:
    """The number of entries of old classes that a later task changed, and the `most` largest changes.

    Only the classes in `FinishedRun.matrices` are compared.
    """
    arrays = run.matrices
    names, count, changes = arrays["classes"].tolist() if arrays else [], 0, []
    tasks = [task for task in range(1, len(run.tasks) + 1) if f"task_{task}" in arrays]
    for earlier, task in pairwise(tasks):
        before, after = arrays[f"task_{earlier}"], arrays[f"task_{task}"]
        size = len(before)
        different = ~np.isclose(before, after[:size, :size], rtol=0, atol=1e-6, equal_nan=True)
        np.fill_diagonal(different, False)
        count += int(different.sum())
        sizes = np.nan_to_num(np.abs(after[:size, :size] - before.astype(float)))  # NaN: known in one matrix only
        largest = np.argsort(np.where(different, -sizes, 1), axis=None, kind="stable")[: min(most, different.sum())]
        changes += [
            Change(names[i], names[j], task_text(task, run.task_names), float(before[i, j]), float(after[i, j]))
            for i, j in zip(*np.unravel_index(largest, different.shape), strict=True)
        ]
    order = np.argsort([-np.nan_to_num(abs(change.after - change.before)) for change in changes], kind="stable")
    return count, [changes[n] for n in order[:most]]


def compared_classes(run: FinishedRun) -> str:
    """Which classes `changed_relations` compares, if not all."""
    total, compared = sum(run.sizes), len(run.matrices.get("kept", ()))
    text = f"Only the {compared:,} classes with the strongest relations, of {total:,}, are compared."
    return text if compared < total else ""


# The matrix as a heat map


def matrix(run: FinishedRun, label: str) -> Figure | None:
    """The correlation matrix after each task; where the truth is known, beside it, and the error."""
    found = _run_matrices(run)
    if not found:
        return None
    tasks, count, known = found.tasks, len(found.names), found.truth is not None
    height, wide = found.height, found.wide
    shown = "look == 'truth' ? 'the true P(row | column)' : look == 'error' ? 'P(row | column) minus the true one' : "
    shown += "'P(row | column)' + (look == 'both' ? ', and the true one on the right' : '')"
    spec = chart_spec(
        height,
        None,
        {
            **found.params(label),
            "view": "both" if known else "matrix",
            "look": {"expr": f"view == 'both' && width < {wide} ? 'matrix' : view"},
            "sizes": [int((found.task_of <= task).sum()) for task in range(tasks[-1] + 1)],
            "truth": thousandths(found.truth) if found.truth is not None else [],
        },
        title=title(f"method + ', after ' + taskTexts[task - 1] + ': ' + ({shown})"),
        layer=[_cells(found), *_borders(found)],
    )
    controls = found.task_slider()
    in_files = tasks if count <= _MAX_SERIES else tasks[-1:]
    static: dict[str, dict[str, Any]] = {f"-task-{task}": {"task": task, "view": "matrix"} for task in in_files}
    note = f"{seeds_note([run])} {found.note}".strip()
    if known:
        views = {"both": "matrix and truth", "matrix": "matrix", "truth": "truth", "error": "error"}
        controls.append(Control("view", "choice", "show", tuple(views.items()), "both"))
        static |= {f"-{view}": {"view": view} for view in ("truth", "error")}
        static["-beside-truth"] = {"view": "both", "width": max(2 * height, wide) + _NAMES}
        note += " On a narrow screen, matrix and truth are shown one at a time."
    alt = f"Heat map of P(row | column) for {count} classes after each of {len(tasks)} tasks, for "
    alt += f"{chart_text(label, 60)}.{_strongest_text(run)}"
    return Figure(
        f"matrix-{slug(label)}", "Correlation matrix", alt, spec, tuple(controls), note, static,
        width=max(360, height + _NAMES), max_width=min(1100, max(560, (10 if known else 6) * height // 5 + _NAMES)),
    )  # fmt: skip


def _bands(found: _Matrices, channel: str) -> dict[str, Any]:
    """The scale of the classes in rows and columns. In a wide chart, the columns of the true matrix follow."""
    count = len(found.names)
    domain: Any = list(range(count))
    if channel == "x" and found.truth is not None:
        domain = {"expr": f"sequence(0, width < {found.wide} ? {count} : {2 * count + 1})"}
    return {"type": "ordinal", "scale": {"domain": domain, "paddingInner": 0, "paddingOuter": 0}}


def _cells(found: _Matrices) -> dict[str, Any]:
    """The cells of the matrix after the chosen task, without the diagonal, which is 1 by definition."""
    count, known = len(found.names), found.truth is not None
    no_name = f"datum.value >= {count} && (look != 'both' || datum.value == {count})"
    axis = {
        "labelExpr": f"{no_name} ? '' : names[datum.value % {count + 1}]",
        "labelFontSize": max(6, min(11, found.height // count)), "labelOverlap": "greedy", "ticks": False,
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
    names = [{"field": each, "type": "nominal"} for each in ("row", "column")]
    against_truth = tooltip(b=("truth", ".3f"), e=("error", "+.3f")) if known else []
    return {
        "data": {"values": _groups(found)},
        "transform": [
            {"filter": "datum.from <= task && task <= datum.to"},
            {"flatten": ["v"], "as": ["p"]},
            {"window": [{"op": "row_number", "as": "k"}]},
            *calculate(i="floor((datum.k - 1) / datum.size)", j="(datum.k - 1) % datum.size"),
            {"filter": "datum.i != datum.j && datum.i < sizes[task] && datum.j < sizes[task]"},
            *calculate(
                a="isValid(datum.p) ? datum.p / 1000 : null",
                q=f"truth[datum.i * {count} + datum.j]",
                b="isValid(datum.q) ? datum.q / 1000 : null",
                e="isValid(datum.a) && isValid(datum.b) ? datum.a - datum.b : null",
                sides="look == 'both' ? [0, 1] : look == 'truth' ? [1] : [0]",
            ),
            {"flatten": ["sides"], "as": ["side"]},
            *calculate(
                shown="look == 'error' ? datum.e : datum.side ? datum.b : datum.a",
                place=f"datum.j + (look == 'both' ? {count + 1} * datum.side : 0)",
            ),
            {"filter": "isValid(datum.shown)"},
            *calculate(
                row="names[datum.i] + ' (' + taskTexts[taskOf[datum.i] - 1] + ')'",
                column="names[datum.j] + ' (' + taskTexts[taskOf[datum.j] - 1] + ')'",
            ),
        ],
        "mark": "rect",
        "encoding": {
            "x": {
                **_bands(found, "x"), "field": "place", "title": "column (given)", "axis": {**axis, "labelAngle": -90},
            },
            "y": {**_bands(found, "y"), "field": "i", "title": "row", "axis": axis},
            "color": colour,
            "tooltip": [*names, *tooltip(a=("P(row | column)", ".3f")), *against_truth],
        },
    }  # fmt: skip


def _borders(found: _Matrices) -> list[dict[str, Any]]:
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


def _groups(found: _Matrices) -> list[dict[str, Any]]:
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


# The graph of the labels


def label_graph(run: FinishedRun, label: str) -> Figure | None:
    """The strongest relations between classes as lines between points on a circle."""
    found = _run_matrices(run)
    if not found:
        return None
    count = len(found.names)
    lines, left_out = _lines(found)
    strengths = sorted((line["p"] for line in lines if line["to"] == found.tasks[-1]), reverse=True)
    default = _slider_value(strengths[min(len(strengths) - 1, count)] / 1000) if strengths else 0.5
    spec = chart_spec(
        500,
        None,
        {**found.params(label), "threshold": default},
        title=title("method + ', after ' + taskTexts[task - 1] + ': P of at least ' + format(threshold, '.2f')"),
        layer=[_edges(lines, count), *_nodes(found)],
    )
    alt = f"Graph of {count} labels on a circle in the order of the tasks, for {chart_text(label, 60)}: a line between "
    alt += f"two labels is wider the higher P(one | other) is.{_strongest_text(run)}"
    slider = Control("threshold", "slider", "P of at least", (_MIN_RELATION, 1, 0.05), default)
    notes = [seeds_note([run]), "A line has the higher P of both directions.", left_out, found.note]
    return Figure(
        f"label-graph-{slug(label)}", "Label graph", alt, spec, (*found.task_slider(), slider),
        " ".join(filter(None, notes)), width=540, max_width=700,
    )  # fmt: skip


def _edges(lines: list[dict[str, Any]], count: int) -> dict[str, Any]:
    strength = {"field": "strength", "type": "quantitative", "legend": None}
    return {
        "data": {"values": lines},
        "transform": [
            {"filter": "datum.from <= task && task <= datum.to && datum.p >= 1000 * threshold - 0.01"},
            *calculate(strength="datum.p / 1000", pair="names[datum.i] + ' given ' + names[datum.j]"),
            *calculate(back="isValid(datum.q) ? datum.q / 1000 : null"),
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
            "tooltip": tooltip(pair="pair", strength=("P", ".3f"), back=("P in the other direction", ".3f")),
        },
    }


def _nodes(found: _Matrices) -> list[dict[str, Any]]:
    """A point for each class of the tasks so far, by task, and its name further from the centre."""
    count, tasks = len(found.names), sorted(set(found.task_of.tolist()))
    ranges = {
        "color": [COLOURS[n % len(COLOURS)] for n in range(len(tasks))],
        "shape": [SHAPES[(n + n // len(COLOURS)) % len(SHAPES)] for n in range(len(tasks))],
    }
    nodes = {
        "data": {"sequence": {"start": 0, "stop": count, "as": "i"}},
        "transform": [
            *calculate(task="taskOf[datum.i]"),
            {"filter": "datum.task <= task"},
            *calculate(name="names[datum.i]", taskText="taskTexts[datum.task - 1]"),
            *_place("i", count),
            *calculate(xo="1.06 * datum.xi", yo="1.06 * datum.yi"),
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
            "tooltip": tooltip(name="class", taskText="task"),
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
    return calculate(**{f"x{name}": f"sin({angle})", f"y{name}": f"cos({angle})"})


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


def _lines(found: _Matrices) -> tuple[list[dict[str, Any]], str]:
    """The lines of the label graph, from the first to the last task in which they are equal; what is left out."""
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    cut, earlier = False, 0
    for task, values in found.by_task.items():
        known = _off_diagonal(values)
        pairs = np.argwhere((known >= _MIN_RELATION) & ((known > known.T) | (np.triu(known == known.T))))
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
    return min(0.95, max(_MIN_RELATION, round(round(value / 0.05) * 0.05, 2)))
