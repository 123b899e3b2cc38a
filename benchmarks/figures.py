"""Write every measured figure of README.md and docs/ from the files in results/.

    python -m benchmarks.figures            # rewrites what is between the markers of all pages: `make figures`
    python -m benchmarks.figures check      # lists stale pages, and measured figures outside of markers
    python -m benchmarks.figures add NAME runs/compare/table.json --command "lifelabel compare ..."

`add` writes results/NAME.json from the table.json of `lifelabel compare`, `study` or `report`. Benchmarks write such a
file themselves, with `--json results/NAME.json`. A file has

command, date, machine, commit, seeds, measured_on      how it was measured; `notes` if there is more to say
row, columns        the heading of the rows; heading, digits and best (min, max) of columns
figures             by row and column: a number, [number, spread], text or null
n, unranked         the number of seeds (or `n` in a row); rows that are never the best

CONTRIBUTING.md describes the markers.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["add", "load", "names", "pages", "rewrite", "unmarked", "write"]

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
_MARKER = re.compile(r"<!-- (figures?): (\S+)(.*?) ?-->(.*?)<!-- end -->", re.DOTALL)
_HEADINGS = {"max": "↑", "min": "↓"}


def pages() -> list[Path]:
    """The pages that may have figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


# Reading results


@functools.cache
def load(name: str) -> dict[str, Any]:
    """The file of results of this name."""
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


def _digits(name: str, column: str) -> int:
    """The decimals of a column: those that its file gives, or those of its longest number, up to 3."""
    result = load(name)
    given = result.get("columns", {}).get(column, {}).get("digits")
    if given is not None:
        return int(given)
    numbers = [_number(row.get(column)) for row in result["figures"].values()]
    return min(3, max((_decimals(number) for number in numbers if number is not None), default=0))


def _text(cell: Any, digits: int) -> str:
    if cell is None or cell == []:
        return "–"
    if isinstance(cell, str):
        return cell
    value, *spread = cell if isinstance(cell, list) else [cell]
    text = f"{value:,.{digits}f}" if value is not None else "–"
    return f"{text} ± {spread[0]:,.{digits}f}" if spread and spread[0] is not None else text


# Tables: <!-- figures: NAME | columns: … | rows: … | digits: … | link: … | sort: … | source: no --> … <!-- end -->


class _Column:
    """One column of a table: keys joined by " / ", of this or another file (FILE:KEY), with a heading (= HEADING)."""

    def __init__(self, text: str, name: str, digits: int | None) -> None:
        keys, _, heading = text.partition("=")
        file, _, keys = keys.strip().rpartition(":")
        self.name, self.keys, self.given_digits = file or name, [key.strip() for key in keys.split(" / ")], digits
        self.heading = heading.strip() or " / ".join(map(self._heading, self.keys))

    def _heading(self, key: str) -> str:
        spec = load(self.name).get("columns", {}).get(key, {})
        heading = spec.get("heading", key)
        return f"{heading} {_HEADINGS[spec['best']]}" if spec.get("best") and len(self.keys) == 1 else heading

    def digits(self, key: str) -> int:
        return _digits(self.name, key) if self.given_digits is None else min(self.given_digits, _digits(self.name, key))

    def cells(self, rows: Sequence[str]) -> list[str]:
        """The text of each row. The best of a column is bold, if its file says which one is best."""
        known, result = load(self.name)["figures"], load(self.name)
        best = self._best([row for row in rows if row in known and row not in result.get("unranked", ())])
        found = []
        for row in rows:
            each = [_text(_cell(self.name, row, key), self.digits(key)) if row in known else "–" for key in self.keys]
            text = "–" if set(each) == {"–"} else " / ".join(each)
            found.append(f"**{text}**" if row in best else text)
        return found

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


def _table(name: str, options: Mapping[str, str], page: Path, shown: set[str]) -> str:
    result = load(name)
    digits = int(options["digits"]) if "digits" in options else None
    columns = [_Column(text, name, digits) for text in _split(options.get("columns", "")) or _default_columns(name)]
    rows = [row.partition("=") for row in _split(options.get("rows", "")) or result["figures"]]
    labels = {row.strip(): label.strip() or row.strip() for row, _, label in rows}
    names = list(labels)
    if "sort" in options:
        order = {row: _number(_cell(name, row, options["sort"])) for row in names}
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
    if options.get("source") != "no":
        for each in dict.fromkeys([name, *(column.name for column in columns)]):
            text += f"\n\n{_source(each, page, each in shown)}"
            shown.add(each)
    return f"\n\n{text}\n\n"


def _source(name: str, page: Path, shown: bool) -> str:
    """One line: how the figures were measured. If the page has this line already, only the name of the file."""
    result = load(name)
    up = "../" * len(page.relative_to(ROOT).parent.parts)
    link = f"[{name}]({up}results/{name}.json)"
    if shown:
        return f"Figures: {link}, as above."
    seeds = f"seeds {result['seeds']}" if result.get("seeds") else None
    commit = f"commit {result['commit']}" if result.get("commit") else None
    facts = [result.get("measured_on"), seeds, result.get("machine"), result.get("date"), commit]
    command = f" `{result['command']}`" if result.get("command") else ""
    text = f"Figures: {link}. {'; '.join(str(fact) for fact in facts if fact)}.{command}"
    return f"{text} {result['notes']}" if result.get("notes") else text


# Figures in prose: <!-- figure: NAME ROW.COLUMN -->…<!-- end -->, and differences or ratios of two


def _value(name: str, key: str) -> tuple[Any, int]:
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
        first, digits = (a - b, min(digits, 1)) if parts[1] == "-" else (a / b, 2)
    elif isinstance(first, list) and "±" not in options:
        first = first[0]
    return _text(first, int(options.get("digits", digits))).replace("-", "−")


def _option(text: str) -> tuple[str, str]:
    key, _, value = text.strip().partition(":")
    return key.strip(), value.strip()


def rewrite(text: str, page: Path) -> str:
    """The page with all figures between markers as results/ has them."""
    shown: set[str] = set()

    def replace(found: re.Match[str]) -> str:
        kind, name, options, _ = found.groups()
        if kind == "figure":
            new = _inline(name, options)
        else:
            new = _table(name, dict(_option(each) for each in options.split("|")[1:]), page, shown)
        return f"<!-- {kind}: {name}{options.rstrip()} -->{new}<!-- end -->"

    return _MARKER.sub(replace, text)


def names(text: str) -> set[str]:
    """The results that a page shows."""
    markers = [found.groups() for found in _MARKER.finditer(text)]
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
    hidden = r"<!-- (?:figures?:|cited).*?<!-- end -->|^```.*?^```|^    .*?$|`[^`\n]*`|<!--.*?-->"
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


_TABLE_COLUMNS: dict[str, tuple[str, float, int]] = {
    **{name: (name, 1, 2) for name in ("mAP", "CF1", "OF1")},
    "forgetting_mAP": ("forgetting", 1, 2),
    "forgetting_CF1": ("forgetting of CF1", 1, 2),
    "forgetting_OF1": ("forgetting of OF1", 1, 2),
    "stored_images": ("stored images", 1, 0),
    "stored_bytes": ("stored MB", 1e6, 1),
    "seconds": ("seconds", 1, 0),
    "images_per_second": ("images/s", 1, 0),
    "peak_memory_bytes": ("peak GB", 1e9, 2),
    **{f"acm_error_{part}": (f"error, {part}", 1, 3) for part in ("all", "intra", "old_new", "new_old")},
}
"""The columns of table.json: name, unit and decimals in results/."""


def add(name: str, table: Path, command: str, measured_on: str = "") -> Path:
    """Write results/NAME.json from the table.json of `lifelabel compare`, `study` or `report`."""
    read = json.loads(table.read_text(encoding="utf-8"))
    facts = read["provenance"]
    machine = f"{_join(facts['device'])}, {_join(facts['threads'])} threads, torch {_join(facts['torch'])}"
    figures = {row["name"]: _row(row) for row in read["rows"] if row["runs"]}
    return write(
        name,
        command=command,
        date=max(facts["date"]),
        machine=machine,
        commit=_join(str(each)[:7] for each in facts["commit"]),
        seeds=_join(facts["seeds"]),
        measured_on=measured_on or read["title"],
        row=" / ".join(read["rows"][0]["cells"]),
        unranked=[row["name"] for row in read["rows"] if row["joint"]],
        figures=figures,
    )


def _join(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a row: [mean, standard deviation], or the mean alone of costs and of one run."""
    found: dict[str, Any] = {"n": len(row["runs"])}
    for key, (column, unit, digits) in _TABLE_COLUMNS.items():
        stat = row["figures"].get(key) or {"mean": None}
        if stat["mean"] is not None:
            mean, sd = round(stat["mean"] / unit, digits), stat["sd"]
            has_sd = sd is not None and key.startswith(("mAP", "CF1", "OF1", "forgetting", "acm_error"))
            found[column] = [mean, round(sd / unit, digits)] if has_sd else mean
    return found


def write(name: str, **result: Any) -> Path:
    """Write results/NAME.json with one row per line."""
    figures, columns = result.pop("figures"), result.setdefault("columns", {})
    for score in ("mAP", "CF1", "OF1"):
        if any(score in row for row in figures.values()):
            columns.setdefault(score, {"best": "max"})
    lines = [
        f"  {json.dumps(key, ensure_ascii=False)}: {json.dumps(row, ensure_ascii=False)}"
        for key, row in figures.items()
    ]
    head = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in result.items() if value]
    path = RESULTS / f"{name}.json"
    rows = ",\n".join(lines)
    path.write_text("{\n" + ",\n".join([*head, f' "figures": {{\n{rows}\n }}']) + "\n}\n", encoding="utf-8")
    return path


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what")
    commands.add_parser("check", help="write nothing: list stale pages and unmarked figures")
    adding = commands.add_parser("add", help="write results/NAME.json from a table.json")
    adding.add_argument("name")
    adding.add_argument("table", type=Path)
    adding.add_argument("--command", required=True)
    adding.add_argument("--measured-on", default="")
    given = parser.parse_args()
    if given.what == "add":
        print(add(given.name, given.table, given.command, given.measured_on))
        return 0
    wrong = 0
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
