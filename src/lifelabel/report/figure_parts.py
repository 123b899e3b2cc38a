"""Parts that the figures of runs share: names and styles of methods, and numbers with few digits."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.report.vega import Control, chart_text
from lifelabel.runs.finished import FinishedRun
from lifelabel.runs.names import METRICS
from lifelabel.utils.text import task_cell

__all__ = [
    "COLOURS", "GRAY", "SHAPES", "TASK_LABEL", "best_method", "chart_names", "method_choice", "method_styles",
    "methods_param", "reading", "rounded", "seeds_note", "task_cells_param", "thousandths", "title",
]  # fmt: skip

COLOURS = ("#2f7ed8", "#d95f02", "#1b9e77", "#cc3d4a", "#8f63c9", "#9a7420", "#0f94b8", "#d4559b")
GRAY = "#858b96"
"""Like each of the colours, it has a contrast of at least 3 with white and with the background of the dark page."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
_DASHES = ([1, 0], [6, 2], [2, 2])
_JOINT_DASH = [8, 4]


def chart_names(names: Iterable[object]) -> list[str]:
    """Names of classes or methods as an array of a figure. Where they are drawn, they are found by their number."""
    return [chart_text(name, 48) for name in names]


TASK_LABEL = "taskCells[datum.value - 1]"
"""The label of a task on an axis, with `task_cells_param`."""


def task_cells_param(names: Sequence[str], tasks: int) -> dict[str, Any]:
    """The name of each of so many tasks, or its number, as an array of a figure."""
    return {"name": "taskCells", "value": [chart_text(task_cell(number, names), 20) for number in range(1, tasks + 1)]}


def methods_param(names: Iterable[str]) -> dict[str, Any]:
    return {"name": "methods", "value": chart_names(names)}


def best_method(runs: Iterable[FinishedRun], numbers: Iterable[int]) -> int:
    """The number of the run with the highest mAP, of those that are not upper bounds if there are any."""
    found = list(runs)
    return max(numbers, key=lambda number: (not found[number].joint, found[number].figures()["mAP"] or 0.0))


def method_choice(runs: Mapping[str, FinishedRun], numbers: Sequence[int], chosen: int) -> tuple[Control, ...]:
    """The choice of a method by its number, if there are several."""
    names = chart_names(runs)
    options = tuple((number, names[number]) for number in numbers)
    return (Control("method", "choice", "method", options, chosen),) if len(numbers) > 1 else ()


def method_styles(joint: Sequence[bool], numbers: Sequence[int], label: str = "methods[datum.value]") -> dict[str, Any]:
    """The channels color, strokeDash and shape of the field `m`, the number of a method. A joint one is gray, dashed.

    `numbers` are the methods in the legend, and `label` is the expression for their text there.
    """
    rounds = {number: number // len(COLOURS) for number in numbers}
    ranges = {
        "color": [GRAY if joint[n] else COLOURS[n % len(COLOURS)] for n in numbers],
        "strokeDash": [_JOINT_DASH if joint[n] else _DASHES[rounds[n] % len(_DASHES)] for n in numbers],
        "shape": [SHAPES[(n + rounds[n]) % len(SHAPES)] for n in numbers],
    }
    # from the width of the container: `width` is larger before the axes are laid out, and the legend would be cut off
    columns = "((containerSize()[0] || width) < 480 ? 1 : (containerSize()[0] || width) < 860 ? 2 : 3)"
    legend = {
        "title": None, "labelExpr": label, "labelLimit": {"expr": f"width / {columns} - 30"}, "symbolOpacity": 1,
        "columns": {"expr": columns},
    }  # fmt: skip
    return {
        channel: {"field": "m", "type": "nominal", "scale": {"domain": [*numbers], "range": values}, "legend": legend}
        for channel, values in ranges.items()
    }


def title(expression: str) -> dict[str, Any]:
    """The line above a chart: the text that a Vega expression gives, cut at the width of the chart."""
    return {"text": {"expr": expression}, "limit": {"expr": "width + 40"}}


def rounded(value: float | None, digits: int) -> float | None:
    """A number for a chart; None if it is unknown or not finite."""
    return None if value is None or not math.isfinite(value) else round(float(value), digits)


def thousandths(values: np.ndarray) -> list[int | None]:
    """Fractions as whole thousandths, row by row: fewer digits in the page. None: not finite.

    >>> thousandths(np.array([0.1234, np.nan, 1]))
    [123, None, 1000]
    """
    flat = np.asarray(values, dtype=float).ravel().tolist()
    return [round(1000 * min(max(value, -9), 9)) if math.isfinite(value) else None for value in flat]


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
