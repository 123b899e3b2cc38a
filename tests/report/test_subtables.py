"""The tables under the table of results, and the number of passes in every format, from figures written by hand."""

import csv
import dataclasses
import io
import math
import statistics

import pytest
from report.run_folders import make_run, table_of
from report.untrusted import HOSTILE, render
from rich.console import Console

from lifelabel.errors import UserError
from lifelabel.report.page import report_html
from lifelabel.report.tables import ResultTable, Row, _json, _latex, _markdown, csv_text, notes, one_line, terminal
from lifelabel.runs.finished import provenance

VALUES = {("er", 0): (0.5, 0.52), ("er", 1): (0.3, 0.34), ("er", 2): (0.4, 0.42), ("lwf", 0): (0.25, 0.27)}
"""mAP by method and class order, of two seeds."""


@pytest.fixture
def ordered(tmp_path):
    rows = {}
    for (method, order), values in VALUES.items():
        for seed, value in enumerate(values):
            options = {"class_order": order, "epochs": 20}
            folder = tmp_path / f"{method}{order}{seed}"
            run = make_run(folder, method, seed, mAP=value, options=options, fingerprint=f"{order}" * 16)
            rows.setdefault(method, []).append(run)
    return ResultTable("t", ("method",), tuple(Row((name,), tuple(runs), 6) for name, runs in rows.items()))


def printed(table):
    console = Console(width=120, file=io.StringIO())
    for each in terminal(table):
        console.print(each)
    return console.file.getvalue()


def test_the_spread_over_orders_by_hand(ordered):
    means = [51.0, 32.0, 41.0]
    sd = f"{statistics.stdev(means):.2f}"
    assert sd == f"{math.sqrt(sum((m - 124 / 3) ** 2 for m in means) / 2):.2f}" == "9.50"
    er = ["er", "51.00", "32.00", "41.00", "41.33", sd, "32.00", "51.00"]
    lwf = ["lwf", "26.00", "–", "–", "26.00", "–", "26.00", "26.00"]
    lines = table_of(_markdown(ordered))
    assert ["method", "order 0", "order 1", "order 2", "mean", "sd", "smallest", "largest"] in lines
    assert er in lines and lwf in lines and "mAP ↑ by class order:" in _markdown(ordered)
    assert er in [line.split() for line in printed(ordered).splitlines()]
    assert " & ".join(er[1:]) in _latex(ordered) and r"mAP $\uparrow$ by class order" in _latex(ordered)
    first, second = csv.DictReader(io.StringIO(csv_text(ordered)))
    assert (float(first["mAP_order_1_mean"]), first["mAP_order_1_n"]) == (pytest.approx(32), "2")
    assert [first[f"mAP_orders_{name}"][:5] for name in ("mean", "sd", "min", "max")] == [
        "41.33",
        "9.504",
        "32.0",
        "51.0",
    ]
    assert (first["orders"], second["orders"], second["mAP_order_2_mean"]) == ("3", "1", "")
    assert _json(ordered)["rows"][0]["by_order"]["mAP_orders_max"] == pytest.approx(51)
    found = notes(ordered)
    assert any("class orders 0, 1, 2, 20 passes over the images of each task;" in note for note in found)
    assert any(note.startswith("All 8 runs are on the same stream (fingerprints by class order") for note in found)


def test_one_order_has_no_table_and_many_have_the_spread_only(ordered, tmp_path):
    one = dataclasses.replace(ordered, rows=ordered.rows[1:])
    assert "by class order" not in _markdown(one) + printed(one) + _latex(one) and "orders" not in csv_text(one)
    runs = [make_run(tmp_path / f"o{k}", "er", 0, k, mAP=k / 20) for k in range(12)]
    many = ResultTable.from_runs(runs)
    assert ["method", "mean", "sd", "smallest", "largest"] in table_of(_markdown(many))
    assert "mAP ↑ by task order:" in _markdown(many) and "mAP_order_11_mean" in csv_text(many)
    both = make_run(tmp_path / "both", "er", 0, 1, options={"class_order": 2})
    text = _markdown(ResultTable.from_runs([*runs[:3], both]))
    assert "mAP ↑ by order:" in text and "| class order 2, task order 1 |" in text


def test_runs_that_differ_in_the_order_of_classes_are_different_runs(tmp_path):
    orders = enumerate((0, 1, 1))
    runs = [make_run(tmp_path / f"{n}", "er", 0, 0, options={"class_order": k}) for n, k in orders]
    assert len(ResultTable.from_runs(runs[:2]).rows) == 1
    with pytest.raises(UserError, match=r"same seed and the same order of classes \(1\): give one of them$"):
        ResultTable.from_runs(runs)


def test_every_table_states_the_number_of_passes(ordered):
    lines = table_of(_markdown(ordered))
    assert lines[0][:5] == ["method", "mAP ↑", "CF1 ↑", "OF1 ↑", "passes"] and lines[2][4] == "20"
    assert all(len(line) == len(lines[0]) for line in lines[:4])
    assert "passes" in printed(ordered) and r"\textbf{passes}" in _latex(ordered)
    assert "20 passes over the images of each task" in next(t for t in _latex(ordered).splitlines() if "caption" in t)
    assert [row["epochs"] for row in csv.DictReader(io.StringIO(csv_text(ordered)))] == ["20", "20"]
    assert _json(ordered)["rows"][0]["runs"][0]["epochs"] == 20
    page = report_html(ordered)
    assert '<button type="button">passes</button>' in page and "mAP ↑ by class order" in page
    run = ordered.rows[0].runs[0]
    assert "20 passes" in one_line(run) and "20 passes over" in provenance([run])
    assert any(
        note.startswith("Equal for all:") and note.endswith("; 20 passes over the images of each task.")
        for note in notes(ordered)
    )


def test_another_number_of_passes_is_not_equal(ordered, tmp_path):
    one = make_run(tmp_path / "one", "prs")
    mixed = dataclasses.replace(ordered, rows=(*ordered.rows, Row(("prs",), (one,), 1)))
    assert "NOT equal: passes over the images (20: er, lwf; 1: prs)." in notes(mixed)
    alone = ResultTable.from_runs([one])
    assert "passes" not in _markdown(alone) + printed(alone) + _latex(alone) + one_line(one)
    assert "epochs" not in csv_text(alone) and "passes" not in report_html(alone)


def groups(major, minor):
    return {
        "groups": {name: {"mAP": v, "CF1": v / 2, "OF1": v / 4} for name, v in (("major", major), ("minor", minor))}
    }


def test_groups_of_classes_by_hand(tmp_path):
    er = [make_run(tmp_path / f"e{s}", "er", s, **groups(0.6 + s / 10, 0.2)) for s in (0, 1)]
    lwf = make_run(tmp_path / "l", "lwf")
    table = ResultTable.from_runs([*er, lwf])
    lines = table_of(_markdown(table))
    assert lines[lines.index(["method", "classes", "mAP ↑", "CF1 ↑", "OF1 ↑"]) + 2 :] == [
        ["er", "major", "65.00 ± 7.07", "32.50 ± 3.54", "16.25 ± 1.77"],
        ["er", "minor", "20.00 ± 0.00", "10.00 ± 0.00", "5.00 ± 0.00"],
        ["lwf", "major", "–", "–", "–"],
        ["lwf", "minor", "–", "–", "–"],
    ]
    assert "65.0±7.1" in printed(table) and "Groups of classes" in _latex(table)
    assert "<td>minor</td>" in report_html(table)
    first, _ = csv.DictReader(io.StringIO(csv_text(table)))
    assert float(first["groups_major_mAP_mean"]) == pytest.approx(65)
    assert "Groups of classes" not in _markdown(ResultTable.from_runs([lwf]))


def test_the_name_of_a_group_has_no_effect(tmp_path):
    run = make_run(tmp_path / "a", "er", groups={HOSTILE: {"mAP": 0.5, "CF1": 0.5, "OF1": None}})
    table = ResultTable.from_runs([run])
    tags, _ = render(_markdown(table))
    assert tags == {"h1", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert "\x1b" not in printed(table) + _latex(table) + csv_text(table)


@pytest.mark.parametrize("found", [[1], {"major": 3}, {"major": {"mAP": 2, "CF1": 0, "OF1": 0}}, {"major": {}}])
def test_damaged_groups_are_refused(tmp_path, found):
    with pytest.raises(UserError, match="is damaged, or of another version of lifelabel"):
        make_run(tmp_path / "a", "er", groups=found)
