"""Tables of runs in the layout of the paper: for the terminal, Markdown, CSV, LaTeX and JSON.

A row is a method or a variant of one. Its figures are mean ± sample standard deviation over its runs.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from lifelabel.config.config import short_value
from lifelabel.config.run_options import VARIED
from lifelabel.errors import UserError
from lifelabel.metrics.over_tasks import CONVENTIONS, HEADLINE, PAPER, Convention
from lifelabel.report.text_tables import (
    Column,
    Line,
    Stat,
    Table,
    markdown_lines,
    paragraphs,
    rich_table,
    tabular,
    tex,
)
from lifelabel.runs.details import read_details
from lifelabel.runs.finished import RUN_FACTS, FinishedRun, common_options, facts, group_by_label, provenance
from lifelabel.runs.names import DETAILS, MATRICES
from lifelabel.utils.files import write_text
from lifelabel.utils.markdown import escape
from lifelabel.utils.text import BELOW_ZERO, counted, printable

_MAX_ORDERS = 10
"""A table of more orders has the figures of all of them together, and files have those of each."""
_METRICS_NOTE = "CF1 is the harmonic mean of CP and CR, at threshold 0.5."
_COSTS_NOTE = (
    "Stored: what a method stores from task to task in addition to its network (images; bytes of everything). Seconds "
    "include the evaluation. Peak memory is that of the device if there is one, otherwise that of the process."
)
_ERRORS_NOTE = (
    "Error of the matrix: mean absolute error of P(C_i|C_j), i ≠ j, against the true matrix of the stream, by block."
)
_COSTS = (
    Column("stored images", 0, 1, False, "stored", "stored_images"),
    Column("stored MB", 1, 1e6, False, "MB", "stored_bytes"),
    Column("seconds", 0, 1, False, "s", "seconds"),
    Column("images/s", 0, 1, False, "img/s", "images_per_second"),
    Column("peak GB", 2, 1e9, False, "GB", "peak_memory_bytes"),
)
_ERRORS = tuple(
    Column(block.replace("_", "-"), 3, key=f"acm_error_{block}") for block in ("all", "intra", "old_new", "new_old")
)


def score_columns(convention: Convention) -> tuple[Column, ...]:
    """The columns of mAP, CF1 and OF1. Their heads state the convention."""
    return tuple(
        Column(f"{name}, {convention.head} ↑", short_head=f"{name} ↑ {convention.head}", key=convention.score(name))
        for name in HEADLINE
    )


def forgetting_columns(convention: Convention) -> tuple[Column, ...]:
    """The columns of forgetting, if the convention has it."""
    keys = filter(None, map(convention.forgetting, HEADLINE))
    return tuple(Column((convention.of_forgetting or "").replace("_", " ") + "↓", key=key) for key in keys)


_COLUMNS = (
    *(column for each in CONVENTIONS.values() for column in (*score_columns(each), *forgetting_columns(each))),
    *_COSTS,
    *_ERRORS,
)


def find_column(key: str) -> Column:
    """The column of a figure, by its name in files.

    >>> find_column("stored_bytes").head
    'stored MB'
    """
    return next(each for each in _COLUMNS if each.key == key)


def text_columns(heads: Iterable[str]) -> tuple[Column, ...]:
    return tuple(Column(head, is_text=True) for head in heads)


# Rows


@dataclass(frozen=True)
class Failure:
    """A planned run that is not finished, and why."""

    name: str
    folder: Path
    reason: str


@dataclass(frozen=True)
class Row:
    """One row: its first cells, the runs that its figures are computed from, and the number of planned runs."""

    cells: tuple[str, ...]
    runs: tuple[FinishedRun, ...]
    planned: int
    joint: bool = False
    """True for an upper bound, trained on all tasks at once: it is not compared with the others."""

    @property
    def name(self) -> str:
        return " / ".join(self.cells)

    @functools.cached_property
    def stats(self) -> dict[str, Stat]:
        values = [run.figures() for run in self.runs]
        keys = dict.fromkeys([*(column.key for column in _COLUMNS), *(key for value in values for key in value)])
        return {key: Stat.from_values(value.get(key) for value in values) for key in keys}

    @functools.cached_property
    def first_run(self) -> FinishedRun:
        """The run that figures of one run show: that of the first order and the lowest seed.

        Damaged parts of its folder are left out.
        """
        run = min(self.runs, key=lambda run: (run.order, run.seed))
        return dataclasses.replace(run, unread=_damage(run))

    @property
    def n(self) -> str:
        """The number of finished runs, and that of planned ones if some are missing."""
        return f"{len(self.runs)}" if len(self.runs) == self.planned else f"{len(self.runs)}/{self.planned}"

    @property
    def passes(self) -> str:
        """The number of passes over the images of each task."""
        return ", ".join(str(epochs) for epochs in sorted({run.epochs for run in self.runs})) or "–"

    @property
    def image_size(self) -> str:
        """Pixels of a side of the images of its runs."""
        return ", ".join(str(size) for size in sorted({run.image_size for run in self.runs if run.image_size})) or "–"

    def stat(self, key: str) -> Stat:
        """The statistics of one figure. Runs may lack the metrics of plug-ins that other rows have."""
        return self.stats.get(key) or Stat.from_values([])


@dataclass(frozen=True)
class ResultTable:
    """A table: its title, the heads of its first columns, its rows, and the kinds of figures that it has."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    failures: tuple[Failure, ...] = ()
    missing: tuple[str, ...] = ()
    """The names of planned runs that were not started."""
    forgetting: bool = True
    costs: bool = True
    errors: bool = False
    convention: Convention = PAPER
    """How its scores are summarised."""

    @staticmethod
    def from_runs(runs: Sequence[FinishedRun], convention: Convention = PAPER) -> ResultTable:
        """One row for each label, over its seeds and orders."""
        groups = group_by_label(runs)
        rows = tuple(Row((name,), tuple(group), len(group), group[0].joint) for name, group in groups.items())
        streams = ", ".join(sorted({run.stream for run in runs}))
        return ResultTable(f"Runs on {streams}", ("method",), rows, errors=True, convention=convention)

    @property
    def scores(self) -> tuple[Column, ...]:
        return score_columns(self.convention)

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for row in self.rows for run in row.runs]

    @functools.cached_property
    def metric_columns(self) -> tuple[Column, ...]:
        """One column for each metric of a plug-in."""
        return tuple(Column(name, 3, key=name) for name in sorted({n for run in self.runs for n in run.plugin_metrics}))

    @property
    def has_passes(self) -> bool:
        """Whether a run learned its images in several passes. Then every table states their number."""
        return any(run.epochs > 1 for run in self.runs)

    @property
    def has_errors(self) -> bool:
        return self.errors and any(row.stats["acm_error_all"].n for row in self.rows)


def _damage(run: FinishedRun) -> dict[str, str]:
    """The damaged parts of a run folder that its table does not need, and what is wrong with them."""
    found = {}
    readers: dict[str, Callable[[], object]] = {MATRICES: lambda: run.matrices, DETAILS: lambda: read_details(run)}
    for name, read in readers.items():
        try:
            read()
        except UserError as error:
            found[name] = str(error)
    return found


def one_line(run: FinishedRun) -> str:
    """The result of one run on one line."""
    stats = Row(("",), (run,), 1).stats
    columns = {name: find_column(name) for name in HEADLINE} | {"forgetting": find_column("forgetting_mAP")}
    figures = "  ".join(f"{name} {column.text(stats[column.key])}" for name, column in columns.items())
    skipped = sum(run.skipped.values())
    more = [f"{counted(skipped, 'images')} skipped"] if skipped else []
    more += [f"{run.epochs} passes"] if run.epochs > 1 else []
    return "  ".join([f"{figures} ({BELOW_ZERO})" if (stats["forgetting_mAP"].mean or 0) < 0 else figures, *more])


# The tables


def main_table(table: ResultTable) -> Table:
    """The figures of each row. The forgetting of a row is on a separate line after it."""
    passes = (Column("passes"),) if table.has_passes else ()
    others = (*table.metric_columns, *(_COSTS if table.costs else ()))
    texts = text_columns(table.head)
    of_forgetting = forgetting_columns(table.convention) if table.forgetting else ()
    lines = []
    for row in table.rows:
        scores = [row.stats[column.key] for column in table.scores]
        counts = [row.n, *([row.passes] if passes else [])]
        bold = frozenset(n for n, column in enumerate(table.scores, len(texts)) if is_best(table, row, column))
        lines.append(Line([*row.cells, *scores, *counts, *(row.stat(column.key) for column in others)], bold))
        if any(row.stats[column.key].n for column in of_forgetting):
            heads = [""] * len(texts)
            heads[len(texts) // 2] = of_forgetting[0].head.capitalize()
            forgetting = [row.stats[column.key] for column in of_forgetting]
            lines.append(Line([*heads, *forgetting, *[""] * (len(counts) + len(others))], is_second=True))
    return Table((*texts, *table.scores, Column("n"), *passes, *others), tuple(lines))


def error_table(table: ResultTable) -> Table:
    """The error of the matrix by block."""
    return _stats_table(table, _ERRORS, "Error of the matrix", "error of the matrix")


def cost_table(table: ResultTable) -> Table:
    """What each row costs."""
    return _stats_table(table, _COSTS)


def _stats_table(table: ResultTable, columns: tuple[Column, ...], title: str = "", short_title: str = "") -> Table:
    lines = (Line([*row.cells, *(row.stat(column.key) for column in columns)]) for row in table.rows)
    return Table((*text_columns(table.head), *columns), tuple(lines), title, short_title, has_short_numbers=False)


def is_best(table: ResultTable, row: Row, column: Column) -> bool:
    """Whether the column is a score, and the row has the highest mean of several lifelong rows."""
    if row.joint or column.key not in {score.key for score in table.scores}:
        return False
    means = [mean for each in table.rows if not each.joint and (mean := each.stat(column.key).mean) is not None]
    return len(means) > 1 and row.stat(column.key).mean == max(means)


def sub_tables(table: ResultTable) -> list[Table]:
    """The tables of groups of classes and of orders, if the runs have several of them."""
    return [each for each in (_group_table(table), _order_table(table)) if each]


def _group_table(table: ResultTable) -> Table | None:
    """mAP, CF1 and OF1 of each group of classes, one line for each group of a row; None if no run has groups."""
    groups = dict.fromkeys(name for run in table.runs for name in run.groups)
    lines = [
        Line([*row.cells, group, *(row.stat(_group_key(group, metric)) for metric in HEADLINE)])
        for row in table.rows
        for group in groups
    ]
    note = (
        "Groups of classes by their number of training images: a metric is over the classes of a group, after the last "
        "task, on the whole test set."
    )
    columns = (*text_columns([*table.head, "classes"]), *score_columns(PAPER))
    return Table(columns, tuple(lines), "Groups of classes", note=note) if groups else None


def _group_key(group: str, metric: str) -> str:
    """The name of a metric of a group in `FinishedRun.figures`."""
    return f"groups_{group}_{metric}"


def _order_table(table: ResultTable) -> Table | None:
    """The mAP in each order and its spread over the orders; None if there is one order only."""
    orders = sorted({run.order for run in table.runs})
    if len(orders) < 2:
        return None
    shown = orders if len(orders) <= _MAX_ORDERS else []
    lines = []
    for row in table.rows:
        means, spread = _order_means(row, table.scores[0].key)
        stats = [means.get(order, Stat(None, None, 0)) for order in shown]
        lines.append(Line([*row.cells, *stats, *(Stat(value, None, 1) for value in spread.values())]))
    kinds = {kind for order in orders for kind, number in zip(("class", "task"), order, strict=True) if number}
    kind = f"{kinds.pop()} order" if len(kinds) == 1 else "order"
    note = (
        f"mAP by {kind}: the mean over the seeds in each order, and over the orders the mean of these, their sample "
        "standard deviation, the smallest and the largest."
    )
    heads = [*map(_order_name, shown), "mean", "sd", "smallest", "largest"]
    columns = (*text_columns(table.head), *(Column(head, with_sd=False) for head in heads))
    return Table(columns, tuple(lines), f"{table.scores[0].head} by {kind}", note=note, has_short_numbers=False)


def _order_means(row: Row, key: str) -> tuple[dict[tuple[int, int], Stat], dict[str, float | None]]:
    """A figure of a row in each order, and over the orders the spread of the means."""
    orders = sorted({run.order for run in row.runs})
    means = {o: Stat.from_values(run.figures()[key] for run in row.runs if run.order == o) for o in orders}
    known = [stat.mean for stat in means.values() if stat.mean is not None]
    over = Stat.from_values(known)
    return means, {
        "mean": over.mean, "sd": over.sd, "min": min(known, default=None), "max": max(known, default=None),
    }  # fmt: skip


def _order_name(order: tuple[int, int]) -> str:
    """The name of an order of classes and tasks.

    >>> _order_name((0, 0)), _order_name((2, 0)), _order_name((2, 1))
    ('order 0', 'order 2', 'class order 2, task order 1')
    """
    classes, tasks = order
    return f"class order {classes}, task order {tasks}" if classes and tasks else f"order {classes or tasks}"


def _tables_below(table: ResultTable) -> list[Table]:
    """The tables under that of the results."""
    return [*([error_table(table)] if table.has_errors else []), *sub_tables(table)]


# The text under the tables


def notes(table: ResultTable) -> list[str]:
    """The sentences under the table: how it was measured, what differs between rows, and what is missing."""
    lines = measurement_notes(table)
    for row in table.rows:
        damage = row.first_run.unread.values() if row.runs else ()
        lines += [f"NOT everything of {row.name} is in the report: {reason}." for reason in damage]
    if table.metric_columns:
        names = ", ".join(column.key for column in table.metric_columns)
        lines.append(f"Metrics of plug-ins, in their own unit: {names}.")
    return [
        *lines,
        *(each.note for each in sub_tables(table)),
        metrics_note(table),
        *([_COSTS_NOTE] if table.costs else []),
        *([_ERRORS_NOTE] if table.has_errors else []),
    ]


def metrics_note(table: ResultTable) -> str:
    """What the scores are."""
    return f"{table.convention.note} {_METRICS_NOTE}"


def measurement_notes(table: ResultTable) -> list[str]:
    """Where and with which options the runs were made, and what differs between rows."""
    lines = [provenance(table.runs), _same_stream(table.runs), *_fairness(table)]
    if any(len(row.runs) < row.planned for row in table.rows):
        lines.append("n: finished runs / planned runs, where they differ.")
    if len({row.runs[0].has_preset for row in table.rows if row.runs}) > 1:
        names = ", ".join(row.name for row in table.rows if row.runs and not row.runs[0].has_preset)
        lines.append(f"NOT equal: these have no preset, and the default options: {names}.")
    for row in table.rows:
        train, test = (sum(run.skipped[split] for run in row.runs) for split in ("train", "test"))
        if train or test:
            lines.append(
                f"NOT all images: {row.name} skipped {train:,} training and {test:,} test images that could not be "
                f"read, in {counted(len(row.runs), 'runs')}."
            )
        for run in row.runs:
            if run.changed_options:
                lines.append(f"NOT the same options in all steps: {run.path.name}: {'; '.join(run.changed_options)}.")
    return lines


def _same_stream(runs: Sequence[FinishedRun]) -> str:
    prints, kind = _fingerprints(runs), "class order" if any(run.class_order for run in runs) else "task order"
    if any(len(found) > 1 for found in prints.values()):
        each = "; ".join(f"{kind} {order}: {', '.join(p[:8] for p in found)}" for order, found in prints.items())
        return f"NOT THE SAME STREAM FOR ALL (fingerprints by {kind}: {each}): do not compare these figures."
    fingerprints = f"fingerprints by {kind}" if len(prints) > 1 else "fingerprint"
    each = ", ".join(found[0][:8] for found in prints.values())
    subject = f"All {len(runs)} runs are" if len(runs) > 1 else "The run is"
    return f"{subject} on the {'same ' if len(runs) > 1 else ''}stream ({fingerprints} {each})."


def _fingerprints(runs: Sequence[FinishedRun]) -> dict[str, list[str]]:
    """The fingerprints of the streams, by the number of the order of their classes or tasks."""
    orders = sorted({run.order for run in runs})
    names = {(c, t): f"{c} with task order {t}" if c and t else str(c or t) for c, t in orders}
    return {names[o]: sorted({run.fingerprint for run in runs if run.order == o}) for o in orders}


def _fairness(table: ResultTable) -> list[str]:
    """Which options are equal for all rows, and one line for each option that is not."""
    same, different = equal_options(table)
    equal = ", ".join(f"{name} {value}" for name, value in equal_texts(table, same).items())
    if len({row.passes for row in table.rows if row.runs}) > 1:
        lines = [f"Equal for all: {equal}."]
        different["passes over the images"] = {row.name: row.passes for row in table.rows if row.runs}
    else:
        epochs = max((run.epochs for run in table.runs), default=1)
        passes = "one pass over the images" if epochs == 1 else f"{epochs} passes over the images of each task"
        lines = [f"Equal for all: {equal}; {passes}."]
    if common := common_options(table.runs):
        lines.append(f"In all runs, and not the default: {', '.join(common)}.")
    for name, by_row in different.items():
        each = "; ".join(f"{value}: {', '.join(rows)}" for value, rows in rows_by_value(by_row).items())
        lines.append(f"NOT equal: {name} ({each}).")
    return lines


def equal_texts(table: ResultTable, same: Mapping[str, Any]) -> dict[str, str]:
    """The values of options that are equal. Some methods may not have an option, such as the size of a buffer."""
    runs = [row.runs[0] for row in table.rows if row.runs]
    found = {}
    for name, value in same.items():
        everywhere = all(name in run.equal_options for run in runs) or name == "precision"
        found[name] = ("default" if value is None else short_value(value)) + ("" if everywhere else " (where used)")
    return found


def rows_by_value(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the rows that have each value of an option, from the values by row."""
    found: dict[str, list[str]] = {}
    for row, value in values.items():
        found.setdefault(short_value(value), []).append(row)
    return found


def equal_options(table: ResultTable) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The options that a comparison should hold equal: those that are, and by row those that are not."""
    found: dict[str, dict[str, Any]] = {}
    for row in table.rows:
        values: dict[str, dict[str, Any]] = {}
        for run in row.runs:
            for name, value in {**run.equal_options, "precision": run.precision}.items():
                values.setdefault(name, {})[short_value(value)] = value
        for name, each in values.items():  # runs of one row may differ, if they are from several commands
            found.setdefault(name, {})[row.name] = next(iter(each.values())) if len(each) == 1 else ", ".join(each)
    same = {name: next(iter(rows.values())) for name, rows in found.items() if len(set(map(str, rows.values()))) == 1}
    return same, {name: rows for name, rows in found.items() if name not in same}


# The formats


def write_tables(table: ResultTable, folder: Path) -> list[str]:
    """Write table.md, table.csv, table.tex and table.json. Returns their names."""
    files = {
        "table.md": _markdown(table),
        "table.csv": csv_text(table),
        "table.tex": _latex(table),
        "table.json": json.dumps(_json(table), indent=1, allow_nan=False) + "\n",
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return list(files)


def table_texts(table: ResultTable) -> dict[str, str]:
    """The table in the formats for other documents, by their names. Markdown: without title and notes."""
    markdown = "\n".join(markdown_lines(main_table(table))) + "\n"
    return {"Markdown": markdown, "CSV": csv_text(table), "LaTeX": _latex(table)}


def _markdown(table: ResultTable) -> str:
    lines = [f"# {escape(table.title)}", "", *markdown_lines(main_table(table))]
    for each in _tables_below(table):
        lines += ["", f"{escape(each.title)}:", "", *markdown_lines(each)]
    lines += paragraphs(notes(table))
    if table.failures:
        lines += ["", f"Not finished, and not in the table ({len(table.failures)}):", ""]
        lines += [f"- {escape(f.name)}: {escape(f.reason)}" for f in table.failures]
    return "\n".join(lines) + "\n"


def csv_text(table: ResultTable) -> str:
    """One line per row: mean, standard deviation and number of values of each figure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "sd", "n")
    groups = dict.fromkeys(name for run in table.runs for name in run.groups)
    of_groups = [_group_key(group, metric) for group in groups for metric in HEADLINE]
    keys = [column.key for column in _COLUMNS] + of_groups + [column.key for column in table.metric_columns]
    names = map(_csv_cell, keys)
    heads = [*table.head, "runs", "planned", *(["epochs"] if table.has_passes else [])]
    orders = _orders(table)
    of_orders = dict.fromkeys(name for figures in orders for name in figures)
    writer.writerow([*heads, *(f"{name}_{part}" for name in names for part in parts), *of_orders])
    for row, by_order in zip(table.rows, orders, strict=True):
        stats = [getattr(row.stat(key), part) for key in keys for part in parts]
        cells = [*map(_csv_cell, row.cells), len(row.runs), row.planned, *([row.passes] if table.has_passes else [])]
        values = [*stats, *(by_order.get(name) for name in of_orders)]
        writer.writerow([*cells, *("" if value is None else value for value in values)])
    return out.getvalue()


def _orders(table: ResultTable) -> list[dict[str, float | int | None]]:
    """The figures of each order and of their spread for every row, by name; empty if there is one order only."""
    if len({run.order for run in table.runs}) < 2:
        return [{} for _ in table.rows]
    found, key = [], table.scores[0].key
    for row in table.rows:
        means, spread = _order_means(row, key)
        figures: dict[str, float | int | None] = {}
        for order, stat in means.items():
            name = _order_name(order).replace(" ", "_").replace(",", "")
            figures |= {f"{key}_{name}_mean": stat.mean, f"{key}_{name}_n": stat.n}
        figures |= {f"{key}_orders_{name}": value for name, value in spread.items()}
        found.append({**figures, "orders": sum(stat.n > 0 for stat in means.values())})
    return found


def _csv_cell(text: str) -> str:
    """Text for a cell. A spreadsheet reads text that begins with =, +, - or @ as a formula, unless it is quoted.

    >>> _csv_cell("=1+1"), _csv_cell("+ R^t"), _csv_cell("-0.5")
    ("'=1+1", "'+ R^t", '-0.5')
    """
    text = printable(text)
    try:
        float(text)
    except ValueError:
        return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
    return text


def _json(table: ResultTable) -> dict[str, Any]:
    """Everything: the figures of every run, their statistics, equal and unequal options, and failures."""
    same, different = equal_options(table)
    return {
        "title": table.title,
        "convention": table.convention.name,
        "rows": [
            _json_row(table, row) | ({"by_order": by_order} if by_order else {})
            for row, by_order in zip(table.rows, _orders(table), strict=True)
        ],
        "equal": same,
        "not_equal": different,
        "fingerprints": _fingerprints(table.runs),
        "provenance": facts(table.runs),
        "failures": [{"run": f.name, "folder": str(f.folder), "reason": f.reason} for f in table.failures],
        "notes": notes(table),
    }


def _json_row(table: ResultTable, row: Row) -> dict[str, Any]:
    stats = {key: {"mean": stat.mean, "sd": stat.sd, "n": stat.n} for key, stat in row.stats.items()}
    runs = [
        {"folder": str(run.path), "label": run.label, "seed": run.seed, "task_order": run.task_order}
        | {"class_order": run.class_order, "epochs": run.epochs, "skipped": run.skipped, "image_size": run.image_size}
        | {"fingerprint": run.fingerprint, **{name: dict(run.environment)[name] for name in RUN_FACTS}, **run.figures()}
        for run in row.runs
    ]
    options = {k: v for k, v in row.runs[0].config.items() if k not in VARIED.keys() - {"method"}} if row.runs else None
    return {
        "name": row.name, "cells": dict(zip(table.head, row.cells, strict=True)), "joint": row.joint,
        "planned": row.planned, "figures": stats, "options": options, "runs": runs,
    }  # fmt: skip


def _latex(table: ResultTable) -> str:
    """With booktabs, for \\input in a document."""
    lines = [
        r"% \usepackage{booktabs}",
        r"% gray rows of forgetting: \usepackage[table]{xcolor}, and remove the % before each \rowcolor",
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{tex(table.title)}. {tex(provenance(table.runs))}}}",
        *tabular(main_table(table)),
    ]
    for each in _tables_below(table):
        lines += ["", r"  \medskip", f"  {tex(each.title)}", "", r"  \smallskip", *tabular(each)]
    lines += [f"  % {printable(note)}" for note in notes(table)[1:]]
    lines += [f"  % not finished: {printable(failure.name)}: {printable(failure.reason)}" for failure in table.failures]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def terminal(table: ResultTable) -> list[RichTable]:
    """Tables for a terminal of 100 columns."""
    return [rich_table(each) for each in (main_table(table), *_tables_below(table))]
