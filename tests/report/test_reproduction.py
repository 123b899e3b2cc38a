"""`reproduction.md`: figures beside those of the paper, and verdicts, from runs whose figures are known."""

import json

import numpy as np
import pytest
from report.run_folders import edit_json, make_run, table_of, write_matrices

from lifelabel.report import paper_claims as paper
from lifelabel.report.reproduction import make_document, markdown, write
from lifelabel.report.tables import Failure, ResultTable, Row

MEANS = {"multi-task": 0.9, "fine-tuning": 0.1, "ewc": 0.2, "lwf": 0.3, "agem": 0.4, "er": 0.5, "prs": 0.6, "agcn": 0.7}


@pytest.fixture
def make_rows(tmp_path):
    """Rows of runs: for each name the mAP after the last task of two seeds, which differ by 2 points."""

    def make(means, seeds=(0, 1)):
        rows, folder = [], tmp_path / str(len(list(tmp_path.iterdir())))
        for name, mean in means.items():
            method = name.partition(", ")[0]
            runs = [
                make_run(
                    folder / f"{len(rows)}-{seed}", method if method in MEANS else "agcn", seed,
                    mAP=mean + 0.02 * seed, joint=method == "multi-task",
                    cumulative_mean={"mAP": 1 - mean, "CF1": 0.5, "OF1": 0.5},
                    **({} if method == "multi-task" else {
                        "forgetting": {"mAP": 1 - mean, "CF1": 0.1, "OF1": 0.1},
                        "relative_forgetting": {"mAP": mean, "CF1": 0.1, "OF1": 0.1},
                    }),
                )
                for seed in seeds
            ]  # fmt: skip
            rows.append(Row((name,), tuple(runs), len(seeds), method == "multi-task"))
        return ResultTable("Table", ("method",), tuple(rows))

    return make


def document(table, target="table1", on_scenes=False):
    return make_document(target, table, "lifelabel reproduce", on_scenes)


def line(table, name):
    return next([str(cell) for cell in row] for row in table.texts() if row[0] == name)


def test_figures_stand_beside_those_of_the_paper_in_both_conventions(make_rows):
    final, authors, *_ = document(make_rows({"prs": 0.3, "prs, negative": 0.25, "multi-task": 0.8})).tables
    assert "final" in final.title and "mean over test sets" in authors.title
    printed = "28.8/18.4/13.9"
    assert line(final, "prs") == ["prs", "2", printed, "31.0/15.5/7.8", "1.4", "+2.2/-2.9/-6.1", "30.9/70.0"]
    assert line(authors, "prs")[2:4] == [printed, "70.0/50.0/50.0"] and line(authors, "prs")[6] == "30.9/30.0"
    assert line(final, "prs, negative")[2] == printed
    assert line(final, "multi-task")[6] == "–"  # joint training forgets nothing, in the paper too


def test_a_claim_holds_if_its_difference_is_larger_than_two_standard_errors(make_rows):
    *_, claims, by_authors = document(make_rows(MEANS)).tables
    for claim in paper.CLAIMS["table1"][:8]:
        assert line(claims, claim.text)[2].startswith("yes +10.0 ± ") or "upper bound" in claim.text
        assert line(by_authors, claim.text)[2].startswith("no -")  # the means run the other way there
    assert line(claims, "agcn has the least forgetting of mAP")[1:] == ["+7.2", "yes +10.0 ± 0.0"]
    level = document(make_rows({**MEANS, "ewc": 0.11})).tables[2]
    assert line(level, "ewc is above fine-tuning")[2] == "level +1.0 ± 1.4"


def test_one_seed_gives_a_sign_and_a_missing_row_no_verdict(make_rows):
    claims = document(make_rows({name: MEANS[name] for name in ("fine-tuning", "ewc")}, seeds=(0,))).tables[2]
    assert line(claims, "ewc is above fine-tuning")[2] == "yes +10.0"
    assert line(claims, "agcn has the highest mAP")[2] == line(claims, "fine-tuning is the lowest")[2] == "–"


def test_claims_are_judged_with_masked_and_negative_rows_and_with_the_best_agcn(make_rows):
    means = {**MEANS, "prs, negative": 0.45, "agcn": 0.55, "agcn, graph lr 0.1": 0.8}
    claims = document(make_rows(means)).tables[2]
    assert claims.heads()[2:] == ["masked", "negative", "masked, best agcn"]
    found = line(claims, "prs is above er")[2:]
    assert [text.split(" ±")[0] for text in found] == ["yes +10.0", "no -5.0", "yes +10.0"]
    found = line(claims, "agcn has the highest mAP")[2:]
    assert [text.split(" ±")[0] for text in found] == ["no -5.0", "yes +5.0", "yes +20.0"]


def test_curves_are_judged_after_each_task(make_rows):
    curves, claims = document(make_rows({"agcn": 0.7, "er": 0.6, "multi-task": 0.9}), "fig3").tables
    assert line(curves, "agcn") == ["agcn", "80.0", "71.0"]
    assert line(claims, claims.lines[0].cells[0])[1] == "yes: after 2 of 2 tasks (1, 2)"


def test_a_matrix_is_compared_with_the_true_one_by_block(make_rows, tmp_path):
    table = make_rows({"agcn": 0.5}, seeds=(0,))
    folder = table.runs[0].path
    write_matrices(folder)
    truth = np.array([[1, 0.8, 0.1, 0.3], [0.6, 1, 0.2, 0.4], [0.1, 0.5, 1, 0.7], [0.3, 0.2, 0.9, 1]])
    arrays = {
        **dict(np.load(folder / "acm.npz")),
        "truth": truth,
        "task_2": truth.copy(),
        "task_1": truth[:2, :2].copy(),
    }
    arrays["task_2"][0, 2] = 0.4  # Old-New: one of four entries is 0.3 too large
    np.savez(folder / "acm.npz", **arrays)
    agreement, claims = document(table, "a6").tables
    assert [str(cell) for cell in agreement.texts()[1]][:2] == ["2", "4"]
    errors = dict(zip(("all", "within a task", "Old-New", "New-Old"), agreement.texts()[1][6:], strict=True))
    assert errors == {"all": "0.03", "within a task": "0.00", "Old-New": "0.08", "New-Old": "0.00"}
    texts = {row[0]: row[1] for row in claims.texts()}
    assert texts["the matrix is augmented from task to task"] == "yes: 2 → 4 classes"
    assert texts["relations of earlier tasks are preserved"] == "yes: largest change of an entry 0"
    assert texts["relations within a task are constructed"] == "level: correlation 1.00 with the true probabilities"


@pytest.mark.parametrize("absent", ["truth", "task_1"])
def test_a_matrix_that_is_not_there_is_a_note(make_rows, absent):
    table = make_rows({"agcn": 0.5}, seeds=(0,))
    file = table.runs[0].path / "acm.npz"
    write_matrices(file.parent)
    np.savez(file, **{name: array for name, array in np.load(file).items() if name != absent})
    found = document(table, "a6")
    assert not found.tables and found.notes[-1].startswith("No run has the true matrix")


def test_files(make_rows, tmp_path):
    table = make_rows(MEANS)
    edit_json(table.runs[0].path / "environment.json", device="<b>")
    table = ResultTable(table.title, table.head, table.rows, (Failure("er, seed 2", tmp_path, "broke_down"),))
    found = make_document("table1", table, "lifelabel reproduce table1", True)
    assert write(found, table, tmp_path) == ["reproduction.md", "reproduction.tex", "reproduction.json"]
    page = (tmp_path / "reproduction.md").read_text(encoding="utf-8")
    assert page == markdown(found, table) and page.startswith("### Table\n\n    lifelabel reproduce table1\n")
    assert "Measured on scenes, drawn images, and not on Split-COCO" in page
    assert "- not finished: er, seed 2: broke_down" in page
    assert ["agcn", "2", "34.1/35.5/42.4"] in [cells[:3] for cells in table_of(page)]
    latex = (tmp_path / "reproduction.tex").read_text(encoding="utf-8")
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{table}") == 4 and r"broke\_down" not in latex
    saved = json.loads((tmp_path / "reproduction.json").read_text(encoding="utf-8"))
    assert [each["title"] for each in saved["tables"]] == [each.title for each in found.tables]
    assert saved["failures"] == [{"run": "er, seed 2", "folder": str(tmp_path), "reason": "broke_down"}]
