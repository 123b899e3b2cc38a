"""A table of many runs in the look of the paper's tables: for people, for programs and for LaTeX.

A row is a method, or a variant of one; its figures are the mean ± the sample standard deviation over its runs.
"""

from __future__ import annotations

import csv
import functools
import io
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table
from rich.text import Text

from lifelabel.errors import plain
from lifelabel.report.runs import FinishedRun, facts, provenance, short_value

FORGETTING = "Forgetting ↓"
EQUAL = ("backbone", "weights", "image_size", "pool", "augment", "batch_size", "precision")
"""Options that a comparison holds equal; where they differ, the table says so."""
CONVENTIONS = (
    "mAP, CF1, OF1 in % after the last task, on the whole test set, as the paper's A.5: CF1 is the harmonic mean of CP "
    "and CR at threshold 0.5. Forgetting, in the same columns, is A.5's, of the same metric by task; below zero means "
    "that later tasks helped."
)
COSTS = (
    "Kept: what a method carries from task to task besides its network (images; bytes of everything). Seconds include "
    "the evaluation. Peak memory is the device's where there is one, else the process's."
)
MATRIX = "Error of the matrix: mean absolute error of P(C_i|C_j), i ≠ j, against the stream's true matrix, by block."


@dataclass(frozen=True)
class Figure:
    """One number of a run: its name in files, its head in tables, and how it is written."""

    key: str
    head: str
    digits: int = 2
    unit: float = 1
    spread: bool = True
    short: str = ""
    """Its head where room is short."""

    def text(self, stat: Stat, compact: bool = False) -> str:
        if stat.mean is None:
            return "–"
        digits = max(self.digits - 1, 1) if compact and self.digits > 1 else self.digits
        mean = f"{stat.mean / self.unit:,.{digits}f}"
        if stat.sd is None or not self.spread:
            return mean
        return f"{mean}{'±' if compact else ' ± '}{stat.sd / self.unit:.{digits}f}"


SCORES = tuple(Figure(name, f"{name} ↑") for name in ("mAP", "CF1", "OF1"))
FORGOTTEN = tuple(Figure(f"forgetting_{figure.key}", figure.head) for figure in SCORES)
SPENT = (
    Figure("kept_images", "kept images", 0, 1, False, "kept"),
    Figure("kept_bytes", "kept MB", 1, 1e6, False, "MB"),
    Figure("seconds", "seconds", 0, 1, False, "s"),
    Figure("images_per_second", "images/s", 0, 1, False, "img/s"),
    Figure("peak_memory_bytes", "peak GB", 2, 1e9, False, "GB"),
)
BLOCKS = ("all", "intra", "old_new", "new_old")
ERRORS = tuple(Figure(f"acm_error_{block}", block.replace("_", "-"), 3) for block in BLOCKS)
FIGURES = (*SCORES, *FORGOTTEN, *SPENT, *ERRORS)


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation of n values; None where there are too few."""

    mean: float | None
    sd: float | None
    n: int

    @staticmethod
    def of(values: Sequence[float | None]) -> Stat:
        known = [value for value in values if value is not None and math.isfinite(value)]
        mean = statistics.mean(known) if known else None
        return Stat(mean, statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Failure:
    """A run that is planned and not there, and why."""

    name: str
    folder: Path
    reason: str


@dataclass(frozen=True)
class Row:
    """What stands before the figures, the runs they are over, and how many were planned."""

    cells: tuple[str, ...]
    runs: tuple[FinishedRun, ...]
    planned: int
    joint: bool = False
    """It saw all tasks at once: an upper bound, which takes no part in the contest."""

    @property
    def name(self) -> str:
        return " / ".join(self.cells)

    @functools.cached_property
    def stats(self) -> dict[str, Stat]:
        values = [figures(run) for run in self.runs]
        return {figure.key: Stat.of([value[figure.key] for value in values]) for figure in FIGURES}


@dataclass(frozen=True)
class Board:
    """A table: its title, the heads of its first columns, its rows, and which of the figures it shows."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    failures: tuple[Failure, ...] = ()
    forgetting: bool = True
    costs: bool = True
    errors: bool = False

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for row in self.rows for run in row.runs]

    @property
    def spent(self) -> tuple[Figure, ...]:
        return SPENT if self.costs else ()

    @property
    def has_errors(self) -> bool:
        return self.errors and any(row.stats["acm_error_all"].n for row in self.rows)


def figures(run: FinishedRun) -> dict[str, float | None]:
    """All figures of one run: scores and forgetting in %, the rest in the units of their names."""
    final, environment = run.metrics["final"], run.environment
    forgotten, errors, kept = (
        d or {} for d in (final.get("forgetting"), final.get("acm_error"), environment.get("kept"))
    )
    found: dict[str, float | None] = {}
    for figure in SCORES:
        found[figure.key] = _percent(final[figure.key])
        found[f"forgetting_{figure.key}"] = _percent(forgotten.get(figure.key))
    found |= {f"kept_{name}": kept.get(name) for name in ("images", "bytes")}
    found |= {name: environment.get(name) for name in ("seconds", "images_per_second")}
    of_device = environment.get("peak_device_memory_bytes")
    found["peak_memory_bytes"] = of_device if of_device is not None else environment.get("peak_memory_bytes")
    return found | {f"acm_error_{block}": errors.get(block) for block in BLOCKS}


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


# What every form of the table shows


class Cell(NamedTuple):
    text: str
    best: bool = False


class Line(NamedTuple):
    cells: list[Cell]
    gray: bool = False
    """One of forgetting, which belongs to the line above it."""


def body(board: Board, compact: bool = False) -> Iterator[Line]:
    best = {figure.key: best_of(board, figure) for figure in SCORES}
    for row in board.rows:
        cells = [Cell(text) for text in row.cells]
        for figure in (*SCORES, *board.spent):
            stat = row.stats[figure.key]
            first = not row.joint and stat.mean is not None and stat.mean == best.get(figure.key)
            cells.append(Cell(figure.text(stat, compact), first))
        yield Line(cells)
        if board.forgetting and any(row.stats[figure.key].n for figure in FORGOTTEN):
            texts = [""] * len(board.head)
            texts[len(texts) // 2] = FORGETTING
            texts += [figure.text(row.stats[figure.key], compact) for figure in FORGOTTEN]
            yield Line([Cell(text) for text in [*texts, *[""] * len(board.spent)]], gray=True)


def best_of(board: Board, figure: Figure) -> float | None:
    """The highest mean of those that learn task by task; none where there is nothing to compare."""
    means = [mean for row in board.rows if not row.joint and (mean := row.stats[figure.key].mean) is not None]
    return max(means) if len(means) > 1 else None


def heads(board: Board, compact: bool = False) -> list[str]:
    shown = (*SCORES, *board.spent)
    return [*board.head, *((compact and figure.short) or figure.head for figure in shown)]


def error_heads(board: Board) -> list[str]:
    return [*board.head, *(figure.head for figure in ERRORS)]


def error_body(board: Board) -> Iterator[Line]:
    """The error of the matrix, block by block."""
    for row in board.rows:
        yield Line([Cell(text) for text in [*row.cells, *(f.text(row.stats[f.key]) for f in ERRORS)]])


def notes(board: Board) -> list[str]:
    """Sentences under the table: on what and how it was measured, and where it is less than it seems."""
    lines = [provenance(board.runs), same_stream(board.runs), *fairness(board)]
    lines += [
        f"{row.name}: {len(row.runs)} of {row.planned} runs." for row in board.rows if len(row.runs) < row.planned
    ]
    return [*lines, CONVENTIONS, *([COSTS] if board.costs else []), *([MATRIX] if board.has_errors else [])]


def same_stream(runs: Sequence[FinishedRun]) -> str:
    prints = fingerprints(runs)
    if any(len(found) > 1 for found in prints.values()):
        each = "; ".join(f"task order {order}: {', '.join(p[:8] for p in found)}" for order, found in prints.items())
        return f"NOT THE SAME STREAM FOR ALL (fingerprints by task order: {each}): do not compare these figures."
    of = ", ".join(found[0][:8] for found in prints.values())
    return (
        f"All {len(runs)} runs are on the same stream (fingerprint{'s by task order' if len(prints) > 1 else ''} {of})."
    )


def fingerprints(runs: Sequence[FinishedRun]) -> dict[int, list[str]]:
    """For each order of tasks, the fingerprints of the streams that were learned."""
    orders = sorted({run.config.task_order for run in runs})
    return {o: sorted({run.fingerprint for run in runs if run.config.task_order == o}) for o in orders}


def fairness(board: Board) -> list[str]:
    """What is equal for all rows and, in a line of its own, what is not."""
    same, other = settings(board)
    equal = ", ".join(f"{name} {'default' if value is None else short_value(value)}" for name, value in same.items())
    lines = [f"Equal for all: {equal}; one pass over the images."]
    for name, by_row in other.items():
        values: dict[str, list[str]] = {}
        for row, value in by_row.items():
            values.setdefault(short_value(value), []).append(row)
        each = "; ".join(f"{value}: {', '.join(rows)}" for value, rows in values.items())
        lines.append(f"NOT equal: {name} ({each}).")
    return lines


def settings(board: Board) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options that should be equal, and the budget of the methods that keep images: those that are, and by row those
    that are not."""
    found: dict[str, dict[str, Any]] = {}
    for row in board.rows:
        for run in row.runs[:1]:
            config = run.config.to_dict()
            budget = {k: v for k, v in config["method_options"].items() if k in ("buffer_images", "buffer_bytes")}
            # what `auto` was: bfloat16 on one machine, float32 on another
            config["precision"] = ", ".join(
                sorted({r.environment.get("precision", r.config.precision) for r in row.runs})
            )
            for name, value in {**{name: config[name] for name in EQUAL}, **budget}.items():
                found.setdefault(name, {})[row.name] = value
    same = {name: next(iter(rows.values())) for name, rows in found.items() if len(set(map(str, rows.values()))) == 1}
    return same, {name: rows for name, rows in found.items() if name not in same}


# The forms


def markdown(board: Board) -> str:
    """For people."""
    lines = [f"# {board.title}", "", *_grid(heads(board), body(board), len(board.head))]
    if board.has_errors:
        lines += ["", "Error of the matrix:", "", *_grid(error_heads(board), error_body(board), len(board.head))]
    for note in notes(board):
        lines += ["", _safe(note)]
    if board.failures:
        lines += ["", f"Not finished, and not in the table ({len(board.failures)}):", ""]
        lines += [f"- {_safe(failure.name)}: {_safe(failure.reason)}" for failure in board.failures]
    return "\n".join(lines) + "\n"


def _grid(head: Sequence[str], lines: Iterable[Line], left: int) -> list[str]:
    out = ["| " + " | ".join(head) + " |", "|" + "---|" * left + "---:|" * (len(head) - left)]
    for line in lines:
        cells = [f"**{_safe(cell.text)}**" if cell.best else _safe(cell.text) for cell in line.cells]
        out.append("| " + " | ".join(cells) + " |")
    return out


def _safe(text: str) -> str:
    """Text that is no HTML and ends no cell."""
    return plain(text).replace("<", "&lt;").replace("|", "\\|")


def csv_text(board: Board) -> str:
    """A line a row, plain numbers: mean, standard deviation and number of values for each figure."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    parts = ("mean", "sd", "n")
    write.writerow([*board.head, "runs", "planned", *(f"{f.key}_{part}" for f in FIGURES for part in parts)])
    for row in board.rows:
        stats = [getattr(row.stats[figure.key], part) for figure in FIGURES for part in parts]
        write.writerow([*row.cells, len(row.runs), row.planned, *("" if value is None else value for value in stats)])
    return out.getvalue()


def to_json(board: Board) -> dict[str, Any]:
    """Everything: the figures of every run, their means, what is equal and what not, and what failed."""
    same, other = settings(board)
    return {
        "title": board.title,
        "rows": [_row(board, row) for row in board.rows],
        "equal": same,
        "not_equal": other,
        "fingerprints": {str(order): found for order, found in fingerprints(board.runs).items()},
        "provenance": facts(board.runs),
        "failures": [{"run": f.name, "folder": str(f.folder), "reason": f.reason} for f in board.failures],
        "notes": notes(board),
    }


def _row(board: Board, row: Row) -> dict[str, Any]:
    stats = {key: {"mean": stat.mean, "sd": stat.sd, "n": stat.n} for key, stat in row.stats.items()}
    runs = [
        {"folder": str(run.path), "seed": run.metrics["seed"], "task_order": run.config.task_order, **figures(run)}
        for run in row.runs
    ]
    options = (
        {k: v for k, v in row.runs[0].config.to_dict().items() if k not in ("seed", "task_order")} if row.runs else None
    )
    return {
        "name": row.name, "cells": dict(zip(board.head, row.cells, strict=True)), "joint": row.joint,
        "planned": row.planned, "figures": stats, "options": options, "runs": runs,
    }  # fmt: skip


def latex(board: Board) -> str:
    """With booktabs, to be read into a document by \\input."""
    lines = [
        r"% \usepackage{booktabs}",
        r"% gray rows of forgetting: \usepackage[table]{xcolor}, and take away the % before each \rowcolor",
        r"\begin{table}[t]",
        r"  \centering",
        rf"  \caption{{{tex(board.title)}. {tex(provenance(board.runs))}}}",
        *_tabular(heads(board), body(board), len(board.head)),
    ]
    if board.has_errors:
        lines += ["", r"  \medskip", "  Error of the matrix, by block", "", r"  \smallskip"]
        lines += _tabular(error_heads(board), error_body(board), len(board.head))
    lines += [f"  % {plain(note)}" for note in notes(board)[1:]]
    lines += [f"  % not finished: {plain(failure.name)}: {plain(failure.reason)}" for failure in board.failures]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _tabular(head: Sequence[str], lines: Iterable[Line], left: int) -> list[str]:
    out = [rf"  \begin{{tabular}}{{{'l' * left}{'r' * (len(head) - left)}}}", r"    \toprule"]
    out.append("    " + " & ".join(rf"\textbf{{{tex(name)}}}" for name in head) + r" \\")
    for line in lines:
        cells = [rf"\textbf{{{tex(cell.text)}}}" if cell.best else tex(cell.text) for cell in line.cells]
        out += [r"    % \rowcolor{gray!20}" if line.gray else r"    \midrule", f"    {' & '.join(cells)} " + r"\\"]
    return [*out, r"    \bottomrule", r"  \end{tabular}"]


SYMBOLS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "↑": r"$\uparrow$",
    "↓": r"$\downarrow$", "×": r"$\times$", "√": r"$\surd$", "λ": r"$\lambda$", "–": "--", "≠": r"$\neq$",
}  # fmt: skip
FORMULAS = re.compile(r"(?P<base>\w+)\^(?P<power>\{[^{}]*\}|\w+)|λ(?P<index>\d)|(?P<minus>(?<!\w)-(?=\d))")


def tex(text: str) -> str:
    r"""Text as LaTeX prints it; powers, λ1 and numbers below zero as formulas.

    >>> print(tex("A^{t-1} & B_1: -50 %"))
    $A^{t-1}$ \& B\_1: $-$50 \%
    """
    out, place = "", 0
    for found in FORMULAS.finditer(text):
        power, index = found["power"], found["index"]
        formula = f"{found['base']}^{power}" if power else rf"\lambda_{index}" if index else "-"
        out += _escape(text[place : found.start()]) + f"${formula}$"
        place = found.end()
    return out + _escape(text[place:])


def _escape(text: str) -> str:
    return "".join(SYMBOLS.get(letter, letter) for letter in plain(text))


def terminal(board: Board) -> list[Table]:
    """Narrow: 100 columns of a terminal are enough."""
    tables = [_table(heads(board, compact=True), body(board, compact=True), len(board.head))]
    if board.has_errors:
        tables.append(_table(error_heads(board), error_body(board), len(board.head)))
        tables[-1].title = "error of the matrix"
    return tables


def _table(head: Sequence[str], lines: Iterable[Line], left: int) -> Table:
    table = Table(box=box.SIMPLE, collapse_padding=True, pad_edge=False, title_justify="left")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < left else "right", no_wrap=True)
    for line in lines:
        cells = [Text(cell.text, style="bold" if cell.best else "") for cell in line.cells]
        table.add_row(*cells, style="dim" if line.gray else None)
    return table
