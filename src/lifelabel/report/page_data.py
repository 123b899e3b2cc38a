"""The data of the sections of a report. Nothing is escaped here: the page escapes all text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lifelabel.report import figures
from lifelabel.report.figure_parts import best_method
from lifelabel.report.matrices import Change, Relation, changed_relations, strongest_relations
from lifelabel.report.tables import ResultTable, Row, equal_options, equal_texts, rows_by_value
from lifelabel.report.vega import Figure
from lifelabel.runs.details import read_details
from lifelabel.runs.finished import FinishedRun
from lifelabel.utils.text import task_cell

__all__ = [
    "ClassThreshold", "Configuration", "MatrixText", "Panel", "RunSection", "configuration", "run_sections",
    "threshold_section",
]  # fmt: skip

_MAX_OPTIONS = 300
"""Options of one run that are listed."""
_MAX_VALUE = 200
"""Characters of the value of an option."""


@dataclass(frozen=True)
class MatrixText:
    """A correlation matrix in words."""

    relations: list[Relation]
    changes: list[Change]
    changed: int
    """The number of changes; `changes` has the largest ones."""
    has_old: bool
    """Whether the run has several tasks, so that an entry of old classes could change."""
    part: str
    """Which classes are compared, if not all."""


@dataclass(frozen=True)
class ClassThreshold:
    """The threshold of a class with the best F1 on the test images. None: it has no positive image."""

    name: str
    task: str
    threshold: float | None
    f1: float | None
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class Panel:
    """What a section shows of one method."""

    method: int
    """The number of the row of the table."""
    name: str
    seed: int
    figure: Figure | None = None
    text: MatrixText | None = None
    thresholds: Sequence[ClassThreshold] = ()


@dataclass(frozen=True)
class RunSection:
    """A section that shows one run at a time: a panel for each method that has data, and the method shown first."""

    panels: tuple[Panel, ...]
    chosen: int


@dataclass(frozen=True)
class Configuration:
    """Options that a comparison should hold equal, and all options of each method."""

    equal: dict[str, str]
    different: list[tuple[str, str, str]]
    """Option, value, and the methods that have it."""
    methods: list[tuple[str, list[tuple[str, str]]]]


def run_sections(rows: Sequence[Row]) -> dict[str, RunSection]:
    """The sections of one run, by their names. Those without data are left out."""
    makers: dict[str, Callable[[FinishedRun, str], Figure | None]] = {
        "matrix": figures.matrix,
        "graph": figures.label_graph,
        "forgetting": figures.forgetting,
        "changes": figures.class_changes,
    }
    found = {}
    for name, make in makers.items():
        panels = []
        for number, row in enumerate(rows):
            run = row.first_run
            figure = make(run, row.name)
            if figure:
                text = _matrix_text(run) if name == "matrix" else None
                panels.append(Panel(number, row.name, run.seed, figure, text))
        if panels:
            found[name] = _section(panels, rows)
    return found


def threshold_section(rows: Sequence[Row]) -> RunSection | None:
    """The best thresholds of the classes, for each method."""
    panels = []
    for number, row in enumerate(rows):
        run = row.first_run
        found = _thresholds(run)
        if found:
            panels.append(Panel(number, row.name, run.seed, thresholds=found))
    return _section(panels, rows) if panels else None


def _section(panels: Sequence[Panel], rows: Sequence[Row]) -> RunSection:
    return RunSection(tuple(panels), best_method((row.first_run for row in rows), (panel.method for panel in panels)))


def _matrix_text(run: FinishedRun) -> MatrixText:
    changed, changes = changed_relations(run)
    total, compared = sum(map(len, run.metrics["tasks"])), len(run.matrices().get("kept", ()))
    part = f"Only the {compared:,} classes with the strongest relations, of {total:,}, are compared."
    more = part if compared < total else ""
    return MatrixText(strongest_relations(run), changes, changed, len(run.metrics["tasks"]) > 1, more)


def _thresholds(run: FinishedRun) -> list[ClassThreshold]:
    details = read_details(run)
    if details is None:
        return []
    recall = np.linspace(0, 1, details.precision.shape[1])
    precision = np.nan_to_num(details.precision.astype(float), nan=-1.0)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    best = f1.argmax(1)
    tasks = enumerate(run.metrics["tasks"], 1)
    names = [(name, task_cell(number, run.task_names)) for number, task in tasks for name in task]
    found = []
    for k, (name, task) in enumerate(names):
        r = best[k]
        at: list[float | None] = [
            float(details.thresholds[k, r]), float(f1[k, r]), float(precision[k, r]), float(recall[r]),
        ]  # fmt: skip
        if np.isnan(details.precision[k, r]):
            at = [None] * len(at)
        found.append(ClassThreshold(str(name), task, *at))
    return found


def configuration(table: ResultTable) -> Configuration:
    """What is equal, what differs, and the options of the first run of each row."""
    same, different = equal_options(table)
    equal = equal_texts(table, same)
    grouped = [
        (name, value, ", ".join(rows))
        for name, by_row in different.items()
        for value, rows in rows_by_value(by_row).items()
    ]
    methods = [(row.name, _options(row.first_run.config)) for row in table.rows if row.runs]
    return Configuration(equal, grouped, methods)


def _options(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The options of a run by name. Those of the method and of the stream have its word before a dot."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        inner = value if name in ("method_options", "stream_options") and isinstance(value, dict) else None
        prefix = name.removesuffix("_options")
        flat |= {name: value} if inner is None else {f"{prefix}.{key}": each for key, each in inner.items()}
    return [(name, _value(value)) for name, value in list(flat.items())[:_MAX_OPTIONS]]


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
