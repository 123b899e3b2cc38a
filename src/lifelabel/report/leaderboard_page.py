"""The leaderboard: all methods on several streams, ranked, and the published rankings that hold.

The files: leaderboard.md (the page), leaderboard.csv, leaderboard.svg and leaderboard.png (mAP over stored MB).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.table import Table as RichTable

from lifelabel.report.rankings import DOES_NOT_HOLD, HOLDS, RULE, SOURCES, Difference, Source, difference
from lifelabel.report.tables import (
    ResultTable,
    Row,
    csv_text,
    find_column,
    forgetting_columns,
    is_best,
    measurement_notes,
    text_columns,
)
from lifelabel.report.text_tables import Column, Line, Table, markdown_lines, paragraphs, rich_table
from lifelabel.utils.files import write_text
from lifelabel.utils.markdown import Bold, escape, grid
from lifelabel.utils.text import printable

PICTURE = "leaderboard"
"""The name of the picture, without its suffix."""
_COSTS = tuple(map(find_column, ("stored_images", "stored_bytes", "seconds")))


@dataclass(frozen=True)
class StreamBoard:
    """The results on one stream: a table of the same methods for each fidelity. The first fidelity ranks them."""

    name: str
    tables: Mapping[str, ResultTable]

    @property
    def first(self) -> ResultTable:
        return next(iter(self.tables.values()))

    @property
    def rank_key(self) -> str:
        """The name of the figure that ranks the methods: mAP, by the convention of the tables."""
        return self.first.scores[0].key

    def rows(self, method: str) -> dict[str, Row]:
        """The row of a method for each fidelity; empty without this method."""
        return {fidelity: row for fidelity, table in self.tables.items() for row in table.rows if row.name == method}

    def with_runs(self) -> StreamBoard:
        """The same without the methods that have no run at all."""
        names = {row.name for table in self.tables.values() for row in table.rows if row.runs}
        tables = {
            fidelity: dataclasses.replace(table, rows=tuple(row for row in table.rows if row.name in names))
            for fidelity, table in self.tables.items()
        }
        return StreamBoard(self.name, tables)

    @property
    def has_passes(self) -> bool:
        return any(table.has_passes for table in self.tables.values())

    def ranked(self, fidelity: str | None = None) -> dict[str, int | None]:
        """The rank of each lifelong method by its mean mAP, the best first, for the first fidelity or another one.

        None: no run. Equal means share a rank.
        """
        table = self.first if fidelity is None else self.tables[fidelity]
        means = {row.name: row.stat(self.rank_key).mean for row in table.rows if not row.joint}
        known = sorted((mean for mean in means.values() if mean is not None), reverse=True)
        order = sorted(means, key=lambda name: (means[name] is None, -(means[name] or 0)))
        return {name: None if (mean := means[name]) is None else known.index(mean) + 1 for name in order}


def _layout(board: StreamBoard) -> list[tuple[str, Column]]:
    """The fidelity and the figure of each column: all scores of the first, mAP of the others, costs of the first."""
    first, *others = board.tables
    mean_ap, *scores = board.first.scores
    forgets = [
        dataclasses.replace(each, short_head="forg ↓") for each in forgetting_columns(board.first.convention)[:1]
    ]
    named = {
        name: dataclasses.replace(mean_ap, head=f"{name} {mean_ap.head}", short_head=f"{name} {mean_ap.short_head}")
        for name in board.tables
    }
    of_others = [(other, named[other]) for other in others]
    return [
        (first, named[first]),
        *((first, each) for each in (*scores, *forgets)),
        *of_others,
        *((first, each) for each in _COSTS),
    ]


def board_table(board: StreamBoard, joint: bool = False) -> Table | None:
    """The ranked methods, or with `joint` the upper bounds. The best mean of each score is bold among the former."""
    layout, ranks = _layout(board), board.ranked()
    names = [row.name for row in board.first.rows if row.joint] if joint else list(ranks)
    texts = text_columns(["rank", "method"])
    lines = []
    for name in names:
        rows = board.rows(name)
        cells = [rows[fidelity].stat(column.key) for fidelity, column in layout]
        bold = (n for n, (f, column) in enumerate(layout, len(texts)) if is_best(board.tables[f], rows[f], column))
        counts = [", ".join(dict.fromkeys(row.n for row in rows.values()))]
        counts += [" / ".join(dict.fromkeys(row.passes for row in rows.values()))] if board.has_passes else []
        counts += [" / ".join(dict.fromkeys(row.image_size for row in rows.values() if row.runs)) or "–"]
        rank = "–" if ranks.get(name) is None else str(ranks[name])
        lines.append(Line([rank, name, *cells, *counts], frozenset(bold)))
    counted = (Column("n"), *((Column("passes"),) if board.has_passes else ()), Column("px"))
    return Table((*texts, *(column for _, column in layout), *counted), tuple(lines)) if lines else None


def terminal_table(board: StreamBoard) -> RichTable:
    """The ranked methods and then the upper bounds, for a terminal of 100 columns: without the size of the images."""
    tables = [found for joint in (False, True) if (found := board_table(board, joint))]
    lines = tuple(line._replace(cells=line.cells[:-1]) for found in tables for line in found.lines)
    return rich_table(Table(tables[0].columns[:-1], lines, board.name))


# The published rankings


class _Comparison(NamedTuple):
    """A published ranking, and the difference that was measured, by the name of the stream and the fidelity."""

    source: Source
    upper: str
    lower: str
    found: dict[tuple[str, str], Difference]

    @property
    def title(self) -> str:
        return f"{self.upper} above {self.lower}"


def _comparisons(boards: Sequence[StreamBoard]) -> list[_Comparison]:
    comparisons = []
    for source in SOURCES:
        for upper, lower in source.claims:
            found = {}
            for board in boards:
                above, below = board.rows(upper), board.rows(lower)
                for fidelity in above.keys() & below.keys():
                    if each := difference(above[fidelity].stat(board.rank_key), below[fidelity].stat(board.rank_key)):
                        found[board.name, fidelity] = each
            comparisons.append(_Comparison(source, upper, lower, found))
    return comparisons


_GROUPS = (
    "Hold on every stream and with all options",
    "Hold at least once, and are reversed nowhere",
    "Hold at least once, and are reversed at least once",
    "Level everywhere, or without a verdict",
    "Do not hold: reversed at least once, and hold nowhere",
    "Not measured, because a method was not run",
)


def ranking_summary(boards: Sequence[StreamBoard]) -> dict[str, list[str]]:
    """The published rankings by what was measured. A ranking that two sources state is listed once."""
    groups: dict[str, list[str]] = {name: [] for name in _GROUPS}
    for each in _comparisons(boards):
        verdicts = {found.verdict for found in each.found.values()}
        if HOLDS in verdicts:
            everywhere = verdicts == {HOLDS} and len(each.found) == sum(len(board.tables) for board in boards)
            number = 0 if everywhere else 2 if DOES_NOT_HOLD in verdicts else 1
        else:
            number = 5 if not verdicts else 4 if DOES_NOT_HOLD in verdicts else 3
        groups[_GROUPS[number]].append(each.title)
    return {name: list(dict.fromkeys(titles)) for name, titles in groups.items() if titles}


def _ranking_lines(boards: Sequence[StreamBoard]) -> list[str]:
    """The section of the page about published rankings."""
    lines = ["", "## Published rankings", "", RULE, ""]
    lines += [f"- **{name}** ({len(t)}): {escape(', '.join(t))}." for name, t in ranking_summary(boards).items()]
    columns = [(board.name, fidelity) for board in boards for fidelity in board.tables]
    heads = ["ranking", "published", *(", ".join(column) for column in columns)]
    measured = [each for each in _comparisons(boards) if each.found]
    lines += ["", _EXPERIMENT] if measured else []
    for source in dict.fromkeys(each.source.name for each in measured):
        of_source = [each for each in measured if each.source.name == source]
        rows = []
        for each in of_source:
            published = each.source.published(each.upper, each.lower)
            rows.append([each.title, published, *(_verdict_cell(each.found.get(column)) for column in columns)])
        setting = f"What was published: {of_source[0].source.setting}."
        lines += ["", f"### {escape(source)}", *paragraphs([setting]), "", *grid(heads, rows, 2)]
    return lines


def _verdict_cell(found: Difference | None) -> str:
    if found is None:
        return "–"
    text = f"{found.verdict} ({found})"
    return Bold(text) if found.verdict in (HOLDS, DOES_NOT_HOLD) else text


# The page


_EXPERIMENT = (
    "A column of the tables below compares the two rows of the same names in the table of its stream: the difference "
    "of the mean mAP in points ± its standard error. To repeat one pair alone, give the command at the top "
    "`--methods UPPER,LOWER` and another `--out`."
)
_READING = (
    "A method learns every training image of a task {passes}, with the labels of that task. All methods of a table "
    "have the same stream, seeds, backbone and budget of stored images, except where a line under it says NOT equal."
)
_FIDELITIES = {
    "tuned": "options chosen by a search with the same budget of trials for each method, on held-out training images",
    "plain": "one learning rate for all weights, running batch-norm statistics, and no search",
    "paper": "the equations and options of the AGCN paper",
    "release": "the options of the authors' code of AGCN",
}
_COLUMNS = (
    "The rank is that of the mean mAP in the first column of scores. Figures are mean ± sample standard deviation over "
    "seeds; bold is the best mean of a score among the ranked methods. The column of forgetting is that of mAP. Stored "
    "images, stored MB and seconds belong to the runs of the first column of scores. n is the number of finished runs, "
    "px the side of the images in pixels. leaderboard.csv has all figures."
)
_METRICS = (
    "mAP is the mean over classes, CF1 the harmonic mean of the class-wise precision and recall, OF1 the F1 over all "
    "image-label pairs, both at threshold 0.5. Stored is what a method stores from task to task in addition to its "
    "network: images, and the MB of everything. Seconds include the evaluation, and runs at the same time share the "
    "machine."
)
_JOINT = "Upper bounds, trained on all tasks at once with complete labels, and not ranked:"


def write_page(boards: Sequence[StreamBoard], folder: Path, command: str, picture: Sequence[str] = ()) -> list[str]:
    """Write leaderboard.md and leaderboard.csv. Returns their names.

    `command` is the command that makes the page, and `picture` has the names of the files of the picture, if any.
    """
    files = {"leaderboard.md": _page(boards, command, picture), "leaderboard.csv": _csv(boards)}
    for name, text in files.items():
        write_text(folder / name, text)
    return list(files)


def _page(boards: Sequence[StreamBoard], command: str, picture: Sequence[str]) -> str:
    shown = [board.with_runs() for board in boards]
    lines = ["# Leaderboard", "", f"    {printable(command)}"]
    if picture:
        alt = "mAP over the megabytes that each method stores, one panel per stream"
        lines += ["", f"![{alt}]({picture[0]})"]
    options = [f"{name}: {_FIDELITIES.get(name, 'other options')}." for name in boards[0].tables]
    several = any(board.has_passes for board in boards)
    reading = _READING.format(passes="as often as the column of passes says (once without it)" if several else "once")
    lines += paragraphs([" ".join([reading, *options]), _COLUMNS, f"{boards[0].first.convention.note} {_METRICS}"])
    for board, complete in zip(shown, boards, strict=True):
        lines += ["", f"## {escape(board.name)}", *_board_lines(board, complete)]
    lines += _ranking_lines(shown)
    failures = [failure for board in boards for table in board.tables.values() for failure in table.failures]
    if failures:
        lines += ["", f"## Runs that are not finished ({len(failures)})", ""]
        lines += [f"- {escape(failure.name)}: {escape(failure.reason)}" for failure in failures]
    return "\n".join(lines) + "\n"


def _board_lines(board: StreamBoard, complete: StreamBoard) -> list[str]:
    """The tables of one stream, and how they were measured."""
    lines = []
    for joint in (False, True):
        if found := board_table(board, joint):
            lines += ["", *([_JOINT, ""] if joint else []), *markdown_lines(found)]
    for fidelity, table in board.tables.items():
        notes = measurement_notes(table) if table.runs else ["no run is finished."]
        lines += paragraphs([f"{fidelity}: {' '.join(notes)}"])
    return [*lines, *paragraphs([_completeness(board, complete)])]


def _completeness(board: StreamBoard, complete: StreamBoard) -> str:
    """How many of the planned runs exist, and which are missing: methods without any run, and runs of the others."""
    rows = [row for table in complete.tables.values() for row in table.rows]
    shown = {row.name for row in board.first.rows}
    never = [row.name for row in complete.first.rows if row.name not in shown]
    others = [
        name.removeprefix(f"{board.name}, ")
        for table in complete.tables.values()
        for name in table.missing
        if not any(name.rpartition(", seed ")[0].endswith(f", {method}") for method in never)
    ]
    found = f"{sum(len(row.runs) for row in rows)} of {sum(row.planned for row in rows)} runs."
    found += f" Not run: {', '.join(never)}." if never else ""
    return found + (f" Missing: {'; '.join(others)}." if others else "")


def _csv(boards: Sequence[StreamBoard]) -> str:
    """One line per stream, fidelity and method. Upper bounds have no rank."""
    rows: list[Row] = []
    for board in boards:
        for fidelity, table in board.tables.items():
            ranks = board.ranked(fidelity)
            for row in table.rows:
                rank = "" if ranks.get(row.name) is None else str(ranks[row.name])
                rows.append(dataclasses.replace(row, cells=(board.name, fidelity, rank, *row.cells)))
    return csv_text(ResultTable("", ("stream", "fidelity", "rank", "method"), tuple(rows)))
