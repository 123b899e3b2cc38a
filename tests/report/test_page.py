"""The report as one HTML file: its content, and the escaping of untrusted text."""

import base64
import dataclasses
import hashlib
import html
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report.page_runs import FILE, HOSTILE, LABELS, PROBABILITIES, STREAM, jpeg, make_table, shown, write_details
from report.run_folders import make_run, table_of

from lifelabel.report import page, vega
from lifelabel.report.page import configuration, run_sections
from lifelabel.report.page_pictures import SCALE, pictures
from lifelabel.report.tables import Failure, ResultTable, notes, write_tables

BUNDLE = "window.vegaEmbed = null;"


class Page(HTMLParser):
    """The elements of a page with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text, self.scripts = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        if not self.cdata_elem:
            self.text += data
        elif self.cdata_elem == "script":
            self.scripts.append((self.elements[-1][1], data))

    def all(self, tag, **wanted):
        return [attrs for name, attrs in self.elements if name == tag and wanted.items() <= attrs.items()]


@pytest.fixture(scope="module", autouse=True)
def small_bundle():
    """Vega is not needed here."""
    patch = pytest.MonkeyPatch()
    patch.setattr(vega, "bundle", lambda: BUNDLE)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def text(table):
    return page.report_html(table)


@pytest.fixture(scope="module")
def parsed(text):
    return Page(text)


def data_of(parsed, name):
    """The JSON block of this id."""
    (found,) = (data for attrs, data in parsed.scripts if attrs.get("id") == name)
    return json.loads(found)


# Content


def test_sections_are_in_order_and_linked(parsed):
    ids = [attrs["id"] for attrs in parsed.all("section")]
    assert ids == [
        "results", "curves", "pictures", "matrix", "graph", "forgetting", "classes", "changes", "precision",
        "calibration", "thresholds", "cost", "configuration", "notes",
    ]  # fmt: skip
    links = [attrs["href"] for attrs in parsed.all("a")]
    assert links == ["#content", *(f"#{name}" for name in ids if name not in ("changes", "thresholds"))]
    every = [attrs["id"] for _, attrs in parsed.elements if "id" in attrs]
    assert len(every) == len(set(every))
    labels = {attrs["aria-labelledby"] for attrs in parsed.all("section")}
    assert labels <= set(every)
    assert parsed.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))  # no level is left out


def test_the_table_has_the_figures(parsed, table):
    for part in ("60.50 ± 0.71", "40.00", "90.00", "Forgetting ↓", "below 0: better than before. CF1 is", "1.0"):
        assert part in parsed.text
    assert "The threshold of this section is 0.7 at first" in parsed.text and "not calibrated is 0.5." in parsed.text
    assert data_of(parsed, "pictures-data")["threshold"] == 0.7
    assert html.unescape(" ".join(notes(table)[-1].split())) in " ".join(parsed.text.split())


def test_the_texts_for_the_clipboard_are_those_of_the_files(parsed, table, tmp_path):
    copies = data_of(parsed, "copies")
    write_tables(table, tmp_path)
    assert copies["CSV"] == (tmp_path / "table.csv").read_text()
    assert copies["LaTeX"] == (tmp_path / "table.tex").read_text()
    assert copies["Markdown"] in (tmp_path / "table.md").read_text()
    assert table_of(copies["Markdown"])[0] == [
        "method", "mAP, final ↑", "CF1, final ↑", "OF1, final ↑", "n", "stored images", "stored MB", "seconds",
        "images/s", "peak GB",
    ]  # fmt: skip


def test_every_figure_has_its_data_and_its_text_alternative(parsed):
    names = [attrs["id"] for attrs in parsed.all("figure")]
    plots = parsed.all("div", role="img")
    assert len(names) == len(plots) >= 10
    assert all(len(plot["aria-label"]) > 30 for plot in plots)
    for name in names:
        data = data_of(parsed, f"{name}-data")
        signals = {param["name"] for param in data["spec"]["params"]}
        assert {control["signal"] for control in data["controls"]} <= signals


def test_one_method_of_a_section_is_shown_first(table, parsed):
    sections = run_sections(table.rows)
    assert [panel.name for panel in sections["matrix"].panels] == [LABELS["agcn"]]
    assert {panel.name for panel in sections["forgetting"].panels} == {LABELS["agcn"], LABELS["fine-tuning"]}
    assert all(section.chosen == 2 for section in sections.values())  # AGCN is the best that is not an upper bound
    panels = parsed.all("div", **{"class": "panel"})
    assert {panel["data-method"] for panel in panels if "hidden" not in panel} == {"2"}
    assert {panel["data-method"] for panel in panels if "hidden" in panel} == {"0", "1"}


def test_relations_in_words(parsed):
    text = " ".join(parsed.text.split())
    assert shown(f"{HOSTILE[0]} given {HOSTILE[1]}: 0.90 (true 0.50)") in text
    assert "No relation between classes of earlier tasks changed in a later task." in text
    assert "0.100 ± 0.000" in text  # the error of the matrix, over both seeds


def test_changed_relations_are_listed(tmp_path):
    table = make_table(tmp_path)
    path = tmp_path / "agcn-s0" / "acm.npz"
    with np.load(path) as stored:
        arrays = dict(stored)
    arrays["task_1"] = np.array([[1, 0.25], [0.5, 1]])
    np.savez(path, **arrays)
    text = " ".join(Page(page.report_html(table)).text.split())
    assert "1 entry between classes of earlier tasks changed:" in text
    assert shown(f"{HOSTILE[0]} given {HOSTILE[1]}, in task 2: 0.25 to 0.90") in text
    assert "No relation between classes of earlier tasks changed" not in text


def test_the_best_thresholds_by_hand(table):
    found = run_sections(table.rows)["thresholds"].panels[0].content
    assert found.heads() == ["class", "task", "threshold", "F1 %", "precision %", "recall %"]
    first, empty, never, last = found.texts()
    assert first == [HOSTILE[0], "1", "0.000", "66.7", "50.0", "100.0"]
    assert empty[2:] == ["–", "–", "–", "–"]  # no positive image
    assert never[3] == "0.0"
    assert last[1] == "2" and last[4:] == ["50.0", "50.0"]  # precision 1 - r: F1 is 2 r (1 - r)


def test_the_configuration(tmp_path):
    runs = [make_run(tmp_path / "a", "er"), make_run(tmp_path / "b", "lwf", options={"batch_size": 4})]
    found = configuration(ResultTable.from_runs(runs))
    assert "backbone" in found.equal and "batch_size" not in found.equal
    assert [cells[:2] for cells in found.different.texts() if cells[1] == "4"] == [["batch_size", "4"]]
    options = dict(found.methods[0][1])
    assert "method.buffer_images" in options and options["seed"] == "0"


def test_failures_are_listed(table):
    failure = Failure("<u>er</u>, seed 1", Path("runs/x"), "no <memory>")
    parsed = Page(page.report_html(dataclasses.replace(table, failures=(failure,))))
    assert "<u>er</u>, seed 1: no <memory>" in parsed.text
    assert not parsed.all("u")


def test_runs_without_details(tmp_path):
    parsed = Page(page.report_html(make_table(tmp_path, details=False)))
    ids = [attrs["id"] for attrs in parsed.all("section")]
    assert "pictures" not in ids and "thresholds" not in ids and "curves" in ids and "matrix" in ids


@pytest.mark.parametrize("file", ["details/task-2.npz", "acm.npz"])
def test_a_damaged_file_is_left_out_and_a_line_says_so(tmp_path, file):
    table = make_table(tmp_path)
    (tmp_path / "agcn-s0" / file).write_bytes(b"PK")
    assert [line for line in notes(table) if line.startswith("NOT everything of agcn")] == [
        f"NOT everything of {LABELS['agcn']} is in the report: {tmp_path / 'agcn-s0' / file} is damaged or cut short."
    ]
    parsed = Page(page.report_html(table))
    assert "is damaged or cut short" in parsed.text
    names = [name for attrs in parsed.all("figure") if "agcn" in (name := attrs["id"])]
    assert [name.startswith("figure-matrix") for name in names].count(True) == (file != "acm.npz")
    assert [name.startswith("figure-class-changes") for name in names].count(True) == (file == "acm.npz")
    assert [each["method"] for each in pictures(table.rows)["methods"]] == ([0, 1] if "task" in file else [0, 1, 2])


def test_details_that_are_too_large_are_left_out_before_they_are_read(tmp_path):
    table = make_table(tmp_path)
    path = tmp_path / "agcn-s0" / "details" / "task-2.npz"
    with np.load(path) as stored:
        arrays = {**stored, "scores": np.zeros((100_000, 4), np.float16)}
    np.savez_compressed(path, **arrays)
    assert path.stat().st_size < 10_000
    assert [line for line in notes(table) if "this cannot be the right file" in line]


# Pictures


def scores_of(method, classes):
    return [
        np.frombuffer(base64.b64decode(text), np.uint8).reshape(-1, n)
        for text, n in zip(method["scores"], classes, strict=True)
    ]


def test_pictures_have_the_scores_of_every_method(table):
    found = pictures(table.rows)
    (group,) = found["groups"]
    assert group["classes"] == list(map(shown, HOSTILE)) and group["sizes"] == [2, 2]
    assert [each["name"] for each in group["pictures"]] == [FILE, "b.jpg"]  # the third is not a JPEG
    assert [each["labels"] for each in group["pictures"]] == [[0, 2], [0, 2]]
    assert base64.b64decode(group["pictures"][0]["jpeg"]) == jpeg("red")
    joint, _, agcn = found["methods"]
    assert (joint["tasks"], agcn["tasks"], found["chosen"]) == ([2], [1, 2], 2)
    first, last = scores_of(agcn, (2, 4))
    assert first.tolist() == (SCALE * PROBABILITIES[1][:2]).round().tolist()
    assert last.tolist() == (SCALE * PROBABILITIES[2][:2]).round().tolist()


def test_a_probability_below_a_threshold_is_not_rounded_up_to_it(tmp_path):
    table = make_table(tmp_path, details=False)
    write_details(tmp_path / "agcn-s0", pictures=[jpeg("red")] * 3)
    (agcn,) = pictures(table.rows)["methods"]
    assert scores_of(agcn, (2, 4))[1][2].tolist() == [20, 160, 40, 139]  # 0.699 of SCALE 200


def bomb():
    """A JPEG file of few bytes that claims to have 60,000 x 60,000 pixels."""
    data = jpeg("red")
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + (60_000).to_bytes(2, "big") * 2 + data[at + 4 :]


def png():
    return Image.new("RGB", (4, 4))._repr_png_()


@pytest.mark.parametrize("bad", [b"", b"\xff\xd8\xff", b"<svg onload=alert(1)>", png(), bomb(), jpeg("red")[:-40]])
def test_only_whole_small_jpeg_files_are_shown(tmp_path, bad):
    table = make_table(tmp_path, details=False)
    write_details(tmp_path / "agcn-s0", pictures=[bad, jpeg("red"), bad])
    names = [each["name"] for each in pictures(table.rows)["groups"][0]["pictures"]]
    assert names == ["b.jpg"]


def test_many_pictures_stay_within_the_budget(tmp_path, monkeypatch):
    monkeypatch.setattr("lifelabel.report.page_pictures._MAX_BYTES", 2 * len(jpeg("red")))
    table = make_table(tmp_path)
    assert len(pictures(table.rows)["groups"][0]["pictures"]) == 1


def test_runs_on_different_images_do_not_share_pictures(tmp_path):
    """A run that left out an image has other rows of scores."""
    table = make_table(tmp_path)
    run = table.rows[2].runs[0]
    run.environment["images_skipped"] = 1
    found = pictures(table.rows)
    assert len(found["groups"]) == 2
    assert [method["group"] for method in found["methods"]] == [0, 0, 1]


def test_unknown_labels(tmp_path):
    table = make_table(tmp_path, details=False)
    known = np.ones((3, 4), bool)
    known[0, [0, 3]] = False
    write_details(tmp_path / "agcn-s0", known=known)
    first, second = pictures(table.rows)["groups"][0]["pictures"]
    assert (first["labels"], first["unknown"]) == ([2], [0, 3])
    assert (second["labels"], second["unknown"]) == ([0, 2], [])


# Untrusted text


def test_hostile_text_is_text(parsed, text):
    for name in (*HOSTILE, *LABELS.values(), STREAM):
        assert shown(name) in parsed.text
    tags = {tag for tag, _ in parsed.elements}
    assert tags.isdisjoint({"b", "i", "img", "svg", "u"})
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert "49" not in parsed.text.replace("0.49", "")
    assert not any(name.startswith("on") for _, attrs in parsed.elements for name in attrs)


def test_scripts_are_the_two_of_the_page_and_nothing_is_loaded(parsed):
    code = [data for attrs, data in parsed.scripts if "type" not in attrs]
    assert code[0] == BUNDLE and len(code) == 2
    assert all(not set("<>&") & set(data) for attrs, data in parsed.scripts if "type" in attrs)
    (policy,) = parsed.all("meta", **{"http-equiv": "Content-Security-Policy"})
    rules = dict(rule.split(" ", 1) for rule in policy["content"].split("; "))
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in code]
    assert rules["script-src"].split() == hashes
    assert (rules["default-src"], rules["img-src"]) == ("'none'", "data:")
    assert not any("src" in attrs for _, attrs in parsed.elements)
    links = [attrs["href"] for _, attrs in parsed.elements if "href" in attrs]
    assert all(link.startswith("#") or link == "data:," for link in links)


def test_lone_surrogates_and_control_characters(tmp_path):
    run = make_run(tmp_path / "run", "agcn", environment={"label": "a\ud800\x00\x1b[2J\u2028b"})
    text = page.report_html(ResultTable.from_runs([run]))
    text.encode()
    assert "a���[2J�b" in text and "\x1b" not in text and "\x00" not in text


# Files


def test_figures_of_an_earlier_report_are_deleted_and_other_files_are_not(table, tmp_path, monkeypatch):
    monkeypatch.setattr(vega, "write_figure", lambda figure, folder: [f"{figure.name}.svg"])
    figures = tmp_path / "figures"
    figures.mkdir()
    for name in ("old.svg", "mine.svg", "old.txt"):
        (figures / name).touch()
    (tmp_path / "outside.svg").touch()
    (figures / "files.txt").write_text("old.svg\nold.txt\n../outside.svg\ngone.pdf\n")
    page.write_report(table, tmp_path)
    assert not (figures / "old.svg").exists()
    assert all(path.exists() for path in (figures / "mine.svg", figures / "old.txt", tmp_path / "outside.svg"))
    assert "learning-curves.svg" in (figures / "files.txt").read_text().splitlines()


def test_the_report_and_its_figures_are_written(table, tmp_path, monkeypatch):
    written, calls = [], []
    monkeypatch.setattr(vega, "write_figure", lambda figure, folder: written.append((figure.name, folder)) or ["x.svg"])
    names = page.write_report(table, tmp_path, lambda done, total: calls.append((done, total)))
    assert names[0] == "report.html" and set(names[1:]) == {"figures/x.svg"}
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert {folder for _, folder in written} == {tmp_path / "figures"}
    assert len({name for name, _ in written}) == len(written) == len(calls) >= 10
    assert calls[-1] == (len(calls), len(calls))
