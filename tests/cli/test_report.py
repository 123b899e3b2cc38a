"""`lifelabel report` and `lifelabel list`."""

import json
import os
import re
import shutil

import pytest
import yaml
from PIL import Image
from support.run_files import read_json

from lifelabel.cli import report
from lifelabel.methods import METHODS
from lifelabel.metrics import METRICS
from lifelabel.nn.backbones import BACKBONES, FAMILIES
from lifelabel.streams import STREAMS


def test_report(main, agcn_run, agcn_copy, tmp_path):
    """Two seeds of one method, printed to a pipe with 80 columns."""
    values = {**yaml.safe_load((agcn_copy / "config.yaml").read_text()), "seed": 1}
    (agcn_copy / "config.yaml").write_text(yaml.safe_dump(values))
    (agcn_copy / "metrics.json").write_text(json.dumps({**read_json(agcn_copy / "metrics.json"), "seed": 1}))
    done = main("report", agcn_run, agcn_copy, "--out", tmp_path / "report")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "agcn" in done.stdout
    assert "Forgetting ↓" in done.stdout
    assert "…" not in done.stdout  # no name and no number is cut
    names = ["figures", "report.html", "table.csv", "table.json", "table.md", "table.tex"]
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == names
    table = (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
    assert "\n| method | mAP, final ↑ | CF1, final ↑ | OF1, final ↑ |" in table
    final = read_json(agcn_run / "metrics.json")["final"]
    scores = " | ".join(f"{100 * final[name]:.2f} ± 0.00" for name in ("mAP", "CF1", "OF1"))
    assert f"| agcn (stream.train_images=60, stream.test_images=60) | {scores} |" in table
    forgetting = " | ".join(f"{100 * final['forgetting'][name]:.2f} ± 0.00" for name in ("mAP", "CF1", "OF1"))
    assert f"| Forgetting ↓ | {forgetting} |" in table
    assert "seeds 0, 1" in table
    assert f"the report is {tmp_path / 'report' / 'report.html'}: open it in a browser\n" in done.stdout
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and scores.split(" | ")[0] in page
    files = {path.name for path in (tmp_path / "report" / "figures").iterdir()}
    assert {f"learning-curves-mAP.{kind}" for kind in ("svg", "pdf", "png")} <= files
    with Image.open(tmp_path / "report" / "figures" / "learning-curves-mAP.png") as figure:
        assert figure.format == "PNG"
        figure.load()


@pytest.mark.parametrize("module", ["vl_convert", "jinja2"])
def test_without_the_packages_of_the_report_there_are_tables(output, agcn_run, tmp_path, monkeypatch, module):
    monkeypatch.setattr("lifelabel.report.vega.find_spec", lambda name: None if name == module else True)
    monkeypatch.setattr(report, "write_page", lambda *_: ["report.html"])
    text = output("report", agcn_run, "--out", tmp_path / "report")
    assert "mAP" in text
    package = {"vl_convert": "vl-convert-python", "jinja2": "Jinja2"}[module]
    assert text.endswith(f"report.html needs other packages: pip install {package}\n")
    assert (tmp_path / "report" / "table.md").exists() and "open it in a browser" not in text


def test_a_table_by_another_convention(main, refused, agcn_run, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_page", lambda *_: [])
    assert main("report", agcn_run, "--convention", "authors", "--out", tmp_path / "report").returncode == 0
    table = (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
    assert f"| {100 * read_json(agcn_run / 'metrics.json')['final']['cumulative_mean']['mAP']:.2f} |" in table
    for command in (("report", agcn_run), ("compare",), ("study", "acm"), ("leaderboard",)):
        assert refused(*command, "--convention", "papers", "--out", tmp_path / "none") == (
            "unknown convention 'papers': did you mean 'paper'? (known: authors, average, paper)"
        )


def test_a_folder_of_runs_is_reported_like_its_runs(main, agcn_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_page", lambda *_: [])  # it takes seconds
    for given in (agcn_copy, agcn_copy.parent):
        assert main("report", given, "--out", tmp_path / "report" / given.name).returncode == 0
    tables = [(tmp_path / "report" / given.name / "table.md").read_bytes() for given in (agcn_copy, agcn_copy.parent)]
    assert tables[0] == tables[1]


def test_report_of_a_folder_without_a_run(refused, tmp_path):
    assert str(tmp_path / "nowhere") in refused("report", tmp_path / "nowhere", "--out", tmp_path / "report")
    assert str(tmp_path) in refused("report", tmp_path, "--out", tmp_path / "report")


def test_report_of_a_damaged_matrix(output, agcn_copy, tmp_path):
    """The matrix is left out, and a note says so."""
    data = (agcn_copy / "acm.npz").read_bytes()
    (agcn_copy / "acm.npz").write_bytes(data[: len(data) // 2])
    text = output("report", agcn_copy, "--out", tmp_path / "report")
    assert re.search(r"NOT everything of agcn .* is in the report: \S*acm\.npz", text)
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "acm.npz" in page and 'id="curves"' in page and 'id="matrix"' not in page


@pytest.mark.parametrize("name", ["metrics.json", "environment.json", "config.yaml"])
@pytest.mark.parametrize("damage", ["pipe", "brackets", "endless"])
def test_damaged_files_are_one_line(refused, agcn_copy, tmp_path, name, damage):
    path = agcn_copy / name
    path.unlink()
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "brackets":
        path.write_text("[" * 100_000)
    else:
        path.symlink_to("/dev/zero")
    assert name in refused("report", agcn_copy, "--out", tmp_path / "report")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("metrics.json", {"by_task": {"mAP": [[1e307]]}}),
        ("metrics.json", {"by_task": {"mAP": [[10**400]]}}),
        ("environment.json", {"seconds": -1.7e308}),
        ("environment.json", {"seconds": "1"}),
    ],
)
def test_numbers_that_cannot_be_right_are_one_line(refused, agcn_copy, tmp_path, name, change):
    (agcn_copy / name).write_text(json.dumps({**read_json(agcn_copy / name), **change}))
    assert "is damaged" in refused("report", agcn_copy, "--out", tmp_path / "report")


def test_a_matrix_that_is_a_pipe_is_left_out(output, agcn_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_page", lambda *_: [])
    (agcn_copy / "acm.npz").unlink()
    os.mkfifo(agcn_copy / "acm.npz")
    assert "acm.npz is not a regular file" in output("report", agcn_copy, "--out", tmp_path / "report")


def test_unfinished_and_damaged_runs_of_a_folder_are_listed(main, refused, agcn_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_page", lambda *_: [])
    others = {"stopped": "is not finished", "damaged": "metrics.json is damaged"}
    for name in others:
        shutil.copytree(agcn_copy, agcn_copy.parent / name)
    (agcn_copy.parent / "stopped" / "metrics.json").unlink()
    (agcn_copy.parent / "damaged" / "metrics.json").write_text("{")
    done = main("report", agcn_copy.parent, "--out", tmp_path / "report")
    assert done.returncode == 1
    for name, reason in others.items():
        assert re.search(rf"^not finished: {name}: .*{reason}", done.stdout, re.MULTILINE)
        assert f"- {name}: " in (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
        assert reason in refused("report", agcn_copy.parent / name, "--out", tmp_path / "report")  # it was asked for
    (agcn_copy / "metrics.json").write_text("{")
    assert "damaged" in refused("report", agcn_copy.parent, "--out", tmp_path / "report")  # no run is left


def test_a_line_break_in_a_name_makes_no_line(output, agcn_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "write_page", lambda *_: [])
    (agcn_copy / "metrics.json").write_text(
        json.dumps({**read_json(agcn_copy / "metrics.json"), "stream": "scenes\nerror: none"})
    )
    text = output("report", agcn_copy, "--out", tmp_path / "report")
    assert "\nerror:" not in text and "error: none" in text


def test_with_limited_addresses_there_are_tables(output, agcn_run, tmp_path, monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 34, 1 << 34))
    assert output("report", agcn_run, "--out", tmp_path / "report").endswith("without a limit: ulimit -v unlimited\n")
    assert not (tmp_path / "report" / "report.html").exists()


def test_report_into_a_folder_that_cannot_be_written(refused, agcn_run, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "cannot write to" in refused("report", agcn_run, "--out", tmp_path / "file" / "report")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("methods", METHODS), ("streams", STREAMS), ("backbones", [*BACKBONES, *FAMILIES]), ("metrics", METRICS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_list_has_one_line_per_name(output, what, names):
    text = output("list", what)
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert [name for name, _ in lines] == list(names)
    assert all(len(text) > 10 for _, text in lines)
