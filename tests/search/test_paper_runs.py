"""The runs behind the tables of the paper: rows, folders, options, and the estimate of their time."""

from pathlib import Path

import pytest
from engine.small_runs import error_of

from lifelabel.report.paper_claims import CLAIMS, REGIMES, TABLE_1, TABLE_2, TABLE_3, TARGETS
from lifelabel.search.paper_runs import estimate, reproduction

TINY = {"stream_options": {"classes": 4, "tasks": 2, "train_images": 16, "test_images": 8}}


def plan(target, regime="authors", seeds=(0,), out=Path("out"), methods=(), **given):
    return reproduction(target, regime, seeds, out, given, methods)


def by_name(found):
    return {variant.cells[0]: found.plan.runs_of(variant)[0] for variant in found.plan.variants}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("regime", REGIMES)
def test_every_claim_and_every_printed_row_has_a_run(target, regime):
    rows = by_name(plan(target, regime))
    for claim in CLAIMS.get(target, ()):
        assert {*claim.upper, *claim.lower} <= rows.keys()
    printed = {"table1": TABLE_1, "table2": TABLE_2, "table3": TABLE_3}.get(target, {}).get("Split-COCO", {})
    assert printed.keys() <= rows.keys()
    assert {run.config.fidelity for run in rows.values()} == {REGIMES[regime]}
    assert len({run.folder for run in rows.values()}) == len(rows)


def test_table_1_has_masked_and_negative_rows_and_rates_of_the_graph():
    rows = by_name(plan("table1"))
    negative = {name.partition(", ")[0] for name in rows if name.endswith(", negative")}
    assert negative == {"fine-tuning", "ewc", "agem", "er", "prs"}
    assert {rows[f"{name}, negative"].config.method_options.hidden_labels for name in negative} == {"negative"}
    assert rows["prs, negative-all"].config.method_options.hidden_labels == "negative-all"
    assert {run.config.lr for name, run in rows.items() if name.startswith("agcn")} == {3e-5, 1e-4, 3e-4, 1e-3}
    assert rows["agcn, graph lr 0.0003, λ3 = 10^3"].config.method_options.lambdas == (0.07, 0.93, 1e3)
    assert not any("graph lr" in name for name in by_name(plan("table1", "ours")))


def test_targets_share_the_folders_of_equal_runs():
    agcn = by_name(plan("fig4"))["agcn"]
    assert agcn.folder == Path("out/scenes-release/agcn-s0")
    for target, name in (
        ("table1", "agcn"),
        ("table2", "+ R^t & Q^t"),
        ("table3", "0.07 / 0.93 / 10^5"),
        ("a6", "agcn"),
    ):
        other = by_name(plan(target))[name]
        assert other.folder == agcn.folder and other.config == agcn.config
    assert by_name(plan("table2"))["prs"].config == by_name(plan("table1"))["prs"].config


def test_a_given_rate_is_that_of_the_graph():
    rows = by_name(plan("table2", lr="3e-4"))
    assert {name: run.config.lr for name, run in rows.items()} == {
        "A = I": 3e-4, "A^{t-1} & B^t": 3e-4, "+ R^t & Q^t": 3e-4, "prs": 1e-4,
    }  # fmt: skip
    first = by_name(plan("table1", lr=3e-4))
    assert first["agcn"].folder.name == "agcn_lr-0.0003-s0" and "agcn, graph lr 0.0003" not in first
    assert first["agcn, graph lr 0.001"].config.lr == 1e-3 and first["lwf"].config.lr == 1e-4


def test_mistakes():
    assert "--regime" in error_of(lambda: plan("table1", fidelity="plain"))
    assert "table2 has no run of er" in error_of(lambda: plan("table2", methods=["er", "prs"]))
    assert [*by_name(plan("table1", methods=["lwf"]))] == ["lwf"]


def test_an_estimate_counts_replayed_images_experts_and_the_tests_after_each_task(tmp_path, monkeypatch):
    monkeypatch.setattr("lifelabel.search.paper_runs._seconds_per_image", lambda config: (10.0, 1.0))
    found = plan("table1", out=tmp_path, methods=["fine-tuning", "lwf", "er", "multi-task"], **TINY)
    rows, expected = by_name(found), estimate(found)
    seconds = {name: expected[rows[name].folder].seconds for name in ("fine-tuning", "lwf", "er", "multi-task")}
    assert seconds == {"fine-tuning": 160 + 16, "lwf": 160 + 16 + 16, "er": 320 + 16, "multi-task": 160 + 8}
    assert not any(each.finished for each in expected.values())


def test_a_step_of_the_backbone_is_timed():
    found = plan("table1", methods=["fine-tuning"], **TINY)
    assert all(0 < each.seconds < 600 for each in estimate(found).values())
