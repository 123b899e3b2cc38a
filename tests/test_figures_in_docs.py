"""Measured figures in README.md and docs/: all of them are written from results/ by `make figures`."""

import json
import re
from pathlib import Path

import pytest
from report.run_folders import forgetting, make_run

from benchmarks import figures
from lifelabel.report.tables import ResultTable, write_tables

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


def test_every_reproduction_is_shown_and_says_how_it_was_measured():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    shown = set(re.findall(r"(?:<!-- reproduction: |results/)(reproduce[\w-]+)", pages))
    assert shown == {path.stem for path in (ROOT / "results").glob("*.md")}
    for name in shown:
        text = (ROOT / f"results/{name}.md").read_text(encoding="utf-8")
        assert re.search(r"^    lifelabel reproduce ", text, re.MULTILINE)
        assert all(re.search(fact, text) for fact in (r"finished 20\d\d-", r"at commit [0-9a-f]{7}", r"\bseeds? \d"))


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


def test_how_many_runs_of_all_methods_exist(results, monkeypatch):
    monkeypatch.setattr(figures, "method_names", lambda: ["a", "b", "c"])
    text = figures.rewrite("<!-- figures: small | seeds: 3 | source: no --><!-- end -->", ROOT / "README.md")
    assert text.endswith("|\n\n4 of 9 runs. Fewer than 3: b (1), c (0).\n\n<!-- end -->")
    all_of = figures.rewrite("<!-- figures: small | seeds: 1 --><!-- end -->", ROOT / "README.md")
    assert "\n2 of 3 runs. Fewer than 1: c (0).\n" in all_of


def test_a_row_that_no_file_has_is_refused(results):
    with pytest.raises(SystemExit, match=r"README\.md: no file of small has the row 'c'"):
        figures.rewrite("<!-- figures: small | rows: a, c --><!-- end -->", ROOT / "README.md")


# Runs of several machines and days

ONE = {"device": "H200", "threads": 1, "torch": "2.6.0+cpu", "date": "2026-11-15", "commit": "a" * 40}
TWO = {"device": "EPYC", "threads": 2, "torch": "2.6.0", "date": "2026-11-17", "commit": "b" * 40 + "+"}


def make_table(folder, machine, *runs):
    """table.json of runs, each a method, a seed and an mAP."""
    found = []
    for method, seed, mAP, *more in runs:
        environment = {**machine, "label": method, "image_size": 224, **(more[0] if more else {})}
        fingerprint = environment.pop("fingerprint", "f00d")
        found.append(
            make_run(
                folder / f"{method}-{seed}", "er", seed, mAP=mAP, stored=(200, 800_000), fingerprint=fingerprint,
                environment=environment, **forgetting(0.25),
            )
        )  # fmt: skip
    write_tables(ResultTable.from_runs(found), folder)
    return folder / "table.json"


def test_runs_of_several_machines_and_days_make_one_row(results, tmp_path):
    first = make_table(tmp_path / "one", ONE, ("er", 0, 0.5), ("er", 1, 0.52), ("prs", 0, 0.4))
    second = make_table(tmp_path / "two", TWO, ("er", 1, 0.52), ("er", 2, 0.6))  # seed 1 is in both
    path = figures.add("new", [first], "lifelabel compare", "scenes")
    one = figures.load("new")
    assert (one["date"], one["machine"], one["commit"]) == ("2026-11-15", "H200, 1 thread, torch 2.6.0", "aaaaaaa")
    assert figures.add("new", [second], "lifelabel compare --seeds 1-2") == path
    new = figures.load("new")
    er = new["figures"]["er"]
    assert (er["n"], er["mAP"], er["CF1"]) == (3, [54.0, 5.29], [27.0, 2.65])  # 50, 52, 60: sqrt(56 / 2)
    assert (er["forgetting"], er["average mAP"]) == ([25.0, 0.0], [67.0, 2.65])  # with 80 after task 1
    assert (er["image size"], er["stored MB"], er["seconds"]) == (224, 0.8, 11)
    assert new["figures"]["prs"]["mAP"] == 40.0
    assert new["command"] == "lifelabel compare; lifelabel compare --seeds 1-2"
    assert (new["date"], new["seeds"]) == ("2026-11-15 to 2026-11-17", "0-2")
    assert new["machine"] == "H200, 1 thread, torch 2.6.0; EPYC, 2 threads, torch 2.6.0"
    assert (new["commit"], new["fingerprints"]) == ("aaaaaaa, bbbbbbb+", {"order 0": "f00d"})
    assert [*new["runs"]["er"]] == ["seed 0", "seed 1", "seed 2"] and new["runs"]["er"]["seed 1"]["date"] == ONE["date"]
    assert sum('"mAP"' in line for line in path.read_text().splitlines()) == 7  # columns, two rows and four runs
    before = path.read_text()
    figures.add("new", [first, second], "lifelabel compare")
    assert path.read_text() == before
    table = figures.rewrite("<!-- figures: new | columns: mAP, image size --><!-- end -->", ROOT / "README.md")
    assert "| er | **54.00 ± 5.29** | 224 |" in table
    assert (
        "[new](results/new.json): scenes; seeds 0-2; H200, 1 thread, torch 2.6.0; EPYC, 2 threads, torch 2.6.0; "
        "2026-11-15 to 2026-11-17; commit aaaaaaa, bbbbbbb+.\n"
    ) in table


def test_many_commits_are_a_range_and_orders_are_runs_of_their_own(results, tmp_path):
    runs = [("er", seed, 0.5, {"commit": f"{seed}" * 40, "date": f"2026-11-0{9 - seed}"}) for seed in (1, 2, 4, 8)]
    figures.add("new", [make_table(tmp_path / "one", ONE, *runs)], "c")
    new = figures.load("new")
    assert (new["commit"], new["seeds"]) == ("8888888 to 1111111 (4 commits)", "1, 2, 4, 8")
    for order in (1, 2):
        run = make_run(
            tmp_path / f"o{order}", "er", 1, order, mAP=0.5, fingerprint=f"p{order}", environment={"label": "er"}
        )
        write_tables(ResultTable.from_runs([run]), tmp_path / f"o{order}")
    figures.add("new", [tmp_path / f"o{order}" / "table.json" for order in (1, 2)], "c")
    assert figures.load("new")["figures"]["er"]["n"] == 6
    assert figures.load("new")["fingerprints"] == {"order 0": "f00d", "task order 1": "p1", "task order 2": "p2"}


def test_two_results_of_one_run_are_refused(results, tmp_path):
    first = make_table(tmp_path / "one", ONE, ("er", 0, 0.5))
    other = make_table(tmp_path / "two", TWO, ("er", 0, 0.51))
    with pytest.raises(SystemExit, match=f"^two results of er, seed 0: {other} .*two/er-0.* and {first} .*one/er-0"):
        figures.add("new", [first, other], "c")
    path = figures.add("new", [first], "c")
    before = path.read_text()
    with pytest.raises(SystemExit, match=f"two/er-0.* and {path}; --replace takes the first$"):
        figures.add("new", [other], "c")
    assert path.read_text() == before
    figures.add("new", [other], "c", replace=True)
    assert figures.load("new")["figures"]["er"]["mAP"] == 51.0
    assert figures.load("new")["machine"] == "EPYC, 2 threads, torch 2.6.0"


@pytest.mark.parametrize(
    ("environment", "message"),
    [({"fingerprint": "beef"}, "different streams: beef in .*two/.* f00d in .*one/"),
     ({"label": "er (lr=0.1)"}, r"different options of er: er \(lr=0.1\) in .*two/.*, er in .*one/")],
)  # fmt: skip
def test_runs_of_other_streams_or_options_are_refused(results, tmp_path, environment, message):
    first = make_table(tmp_path / "one", ONE, ("er", 0, 0.5))
    other = make_table(tmp_path / "two", ONE, ("er", 1, 0.5, environment))
    text = json.loads(other.read_text())
    text["rows"][0]["name"] = "er"  # as `compare` names it
    other.write_text(json.dumps(text))
    with pytest.raises(SystemExit, match=message):
        figures.add("new", [first, other], "c")


def test_rows_without_runs_stay_beside_new_runs(results, tmp_path):
    """The file `small` has the rows a and b, of n seeds and without their runs."""
    figures.add("small", [make_table(tmp_path / "one", ONE, ("er", 0, 0.5))], "d")
    new = figures.load("small")
    assert new["figures"]["a"] == {"n": 3, "mAP": [50.26, 0.5], "MB": 1200} and [*new["figures"]] == ["a", "b", "er"]
    assert (new["command"], new["commit"], new["date"]) == ("c; d", "abc, aaaaaaa", "2026-01-01 to 2026-11-15")
    assert new["aggregated"]["machine"] == "m" and new["machine"].startswith("m; H200")
    rows = make_table(tmp_path / "two", ONE, ("a", 0, 0.4), ("b", 0, 0.3))
    with pytest.raises(
        SystemExit, match=r"two results of a, seed 0: .*small\.json, which has no runs of this row; --repl"
    ):
        figures.add("small", [rows], "d")
    figures.add("small", [rows], "d", replace=True)
    new = figures.load("small")
    assert (new["figures"]["a"]["n"], new["figures"]["a"]["mAP"], new["date"]) == (1, 40.0, "2026-11-15")
    assert "aggregated" not in new and new["commit"] == "aaaaaaa"


def test_tables_of_another_form_are_refused(results, tmp_path):
    table = make_table(tmp_path / "one", ONE, ("er", 0, 0.5))
    text = table.read_text()
    for content, message in (
        (text.replace('"fingerprint"', '"other"'), "earlier version"),
        (json.dumps({"rows": [{"runs": []}]}), "without a run"),
        ("{}", "not a table.json"),
        ("{", "not a table.json"),
    ):
        table.write_text(content)
        with pytest.raises(SystemExit, match=f"^{table}: .*{message}"):
            figures.add("new", [table], "c")
    assert not (results / "new.json").exists()


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
