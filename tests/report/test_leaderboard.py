"""The table of many runs, from run folders written by hand: figures that a pocket calculator gives too."""

import csv
import io
import json
import math
import re
import statistics
from pathlib import Path

import pytest
from rich.console import Console
from test_report import write_run

from lifelabel.report.leaderboard import (
    Board,
    Failure,
    Row,
    Stat,
    csv_text,
    latex,
    markdown,
    notes,
    terminal,
    tex,
    to_json,
)
from lifelabel.report.runs import read_run

GIGA = 10**9


def run(
    folder, method, seed=0, order=0, mAP=0.5, options=None, kept=(0, 0), fingerprint="f00d" * 4, device=None, **more
):
    """One finished run; forgetting of CF1 and OF1 is a half and a quarter of mAP's, as the scores are."""
    write_run(folder, method=method, seed=seed, mAP=mAP, options={"task_order": order, **(options or {})}, **more)
    path = folder / "environment.json"
    environment = json.loads(path.read_text()) | {
        "kept": {"images": kept[0], "bytes": kept[1]}, "images_per_second": 40.0 + seed, "peak_memory_bytes": GIGA,
        "peak_device_memory_bytes": device, "stream_fingerprint": fingerprint,
    }  # fmt: skip
    path.write_text(json.dumps(environment))
    return read_run(folder)


def forgetting(value):
    return {"forgetting": {"mAP": value, "CF1": value / 2, "OF1": value / 4}}


@pytest.fixture
def board(tmp_path):
    """An upper bound, er with three seeds of which one failed, and agcn with two seeds."""
    joint = run(tmp_path / "j", "multi-task", mAP=0.9, joint=True)
    er = [
        run(tmp_path / f"e{s}", "er", s, mAP=m, kept=(2000, 12_500_000), device=3 * GIGA, **forgetting(0.2))
        for s, m in ((0, 0.5), (1, 0.52))
    ]
    error = {"acm_error": {"all": 0.125, "intra": 0.25, "old_new": 0.5, "new_old": 0.0625}}
    agcn = [run(tmp_path / f"a{s}", "agcn", s, mAP=m, **forgetting(-0.125), **error) for s, m in ((0, 0.6), (1, 0.7))]
    rows = Row(("multi-task",), (joint,), 1, joint=True), Row(("er",), tuple(er), 3), Row(("agcn",), tuple(agcn), 2)
    failed = Failure("er, seed 2", Path("runs/er-s2"), "task 1, step 3: the loss 'cls' is | nan_50 % <b>")
    return Board("3 methods on $scenes_1", ("method",), rows, (failed,), errors=True)


def table_of(text):
    """The cells of the Markdown tables in `text`."""
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_markdown_by_hand(board):
    text = markdown(board)
    head, rule, joint, er, er_forgets, agcn, agcn_forgets = table_of(text)[:7]
    assert head == ["method", "mAP ↑", "CF1 ↑", "OF1 ↑", "kept images", "kept MB", "seconds", "images/s", "peak GB"]
    assert rule == ["---", *["---:"] * 8]
    # no forgetting where all tasks came at once, and no part in the contest
    assert joint == ["multi-task", "90.00", "45.00", "22.50", "0", "0.0", "10", "40", "1.00"]
    # mAP 50 and 52: mean 51, sd sqrt(2); CF1 is half of it, OF1 a quarter
    assert er == ["er", "51.00 ± 1.41", "25.50 ± 0.71", "12.75 ± 0.35", "2,000", "12.5", "10", "40", "3.00"]
    assert er_forgets == ["Forgetting ↓", "20.00 ± 0.00", "10.00 ± 0.00", "5.00 ± 0.00", "", "", "", "", ""]
    assert agcn[:4] == ["agcn", "**65.00 ± 7.07**", "**32.50 ± 3.54**", "**16.25 ± 1.77**"]
    assert agcn_forgets[1] == "-12.50 ± 0.00"
    assert ["agcn", "0.125 ± 0.000", "0.250 ± 0.000", "0.500 ± 0.000", "0.062 ± 0.000"] in table_of(text)
    assert "er: 2 of 3 runs." in text
    assert "All 5 runs are on the same stream (fingerprint f00df00d)." in text
    assert "- er, seed 2: task 1, step 3: the loss 'cls' is \\| nan_50 % &lt;b>\n" in text


def test_sd_is_the_samples(tmp_path):
    values = [0.31, 0.52, 0.47, 0.3]
    runs = [run(tmp_path / str(s), "er", s, mAP=v) for s, v in enumerate(values)]
    stat = Row(("er",), tuple(runs), 4).stats["mAP"]
    mean = sum(values) / 4
    assert stat.mean == pytest.approx(100 * mean)
    assert stat.sd == pytest.approx(100 * math.sqrt(sum((v - mean) ** 2 for v in values) / 3))
    assert stat.sd == pytest.approx(statistics.stdev(100 * v for v in values))
    assert Stat.of([None, 3.0, float("nan")]) == Stat(3.0, None, 1)
    assert Stat.of([]) == Stat(None, None, 0)


def test_csv_and_json_hold_the_same_plain_numbers(board):
    rows = list(csv.DictReader(io.StringIO(csv_text(board))))
    told = json.loads(json.dumps(to_json(board), allow_nan=False))
    assert [row["method"] for row in rows] == ["multi-task", "er", "agcn"]
    assert [(row["runs"], row["planned"]) for row in rows] == [("1", "1"), ("2", "3"), ("2", "2")]
    for row, other in zip(rows, told["rows"], strict=True):
        for name, stat in other["figures"].items():
            for part in ("mean", "sd", "n"):
                text = row[f"{name}_{part}"]
                assert (float(text) if text else None) == stat[part]
            values = [r[name] for r in other["runs"] if r[name] is not None]
            assert stat["n"] == len(values)
            assert stat["mean"] == (pytest.approx(sum(values) / len(values)) if values else None)
    assert rows[1]["kept_bytes_mean"] == "12500000"
    assert rows[0]["forgetting_mAP_mean"] == ""
    er = told["rows"][1]
    assert [(r["seed"], r["task_order"], r["mAP"]) for r in er["runs"]] == [(0, 0, 50), (1, 0, 52)]
    assert er["options"]["method"] == "er"
    assert "seed" not in er["options"]
    assert told["failures"] == [{"run": "er, seed 2", "folder": "runs/er-s2", "reason": board.failures[0].reason}]
    assert told["fingerprints"] == {"0": ["f00d" * 4]}
    assert told["provenance"]["seeds"] == [0, 1]


def check_latex(text):
    """As far as can be told without LaTeX: what is opened is closed, every line has its columns, nothing is bare."""
    code = [re.sub(r"(?<!\\)%.*", "", line) for line in text.splitlines()]
    whole = "\n".join(code)
    opened = re.findall(r"\\(begin|end)\{(\w+)\}", whole)
    stack = []
    for verb, name in opened:
        if verb == "begin":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    bare = re.sub(r"\\[\\{}$&%#_]", "", whole)
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


def test_latex(board):
    code = check_latex(latex(board))
    lines = [line.strip() for line in code]
    assert r"er & 51.00 $\pm$ 1.41 & 25.50 $\pm$ 0.71 & 12.75 $\pm$ 0.35 & 2,000 & 12.5 & 10 & 40 & 3.00 \\" in lines
    assert any(line.startswith(r"agcn & \textbf{65.00 $\pm$ 7.07} & ") for line in lines)
    assert any(line.startswith(r"Forgetting $\downarrow$ & $-$12.50 $\pm$ 0.00 & ") for line in lines)
    assert sum(r"\begin{tabular}" in line for line in lines) == 2  # and the matrix's errors
    assert any(r"3 methods on \$scenes\_1. Stream scenes, seeds 0, 1;" in line for line in lines)
    assert [tex(text) for text in ("λ1", "10^4", "a\\b", "x-s0", "50 ± -3")] == [
        r"$\lambda_1$", "$10^4$", r"a\textbackslash{}b", "x-s0", r"50 $\pm$ $-$3",
    ]  # fmt: skip


def shown(board, width=100):
    console = Console(width=width, file=io.StringIO())
    for table in terminal(board):
        console.print(table)
    return console.file.getvalue()


def test_the_terminal(tmp_path, board):
    text = shown(board)
    assert "65.0±7.1" in text
    assert "…" not in text
    hard = [
        run(tmp_path / f"h{s}", "fine-tuning", s, mAP=m, kept=(1_000_000, 123 * GIGA), **forgetting(f))
        for s, m, f in ((0, 0.01, -0.99), (1, 0.99, 0.1))
    ]
    wide = Board("t", ("method",), (Row(("fine-tuning",), tuple(hard), 2), *board.rows))
    assert max(map(len, shown(wide).splitlines())) <= 100
    assert "…" not in shown(wide)


def test_what_is_not_equal_is_said(tmp_path, board):
    (equal,) = (note for note in notes(board) if note.startswith("Equal for all: "))
    for part in ("backbone tiny", "weights none", "image_size default", "pool max", "augment flip", "batch_size 8"):
        assert part in equal
    assert "one pass" in equal
    assert not any(note.startswith("NOT") for note in notes(board))
    odd = run(tmp_path / "odd", "fine-tuning", options={"batch_size": 16, "augment": "none"})
    mixed = Board("t", ("method",), (*board.rows, Row(("fine-tuning",), (odd,), 1)))
    unequal = [note for note in notes(mixed) if note.startswith("NOT equal: ")]
    assert unequal == [
        "NOT equal: augment (flip: multi-task, er, agcn; none: fine-tuning).",
        "NOT equal: batch_size (8: multi-task, er, agcn; 16: fine-tuning).",
    ]
    assert set(to_json(mixed)["not_equal"]) == {"augment", "batch_size"}


def test_the_budget_of_kept_images_is_compared_among_those_that_keep_some(tmp_path):
    sizes = {"er": 100, "prs": 200, "fine-tuning": None}
    rows = []
    for name, size in sizes.items():
        options = {"method_options": {"buffer_images": size}} if size else {}
        rows.append(Row((name,), (run(tmp_path / name, name, options=options),), 1))
    assert "NOT equal: buffer_images (100: er; 200: prs)." in notes(Board("t", ("method",), tuple(rows)))


def test_the_precision_is_the_one_that_auto_came_to(tmp_path):
    rows = []
    for method, precisions in (("er", ("bf16", "bf16")), ("prs", ("bf16", "fp32"))):
        runs = []
        for seed, precision in enumerate(precisions):
            folder = tmp_path / f"{method}-{seed}"
            run(folder, method, seed)
            environment = json.loads((folder / "environment.json").read_text())
            (folder / "environment.json").write_text(json.dumps(environment | {"precision": precision}))
            runs.append(read_run(folder))
        rows.append(Row((method,), tuple(runs), 2))
    assert "NOT equal: precision (bf16: er; bf16, fp32: prs)." in notes(Board("t", ("method",), tuple(rows)))


def test_another_stream_is_said_and_another_order_is_none(tmp_path):
    orders = [run(tmp_path / f"o{k}", "er", 0, k, fingerprint=f"{k}" * 16) for k in (0, 1)]
    other = run(tmp_path / "x", "prs", 0, 1, fingerprint="x" * 16)
    same = notes(Board("t", ("method",), (Row(("er",), tuple(orders), 2),)))
    assert "All 2 runs are on the same stream (fingerprints by task order 00000000, 11111111)." in same
    assert any("seeds 0, task orders 0, 1;" in note for note in same)
    mixed = Board("t", ("method",), (Row(("er",), tuple(orders), 2), Row(("prs",), (other,), 1)))
    (said,) = (note for note in notes(mixed) if note.startswith("NOT THE SAME STREAM"))
    assert "task order 1: 11111111, xxxxxxxx" in said


def test_a_row_without_runs_and_a_lone_method(tmp_path):
    lone = Board(
        "t",
        ("λ1", "λ2", "λ3"),
        (Row(("0", "1", "2"), (run(tmp_path / "a", "agcn", **forgetting(0.1)),), 1), Row(("3", "4", "5"), (), 1)),
        costs=False,
    )
    lines = table_of(markdown(lone))
    assert lines[2] == ["0", "1", "2", "50.00", "25.00", "12.50"]  # alone it is not the best
    assert lines[3] == ["", "Forgetting ↓", "", "10.00", "5.00", "2.50"]
    assert lines[4] == ["3", "4", "5", "–", "–", "–"]
    check_latex(latex(lone))
    assert to_json(lone)["rows"][1]["runs"] == []
    assert "3 / 4 / 5: 0 of 1 runs." in markdown(lone)


def test_runs_of_an_older_version_have_no_costs(tmp_path):
    write_run(tmp_path / "a", method="er")
    old = Board("t", ("method",), (Row(("er",), (read_run(tmp_path / "a"),), 1),))
    assert table_of(markdown(old))[2][4:] == ["–", "–", "10", "–", "–"]
