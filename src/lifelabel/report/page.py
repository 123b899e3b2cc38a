"""The report of runs as one HTML file that needs no network, and its figures as files.

All text of a run folder is untrusted. The template escapes it, data for scripts is JSON without `<`, `>` and `&`, and
the page allows no script but its own two.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from lifelabel.report import figures, vega
from lifelabel.report.page_data import Configuration, RunSection, configuration, run_sections, threshold_section
from lifelabel.report.page_pictures import pictures
from lifelabel.report.tables import Grid, ResultTable, cost_grid, error_grid, main_grid, notes, sub_grids, table_texts
from lifelabel.runs.finished import provenance
from lifelabel.utils.files import below, read_limited, write_text
from lifelabel.utils.markdown import Bold
from lifelabel.utils.text import BELOW_ZERO, printable

__all__ = ["REPORT", "report_html", "write_report"]

REPORT = "report.html"
_FIGURES, _RECORD = "figures", "files.txt"
_MAX_RECORD = 1 << 20
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
    thresholds: RunSection | None
    errors: Grid | None
    costs: Grid
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
            "calibration": bool({"reliability", "false_positives"} & self.charts.keys() or self.thresholds),
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
        "curves": figures.learning_curves(rows),
        "class_ap": figures.class_ap(runs),
        "precision": figures.precision_recall(runs),
        "reliability": figures.reliability(runs),
        "false_positives": figures.false_positives(runs),
        "cost": figures.cost(rows),
    }
    return _Content(
        table=table,
        charts={name: figure for name, figure in charts.items() if figure},
        runs=run_sections(rows),
        thresholds=threshold_section(rows),
        errors=error_grid(table),
        costs=cost_grid(table),
        configuration=configuration(table),
        pictures=pictures(rows),
    )


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
        main=main_grid(content.table),
        sub_grids=sub_grids(content.table),
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
