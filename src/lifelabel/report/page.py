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

from lifelabel.report import matrix_figures, score_figures, vega
from lifelabel.report.cost_figures import cost
from lifelabel.report.page_pictures import pictures
from lifelabel.report.score_figures import best_method
from lifelabel.report.tables import (
    ResultTable,
    Row,
    cost_table,
    equal_options,
    equal_texts,
    error_table,
    main_table,
    metrics_note,
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
from lifelabel.utils.text import printable, task_cell

REPORT = "report.html"
_FIGURES, _RECORD = "figures", "files.txt"
_MAX_RECORD = 1 << 20
_MAX_OPTIONS = 300
"""Options of one run that are listed."""
_MAX_VALUE = 200
"""Characters of the value of an option."""
_SECTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "results": ("Results", ()),
    "curves": ("Learning curves", ("curves",)),
    "pictures": ("What it sees", ("pictures",)),
    "matrix": ("Correlation matrix", ("matrix",)),
    "graph": ("Label graph", ("graph",)),
    "forgetting": ("Forgetting", ("forgetting",)),
    "classes": ("Classes", ("class_ap", "changes")),
    "precision": ("Precision and recall", ("precision",)),
    "calibration": ("Calibration", ("reliability", "false_positives", "thresholds")),
    "cost": ("Cost", ()),
    "configuration": ("Configuration", ()),
    "notes": ("Notes", ()),
    "failures": ("Not finished", ("failures",)),
}
"""The sections by id: their titles, and the parts of which they show at least one."""
_Parts = dict[str, Any]
"""What the template shows, by name: figures, sections of one run, tables and data. Parts without data are left out."""


def report_html(table: ResultTable) -> str:
    """The report of a table that has a run, as HTML."""
    return _render(table, _collect(table))


def write_report(table: ResultTable, folder: Path, progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Write report.html, and its figures as SVG, PDF and PNG into `folder`/figures. Returns the names."""
    figures_folder = below(folder, _FIGURES)
    parts = _collect(table)
    write_text(folder / REPORT, _render(table, parts))
    figures_folder.mkdir(exist_ok=True)
    names: list[str] = []
    figures = _figures(parts)
    for done, figure in enumerate(figures, 1):
        names += vega.write_figure(figure, figures_folder)
        if progress:
            progress(done, len(figures))
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


def _collect(table: ResultTable) -> _Parts:
    rows = [row for row in table.rows if row.runs]
    runs = {row.name: row.first_run for row in rows}
    with_error = tuple(row for row in rows if row.stats["acm_error_all"].n)
    parts = {
        "curves": score_figures.learning_curves(rows),
        "class_ap": score_figures.class_ap(runs),
        "precision": score_figures.precision_recall(runs),
        "reliability": score_figures.reliability(runs),
        "false_positives": score_figures.false_positives(runs),
        "cost": cost(rows, table.convention),
        **run_sections(rows),
        "errors": error_table(dataclasses.replace(table, rows=with_error)) if with_error else None,
        "configuration": configuration(table),
        "pictures": pictures(rows),
        "failures": table.failures,
    }
    return {name: part for name, part in parts.items() if part}


def _figures(parts: _Parts) -> list[vega.Figure]:
    panels = [panel for part in parts.values() if isinstance(part, RunSection) for panel in part.panels]
    return [each for each in (*parts.values(), *(p.content for p in panels)) if isinstance(each, vega.Figure)]


# The sections. Nothing is escaped here: the template escapes all text


@dataclass(frozen=True)
class _Panel:
    """What a section shows of one method."""

    method: int
    """The number of the row of the table."""
    name: str
    run: FinishedRun
    content: vega.Figure | Table


@dataclass(frozen=True)
class RunSection:
    """A section that shows one run at a time: a panel for each method that has data, and the method shown first."""

    panels: list[_Panel]
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
    makers: dict[str, Callable[[FinishedRun, str], vega.Figure | Table | None]] = {
        "matrix": matrix_figures.matrix,
        "graph": matrix_figures.label_graph,
        "forgetting": score_figures.forgetting,
        "changes": score_figures.class_changes,
        "thresholds": _thresholds,
    }
    runs, found = [row.first_run for row in rows], {}
    for name, make in makers.items():
        made = ((number, make(row.first_run, row.name)) for number, row in enumerate(rows))
        panels = [_Panel(n, rows[n].name, runs[n], content) for n, content in made if content]
        if panels:
            found[name] = RunSection(panels, best_method(runs, (panel.method for panel in panels)))
    return found


_THRESHOLD_COLUMNS = (
    Column("class", is_text=True), Column("task"), Column("threshold", 3),
    *(Column(head, 1) for head in ("F1 %", "precision %", "recall %")),
)  # fmt: skip


def _thresholds(run: FinishedRun, _: str) -> Table | None:
    """The threshold of each class with the best F1 on the test images. Unknown: the class has no positive image."""
    details = read_details(run)
    if details is None:
        return None
    recall = np.linspace(0, 1, details.precision.shape[1])
    precision = np.nan_to_num(details.precision.astype(float), nan=-1.0)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-9)
    names = [(name, number) for number, task in enumerate(run.tasks, 1) for name in task]
    lines = []
    for k, ((name, task), r) in enumerate(zip(names, f1.argmax(1), strict=True)):
        found = (details.thresholds[k, r], 100 * f1[k, r], 100 * precision[k, r], 100 * recall[r])
        known = not np.isnan(details.precision[k, r])
        stats = [Stat(float(value) if known else None, None, 1) for value in found]
        lines.append(Line([name, task_cell(task, run.task_names), *stats]))
    return Table(_THRESHOLD_COLUMNS, tuple(lines)) if lines else None


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


def _render(table: ResultTable, parts: _Parts) -> str:
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
    about = metrics_note(table)
    lines = [line for line in notes(table) if line != about]
    return environment.get_template("report.html.j2").render(
        parts=parts,
        table=table,
        sections={name: title for name, (title, of) in _SECTIONS.items() if not of or parts.keys() & {*of}},
        matrix_figures=matrix_figures,
        main=main_table(table),
        sub_tables=sub_tables(table),
        costs=cost_table(table),
        copies=table_texts(table),
        streams=sorted({run.stream for run in table.runs}),
        today=datetime.date.today().isoformat(),
        provenance=provenance(table.runs),
        about=about,
        warnings=[line for line in lines if line.startswith("NOT ")],
        notes=[line for line in lines[1:] if not line.startswith("NOT ")],
        figure_data={
            figure.name: {"spec": figure.spec, "controls": list(map(asdict, figure.controls))}
            for figure in _figures(parts)
        },
        configs={"light": vega.config(dark=False), "dark": vega.config(dark=True)},
        policy=_policy(scripts),
        style=Markup(_template("report.css")),
        scripts=[Markup(script) for script in scripts],
    )


def _template(name: str) -> str:
    return (resources.files("lifelabel.report") / "templates" / name).read_text(encoding="utf-8")


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
