"""Tables under the table of results: the figures of groups of classes, and the spread over class or task orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.report.columns import Column, Stat
from lifelabel.runs.finished import FinishedRun

__all__ = ["OrderSpread", "SubTable", "group_columns", "group_table", "order_table"]

_MAX_ORDERS = 10
"""A table of more orders has the figures of all of them together, and files have those of each."""
_METRIC = Column("mAP", "mAP", with_sd=False)

_Rows = Sequence[tuple[tuple[str, ...], Sequence[FinishedRun]]]
"""For each row of the table of results its first cells and its runs."""


@dataclass(frozen=True)
class SubTable:
    """A table as text: its title, a sentence that explains it, its heads, and its lines."""

    title: str
    note: str
    heads: list[str]
    lines: list[list[str]]
    left: int
    """The number of first columns that are text."""


# Groups of classes


def group_columns(runs: Sequence[FinishedRun]) -> tuple[Column, ...]:
    """The metrics of each group of classes that a run has, in the order of the first run that has it."""
    names = dict.fromkeys(name for run in runs for name in run.groups)
    return tuple(Column(f"groups_{name}_{metric}", f"{name} {metric} ↑") for name in names for metric in HEADLINE)


def group_table(head: Sequence[str], rows: _Rows, compact: bool = False) -> SubTable | None:
    """mAP, CF1 and OF1 of each group of classes, one line for each group of a row; None if no run has groups."""
    columns = [Column(name, f"{name} ↑") for name in HEADLINE]
    groups = dict.fromkeys(name for _, runs in rows for run in runs for name in run.groups)
    lines = []
    for cells, runs in rows:
        for group in groups:
            found = [run.groups.get(group, {}) for run in runs]
            stats = [Stat.from_values([scores.get(column.key) for scores in found]) for column in columns]
            texts = (column.text(stat, compact) for column, stat in zip(columns, stats, strict=True))
            lines.append([*cells, group, *texts])
    note = (
        "Groups of classes by their number of training images: a metric is over the classes of a group, on the whole "
        "test set."
    )
    heads = [*head, "classes", *(column.head for column in columns)]
    return SubTable("Groups of classes", note, heads, lines, len(head) + 1) if groups else None


# Orders


@dataclass(frozen=True)
class OrderSpread:
    """The mAP (%) of one row in each order, the mean over seeds, and its spread over the orders."""

    means: dict[tuple[int, int], Stat]
    over: Stat
    """Mean and standard deviation of the means of the orders."""
    smallest: float | None
    largest: float | None

    @staticmethod
    def from_runs(runs: Sequence[FinishedRun]) -> OrderSpread:
        orders = sorted({run.order for run in runs})
        means = {o: Stat.from_values([run.figures()["mAP"] for run in runs if run.order == o]) for o in orders}
        known = [stat.mean for stat in means.values() if stat.mean is not None and math.isfinite(stat.mean)]
        return OrderSpread(means, Stat.from_values(known), min(known, default=None), max(known, default=None))

    def figures(self) -> dict[str, float | int | None]:
        """Plain numbers by name, for files."""
        found: dict[str, float | int | None] = {}
        for order, stat in self.means.items():
            name = _order_name(order).replace(" ", "_").replace(",", "")
            found |= {f"mAP_{name}_mean": stat.mean, f"mAP_{name}_n": stat.n}
        spread: dict[str, Any] = {"mean": self.over.mean, "sd": self.over.sd, "min": self.smallest, "max": self.largest}
        return found | {f"mAP_orders_{name}": value for name, value in spread.items()} | {"orders": self.over.n}


def order_table(head: Sequence[str], rows: _Rows) -> SubTable | None:
    """The mAP in each order and its spread over the orders; None if there is one order only."""
    orders = sorted({run.order for _, runs in rows for run in runs})
    if len(orders) < 2:
        return None
    shown = orders if len(orders) <= _MAX_ORDERS else []
    lines = []
    for cells, runs in rows:
        spread, none = OrderSpread.from_runs(runs), Stat(None, None, 0)
        ends = [Stat(value, None, 1) for value in (spread.over.sd, spread.smallest, spread.largest)]
        stats = [*(spread.means.get(order, none) for order in shown), spread.over, *ends]
        lines.append([*cells, *(_METRIC.text(stat) for stat in stats)])
    kinds = {kind for order in orders for kind, number in zip(("class", "task"), order, strict=True) if number}
    kind = f"{kinds.pop()} order" if len(kinds) == 1 else "order"
    note = (
        f"mAP by {kind}: the mean over the seeds in each order, and over the orders the mean of these, their sample "
        "standard deviation, the smallest and the largest."
    )
    heads = [*head, *map(_order_name, shown), "mean", "sd", "smallest", "largest"]
    return SubTable(f"mAP ↑ by {kind}", note, heads, lines, len(head))


def _order_name(order: tuple[int, int]) -> str:
    """The name of an order of classes and tasks.

    >>> _order_name((0, 0)), _order_name((2, 0)), _order_name((2, 1))
    ('order 0', 'order 2', 'class order 2, task order 1')
    """
    classes, tasks = order
    return f"class order {classes}, task order {tasks}" if classes and tasks else f"order {classes or tasks}"
