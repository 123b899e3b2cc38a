"""The figures of the AGCN paper beside those of runs, with a verdict for each of its claims.

The files: reproduction.md, reproduction.tex and reproduction.json. The paper's text defines its figures as final
scores, the code of its authors computes means over test sets: both are compared, and always named.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lifelabel.metrics.over_tasks import CONVENTIONS, HEADLINE, Convention
from lifelabel.report import paper_claims as paper
from lifelabel.report.rankings import DOES_NOT_HOLD, HOLDS, LEVEL, difference
from lifelabel.report.tables import ResultTable, Row, measurement_notes, text_columns
from lifelabel.report.text_tables import Column, Line, Stat, Table, markdown_lines, paragraphs, tabular, tex
from lifelabel.runs.finished import FinishedRun
from lifelabel.utils.files import write_text
from lifelabel.utils.markdown import escape
from lifelabel.utils.text import printable

_PUBLISHED = {"table1": paper.TABLE_1, "table2": paper.TABLE_2, "table3": paper.TABLE_3}
_COMPARED = ("paper", "authors")
"""The conventions that the figures of the paper may have."""
_ANSWERS = {HOLDS: "yes", DOES_NOT_HOLD: "no", LEVEL: "level"}
_CLAIMS_NOTE = (
    "A claim is about the lowest of the rows above and the highest of the rows below. yes or no: the difference is "
    "more than 2 standard errors; level: less; without ± there is one seed, and the answer is the sign. In points."
)
_CURVES_NOTE = "mAP in % of the classes so far, on the cumulative test set: the mean over the seeds."
_MATRIX_NOTE = (
    "yes or no: the correlation is more than 2 / √n from 0, for n entries; level: less. Means over the seeds."
)
_BLOCKS = {"all": "all", "intra": "within a task", "old_new": "Old-New", "new_old": "New-Old"}


@dataclass(frozen=True)
class Document:
    """What a reproduction shows: tables with titles, and notes."""

    title: str
    command: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    """Where and how the runs were made."""
    reading: str
    """What the figures and verdicts mean."""


def make_document(target: str, table: ResultTable, command: str, on_scenes: bool) -> Document:
    """Compare the runs of a table with the target of the paper: `table1`, …, `fig3`, `fig4` or `a6`."""
    split = "Split-WIDE" if any(len(run.classes) == 21 for run in table.runs) else "Split-COCO"
    notes = list(measurement_notes(table))
    if on_scenes:
        notes.insert(0, f"Measured on scenes, drawn images, and not on {split}: only the order and the sign of a "
                        "difference can be compared. --root DIR takes the photographs.")  # fmt: skip
    if missing := [row.name for row in table.rows if not row.runs]:
        notes.append(f"Not run: {'; '.join(missing)}.")
    makers: dict[str, Callable[[], list[Table]]] = {
        "fig3": lambda: _curves(table), "fig4": lambda: _matrix(table, False), "a6": lambda: _matrix(table, True),
    }  # fmt: skip
    if target in makers:
        found = makers[target]()
        reading = _CURVES_NOTE if target == "fig3" else _MATRIX_NOTE
        if not found:
            notes.append("No run has the true matrix, and its own after each task, for at most 1,000 classes.")
    else:
        compared = [CONVENTIONS[name] for name in _COMPARED]
        found = [_beside(table, _PUBLISHED[target], split, each) for each in compared]
        found += [_claims(target, table, split, each) for each in compared]
        reading = " ".join([*(each.note for each in compared), _CLAIMS_NOTE])
    return Document(table.title, command, tuple(found), tuple(notes), reading)


# Tables 1 to 3


def _beside(
    table: ResultTable, published: Mapping[str, Mapping[str, tuple[float, ...]]], split: str, convention: Convention
) -> Table:
    """mAP, CF1 and OF1 of the paper, of the runs, and their difference; then the forgetting of mAP."""
    lines = []
    for row in table.rows:
        if not row.runs:
            continue
        printed = paper.figures_of(published, split, _in_paper(row))
        ours = {name: row.stat(convention.score(name)).mean for name in HEADLINE}
        gaps = {name: None if (mine := ours[name]) is None or name not in printed else mine - printed[name]
                for name in HEADLINE}  # fmt: skip
        forgetting = convention.forgetting("mAP")
        lost = row.stat(forgetting) if forgetting else Stat(None, None, 0)
        spread = row.stat(convention.score("mAP")).sd
        forgotten = f"{_one(printed.get('forgetting_mAP'))}/{_one(lost.mean)}"
        lines.append(Line([
            *row.cells, row.n, _triple(printed), _triple(ours), _one(spread), _triple(gaps, "+.1f"),
            "–" if forgotten == "–/–" else forgotten,
        ]))  # fmt: skip
    heads = (Column("n"), Column("paper"), Column("ours"), Column("±"), Column("difference"), Column("forgetting"))
    title = f"{'/'.join(HEADLINE)}, {convention.head}; ± of mAP; forgetting of mAP, {split} of the paper/ours"
    return Table((*text_columns(table.head), *heads), tuple(lines), title)


def _in_paper(row: Row) -> str:
    """The name of a row in the paper, of which it may be a variant."""
    return row.cells[0].partition(", ")[0]


def _one(value: float | None, form: str = ".1f") -> str:
    return "–" if value is None else f"{value:{form}}"


def _triple(values: Mapping[str, float | None], form: str = ".1f") -> str:
    texts = [_one(values.get(name), form) for name in HEADLINE]
    return "–" if set(texts) == {"–"} else "/".join(texts)


def _claims(target: str, table: ResultTable, split: str, convention: Convention) -> Table:
    """The claims, and for each the difference in the paper and the verdict in each case."""
    cases = _cases(table, convention.score("mAP"))
    lines = []
    for claim in paper.CLAIMS[target]:
        printed = _published_difference(claim, _PUBLISHED[target], split)
        lines.append(Line([claim.text, printed, *(_verdict(claim, rows, convention) for rows in cases.values())]))
    columns = (*text_columns(["claim of the paper", "paper"]), *map(Column, cases))
    return Table(columns, tuple(lines), f"Claims, {convention.head}")


def _cases(table: ResultTable, key: str) -> dict[str, dict[str, Row]]:
    """The rows by their names in the paper: with hidden labels masked, with hidden labels as 0 where a method has the
    choice, and with the variant of AGCN that has the highest mean of the figure `key`."""
    masked = {row.cells[0]: row for row in table.rows if row.cells[0] == _in_paper(row)}
    zero = {_in_paper(row): row for row in table.rows if row.cells[0] == f"{_in_paper(row)}, {paper.NEGATIVE}"}
    variants = [row for row in table.rows if _in_paper(row) == "agcn" and row.runs]
    cases = {"masked" if zero else "measured": masked}
    if zero:
        cases["negative"] = {**masked, **zero}
    if len(variants) > 1:
        cases["masked, best agcn"] = {**masked, "agcn": max(variants, key=lambda row: row.stat(key).mean or 0)}
    return cases


def _extremes(claim: paper.Claim, means: Mapping[str, float | None]) -> tuple[str, str] | None:
    """The lowest of the upper rows and the highest of the lower ones; None if a row has no figure."""
    if any(means.get(name) is None for name in (*claim.upper, *claim.lower)):
        return None
    known = {name: mean for name, mean in means.items() if mean is not None}
    return min(claim.upper, key=known.__getitem__), max(claim.lower, key=known.__getitem__)


def _published_difference(
    claim: paper.Claim, published: Mapping[str, Mapping[str, tuple[float, ...]]], split: str
) -> str:
    names = (*claim.upper, *claim.lower)
    found: dict[str, float | None] = {}
    for name in names:
        figures = paper.figures_of(published, split, name) or paper.figures_of(paper.TABLE_1, split, name)
        found[name] = figures.get(claim.key)
    ends = _extremes(claim, found)
    return "–" if ends is None else _one((found[ends[0]] or 0) - (found[ends[1]] or 0), "+.1f")


def _verdict(claim: paper.Claim, rows: Mapping[str, Row], convention: Convention) -> str:
    metric = claim.key.removeprefix("forgetting_")
    key = convention.score(metric) if metric == claim.key else convention.forgetting(metric)
    stats = {name: row.stat(key) for name, row in rows.items()} if key else {}
    ends = _extremes(claim, {name: stat.mean for name, stat in stats.items()})
    found = difference(stats[ends[0]], stats[ends[1]]) if ends else None
    if found is None:
        return "–"
    points = _one(found.points, "+.1f")
    if found.error is None:
        return f"{'yes' if found.points > 0 else 'no'} {points}"
    return f"{_ANSWERS[found.verdict]} {points} ± {found.error:.1f}"


# Figures


def _curves(table: ResultTable) -> list[Table]:
    """mAP of the classes so far after each task, and the tasks after which AGCN is the highest."""
    tasks = max((len(run.curve()) for run in table.runs), default=0)
    stats = []
    for row in table.rows:
        curves = [run.curve() for run in row.runs]
        stats.append((row, [Stat.from_values(values) for values in itertools.zip_longest(*curves)]))
    lines = [Line([*row.cells, *found, *[""] * (tasks - len(found))]) for row, found in stats]
    heads = [Column(str(task), 1, with_sd=False) for task in range(1, tasks + 1)]
    curves_table = Table(
        (*text_columns(table.head), *heads), tuple(lines), "mAP of the classes so far, after each task"
    )
    agcn = next((found for row, found in stats if row.cells[0] == "agcn" and found), None)
    others = [found for row, found in stats if row.cells[0] != "agcn" and not row.joint and found]
    text = "–"
    if agcn and others:
        means = [[each.mean or 0 for each in found] for found in (agcn, *others)]
        above = [1 + n for n, column in enumerate(zip(*means, strict=True)) if column[0] == max(column)]
        answer = "yes" if len(above) == tasks else "no" if not above else "in part"
        text = f"{answer}: after {len(above)} of {tasks} tasks" + (f" ({', '.join(map(str, above))})" if above else "")
    claim = Line(["agcn is above all other methods during the whole stream", text])
    return [curves_table, Table(text_columns(["claim of the paper", "measured"]), (claim,), "Claims")]


def _matrix(table: ResultTable, every_task: bool) -> list[Table]:
    """The agreement of the matrix with the true one, after the last task or after each one, and the claims."""
    runs = [run for run in table.runs if _has_all_matrices(run)]
    if not runs:
        return []
    tasks = range(1, len(runs[0].tasks) + 1) if every_task else [len(runs[0].tasks)]
    lines = []
    for task in tasks:
        found = [_agreement(run, task) for run in runs]
        cells = [Stat.from_values(each[name][part] for each in found) for part in (0, 1) for name in _BLOCKS]
        lines.append(Line([str(task), str(sum(runs[0].sizes[:task])), *cells]))
    columns = [Column(f"{kind}, {name}", 2) for kind in ("correlation", "error") for name in _BLOCKS.values()]
    title = "Entries with i ≠ j beside the true P(C_i|C_j): correlation, and mean absolute error"
    heads = text_columns(["after task", "classes"])
    agreement = Table((*heads, *columns), tuple(lines), title, has_short_numbers=False)
    claims = _matrix_claims(runs, agreement)
    return [agreement, Table(text_columns(["claim of the paper", "measured"]), tuple(claims), "Claims")]


def _has_all_matrices(run: FinishedRun) -> bool:
    """Whether the matrices of all tasks and the true one are there. Of more than 1,000 classes only a part is read."""
    needed = {"truth", *(f"task_{task}" for task in range(1, len(run.tasks) + 1))}
    return needed <= run.matrices.keys() and len(run.matrices["kept"]) == len(run.classes)


def _agreement(run: FinishedRun, task: int) -> dict[str, tuple[float | None, float | None]]:
    """Correlation and mean absolute error of a matrix and the true one, by block."""
    matrix = run.matrices[f"task_{task}"]
    truth = run.matrices["truth"][: len(matrix), : len(matrix)]
    found: dict[str, tuple[float | None, float | None]] = {}
    for name in _BLOCKS:
        mask = _mask(run.sizes[:task], name)
        ours, true = matrix[mask], truth[mask]
        varies = len(ours) > 1 and ours.std() > 0 and true.std() > 0
        correlation = float(np.corrcoef(ours, true)[0, 1]) if varies else None
        found[name] = correlation, float(np.abs(ours - true).mean()) if len(ours) else None
    return found


def _mask(sizes: Sequence[int], block: str) -> np.ndarray:
    """The entries of a block, without the diagonal, of the matrix of tasks with these numbers of classes."""
    task = np.repeat(np.arange(len(sizes)), sizes)
    row, column = task[:, None], task[None, :]
    others = ~np.eye(len(task), dtype=bool)
    return {"all": others, "intra": (row == column) & others, "old_new": row < column, "new_old": row > column}[block]


def _matrix_claims(runs: Sequence[FinishedRun], agreement: Table) -> list[Line]:
    first, last = runs[0], agreement.lines[-1].cells
    correlations = dict(zip(_BLOCKS, last[2:6], strict=True))

    def answer(name: str) -> str:
        stat = correlations[name]
        assert isinstance(stat, Stat)
        if stat.mean is None:
            return "–"
        limit = 2 / math.sqrt(_mask(first.sizes, name).sum())
        word = "yes" if stat.mean > limit else "no" if stat.mean < -limit else "level"
        return f"{word}: correlation {stat.mean:.2f} with the true probabilities"

    sizes = " → ".join(str(len(first.matrices[f"task_{task}"])) for task in range(1, len(first.tasks) + 1))
    change = max(
        float(np.abs(run.matrices[f"task_{len(run.tasks)}"][: len(a), : len(a)] - a).max())
        for run in runs for a in (run.matrices[f"task_{task}"] for task in range(1, len(run.tasks) + 1))
    )  # fmt: skip
    lines = [
        Line(["the matrix is augmented from task to task", f"yes: {sizes} classes"]),
        Line(["classes that occur together more often have larger weights", answer("all")]),
        Line(["relations within a task are constructed", answer("intra")]),
        Line(["relations between tasks are constructed without labels of old classes (R, Old-New)", answer("old_new")]),
        Line(["the same (Q, New-Old)", answer("new_old")]),
        Line(["relations of earlier tasks are preserved",
              f"{'yes' if change < 1e-6 else 'no'}: largest change of an entry {change:.1g}"]),
    ]  # fmt: skip
    classes = {name: number for number, name in enumerate(first.classes)}
    matrix = np.mean([run.matrices[f"task_{len(run.tasks)}"] for run in runs], axis=0)
    for one, other in paper.PAIRS:
        if one in classes and other in classes:
            i, j = classes[one], classes[other]
            mean = (matrix[:, j].sum() - matrix[j, j]) / (len(matrix) - 1)
            related = "yes" if matrix[i, j] > mean else "no"
            text = f"{related}: P({one}|{other}) {matrix[i, j]:.2f}, mean of the column {mean:.2f}"
            lines.append(Line([f"{one} is closely related to {other}", text]))
    return lines


# The files


def write(document: Document, table: ResultTable, folder: Path) -> list[str]:
    """Write the three files. Returns their names."""
    files = {
        "reproduction.md": markdown(document, table),
        "reproduction.tex": _latex(document, table),
        "reproduction.json": json.dumps(_json(document, table), indent=1, allow_nan=False) + "\n",
    }
    for name, text in files.items():
        write_text(folder / name, text)
    return list(files)


def markdown(document: Document, table: ResultTable) -> str:
    lines = [f"### {escape(document.title)}", "", f"    {printable(document.command)}"]
    for each in document.tables:
        lines += ["", f"{escape(each.title)}:", "", *markdown_lines(each)]
    lines += paragraphs([" ".join(document.notes)])
    if table.failures:
        lines += ["", *(f"- not finished: {escape(f.name)}: {escape(f.reason)}" for f in table.failures)]
    lines += paragraphs([document.reading])
    return "\n".join(lines) + "\n"


def _latex(document: Document, table: ResultTable) -> str:
    """With booktabs, for \\input in a document."""
    lines = [r"% \usepackage{booktabs}", f"% {printable(document.command)}"]
    for each in document.tables:
        caption = tex(f"{document.title}: {each.title}")
        lines += [r"\begin{table}[t]", r"  \centering", rf"  \caption{{{caption}}}", *tabular(each), r"\end{table}"]
    lines += [f"% {printable(note)}" for note in (*document.notes, document.reading)]
    lines += [f"% not finished: {printable(failure.name)}: {printable(failure.reason)}" for failure in table.failures]
    return "\n".join(lines) + "\n"


def _json(document: Document, table: ResultTable) -> dict[str, object]:
    tables = [
        {"title": each.title, "heads": each.heads(), "rows": [[str(text) for text in row] for row in each.texts()]}
        for each in document.tables
    ]
    failures = [{"run": f.name, "folder": str(f.folder), "reason": f.reason} for f in table.failures]
    return {
        "title": document.title, "command": document.command, "tables": tables,
        "notes": [*document.notes, document.reading], "failures": failures,
    }  # fmt: skip
