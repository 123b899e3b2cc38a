"""Tables of runs in the layout of the paper: for the terminal, Markdown, CSV, LaTeX and JSON.

A row is a method or a variant of one. Its figures are mean ± sample standard deviation over its runs.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from lifelabel.config.config import short_value
from lifelabel.config.run_options import VARIED
from lifelabel.errors import UserError
from lifelabel.metrics.over_tasks import HEADLINE
from lifelabel.report.columns import Column, Stat
from lifelabel.report.grids import rich_grid
from lifelabel.report.subtables import OrderSpread, SubTable, group_columns, group_table, order_table
from lifelabel.runs.details import read_details
from lifelabel.runs.finished import FinishedRun, common_options, facts, group_by_label, provenance
from lifelabel.runs.names import DETAILS, MATRICES
from lifelabel.utils.files import write_text
from lifelabel.utils.markdown import Bold, escape, grid
from lifelabel.utils.text import BELOW_ZERO, counted, printable

__all__ = [
    "Failure", "Grid", "Line", "ResultTable", "Row", "best_mean", "cost_grid", "csv_text", "equal_options",
    "equal_texts", "error_grid", "find_column", "main_grid", "measurement_notes", "notes", "one_line", "paragraphs",
    "rows_by_value", "sub_grids", "table_texts", "terminal", "write_tables",
]  # fmt: skip

_FORGETTING_ROW = "Forgetting ↓"
_METRICS_NOTE = (
    "mAP, CF1 and OF1 in % after the last task, on the whole test set, by A.5 of the paper: CF1 is the harmonic mean "
    "of CP and CR at threshold 0.5. Forgetting, in the same columns, is that of the same metric by task, by A.5; "
    f"{BELOW_ZERO}."
)
_COSTS_NOTE = (
    "Stored: what a method stores from task to task in addition to its network (images; bytes of everything). Seconds "
    "include the evaluation. Peak memory is that of the device if there is one, otherwise that of the process."
)
_ERRORS_NOTE = (
    "Error of the matrix: mean absolute error of P(C_i|C_j), i ≠ j, against the true matrix of the stream, by block."
)


_SCORES = tuple(Column(name, f"{name} ↑") for name in HEADLINE)
_FORGETTING = tuple(Column(f"forgetting_{column.key}", column.head) for column in _SCORES)
_COSTS = (
    Column("stored_images", "stored images", 0, 1, False, "stored"),
    Column("stored_bytes", "stored MB", 1, 1e6, False, "MB"),
    Column("seconds", "seconds", 0, 1, False, "s"),
    Column("images_per_second", "images/s", 0, 1, False, "img/s"),
    Column("peak_memory_bytes", "peak GB", 2, 1e9, False, "GB"),
)
_ERRORS = tuple(
    Column(f"acm_error_{block}", block.replace("_", "-"), 3) for block in ("all", "intra", "old_new", "new_old")
)
_COLUMNS = (*_SCORES, *_FORGETTING, *_COSTS, *_ERRORS)


def find_column(key: str) -> Column:
    """The column of a figure, by its name in files.

    >>> find_column("stored_bytes").head
    'stored MB'
    """
    return next(each for each in _COLUMNS if each.key == key)


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
        return {key: Stat.from_values([value.get(key) for value in values]) for key in keys}

    @functools.cached_property
    def first_run(self) -> FinishedRun:
        """The run that figures of one run show: that of the first order and the lowest seed.

        Damaged parts of its folder are left out.
        """
        run = min(self.runs, key=lambda run: (run.order, run.seed))
        return dataclasses.replace(run, unread=_damage(run))

    @property
    def passes(self) -> str:
        """The number of passes over the images of each task."""
        return ", ".join(str(epochs) for epochs in sorted({run.epochs for run in self.runs})) or "–"

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
    forgetting: bool = True
    costs: bool = True
    errors: bool = False

    @staticmethod
    def from_runs(runs: Sequence[FinishedRun]) -> ResultTable:
        """One row for each label, over its seeds and orders."""
        groups = group_by_label(runs)
        rows = tuple(Row((name,), tuple(group), len(group), group[0].joint) for name, group in groups.items())
        streams = ", ".join(sorted({run.stream for run in runs}))
        return ResultTable(f"Runs on {streams}", ("method",), rows, errors=True)

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for row in self.rows for run in row.runs]

    @functools.cached_property
    def metric_columns(self) -> tuple[Column, ...]:
        """One column for each metric of a plug-in."""
        return tuple(Column(name, name, 3) for name in sorted({n for run in self.runs for n in run.plugin_metrics}))

    @property
    def has_passes(self) -> bool:
        """Whether a run learned its images in several passes. Then every table states their number."""
        return any(run.epochs > 1 for run in self.runs)

    @property
    def cost_columns(self) -> tuple[Column, ...]:
        return _COSTS if self.costs else ()

    @property
    def has_errors(self) -> bool:
        return self.errors and any(row.stats["acm_error_all"].n for row in self.rows)


def _damage(run: FinishedRun) -> dict[str, str]:
    """The damaged parts of a run folder that its table does not need, and what is wrong with them."""
    found = {}
    readers: dict[str, Callable[[FinishedRun], object]] = {MATRICES: FinishedRun.matrices, DETAILS: read_details}
    for name, read in readers.items():
        try:
            read(run)
        except UserError as error:
            found[name] = str(error)
    return found


def one_line(run: FinishedRun) -> str:
    """The result of one run on one line."""
    stats = Row(("",), (run,), 1).stats
    columns = {column.key: column for column in _SCORES} | {"forgetting": _FORGETTING[0]}
    figures = "  ".join(f"{name} {column.text(stats[column.key])}" for name, column in columns.items())
    skipped = sum(run.skipped.values())
    more = [f"{counted(skipped, 'images')} skipped"] if skipped else []
    more += [f"{run.epochs} passes"] if run.epochs > 1 else []
    return "  ".join([f"{figures} ({BELOW_ZERO})" if (stats["forgetting_mAP"].mean or 0) < 0 else figures, *more])


# The content of a table in every format


class Line(NamedTuple):
    """One line of a table as text."""

    cells: list[str]
    is_forgetting: bool = False
    """It belongs to the line above it."""


def _body(table: ResultTable, compact: bool = False) -> Iterator[Line]:
    best = {column.key: best_mean(table, column) for column in _SCORES}
    for row in table.rows:
        cells = [*row.cells]
        for column in (*_SCORES, *table.metric_columns, *table.cost_columns):
            stat = row.stat(column.key)
            is_best = not row.joint and stat.mean is not None and stat.mean == best.get(column.key)
            text = column.text(stat, compact)
            cells.append(Bold(text) if is_best else text)
        yield Line(_with_passes(table, cells, row.passes))
        if table.forgetting and any(row.stats[column.key].n for column in _FORGETTING):
            cells = [""] * len(table.head)
            cells[len(cells) // 2] = _FORGETTING_ROW
            cells += [column.text(row.stats[column.key], compact) for column in _FORGETTING]
            others = (*table.metric_columns, *table.cost_columns)
            yield Line(_with_passes(table, [*cells, *[""] * len(others)], ""), is_forgetting=True)


def _with_passes(table: ResultTable, cells: list[str], text: str) -> list[str]:
    """The cells of a line with the number of passes after the scores, if there are runs of several passes."""
    scores = len(table.head) + len(_SCORES)
    return [*cells[:scores], text, *cells[scores:]] if table.has_passes else cells


def best_mean(table: ResultTable, column: Column) -> float | None:
    """The highest mean of the lifelong rows; None if there is only one."""
    means = [mean for row in table.rows if not row.joint and (mean := row.stats[column.key].mean) is not None]
    return max(means) if len(means) > 1 else None


def _heads(table: ResultTable, compact: bool = False) -> list[str]:
    columns = (*_SCORES, *table.metric_columns, *table.cost_columns)
    heads = [*table.head, *((compact and column.short_head) or column.head for column in columns)]
    return _with_passes(table, heads, "passes")


def _error_heads(table: ResultTable) -> list[str]:
    return [*table.head, *(column.head for column in _ERRORS)]


def _error_body(table: ResultTable) -> Iterator[Line]:
    """The error of the matrix by block."""
    for row in table.rows:
        yield Line([*row.cells, *(column.text(row.stats[column.key]) for column in _ERRORS)])


class Grid(NamedTuple):
    """A table as text. The first `left` columns are text, the others numbers."""

    heads: list[str]
    lines: list[Line]
    left: int


def main_grid(table: ResultTable) -> Grid:
    """The figures of each row. The forgetting of a row is a line of its own after it."""
    return Grid(_heads(table), list(_body(table)), len(table.head))


def error_grid(table: ResultTable) -> Grid | None:
    """The error of the matrix by block, of the rows for which it is known."""
    rows = [row for row in table.rows if row.stats["acm_error_all"].n]
    lines = list(_error_body(dataclasses.replace(table, rows=tuple(rows))))
    return Grid(_error_heads(table), lines, len(table.head)) if rows else None


def _sub_tables(table: ResultTable, compact: bool = False) -> list[SubTable]:
    """The tables of groups of classes and of orders, if the runs have several of them."""
    rows = [(row.cells, row.runs) for row in table.rows]
    found = (group_table(table.head, rows, compact), order_table(table.head, rows))
    return [each for each in found if each]


def sub_grids(table: ResultTable) -> list[tuple[str, Grid]]:
    """The tables of groups of classes and of orders, with their titles."""
    return [
        (each.title, Grid(each.heads, [Line(cells) for cells in each.lines], each.left)) for each in _sub_tables(table)
    ]


def cost_grid(table: ResultTable) -> Grid:
    """What each row costs."""
    lines = [Line([*row.cells, *(column.text(row.stat(column.key)) for column in _COSTS)]) for row in table.rows]
    return Grid([*table.head, *(column.head for column in _COSTS)], lines, len(table.head))


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
        *(each.note for each in _sub_tables(table)),
        _METRICS_NOTE,
        *([_COSTS_NOTE] if table.costs else []),
        *([_ERRORS_NOTE] if table.has_errors else []),
    ]


def measurement_notes(table: ResultTable) -> list[str]:
    """Where and with which options the runs were made, what differs between rows, and which runs are missing."""
    lines = [provenance(table.runs), _same_stream(table.runs), *_fairness(table)]
    lines += [
        f"{row.name}: {len(row.runs)} of {row.planned} runs." for row in table.rows if len(row.runs) < row.planned
    ]
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
    heads, lines, left = main_grid(table)
    markdown = "\n".join(grid(heads, [line.cells for line in lines], left)) + "\n"
    return {"Markdown": markdown, "CSV": csv_text(table), "LaTeX": _latex(table)}


_BLOCK = re.compile(r"^(\d{0,9})(>|[-+.)](?=\s|$))")
"""The sign of a list or a quotation at the beginning of a line. The name of a row can be there."""


def _markdown(table: ResultTable) -> str:
    left = len(table.head)
    lines = [f"# {escape(table.title)}", ""]
    lines += grid(_heads(table), [line.cells for line in _body(table)], left)
    if table.has_errors:
        lines += ["", "Error of the matrix:", ""]
        lines += grid(_error_heads(table), [line.cells for line in _error_body(table)], left)
    for each in _sub_tables(table):
        lines += ["", f"{escape(each.title)}:", "", *grid(each.heads, each.lines, each.left)]
    lines += paragraphs(notes(table))
    if table.failures:
        lines += ["", f"Not finished, and not in the table ({len(table.failures)}):", ""]
        lines += [f"- {escape(f.name)}: {escape(f.reason)}" for f in table.failures]
    return "\n".join(lines) + "\n"


def paragraphs(notes: Iterable[str]) -> list[str]:
    """The lines of Markdown paragraphs, each after an empty line. Nothing in them is a list, a quotation or markup."""
    return [line for note in notes for line in ("", _BLOCK.sub(r"\1\\\2", escape(note)))]


def csv_text(table: ResultTable) -> str:
    """One line per row: mean, standard deviation and number of values of each figure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ("mean", "sd", "n")
    keys = [column.key for column in (*_COLUMNS, *group_columns(table.runs), *table.metric_columns)]
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
    """The figures of each order for every row; empty if there is one order only."""
    several = len({run.order for run in table.runs}) > 1
    return [OrderSpread.from_runs(row.runs).figures() if several else {} for row in table.rows]


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
        {"folder": str(run.path), "seed": run.seed, "task_order": run.task_order, "class_order": run.class_order}
        | {"epochs": run.epochs, "skipped": run.skipped, **run.figures()}
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
        rf"  \caption{{{_tex(table.title)}. {_tex(provenance(table.runs))}}}",
        *_tabular(_heads(table), _body(table), len(table.head)),
    ]
    if table.has_errors:
        lines += ["", r"  \medskip", "  Error of the matrix, by block", "", r"  \smallskip"]
        lines += _tabular(_error_heads(table), _error_body(table), len(table.head))
    for each in _sub_tables(table):
        lines += ["", r"  \medskip", f"  {_tex(each.title)}", "", r"  \smallskip"]
        lines += _tabular(each.heads, map(Line, each.lines), each.left)
    lines += [f"  % {printable(note)}" for note in notes(table)[1:]]
    lines += [f"  % not finished: {printable(failure.name)}: {printable(failure.reason)}" for failure in table.failures]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tabular(head: Sequence[str], lines: Iterable[Line], left: int) -> list[str]:
    out = [rf"  \begin{{tabular}}{{{'l' * left}{'r' * (len(head) - left)}}}", r"    \toprule"]
    out.append("    " + " & ".join(rf"\textbf{{{_tex(name)}}}" for name in head) + r" \\")
    for line in lines:
        cells = [rf"\textbf{{{_tex(cell)}}}" if isinstance(cell, Bold) else _tex(cell) for cell in line.cells]
        rule = r"    % \rowcolor{gray!20}" if line.is_forgetting else r"    \midrule"
        out += [rule, f"    {' & '.join(cells)} " + r"\\"]
    return [*out, r"    \bottomrule", r"  \end{tabular}"]


_SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "×": r"$\times$", "√": r"$\surd$", "λ": r"$\lambda$", "–": "--", "≠": r"$\neq$",
    "|": r"\textbar{}", "[": "{[}", "]": "{]}", "\N{REPLACEMENT CHARACTER}": "?",
}  # fmt: skip
"""A bracket at the beginning of a row would be the width of the rule above it. A | is a dash in some fonts."""
_FORMULAS = re.compile(
    r"(?P<base>[A-Za-z0-9]+)\^(?P<power>\{[A-Za-z0-9+-]+\}|[A-Za-z0-9]+)|λ(?P<index>[0-9])|(?P<minus>(?<!\w)-(?=\d))"
)
"""Nothing in a formula needs an escape: the text may be untrusted."""


def _tex(text: str) -> str:
    r"""Text escaped for LaTeX. Powers, λ1 and negative numbers become formulas.

    >>> print(_tex("A^{t-1} & B_1: -50 %"))
    $A^{t-1}$ \& B\_1: $-$50 \%
    """
    out, position = "", 0
    for found in _FORMULAS.finditer(text):
        power, index = found["power"], found["index"]
        formula = f"{found['base']}^{power}" if power else rf"\lambda_{index}" if index else "-"
        out += _escape_tex(text[position : found.start()]) + f"${formula}$"
        position = found.end()
    return out + _escape_tex(text[position:])


def _escape_tex(text: str) -> str:
    return "".join(_SYMBOLS.get(letter, letter) for letter in printable(text))


def terminal(table: ResultTable) -> list[Table]:
    """Tables for a terminal of 100 columns."""
    tables = [_rich_table(_heads(table, compact=True), _body(table, compact=True), len(table.head))]
    if table.has_errors:
        tables.append(_rich_table(_error_heads(table), _error_body(table), len(table.head)))
        tables[-1].title = "error of the matrix"
    for each in _sub_tables(table, compact=True):
        tables.append(_rich_table(each.heads, map(Line, each.lines), each.left))
        tables[-1].title = printable(each.title)
    return tables


def _rich_table(heads: Sequence[str], body: Iterable[Line], left: int) -> Table:
    lines = list(body)
    cells = [line.cells for line in lines]
    table = rich_grid(heads, cells, left, max_width=30, box=box.SIMPLE, title_justify="left")
    for row, line in zip(table.rows, lines, strict=True):
        row.style = "dim" if line.is_forgetting else None
    return table
