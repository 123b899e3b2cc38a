"""Write every measured figure of README.md and docs/ from the files in results/.

    python -m benchmarks.figures            # rewrites what is between the markers of all pages: `make figures`
    python -m benchmarks.figures check      # lists stale pages, and measured figures outside of markers
    python -m benchmarks.figures add NAME runs/compare/table.json --command "lifelabel compare ..."

`add` writes the runs of one or more table.json of `lifelabel compare`, `study` or `report`, which may be from several
machines and days, to results/NAME.json. Runs that the file has are kept. A row has the mean and the standard deviation
of its runs. Benchmarks write such a file themselves, with `--json results/NAME.json`. A file has

command, date, machine, commit, seeds, measured_on      how it was measured; `notes` if there is more to say
row, columns        the heading of the rows; heading, digits and best (min, max) of columns
figures             by row and column: a number, [number, spread], text or null
n, unranked         the number of seeds (or `n` in a row); rows that are never the best
runs                by row, and by seed and order: the figures, date, commit and machine of each run of `add`
fingerprints        of the streams of these runs, by order
aggregated          date, machine, commit and seeds of the rows without runs, beside rows that have them

CONTRIBUTING.md describes the markers.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lifelabel.cli.completion import method_names
from lifelabel.metrics.over_tasks import CONVENTIONS, HEADLINE
from lifelabel.report.paper_claims import TABLE_1, figures_of
from lifelabel.report.rankings import DOES_NOT_HOLD, HOLDS, LEVEL, NO_VERDICT, SOURCES, Difference, difference
from lifelabel.report.text_tables import Stat

__all__ = ["CHART", "add", "chart", "load", "names", "pages", "rewrite", "unmarked", "write"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
CHART = ROOT / "docs/leaderboard.svg"
_MARKER = re.compile(r"<!-- (figures?|rankings|reproduction): (\S+)(.*?) ?-->(.*?)<!-- end -->", re.DOTALL)
_PAPER = "paper-table-1"
_HEADINGS = {"max": "↑", "min": "↓"}


def pages() -> list[Path]:
    """The pages that may have figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# Reading results


@functools.cache
def load(name: str) -> dict[str, Any]:
    """The file of results of this name; `paper-table-1`: what the AGCN paper prints for Split-COCO."""
    if name == _PAPER:
        rows = {row: figures_of(TABLE_1, "Split-COCO", row) for row in TABLE_1["Split-COCO"]}
        cited = "Du et al., AGCN, ICME 2022, Table 1: ResNet-101, 448 pixels, one pass"
        return {"cited": cited, "row": "method", "figures": rows}
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise SystemExit(f"{path.relative_to(ROOT)}: no such file")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _cell(name: str, row: str, column: str) -> Any:
    result = load(name)
    figures = result["figures"]
    if row not in figures:
        raise SystemExit(f"results/{name}.json has no row {row!r}: it has {', '.join(figures)}")
    if column == "n":
        return figures[row].get("n", result.get("n"))
    if not any(column in each for each in figures.values()):
        raise SystemExit(f"results/{name}.json has no column {column!r}")
    return figures[row].get(column)


def _number(cell: Any) -> float | None:
    cell = cell[0] if isinstance(cell, list) else cell
    return None if isinstance(cell, str) else cell


def _decimals(number: float) -> int:
    """The decimals that are needed to print the number: 0 for 1e-05.

    >>> _decimals(0.25), _decimals(3.0)
    (2, 0)
    """
    return len(f"{number:.10f}".rstrip("0").partition(".")[2])


def _digits(name: str, column: str) -> int | None:
    """The decimals of a column: those that its file gives, or those of its longest number, up to 3.

    None (`"digits": "each"`): each number has its own decimals.
    """
    result = load(name)
    given = result.get("columns", {}).get(column, {}).get("digits")
    if given is not None:
        return None if given == "each" else int(given)
    numbers = [_number(row.get(column)) for row in result["figures"].values()]
    return min(3, max((_decimals(number) for number in numbers if number is not None), default=0))


def _text(cell: Any, digits: int | None) -> str:
    if cell is None or cell == []:
        return "–"
    if isinstance(cell, str):
        return cell
    value, *spread = cell if isinstance(cell, list) else [cell]
    digits = _decimals(value) if digits is None else digits
    numbers = [value, *(each for each in spread if each is not None)]
    texts = [f"{each:.1e}" if 0 < abs(each) < 1e-4 else f"{each:,.{digits}f}" for each in numbers]
    return " ± ".join(texts).replace("-", "−")


# Tables: <!-- figures: NAME | columns: … | rows: … | digits: … | link: … | sort: … | source: no --> … <!-- end -->


class _Column:
    """One column of a table: keys joined by " / ", of this or another file (FILE:KEY), with a heading (= HEADING).

    `KEY ÷ ROW` is the fraction of the figure of another row.
    """

    def __init__(self, text: str, name: str, digits: int | None = None, spread: Sequence[str] | None = None) -> None:
        keys, _, heading = text.partition("=")
        file, _, keys = keys.strip().rpartition(":")
        keys, _, self.whole = (part.strip() for part in keys.partition("÷"))
        self.name, self.keys, self.given_digits = file or name, [key.strip() for key in keys.split(" / ")], digits
        self.spread = spread is None or bool(set(self.keys) & set(spread))
        self.heading = heading.strip() or " / ".join(map(self._heading, self.keys))

    def _heading(self, key: str) -> str:
        spec = load(self.name).get("columns", {}).get(key, {})
        heading = spec.get("heading", key)
        return f"{heading} {_HEADINGS[spec['best']]}" if spec.get("best") and len(self.keys) == 1 else heading

    def digits(self, key: str) -> int | None:
        digits = _digits(self.name, key)
        return digits if digits is None or self.given_digits is None else min(self.given_digits, digits)

    def cells(self, rows: Sequence[str]) -> list[str]:
        """The text of each row. The best of a column is bold, if its file says which one is best."""
        known, result = load(self.name)["figures"], load(self.name)
        best = self._best([row for row in rows if row in known and row not in result.get("unranked", ())])
        found = []
        for row in rows:
            each = [self._text(row, key) if row in known else "–" for key in self.keys]
            text = "–" if set(each) == {"–"} else " / ".join(each)
            found.append(f"**{text}**" if row in best else text)
        return found

    def _text(self, row: str, key: str) -> str:
        cell = _cell(self.name, row, key)
        if self.whole:
            part, whole = _number(cell), _number(_cell(self.name, self.whole, key))
            return _text(None if part is None or not whole else part / whole, 2)
        return _text(cell if self.spread or not isinstance(cell, list) else cell[0], self.digits(key))

    def _best(self, rows: Sequence[str]) -> list[str]:
        which = load(self.name).get("columns", {}).get(self.keys[0], {}).get("best")
        numbers = {row: _number(_cell(self.name, row, self.keys[0])) for row in rows}
        numbers = {row: number for row, number in numbers.items() if number is not None}
        if not which or len(self.keys) > 1 or len(numbers) < 2:
            return []
        best = (max if which == "max" else min)(number for number in numbers.values() if number is not None)
        return [row for row, number in numbers.items() if number == best]


def _split(text: str) -> list[str]:
    """The parts of a list: separated by semicolons if there is one, otherwise by commas."""
    return [part.strip() for part in text.split(";" if ";" in text else ",") if part.strip()]


def _default_columns(name: str) -> list[str]:
    figures = load(name)["figures"].values()
    return list(dict.fromkeys([*load(name).get("columns", {}), *(key for row in figures for key in row)]))


def _table(name: str, options: Mapping[str, str], page: Path) -> str:
    result = load(name)
    digits = int(options["digits"]) if "digits" in options else None
    spread = _split(options["spread"]) if "spread" in options else None
    columns = [
        _Column(text, name, digits, spread) for text in _split(options.get("columns", "")) or _default_columns(name)
    ]
    labels = {row: row for row in result["figures"]}
    if "rows" in options:
        rows = [row.partition(" = ") for row in _split(options["rows"])]
        labels = {row.strip(): label.strip() or row.strip() for row, _, label in rows}
    files = dict.fromkeys([name, *(column.name for column in columns)])
    for row in labels:
        if not any(row in load(each)["figures"] for each in files):
            raise SystemExit(f"{page.relative_to(ROOT)}: no file of {', '.join(files)} has the row {row!r}")
    names = list(labels)
    if "sort" in options:
        by = _Column(options["sort"], name)
        known = load(by.name)["figures"]
        order = {row: _number(_cell(by.name, row, by.keys[0])) if row in known else None for row in names}
        names.sort(key=lambda row: (order[row] is None, -(order[row] or 0)))
    if "link" in options:
        for row in names:
            target = Path(options["link"]) / f"{row}.md"
            labels[row] = f"[{labels[row]}]({target})" if (page.parent / target).is_file() else labels[row]
    cells = [column.cells(names) for column in columns]
    head = [options.get("row", result.get("row", "")), *(column.heading for column in columns)]
    right = [all(re.match(r"[*–\d−+-]", text) for text in column) for column in cells]
    lines = [[labels[row], *texts] for row, *texts in zip(names, *cells, strict=True)]
    rule = "|".join(["---", *("---:" if each else "---" for each in right)])
    first, *others = [f"| {' | '.join(line)} |" for line in (head, *lines)]
    text = "\n".join([first, f"|{rule}|", *others])
    if options.get("source") == "short":
        text += f"\n\nFigures: {', '.join(_link(each, page) for each in files)}."
    elif options.get("source") != "no":
        text += "".join(f"\n\n{_source(each, page)}" for each in files)
    if "seeds" in options:
        text += f"\n\n{_completeness(name, int(options['seeds']))}"
    return f"\n\n{text}\n\n"


def _completeness(name: str, seeds: int) -> str:
    """How many runs of all methods exist, and the methods that have fewer than `seeds`."""
    numbers = {method: 0 for method in method_names()}
    numbers |= {row: _cell(name, row, "n") for row in load(name)["figures"] if row in numbers}
    few = [f"{method} ({number})" for method, number in numbers.items() if number < seeds]
    text = f"{sum(min(number, seeds) for number in numbers.values())} of {seeds * len(numbers)} runs."
    return f"{text} Fewer than {seeds}: {', '.join(few)}." if few else text


def _link(name: str, page: Path) -> str:
    up = "../" * len(page.relative_to(ROOT).parent.parts)
    if name == _PAPER:
        return f"[{name}]({up}src/lifelabel/report/paper_claims.py)"
    return f"[{name}]({up}results/{name}.json)"


def _source(name: str, page: Path) -> str:
    """One line: how the figures were measured. The file has the command and the commit too."""
    result = load(name)
    seeds = f"seeds {result['seeds']}" if result.get("seeds") else None
    commit = f"commit {result['commit']}" if "runs" in result else None  # the runs may be of several
    facts = [result.get("cited"), result.get("measured_on"), seeds, result.get("machine"), result.get("date"), commit]
    text = f"{_link(name, page)}: {'; '.join(fact for fact in facts if fact and fact != name)}."
    return f"{text} {result['notes']}" if result.get("notes") else text


# Figures in prose: <!-- figure: NAME ROW.COLUMN -->…<!-- end -->, and differences or ratios of two


def _value(name: str, key: str) -> tuple[Any, int | None]:
    file, _, key = key.strip().rpartition(":")
    row, _, column = key.rpartition(".")
    return _cell(file or name, row, column), _digits(file or name, column)


def _inline(name: str, text: str) -> str:
    """The figure of `ROW.COLUMN`, `A.COLUMN - B.COLUMN` or `A.COLUMN / B.COLUMN`, with `| digits: N`, `| ±`."""
    expression, *more = text.split("|")
    options = dict(_option(each) for each in more)
    parts = re.split(r" ([-/]) ", expression.strip())
    (first, digits), *rest = (_value(name, part) for part in parts[::2])
    if rest:
        a, b = _number(first), _number(rest[0][0])
        assert a is not None and b is not None, expression
        first, digits = (a - b, 1) if parts[1] == "-" else (a / b, 2)
    elif isinstance(first, list) and "±" not in options:
        first = first[0]
    return _text(first, int(options["digits"]) if "digits" in options else digits)


# Published rankings: <!-- rankings: NAME | columns: … --> … <!-- end -->


def _stat(name: str, row: str, column: str) -> Stat:
    if row not in load(name)["figures"]:
        return Stat(None, None, 0)
    cell = _cell(name, row, column)
    mean, sd = cell if isinstance(cell, list) else (cell, None)
    return Stat(mean, sd, _cell(name, row, "n"))


def _rankings(name: str, options: Mapping[str, str]) -> str:
    """The rankings that publications state, and the differences that were measured."""
    columns = [_Column(text, name) for text in _split(options["columns"])]
    lines: dict[str, list[str]] = {}
    verdicts: dict[str, str] = {}
    for source in SOURCES:
        for upper, lower in source.claims:
            pairs = [[_stat(each.name, row, each.keys[0]) for row in (upper, lower)] for each in columns]
            found = [difference(above, below) for above, below in pairs]
            pair = f"{upper} above {lower}"
            verdicts[pair] = _verdict({each.verdict for each in found if each})
            cells = [f"{_SYMBOLS[each.verdict]} {_points(each)}" if each else "–" for each in found]
            lines[pair] = [pair, source.name.partition(":")[0], *cells]
    head = ["ranking", "source", *(column.heading for column in columns)]
    rows = [f"| {' | '.join(line)} |" for line in [head, *lines.values()]]
    summary = "; ".join(
        f"{verdict}: {count}" for verdict, count in collections.Counter(verdicts.values()).most_common()
    )
    return "\n\n" + "\n".join([rows[0], "|" + "---|" * len(head), *rows[1:]]) + f"\n\nPairs that {summary}.\n\n"


_SYMBOLS = {HOLDS: "✓", DOES_NOT_HOLD: "✗", LEVEL: "=", NO_VERDICT: "?"}


def _points(found: Difference) -> str:
    error = "" if found.error is None else f" ± {found.error:.1f}"
    return f"{found.points:+.1f}{error}".replace("-", "−")


def _verdict(verdicts: set[str]) -> str:
    if HOLDS in verdicts:
        return (
            "hold in one column and are reversed in another"
            if DOES_NOT_HOLD in verdicts
            else "hold, and are reversed nowhere"
        )
    return "are reversed, and hold nowhere" if DOES_NOT_HOLD in verdicts else "are level or have no verdict"


# The chart of the leaderboard


_PANELS = {"scenes": "scenes", "photographs": "photographs, Split-COCO", "b0-c10": "COCO B0-C10"}
_LINE, _LEFT, _WIDTH = 18, 130, 560


def chart() -> str:
    """docs/leaderboard.svg: mAP of each method with its standard deviation, one panel per stream."""
    parts, y = [], 0
    for name, title in _PANELS.items():
        y += 2 * _LINE
        parts.append(f'<text x="{_LEFT}" y="{y - 6}" font-weight="bold">{title}: mAP in %</text>')
        stats = {row: _stat(name, row, "mAP") for row in load(name)["figures"]}
        for row, stat in sorted(stats.items(), key=lambda each: -(each[1].mean or 0)):
            parts += _bar(row, stat, y, row in load(name)["unranked"], bool(_cell(name, row, "stored images")))
            y += _LINE
    key = "dark: stores no images; light: stores images; grey: upper bound; line: standard deviation over seeds"
    parts.append(f'<text x="{_LEFT}" y="{y + _LINE}">{key}</text>')
    size = f'width="{_LEFT + _WIDTH + 60}" height="{y + 2 * _LINE}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"


def _bar(row: str, stat: Stat, y: int, is_bound: bool, stores: bool) -> list[str]:
    assert stat.mean is not None
    width, sd = stat.mean / 100 * _WIDTH, (stat.sd or 0) / 100 * _WIDTH
    fill, middle = "#999" if is_bound else "#8ab6d6" if stores else "#1f5f8b", y + _LINE / 2
    end = _LEFT + width
    return [
        f'<text x="{_LEFT - 6}" y="{y + 13}" text-anchor="end">{row}</text>',
        f'<rect x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_LINE - 4}" fill="{fill}"/>',
        f'<path d="M{end - sd:.1f} {middle}H{end + sd:.1f}" stroke="black"/>',
        f'<text x="{end + sd + 5:.1f}" y="{y + 13}">{stat.mean:.1f}</text>',
    ]


def _option(text: str) -> tuple[str, str]:
    key, _, value = text.strip().partition(":")
    return key.strip(), value.strip()


def _reproduction(name: str) -> str:
    """What `lifelabel reproduce` wrote: results/NAME.md is its reproduction.md.

    The last paragraph, which says how to read it, is left out: the page says it once.
    """
    path = RESULTS / f"{name}.md"
    if not path.is_file():
        raise SystemExit(f"{path.name}: no such file in results/")
    return path.read_text(encoding="utf-8").rstrip().rpartition("\n\n")[0] + "\n"


def rewrite(text: str, page: Path) -> str:
    """The page with all figures between markers as results/ has them."""

    def replace(found: re.Match[str]) -> str:
        kind, name, options, _ = found.groups()
        if kind == "figure":
            new = _inline(name, options)
        elif kind == "reproduction":
            new = f"\n\n{_reproduction(name)}\n"
        elif kind == "rankings":
            new = _rankings(name, dict(_option(each) for each in options.split("|")[1:]))
        else:
            new = _table(name, dict(_option(each) for each in options.split("|")[1:]), page)
        return f"<!-- {kind}: {name}{options.rstrip()} -->{new}<!-- end -->"

    return _MARKER.sub(replace, text)


def names(text: str) -> set[str]:
    """The results that a page shows."""
    markers = [found.groups() for found in _MARKER.finditer(text) if found[1] != "reproduction"]
    return {name for _, first, options, _ in markers for name in (first, *re.findall(r"([\w+.-]+):[\w(]", options))}


# Figures outside of markers

_SCORE = r"(?:mAP|CF1|OF1|forgetting)"
_UNMARKED = re.compile(
    rf"""\d\s?±\s?\d
    | \d+\.\d+\ (?:points?\ of\ )?{_SCORE}\b
    | \b{_SCORE}\b[^.|\d]{{0,30}}\d+\.\d+
    | \d[\d,.]*\ (?:images/s|requests/s|µs|ms|points)\b
    | \d\.\d+\ ?(?:%|MB\b|GB\b|s\b|seconds\b|minutes\b|times\b)""",
    re.VERBOSE,
)
_HEADING = re.compile(rf"\b{_SCORE}\b|images/s|\b(?:MB|GB|ms|seconds|ratio)\b")


def unmarked(text: str) -> Iterator[tuple[int, str]]:
    """Line number and text of what looks like a measured figure outside of markers, code and `<!-- cited -->`."""
    hidden = r"<!-- (?:figures?:|rankings:|reproduct|cited).*?<!-- end -->|^```.*?^```|^    .*?$|`[^`\n]*`|<!--.*?-->"
    text = re.sub(hidden, lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    lines, measured = text.split("\n"), False
    for number, line in enumerate(lines, 1):
        if line.startswith("|"):
            is_head = number < len(lines) and lines[number].startswith("|---")
            measured = bool(_HEADING.search(line)) if is_head else measured
            if measured and not is_head and re.search(r"\| \**[−+-]?\d[\d,.]*\**(?= \|)| ± ", line):
                yield number, line
        if found := _UNMARKED.search(line):
            yield number, found[0]


# Writing results


_Run = dict[str, Any]
_Key = tuple[str, str]
"""The row of a run, and its seed and order."""
_TABLE_COLUMNS: dict[str, tuple[str, float, int]] = {
    **{
        each.score(name): (f"{each.of_scores.replace('_', ' ')}{name}", 1, 2)
        for each in CONVENTIONS.values()
        for name in HEADLINE
    },
    **{
        key: (f"{prefix}{'' if name == 'mAP' else f' of {name}'}", 1, 2)
        for each in CONVENTIONS.values()
        for name in HEADLINE
        if (key := each.forgetting(name)) and (prefix := key.removesuffix(f"_{name}").replace("_", " "))
    },
    **{f"acm_error_{part}": (f"error, {part}", 1, 3) for part in ("all", "intra", "old_new", "new_old")},
    "stored_images": ("stored images", 1, 0),
    "stored_bytes": ("stored MB", 1e6, 1),
    "image_size": ("image size", 1, 0),
    "seconds": ("seconds", 1, 0),
    "images_per_second": ("images/s", 1, 0),
    "peak_memory_bytes": ("peak GB", 1e9, 2),
}
"""The columns of table.json: name, unit and decimals in results/."""
_BEST = {
    _TABLE_COLUMNS[each.score(name)][0]: {"best": "max", "digits": 2}
    for each in CONVENTIONS.values()
    for name in HEADLINE
}
_COSTS = ("seconds", "images/s", "peak GB")
"""Columns in which a run that is repeated may differ."""
_WITHOUT_SPREAD = ("stored images", "stored MB", "image size", *_COSTS)


def add(name: str, tables: Sequence[Path], command: str, measured_on: str = "", replace: bool = False) -> Path:
    """Write results/NAME.json from the runs of one or more table.json and from those that it has."""
    path = RESULTS / f"{name}.json"
    before = load(name) if path.is_file() else {}
    read = {table: _read(table) for table in tables}
    rows = [row for each in read.values() for row in each["rows"] if row["runs"]]
    runs = _merge(before, path, read, replace)
    earlier = before.get("figures", {})
    kept = {row: figures for row, figures in earlier.items() if row not in {row for row, _ in runs}}
    aggregated = before.get("aggregated") or {
        key: before.get(key, "") for key in ("date", "machine", "commit", "seeds")
    }
    if not kept:
        aggregated = {}
    by_row = {
        row: kept.get(row)
        or {**_others(earlier.get(row, {})), **_row([run for (of, _), run in runs.items() if of == row])}
        for row in dict.fromkeys([*earlier, *(row for row, _ in runs)])
    }
    result = {
        **before,
        "command": "; ".join(dict.fromkeys(filter(None, [*before.get("command", "").split("; "), command]))),
        **_facts(runs, aggregated),
        "measured_on": measured_on or before.get("measured_on") or next(iter(read.values()))["title"],
        "row": before.get("row") or " / ".join(rows[0]["cells"]),
        "columns": before.get("columns") or _BEST,
        "unranked": list(dict.fromkeys([*before.get("unranked", ()), *(row["name"] for row in rows if row["joint"])])),
        "aggregated": aggregated,
        "figures": by_row,
        "runs": runs,
    }
    write(path, **result)
    load.cache_clear()
    return path


def _read(table: Path) -> dict[str, Any]:
    """A table.json whose runs have what a file of results needs."""
    try:
        found: dict[str, Any] = json.loads(table.read_text(encoding="utf-8"))
        runs = [run for row in found["rows"] for run in row["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise SystemExit(f"{table}: not a table.json of lifelabel compare, study or report") from None
    if not runs or not all("fingerprint" in run for run in runs):
        what = "of an earlier version: write it again with `lifelabel report`" if runs else "without a run"
        raise SystemExit(f"{table}: {what}")
    return found


def _merge(
    before: Mapping[str, Any], path: Path, read: Mapping[Path, Mapping[str, Any]], replace: bool
) -> dict[_Key, _Run]:
    """The runs of a file of results and those of tables. The same run counts once; two results of one are refused."""
    found = {(row, key): run for row, each in before.get("runs", {}).items() for key, run in each.items()}
    sources = dict.fromkeys(found, str(path))
    for row in {} if replace else before.get("figures", {}):
        if row not in before.get("runs", {}):
            sources[row, ""] = f"{path}, which has no runs of this row"
    for table, content in read.items():
        for row in content["rows"]:
            for given in row["runs"]:
                key, run = (row["name"], _seed(given)), _run(given)
                source = f"{table} ({given['folder']})"
                old = found.get(key)
                other = sources.get((key[0], "")) or (sources[key] if old and _result(old) != _result(run) else None)
                if other and not replace:
                    raise SystemExit(
                        f"two results of {key[0]}, {key[1]}: {source} and {other}; --replace takes the first"
                    )
                if old is None or other:
                    found[key], sources[key] = run, source
    _check(found, sources)
    return found


def _check(runs: Mapping[_Key, _Run], sources: Mapping[_Key, str]) -> None:
    """Refuse runs of several streams, and runs of one row with different options."""
    streams: dict[str, tuple[str, str]] = {}
    labels: dict[str, tuple[str, str]] = {}
    for (row, key), run in runs.items():
        order, source = key.partition(", ")[2], sources[row, key]
        for value, known, of, what in (
            (run["fingerprint"], streams, order, "streams"),
            (run["label"], labels, row, f"options of {row}"),
        ):
            first = known.setdefault(of, (value, source))
            if first[0] != value:
                raise SystemExit(f"different {what}: {value} in {source}, {first[0]} in {first[1]}")


def _seed(given: Mapping[str, Any]) -> str:
    """The seed and the order of a run, as text."""
    orders = [f"{name} order {given[f'{name}_order']}" for name in ("class", "task") if given[f"{name}_order"]]
    return ", ".join([f"seed {given['seed']}", *orders])


def _run(given: Mapping[str, Any]) -> _Run:
    """The figures of a run, with two decimals more than those of its row, and where and when it was made."""
    figures = {
        column: round(given[key] if unit == 1 else given[key] / unit, digits + 2)
        for key, (column, unit, digits) in _TABLE_COLUMNS.items()
        if given.get(key) is not None
    }
    commit = str(given["commit"] or f"lifelabel {given['lifelabel']}")
    threads = f"{given['threads']} thread{'' if given['threads'] == 1 else 's'}"
    return figures | {
        "date": given["date"],
        "commit": commit[:7] + commit[40:] if given["commit"] else commit,  # with + if files differ from it
        "machine": f"{given['device']}, {threads}, torch {str(given['torch']).partition('+')[0]}",
        "label": given["label"],
        "fingerprint": given["fingerprint"],
    }


def _result(run: _Run) -> _Run:
    return {key: value for key, value in run.items() if key not in (*_COSTS, "date", "commit", "machine")}


def _others(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that `add` does not write."""
    return {
        name: value for name, value in figures.items() if name not in {column for column, *_ in _TABLE_COLUMNS.values()}
    }


def _row(runs: Sequence[_Run]) -> dict[str, Any]:
    """The figures of a row: [mean, standard deviation], or the mean alone of costs and of one run."""
    found: dict[str, Any] = {"n": len(runs)}
    for column, _, digits in _TABLE_COLUMNS.values():
        stat = Stat.from_values(run.get(column) for run in runs)
        if stat.mean is not None:
            mean = round(stat.mean, digits) if digits else round(stat.mean)
            has_sd = stat.sd is not None and column not in _WITHOUT_SPREAD
            found[column] = [mean, round(stat.sd or 0, digits)] if has_sd else mean
    return found


def _facts(runs: Mapping[_Key, _Run], before: Mapping[str, str]) -> dict[str, Any]:
    """The range of dates and of commits, all machines and seeds, and the fingerprints of the streams by order.

    `before` has those of the rows without runs.
    """
    ordered = sorted(runs.values(), key=lambda run: str(run["date"]))
    dates = sorted({*filter(None, before.get("date", "").split(" to ")), *(run["date"] for run in ordered)})
    commits = list(dict.fromkeys(filter(None, [before.get("commit"), *(run["commit"] for run in ordered)])))
    machines = dict.fromkeys(filter(None, [before.get("machine"), *(run["machine"] for run in ordered)]))
    numbers = sorted({int(key.split(",")[0].removeprefix("seed ")) for _, key in runs})
    few = numbers != list(range(numbers[0], numbers[-1] + 1)) or len(numbers) == 1
    seeds = ", ".join(map(str, numbers)) if few else f"{numbers[0]}-{numbers[-1]}"
    prints = {key.partition(", ")[2] or "order 0": run["fingerprint"] for (_, key), run in runs.items()}
    return {
        "date": " to ".join(dict.fromkeys([dates[0], dates[-1]])),
        "machine": "; ".join(machines),
        "commit": ", ".join(commits) if len(commits) < 4 else f"{commits[0]} to {commits[-1]} ({len(commits)} commits)",
        "seeds": ", ".join(dict.fromkeys(filter(None, [before.get("seeds"), seeds]))),
        "fingerprints": prints,
    }


def write(path: Path, **result: Any) -> Path:
    """Write a file of results with one row per line, and one run per line."""
    figures, of_run = result.pop("figures"), result.pop("runs", {})
    runs: dict[str, list[str]] = {}
    for (row, key), run in of_run.items():
        runs.setdefault(row, []).append(f"   {_json(key)}: {_json(run)}")
    head = [f" {_json(key)}: {_json(value)}" for key, value in result.items() if value]
    rows = ",\n".join(f"  {_json(key)}: {_json(row)}" for key, row in figures.items())
    blocks = [*head, f' "figures": {{\n{rows}\n }}']
    if runs:
        each = ",\n".join(f"  {_json(row)}: {{\n{text}\n  }}" for row, text in _joined(runs))
        blocks.append(f' "runs": {{\n{each}\n }}')
    path.write_text("{\n" + ",\n".join(blocks) + "\n}\n", encoding="utf-8")
    return path


def _joined(lines: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    for name, each in lines.items():
        yield name, ",\n".join(each)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what")
    commands.add_parser("check", help="write nothing: list stale pages and unmarked figures")
    adding = commands.add_parser("add", help="add the runs of table.json files to results/NAME.json")
    adding.add_argument("name")
    adding.add_argument("tables", metavar="table.json", type=Path, nargs="+")
    adding.add_argument("--command", required=True)
    adding.add_argument("--measured-on", default="")
    adding.add_argument("--replace", action="store_true", help="of two results of a run, take the new one")
    given = parser.parse_args()
    if given.what == "add":
        print(add(given.name, given.tables, given.command, given.measured_on, given.replace))
        return 0
    wrong = 0
    if given.what != "check":
        CHART.write_text(chart(), encoding="utf-8")
    for page in pages():
        text = page.read_text(encoding="utf-8")
        new, name = rewrite(text, page), page.relative_to(ROOT)
        if given.what == "check":
            found = [f"{name}: stale: run `make figures`"] if new != text else []
            found += [f"{name}:{line}: {figure}" for line, figure in unmarked(text)]
            wrong += len(found)
            print(*found, sep="\n", end="\n" if found else "")
        elif new != text:
            page.write_text(new, encoding="utf-8")
            print(f"wrote {name}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(_main())
