"""The report of runs as one HTML file that needs no network, and its figures as files.

All text of a run folder is untrusted. The template escapes it, data for scripts is JSON without `<`, `>` and `&`, and
the page allows no script but its own two.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.report import matrix_figures, method_figures, run_figures, vega
from lifelabel.report.cost_figures import cost
from lifelabel.report.method_figures import best_method
from lifelabel.report.page_pictures import pictures
from lifelabel.report.tables import (
    ResultTable,
    Row,
    cost_table,
    equal_options,
    equal_texts,
    error_table,
    main_table,
    notes,
    rows_by_value,
    sub_tables,
    table_texts,
    text_columns,
)
from lifelabel.report.text_tables import Column, Line, Stat, Table
from lifelabel.runs.details import read_details
from lifelabel.runs.finished import FinishedRun, provenance
from lifelabel.utils.files import below, read_limited, write_text
from lifelabel.utils.markdown import Bold
from lifelabel.utils.text import BELOW_ZERO, printable, task_cell

REPORT = "report.html"
_FIGURES, _RECORD = "figures", "files.txt"
_MAX_RECORD = 1 << 20
_MAX_OPTIONS = 300
"""Options of one run that are listed."""
_MAX_VALUE = 200
"""Characters of the value of an option."""
_TITLES = {
    "results": "Results",
    "curves": "Learning curves",
    "pictures": "What it sees",
    "matrix": "Correlation matrix",
    "graph": "Label graph",
    "forgetting": "Forgetting",
    "classes": "Classes",
    "precision": "Precision and recall",
    "calibration": "Calibration",
    "cost": "Cost",
    "configuration": "Configuration",
    "notes": "Notes",
    "failures": "Not finished",
}


@dataclass(frozen=True)
class _Content:
    """Everything that the template shows."""

    table: ResultTable
    charts: dict[str, vega.Figure]
    """The figures of several methods, by name."""
    runs: dict[str, RunSection]
    """The sections of one run, by name."""
    errors: Table | None
    configuration: Configuration
    pictures: dict[str, Any] | None

    @property
    def figures(self) -> list[vega.Figure]:
        panels = [panel for section in self.runs.values() for panel in section.panels]
        return [*self.charts.values(), *(panel.figure for panel in panels if panel.figure)]

    @property
    def sections(self) -> dict[str, str]:
        """The titles of the sections that have data, in order."""
        has = {
            "results": True,
            "curves": "curves" in self.charts,
            "pictures": self.pictures is not None,
            **{name: name in self.runs for name in ("matrix", "graph", "forgetting")},
            "classes": "class_ap" in self.charts or "changes" in self.runs,
            "precision": "precision" in self.charts,
            "calibration": bool({"reliability", "false_positives"} & self.charts.keys() or "thresholds" in self.runs),
            "cost": True,
            "configuration": True,
            "notes": True,
            "failures": bool(self.table.failures),
        }
        return {name: title for name, title in _TITLES.items() if has[name]}


def report_html(table: ResultTable) -> str:
    """The report of a table that has a run, as HTML."""
    return _render(_collect(table))


def write_report(table: ResultTable, folder: Path, progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Write report.html, and its figures as SVG, PDF and PNG into `folder`/figures. Returns the names."""
    figures_folder = below(folder, _FIGURES)
    content = _collect(table)
    write_text(folder / REPORT, _render(content))
    figures_folder.mkdir(exist_ok=True)
    names: list[str] = []
    for done, figure in enumerate(content.figures, 1):
        names += vega.write_figure(figure, figures_folder)
        if progress:
            progress(done, len(content.figures))
    _remove_others(figures_folder, names)
    return [REPORT, *(f"{_FIGURES}/{name}" for name in names)]


def _remove_others(folder: Path, names: list[str]) -> None:
    """Delete the figures of an earlier report that this one does not have. Other files are left alone."""
    record = below(folder, _RECORD)
    earlier = read_limited(record, _MAX_RECORD).decode(errors="replace").splitlines() if record.exists() else []
    for name in {*earlier} - {*names}:
        if Path(name).name == name and Path(name).suffix in vega.SUFFIXES:  # the record is untrusted
            (folder / name).unlink(missing_ok=True)
    write_text(record, "".join(f"{name}\n" for name in names))


def _collect(table: ResultTable) -> _Content:
    rows = [row for row in table.rows if row.runs]
    runs = {row.name: row.first_run for row in rows}
    charts = {
        "curves": method_figures.learning_curves(rows),
        "class_ap": method_figures.class_ap(runs),
        "precision": method_figures.precision_recall(runs),
        "reliability": method_figures.reliability(runs),
        "false_positives": method_figures.false_positives(runs),
        "cost": cost(rows),
    }
    with_error = tuple(row for row in rows if row.stats["acm_error_all"].n)
    return _Content(
        table=table,
        charts={name: figure for name, figure in charts.items() if figure},
        runs=run_sections(rows),
        errors=error_table(dataclasses.replace(table, rows=with_error)) if with_error else None,
        configuration=configuration(table),
        pictures=pictures(rows),
    )


# The sections. Nothing is escaped here: the template escapes all text


@dataclass(frozen=True)
class _Panel:
    """What a section shows of one method."""

    method: int
    """The number of the row of the table."""
    name: str
    seed: int
    figure: vega.Figure | None = None
    text: _MatrixText | None = None
    table: Table | None = None


@dataclass(frozen=True)
class _MatrixText:
    """A correlation matrix in words."""

    relations: list[matrix_figures.Relation]
    changes: list[matrix_figures.Change]
    changed: int
    """The number of changes; `changes` has the largest ones."""
    has_old: bool
    """Whether the run has several tasks, so that an entry of old classes could change."""
    part: str
    """Which classes are compared, if not all."""


@dataclass(frozen=True)
class RunSection:
    """A section that shows one run at a time: a panel for each method that has data, and the method shown first."""

    panels: tuple[_Panel, ...]
    chosen: int


@dataclass(frozen=True)
class Configuration:
    """Options that a comparison should hold equal, and all options of each method."""

    equal: dict[str, str]
    different: Table
    """Option, value, and the methods that have it."""
    methods: list[tuple[str, list[tuple[str, str]]]]


def run_sections(rows: Sequence[Row]) -> dict[str, RunSection]:
    """The sections of one run, by their names. Those without data are left out."""
    makers: dict[str, Callable[[FinishedRun, str], dict[str, Any] | None]] = {
        "matrix": _matrix,
        "graph": _figure_of(matrix_figures.label_graph),
        "forgetting": _figure_of(run_figures.forgetting),
        "changes": _figure_of(run_figures.class_changes),
        "thresholds": _thresholds,
    }
    found = {}
    for name, make in makers.items():
        made = {number: content for number, row in enumerate(rows) if (content := make(row.first_run, row.name))}
        if made:
            chosen = best_method((row.first_run for row in rows), made)
            panels = (_Panel(n, rows[n].name, rows[n].first_run.seed, **content) for n, content in made.items())
            found[name] = RunSection(tuple(panels), chosen)
    return found


def _figure_of(
    make: Callable[[FinishedRun, str], vega.Figure | None],
) -> Callable[[FinishedRun, str], dict[str, Any] | None]:
    def panel(run: FinishedRun, label: str) -> dict[str, Any] | None:
        figure = make(run, label)
        return {"figure": figure} if figure else None

    return panel


def _matrix(run: FinishedRun, label: str) -> dict[str, Any] | None:
    figure = matrix_figures.matrix(run, label)
    if not figure:
        return None
    changed, changes = matrix_figures.changed_relations(run)
    total, compared = sum(map(len, run.metrics["tasks"])), len(run.matrices().get("kept", ()))
    part = f"Only the {compared:,} classes with the strongest relations, of {total:,}, are compared."
    more = part if compared < total else ""
    relations = matrix_figures.strongest_relations(run)
    return {"figure": figure, "text": _MatrixText(relations, changes, changed, len(run.metrics["tasks"]) > 1, more)}


_THRESHOLD_COLUMNS = (
    Column("class", is_text=True), Column("task"), Column("threshold", 3),
    *(Column(head, 1) for head in ("F1 %", "precision %", "recall %")),
)  # fmt: skip


def _thresholds(run: FinishedRun, label: str) -> dict[str, Any] | None:
    """The threshold of each class with the best F1 on the test images. Unknown: the class has no positive image."""
    details = read_details(run)
    if details is None:
        return None
    recall = np.linspace(0, 1, details.precision.shape[1])
    precision = np.nan_to_num(details.precision.astype(float), nan=-1.0)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    names = [(name, number) for number, task in enumerate(run.metrics["tasks"], 1) for name in task]
    lines = []
    for k, ((name, task), r) in enumerate(zip(names, f1.argmax(1), strict=True)):
        found = (details.thresholds[k, r], 100 * f1[k, r], 100 * precision[k, r], 100 * recall[r])
        known = not np.isnan(details.precision[k, r])
        stats = [Stat(float(value) if known else None, None, 1) for value in found]
        lines.append(Line([str(name), task_cell(task, run.task_names), *stats]))
    return {"table": Table(_THRESHOLD_COLUMNS, tuple(lines))} if lines else None


def configuration(table: ResultTable) -> Configuration:
    """What is equal, what differs, and the options of the first run of each row."""
    same, different = equal_options(table)
    lines = [
        Line([name, value, ", ".join(rows)])
        for name, by_row in different.items()
        for value, rows in rows_by_value(by_row).items()
    ]
    methods = [(row.name, _options(row.first_run.config)) for row in table.rows if row.runs]
    columns = text_columns(["option", "value", "methods"])
    return Configuration(equal_texts(table, same), Table(columns, tuple(lines)), methods)


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


# HTML


def _render(content: _Content) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def text(value: Any) -> Any:
        return value if isinstance(value, Markup) else printable(value)

    environment = Environment(
        loader=PackageLoader("lifelabel.report"), autoescape=True, finalize=text, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.tests["bold"] = lambda value: isinstance(value, Bold)
    environment.filters["json"] = lambda value: Markup(_script_json(value))
    scripts = [vega.bundle(), _template("report.js")]
    lines = notes(content.table)
    return environment.get_template("report.html.j2").render(
        content=content,
        table=content.table,
        main=main_table(content.table),
        sub_tables=sub_tables(content.table),
        costs=cost_table(content.table),
        copies=table_texts(content.table),
        streams=sorted({run.stream for run in content.table.runs}),
        today=datetime.date.today().isoformat(),
        provenance=provenance(content.table.runs),
        below_zero=BELOW_ZERO,
        warnings=[line for line in lines if line.startswith("NOT ")],
        notes=[line for line in lines[1:] if not line.startswith("NOT ")],
        figure_data={figure.name: _figure_data(figure) for figure in content.figures},
        configs={"light": vega.config(dark=False), "dark": vega.config(dark=True)},
        policy=_policy(scripts),
        style=Markup(_template("report.css")),
        scripts=[Markup(script) for script in scripts],
    )


def _template(name: str) -> str:
    return (resources.files("lifelabel.report") / "templates" / name).read_text(encoding="utf-8")


def _figure_data(figure: vega.Figure) -> dict[str, Any]:
    return {"spec": figure.spec, "controls": [asdict(control) for control in figure.controls]}


def _script_json(value: Any) -> str:
    r"""JSON that cannot end a <script> element. It is ASCII: other characters are escaped.

    >>> _script_json(["</script>", "é"])
    '["\\u003c/script\\u003e","\\u00e9"]'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _policy(scripts: list[str]) -> str:
    """A content security policy: the given scripts, styles in the page, and data: pictures. Nothing else, no network.

    Vega's expressions are interpreted, so `unsafe-eval` is not needed. Its SVG has style attributes.
    """
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
