"""The table of many runs, from run folders written by hand: figures that a pocket calculator gives too."""

import csv
import dataclasses
import io
import json
import re
import statistics
from pathlib import Path

import pytest
from report.run_folders import GIGA, forgetting, make_run, scores, table_file, table_of
from report.untrusted import HOSTILE, PRINTABLE, render
from rich.console import Console

from lifelabel.errors import UserError
from lifelabel.metrics.over_tasks import CONVENTIONS
from lifelabel.report.page import report_html
from lifelabel.report.tables import (
    Failure,
    ResultTable,
    Row,
    csv_text,
    notes,
    one_line,
    table_texts,
    terminal,
    write_tables,
)
from lifelabel.report.text_tables import tex
from lifelabel.runs.finished import provenance
from lifelabel.utils.markdown import escape


def make_table(runs):
    """A row for each name."""
    return ResultTable("t", ("method",), tuple(Row((name,), tuple(of), len(of)) for name, of in runs.items()))


def latex(table):
    return table_file(table, ".tex")


def as_json(table):
    return json.loads(table_file(table, ".json"))


@pytest.fixture
def table(tmp_path):
    """An upper bound, er with three seeds of which one failed, and agcn with two seeds."""
    joint = make_run(tmp_path / "j", "multi-task", mAP=0.9, joint=True)
    er = [
        make_run(tmp_path / f"e{s}", "er", s, mAP=m, stored=(2000, 12_500_000), device=3 * GIGA, **forgetting(0.2))
        for s, m in ((0, 0.5), (1, 0.52))
    ]
    error = {"acm_error": {"all": 0.125, "intra": 0.25, "old_new": 0.5, "new_old": 0.0625}}
    agcn = [
        make_run(tmp_path / f"a{s}", "agcn", s, mAP=m, **forgetting(-0.125), **error) for s, m in ((0, 0.6), (1, 0.7))
    ]
    rows = Row(("multi-task",), (joint,), 1, joint=True), Row(("er",), tuple(er), 3), Row(("agcn",), tuple(agcn), 2)
    failed = Failure("er, seed 2", Path("runs/er-s2"), "task 1, step 3: the loss 'cls' is | nan_50 % <b>")
    return ResultTable("3 methods on $scenes_1", ("method",), rows, (failed,), errors=True)


def test_markdown_by_hand(table):
    text = table_file(table)
    head, rule, joint, er, er_forgets, agcn, agcn_forgets = table_of(text)[:7]
    costs = ["stored images", "stored MB", "seconds", "images/s", "peak GB"]
    assert head == ["method", "mAP, final ↑", "CF1, final ↑", "OF1, final ↑", "n", *costs]
    assert rule == ["---", *["---:"] * 9]
    # no forgetting for a joint run, and it is not compared with the others
    assert joint == ["multi-task", "90.00", "45.00", "22.50", "1", "0", "0.0", "10", "40", "1.00"]
    # mAP 50 and 52: mean 51, sd sqrt(2); CF1 is half of it, OF1 a quarter
    assert er == ["er", "51.00 ± 1.41", "25.50 ± 0.71", "12.75 ± 0.35", "2/3", "2,000", "12.5", "10", "40", "3.00"]
    assert er_forgets == ["Forgetting ↓", "20.00 ± 0.00", "10.00 ± 0.00", "5.00 ± 0.00", "", "", "", "", "", ""]
    assert agcn[:4] == ["agcn", "**65.00 ± 7.07**", "**32.50 ± 3.54**", "**16.25 ± 1.77**"]
    assert agcn_forgets[1] == "-12.50 ± 0.00"
    assert ["agcn", "0.125 ± 0.000", "0.250 ± 0.000", "0.500 ± 0.000", "0.062 ± 0.000"] in table_of(text)
    assert "n: finished runs / planned runs" in text
    assert "All 5 runs are on the same stream (fingerprint f00df00d)." in text
    assert "- er, seed 2: task 1, step 3: the loss 'cls' is \\| nan_50 % &lt;b>\n" in text


def test_csv_and_json_hold_the_same_plain_numbers(table):
    rows = list(csv.DictReader(io.StringIO(csv_text(table))))
    written = as_json(table)
    assert [row["method"] for row in rows] == ["multi-task", "er", "agcn"]
    assert [(row["runs"], row["planned"]) for row in rows] == [("1", "1"), ("2", "3"), ("2", "2")]
    for row, other in zip(rows, written["rows"], strict=True):
        for name, stat in other["figures"].items():
            for part in ("mean", "sd", "n"):
                text = row[f"{name}_{part}"]
                assert (float(text) if text else None) == stat[part]
            values = [r[name] for r in other["runs"] if r[name] is not None]
            assert stat["n"] == len(values)
            assert stat["mean"] == (pytest.approx(sum(values) / len(values)) if values else None)
    assert rows[1]["stored_bytes_mean"] == "12500000"
    assert rows[0]["forgetting_mAP_mean"] == ""
    er = written["rows"][1]
    assert [(r["seed"], r["task_order"], r["mAP"]) for r in er["runs"]] == [(0, 0, 50), (1, 0, 52)]
    assert er["options"]["method"] == "er"
    assert "seed" not in er["options"]
    assert written["failures"] == [{"run": "er, seed 2", "folder": "runs/er-s2", "reason": table.failures[0].reason}]
    assert written["fingerprints"] == {"0": ["f00d" * 4]}
    assert written["provenance"]["seeds"] == [0, 1]


AUTHORS = {"cumulative_mean": scores(0.3), "relative_forgetting": {"mAP": -2.5, "CF1": 0.25, "OF1": None}}
BY_CONVENTION = {
    # mAP, CF1 (a half) and OF1 (a quarter); the best mAP is er, agcn, er
    "paper": ("final", ["**60.00**", "30.00"], "Forgetting ↓", ["10.00", "5.00", "2.50"]),
    "authors": ("mean over test sets", ["30.00", "15.00"], "Relative forgetting ↓", ["-250.00", "25.00", "–"]),
    "average": ("mean over tasks", ["**70.00**", "35.00"], None, None),  # (80 + 60) / 2
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_scores_bold_and_notes_follow_the_convention(tmp_path, name):
    er = make_run(tmp_path / "er", "er", mAP=0.6, **AUTHORS, **forgetting(0.1))
    agcn = make_run(tmp_path / "agcn", "agcn", mAP=0.5, cumulative_mean=scores(0.4))
    joint = make_run(tmp_path / "joint", "multi-task", mAP=0.9, joint=True)  # of a version without the other figures
    table = ResultTable.from_runs([er, agcn, joint], CONVENTIONS[name])
    head, values, second, forgets = BY_CONVENTION[name]
    lines = table_of(table_file(table))
    assert lines[0][1:4] == [f"{metric}, {head} ↑" for metric in ("mAP", "CF1", "OF1")]
    assert [lines[2][1], lines[2][2].strip("*")] == values
    assert (lines[3][:4] == [second, *forgets]) if second else lines[3][0] == "agcn"
    assert next(line for line in lines if line[0] == "multi-task")[1] == {"authors": "–", "average": "85.00"}.get(
        name, "90.00"
    )
    about = CONVENTIONS[name].note
    assert about in table_file(table) and about in report_html(table)
    text = printed(table)
    assert max(map(len, text.splitlines())) <= 100 and head.split()[0] in text
    assert table_texts(table)["Markdown"] in table_file(table)
    (first, *_) = csv.DictReader(io.StringIO(csv_text(table)))  # files have the figures of all conventions
    figures = [first[f"{key}_mean"] for key in ("mAP", "cumulative_mean_mAP", "relative_forgetting_mAP", "average_mAP")]
    assert list(map(float, figures)) == pytest.approx([60, 30, -250, 70])
    written = as_json(table)
    assert written["convention"] == name and written["rows"][0]["runs"][0]["average_CF1"] == pytest.approx(35)


def check_latex(text):
    """Without LaTeX: environments and groups are closed, every line has all columns, no special character is bare."""
    code = [re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines()]
    joined = "\n".join(code)
    opened = re.findall(r"\\(begin|end)\{(\w+)\}", joined)
    stack = []
    for verb, name in opened:
        if verb == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    bare = re.sub(r"\\[\\{}$&%#_]", "", joined)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    outside = re.sub(r"\$[^$]*\$", "", bare)
    assert not re.search(r"[_^#±↑↓×√λ–]", outside)
    columns = 0
    for line in code:
        if found := re.search(r"\\begin\{tabular\}\{([lr]+)\}", line):
            columns = len(found[1])
        elif line.rstrip().endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
    return code


def test_latex(table):
    code = check_latex(latex(table))
    lines = [line.strip() for line in code]
    assert (
        r"er & 51.00 $\pm$ 1.41 & 25.50 $\pm$ 0.71 & 12.75 $\pm$ 0.35 & 2/3 & 2,000 & 12.5 & 10 & 40 & 3.00 \\" in lines
    )
    assert any(line.startswith(r"agcn & \textbf{65.00 $\pm$ 7.07} & ") for line in lines)
    assert any(line.startswith(r"Forgetting $\downarrow$ & $-$12.50 $\pm$ 0.00 & ") for line in lines)
    assert sum(r"\begin{tabular}" in line for line in lines) == 2  # and the matrix's errors
    assert any(r"3 methods on \$scenes\_1. Stream scenes, seeds 0, 1;" in line for line in lines)


def printed(table, width=100):
    console = Console(width=width, file=io.StringIO())
    for part in terminal(table):
        console.print(part)
    return console.file.getvalue()


def test_the_terminal(tmp_path, table):
    text = printed(table)
    assert "65.0±7.1" in text
    assert "…" not in text
    hard = [
        make_run(tmp_path / f"h{s}", "fine-tuning", s, mAP=m, stored=(1_000_000, 123 * GIGA), **forgetting(f))
        for s, m, f in ((0, 0.01, -0.99), (1, 0.99, 0.1))
    ]
    wide = dataclasses.replace(table, rows=(*make_table({"fine-tuning": hard}).rows, *table.rows), errors=False)
    assert max(map(len, printed(wide).splitlines())) <= 100
    assert "…" not in printed(wide)


def test_options_that_are_not_equal_are_reported(tmp_path, table):
    (equal,) = (note for note in notes(table) if note.startswith("Equal for all: "))
    for part in ("backbone tiny", "weights none", "image_size default", "pool max", "augment flip", "batch_size 8"):
        assert part in equal
    assert "one pass" in equal
    assert not any(note.startswith("NOT") for note in notes(table))
    odd = make_run(tmp_path / "odd", "fine-tuning", options={"batch_size": 16, "augment": "none"})
    mixed = dataclasses.replace(table, rows=(*table.rows, *make_table({"fine-tuning": [odd]}).rows))
    unequal = [note for note in notes(mixed) if note.startswith("NOT equal: ")]
    assert unequal == [
        "NOT equal: batch_size (8: multi-task, er, agcn; 16: fine-tuning).",
        "NOT equal: augment (flip: multi-task, er, agcn; none: fine-tuning).",
    ]
    assert set(as_json(mixed)["not_equal"]) == {"augment", "batch_size"}


def test_the_buffer_size_is_compared_among_methods_with_a_buffer(tmp_path):
    sizes = {"er": 100, "prs": 200, "fine-tuning": None}
    options = {name: {"method_options": {"buffer_images": size}} if size else {} for name, size in sizes.items()}
    table = make_table({name: [make_run(tmp_path / name, name, options=options[name])] for name in sizes})
    assert "NOT equal: buffer_images (100: er; 200: prs)." in notes(table)


def test_the_precision_is_the_one_in_effect(tmp_path):
    runs = {
        method: [
            make_run(tmp_path / f"{method}-{seed}", method, seed, environment={"precision": precision})
            for seed, precision in enumerate(precisions)
        ]
        for method, precisions in (("er", ("bf16", "bf16")), ("prs", ("bf16", "fp32")))
    }
    assert "NOT equal: precision (bf16: er; bf16, fp32: prs)." in notes(make_table(runs))


def test_another_stream_is_reported_and_another_order_is_the_same_stream(tmp_path):
    orders = [make_run(tmp_path / f"o{k}", "er", 0, k, fingerprint=f"{k}" * 16) for k in (0, 1)]
    other = make_run(tmp_path / "x", "prs", 0, 1, fingerprint="x" * 16)
    same = notes(make_table({"er": orders}))
    assert "All 2 runs are on the same stream (fingerprints by task order 00000000, 11111111)." in same
    assert any("seeds 0, task orders 0, 1;" in note for note in same)
    (note,) = (
        note for note in notes(make_table({"er": orders, "prs": [other]})) if note.startswith("NOT THE SAME STREAM")
    )
    assert "task order 1: 11111111, xxxxxxxx" in note


def test_a_row_without_runs_and_a_single_method(tmp_path):
    single = ResultTable(
        "t",
        ("λ1", "λ2", "λ3"),
        (Row(("0", "1", "2"), (make_run(tmp_path / "a", "agcn", **forgetting(0.1)),), 1), Row(("3", "4", "5"), (), 1)),
        costs=False,
    )
    lines = table_of(table_file(single))
    assert lines[2] == ["0", "1", "2", "50.00", "25.00", "12.50", "1"]  # a single row is not the best
    assert lines[3] == ["", "Forgetting ↓", "", "10.00", "5.00", "2.50", ""]
    assert lines[4] == ["3", "4", "5", "–", "–", "–", "0/1"]
    check_latex(latex(single))
    assert as_json(single)["rows"][1]["runs"] == []


# Untrusted text: names of streams and labels are those of a file


@pytest.fixture
def hostile(tmp_path):
    """A table of two labels, of a stream and of a group of classes, whose names are all hostile."""
    more = {"more": {"stream": HOSTILE}, "acm_error": {"all": 0.5}, **forgetting(0.1)}
    more["groups"] = {HOSTILE: {"mAP": 0.5, "CF1": 0.5, "OF1": None}}
    machine = {"device": HOSTILE, "commit": HOSTILE, "precision": HOSTILE}
    runs = [
        make_run(tmp_path / str(n), "er", mAP=n / 4, environment={"label": f"{n}{HOSTILE}", **machine}, **more)
        for n in (1, 2)
    ]
    failed = Failure(HOSTILE, tmp_path, HOSTILE)
    return dataclasses.replace(ResultTable.from_runs(runs), failures=(failed,))


def test_hostile_text_is_rendered_as_it_is_in_markdown(hostile):
    text = table_file(hostile)
    assert text.startswith(f"# Runs on {escape(HOSTILE)}\n")
    tags, lines = render(text)
    assert tags == {"h1", "table", "thead", "tbody", "tr", "th", "td", "strong", "p", "ul", "li"}
    assert f"Runs on {PRINTABLE}" in lines
    assert lines.count(f"1{PRINTABLE}") == lines.count(f"2{PRINTABLE}") == 3  # in all tables
    assert lines.count(PRINTABLE) == 2  # the group
    assert f"{PRINTABLE}: {PRINTABLE}" in lines
    (measured,) = (line for line in lines if line.startswith("Stream"))
    assert measured.startswith(f"Stream {PRINTABLE}, seeds 0; {PRINTABLE}, 2 threads")


def test_hostile_text_is_escaped_in_latex(hostile):
    text = latex(hostile)
    (caption,) = (line for line in check_latex(text) if r"\caption" in line)
    assert caption.startswith(rf"  \caption{{Runs on {tex(HOSTILE)}. Stream {tex(HOSTILE)}, seeds 0;")
    code = "\n".join(check_latex(text))
    commands = set(re.findall(r"\\([A-Za-z]+)", code))
    assert commands == {
        "begin", "end", "centering", "caption", "toprule", "midrule", "bottomrule", "textbf", "medskip", "smallskip",
        "textbackslash", "textasciitilde", "textasciicircum", "textbar", "uparrow", "downarrow",
    }  # fmt: skip
    assert "\x1b" not in text
    assert all(line.startswith("  % ") for line in text.splitlines() if "not finished" in line or "Equal for" in line)


def test_control_characters_are_replaced_in_the_terminal_and_in_csv(hostile, tmp_path):
    text = printed(hostile)
    assert "\x1b" not in text + csv_text(hostile) and "�[2J" in text
    write_tables(hostile, tmp_path)
    (first, second) = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text(encoding="utf-8")))
    assert (first["method"], second["method"]) == (f"1{PRINTABLE}", f"2{PRINTABLE}")
    assert [row["name"] for row in json.loads((tmp_path / "table.json").read_text())["rows"]] == [
        f"1{HOSTILE}", f"2{HOSTILE}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "label", ["[5cm]x", "=cmd|' /C calc'!A0", "+ x", "- x", "> x", "1. x", "@SUM(A1)", "^^M", "a&b~{}%"]
)
def test_a_label_has_no_effect_at_the_beginning_of_a_line_or_cell(label, tmp_path):
    run = make_run(tmp_path / "a", "er", environment={"label": label})
    table = make_table({label: [run]})
    code = "\n".join(check_latex(latex(table)))
    assert not re.search(r"\\(midrule|toprule|\\)\s*[\[*]", code) and "^^" not in code  # no optional argument
    tags, lines = render(table_file(table))
    assert tags == {"h1", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert label in lines
    (row,) = csv.reader(io.StringIO(csv_text(table).split("\n", 1)[1]))
    assert row[0] == (f"'{label}" if label[0] in "=+-@" else label)


def test_a_metric_of_a_plug_in_has_no_effect_as_a_head(tmp_path):
    name = "=1+1 \x1b[2J | $x_1$"
    run = make_run(tmp_path / "a", "er", conventions={name: 0.5})
    table = ResultTable.from_runs([run])
    assert [column.key for column in table.metric_columns] == [name]
    assert "\x1b" not in printed(table) + latex(table) + csv_text(table) + table_file(table)
    assert "'=1+1" in csv_text(table).splitlines()[0] and r"=1+1 ?{[}2J \textbar{} \$x\_1\$" in latex(table)
    check_latex(latex(table))


def test_images_that_could_not_be_read_are_reported(tmp_path):
    """In the notes of every format, and on the line of the run."""
    some = make_run(tmp_path / "a", "agcn", more={"skipped": {"train": 1200, "test": 3}})
    none = make_run(tmp_path / "b", "er", more={"skipped": {"train": 0, "test": 0}})
    found = ResultTable.from_runs([some, none])
    expected = "NOT all images: agcn skipped 1,200 training and 3 test images that could not be read, in 1 run."
    assert [line for line in notes(found) if "skipped" in line] == [expected]
    assert "1,203 images skipped" in one_line(some) and "skipped" not in one_line(none)
    assert expected in table_file(found)


# Groups of classes, orders, and passes

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
    return make_table(rows)


def test_the_spread_over_orders_by_hand(ordered):
    means = [51.0, 32.0, 41.0]
    sd = f"{statistics.stdev(means):.2f}"
    er = ["er", "51.00", "32.00", "41.00", "41.33", sd, "32.00", "51.00"]
    lwf = ["lwf", "26.00", "–", "–", "26.00", "–", "26.00", "26.00"]
    lines = table_of(table_file(ordered))
    assert ["method", "order 0", "order 1", "order 2", "mean", "sd", "smallest", "largest"] in lines
    assert er in lines and lwf in lines and "mAP, final ↑ by class order:" in table_file(ordered)
    assert er in [line.split() for line in printed(ordered).splitlines()]
    assert " & ".join(er[1:]) in latex(ordered) and r"mAP, final $\uparrow$ by class order" in latex(ordered)
    first, second = csv.DictReader(io.StringIO(csv_text(ordered)))
    assert (float(first["mAP_order_1_mean"]), first["mAP_order_1_n"]) == (pytest.approx(32), "2")
    spread = [first[f"mAP_orders_{name}"][:5] for name in ("mean", "sd", "min", "max")]
    assert spread == ["41.33", "9.504", "32.0", "51.0"]
    assert (first["orders"], second["orders"], second["mAP_order_2_mean"]) == ("3", "1", "")
    assert as_json(ordered)["rows"][0]["by_order"]["mAP_orders_max"] == pytest.approx(51)
    found = notes(ordered)
    assert any("class orders 0, 1, 2, 20 passes over the images of each task;" in note for note in found)
    assert any(note.startswith("All 8 runs are on the same stream (fingerprints by class order") for note in found)


def test_the_orders_follow_the_convention(ordered):
    """The mAP after task 1 is 80 in all runs: averages are (80 + 51) / 2, (80 + 32) / 2 and (80 + 41) / 2."""
    average = dataclasses.replace(ordered, convention=CONVENTIONS["average"])
    assert "mAP, mean over tasks ↑ by class order:" in table_file(average)
    assert ["er", "65.50", "56.00", "60.50"] in [line[:4] for line in table_of(table_file(average))]
    first, _ = csv.DictReader(io.StringIO(csv_text(average)))
    assert float(first["average_mAP_order_1_mean"]) == pytest.approx(56)


def test_one_order_has_no_table_and_many_have_the_spread_only(ordered, tmp_path):
    one = dataclasses.replace(ordered, rows=ordered.rows[1:])
    assert "by class order" not in table_file(one) + printed(one) + latex(one) and "orders" not in csv_text(one)
    runs = [make_run(tmp_path / f"o{k}", "er", 0, k, mAP=k / 20) for k in range(12)]
    many = ResultTable.from_runs(runs)
    assert ["method", "mean", "sd", "smallest", "largest"] in table_of(table_file(many))
    assert "mAP, final ↑ by task order:" in table_file(many) and "mAP_order_11_mean" in csv_text(many)
    both = make_run(tmp_path / "both", "er", 0, 1, options={"class_order": 2})
    text = table_file(ResultTable.from_runs([*runs[:3], both]))
    assert "mAP, final ↑ by order:" in text and "| class order 2, task order 1 |" in text


def test_runs_that_differ_in_the_order_of_classes_are_different_runs(tmp_path):
    orders = enumerate((0, 1, 1))
    runs = [make_run(tmp_path / f"{n}", "er", 0, 0, mAP=n / 4, options={"class_order": k}) for n, k in orders]
    assert len(ResultTable.from_runs(runs[:2]).rows) == 1
    with pytest.raises(UserError, match=r"same seed and the same order of classes \(1\), and their scores differ"):
        ResultTable.from_runs(runs)


def test_every_table_states_the_number_of_passes(ordered):
    lines = table_of(table_file(ordered))
    assert lines[0][4:6] == ["n", "passes"] and lines[2][4:6] == ["6", "20"]
    assert all(len(line) == len(lines[0]) for line in lines[:4])
    assert "passes" in printed(ordered) and r"\textbf{passes}" in latex(ordered)
    assert "20 passes over the images of each task" in next(t for t in latex(ordered).splitlines() if "caption" in t)
    assert [row["epochs"] for row in csv.DictReader(io.StringIO(csv_text(ordered)))] == ["20", "20"]
    assert as_json(ordered)["rows"][0]["runs"][0]["epochs"] == 20
    page = report_html(ordered)
    assert '<button type="button">passes</button>' in page and "mAP, final ↑ by class order" in page
    run = ordered.rows[0].runs[0]
    assert "20 passes" in one_line(run) and "20 passes over" in provenance([run])
    (equal,) = (note for note in notes(ordered) if note.startswith("Equal for all:"))
    assert equal.endswith("; 20 passes over the images of each task.")


def test_another_number_of_passes_is_not_equal(ordered, tmp_path):
    one = make_run(tmp_path / "one", "prs")
    mixed = dataclasses.replace(ordered, rows=(*ordered.rows, *make_table({"prs": [one]}).rows))
    assert "NOT equal: passes over the images (20: er, lwf; 1: prs)." in notes(mixed)
    alone = ResultTable.from_runs([one])
    assert "passes" not in table_file(alone) + printed(alone) + latex(alone) + one_line(one)
    assert "epochs" not in csv_text(alone) and "passes" not in report_html(alone)


def groups(major, minor):
    return {
        "groups": {name: {"mAP": v, "CF1": v / 2, "OF1": v / 4} for name, v in (("major", major), ("minor", minor))}
    }


def test_groups_of_classes_by_hand(tmp_path):
    er = [make_run(tmp_path / f"e{s}", "er", s, **groups(0.6 + s / 10, 0.2)) for s in (0, 1)]
    lwf = make_run(tmp_path / "l", "lwf")
    table = ResultTable.from_runs([*er, lwf])
    lines = table_of(table_file(table))
    assert lines[lines.index(["method", "classes", "mAP, final ↑", "CF1, final ↑", "OF1, final ↑"]) + 2 :] == [
        ["er", "major", "65.00 ± 7.07", "32.50 ± 3.54", "16.25 ± 1.77"],
        ["er", "minor", "20.00 ± 0.00", "10.00 ± 0.00", "5.00 ± 0.00"],
        ["lwf", "major", "–", "–", "–"],
        ["lwf", "minor", "–", "–", "–"],
    ]
    authors = table_of(table_file(dataclasses.replace(table, convention=CONVENTIONS["authors"])))
    assert [
        "method",
        "classes",
        "mAP, final ↑",
        "CF1, final ↑",
        "OF1, final ↑",
    ] in authors  # groups have no other scores
    assert "65.0±7.1" in printed(table) and "Groups of classes" in latex(table)
    assert "<td>minor</td>" in report_html(table)
    first, _ = csv.DictReader(io.StringIO(csv_text(table)))
    assert float(first["groups_major_mAP_mean"]) == pytest.approx(65)
    assert "Groups of classes" not in table_file(ResultTable.from_runs([lwf]))
