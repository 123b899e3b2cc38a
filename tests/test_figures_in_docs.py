"""Measured figures in README.md and docs/: all of them are written from results/ by `make figures`."""

import json
from pathlib import Path

import pytest

from benchmarks import figures

ROOT = Path(__file__).parents[1]
PAGES = figures.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_what_make_figures_writes(page):
    text = page.read_text(encoding="utf-8")
    assert figures.rewrite(text, page) == text, "run `make figures`"


def test_the_chart_is_what_make_figures_writes():
    assert figures.CHART.read_text(encoding="utf-8") == figures.chart(), "run `make figures`"


def test_prose_has_no_figure_outside_of_markers():
    found = [
        f"{page.relative_to(ROOT)}:{line}: {figure}"
        for page in PAGES
        for line, figure in figures.unmarked(page.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.stem)
def test_every_result_says_how_it_was_measured_and_is_shown(path):
    result = json.loads(path.read_text(encoding="utf-8"))
    assert result["figures"]
    assert "cited" in result or all(result.get(key) for key in ("command", "date", "machine", "commit"))
    used = {name for page in PAGES for name in figures.names(page.read_text(encoding="utf-8"))}
    assert path.stem in used, "no page shows it"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder of results with one file, `small`."""
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    figures.load.cache_clear()
    columns = {"mAP": {"best": "max"}}
    rows = {"a": {"n": 3, "mAP": [50.26, 0.5], "MB": 1200}, "b": {"n": 1, "mAP": 48.1, "MB": None}}
    about = {"command": "c", "date": "2026-01-01", "machine": "m", "commit": "abc"}
    figures.write(tmp_path / "small.json", **about, row="method", columns=columns, figures=rows)
    yield tmp_path
    figures.load.cache_clear()


TABLE = """<!-- figures: small -->

| method | mAP ↑ | n | MB |
|---|---:|---:|---:|
| a | **50.26 ± 0.50** | 3 | 1,200 |
| b | 48.10 | 1 | – |

[small](results/small.json): m; 2026-01-01.

<!-- end -->"""


def test_a_table_is_written_and_an_edited_figure_is_found(results):
    page = ROOT / "README.md"
    assert figures.rewrite("<!-- figures: small --><!-- end -->", page) == TABLE
    assert figures.rewrite(TABLE, page) == TABLE
    assert figures.rewrite(TABLE.replace("48.10", "48.20"), page) == TABLE


def test_columns_rows_and_figures_in_prose(results):
    page = ROOT / "README.md"
    text = figures.rewrite(
        "<!-- figures: small | columns: MB / mAP = both, n | rows: b = B | source: no --><!-- end -->", page
    )
    assert "| method | both | n |" in text and "| B | – / 48.10 | 1 |" in text and "json" not in text
    prose = (
        "<!-- figure: small a.mAP - b.mAP -->x<!-- end -->, <!-- figure: small a.mAP | ± | digits: 1 --><!-- end -->"
    )
    assert figures.rewrite(prose, page) == prose.replace(">x<", ">2.2<").replace("1 --><", "1 -->50.3 ± 0.5<")


def test_a_row_that_no_file_has_is_refused(results):
    with pytest.raises(SystemExit, match=r"README\.md: no file of small has the row 'c'"):
        figures.rewrite("<!-- figures: small | rows: a, c --><!-- end -->", ROOT / "README.md")


@pytest.mark.parametrize(
    "text",
    [
        "It has 46.6 mAP.",
        "an mAP of 46.6",
        "5 ± 1",
        "981 images/s",
        "takes 1.5 s",
        "| a | mAP |\n|---|---|\n| b | 4.5 |",
    ],
)
def test_a_measured_figure_in_prose_is_found(text):
    assert list(figures.unmarked(text))


@pytest.mark.parametrize(
    "text",
    [
        "more than 200 MB",
        "    0.5 s",
        "`981 images/s`",
        "50 to 100 %",
        "<!-- cited -->34.1 mAP<!-- end -->",
        "| a |\n|---|\n| 4.5 |",
    ],
)
def test_limits_code_and_cited_figures_are_no_measured_figures(text):
    assert not list(figures.unmarked(text))
