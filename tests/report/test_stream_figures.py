"""Figures of a stream: contact sheets, frequencies and co-occurrence."""

import dataclasses
import re

import numpy as np
import pytest
from report.small_streams import CLASSES, Photographs, split

from lifelabel.images.source import Names
from lifelabel.report import stream_figures as figures
from lifelabel.report.stream_counts import describe
from lifelabel.report.vega import chart_text
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import Split, Stream, classes_to_tasks


def test_a_sheet_has_all_classes_and_skips_missing_and_bad_images():
    """Class 0 is in 60 of 62 images; the other two have class 1."""
    lists = [[0]] * 60 + [[1], [1]]
    images = {"absent": range(10), "broken": range(10, 20)}
    train = split(lists, [range(62), []], **images)
    stream = Stream("pets", classes_to_tasks(CLASSES, [2, 2]), train, train)
    order = list(figures._candidates(stream, 0))
    assert sorted(order) == list(range(10, 62))
    assert {order[1], order[3]} == {60, 61}  # classes in turn, while both last
    chosen = [row for row, _ in figures._readable_images(stream, 0)]
    assert sorted(chosen) == list(range(20, 62))
    assert list(figures._candidates(stream, 0)) == order
    sheet = figures._contact_sheet(stream, 0)
    assert sheet.size == (6 * 212 + 12, 52 + 4 * (150 + 48 + 12))
    colours = {colour for _, colour in sheet.getcolors(1 << 20)}
    assert {(row, 0, 200) for row in (60, 61)} <= colours
    assert len({c for c in colours if c[1:] == (0, 200)}) == 24
    assert figures._contact_sheet(stream, 1) is None


def test_there_is_no_sheet_if_all_files_are_bad(tmp_path):
    count = 1000
    train = split([[0]] * count, [range(count), []], broken=range(count))
    stream = Stream("pets", classes_to_tasks(CLASSES, [2, 2]), train, train)
    assert len(list(figures._readable_images(stream, 0))) == 0
    assert figures.write_sheets(stream, tmp_path) == []
    assert not list(tmp_path.iterdir())


def test_visible_labels_are_black_and_come_first_hidden_ones_grey(stream):
    assert figures._label_names(stream, 2, slice(0, 2)) == [("cat", True), ("cup", False), ("fork", False)]
    assert figures._label_names(stream, 4, slice(2, 4)) == [("fork", True), ("dog", False)]


@pytest.mark.parametrize("classes", [(r"$\alpha", "$$", "犬", "_^"), ("$5_to_$10", "$" * 99, "a$\\", "\x1b[2J\n")])
def test_hostile_names_are_drawn(stream, tmp_path, chart_texts, classes):
    odd = dataclasses.replace(stream, name=r"$\frac$" * 1000, tasks=classes_to_tasks(classes, [2, 2]))
    assert figures.write_charts(describe(odd), tmp_path) == ["frequencies.png", "cooccurrence.png"]
    assert figures.write_sheets(odd, tmp_path) == ["task-1.png", "task-2.png"]
    names = {chart_text(name, 24) for name in classes}
    assert all(names <= {*chart_texts(tmp_path / f"{name}.svg")} for name in ("frequencies", "cooccurrence"))


@pytest.mark.parametrize("complete", [True, False])
def test_the_chart_of_frequencies(complete, stream, tmp_path, chart_texts):
    """Bars of true labels are behind those of visible ones, and only if true labels are known."""
    stream = dataclasses.replace(stream, train=dataclasses.replace(stream.train, complete=complete))
    figures.write_charts(describe(stream), tmp_path)
    drawn = chart_texts(tmp_path / "frequencies.svg")
    assert [text for text in drawn if text in CLASSES] == list(CLASSES)
    series = [*(["true label"] if complete else []), "visible label"]
    assert [text for text in drawn if text.endswith(" label")] == series
    svg = (tmp_path / "frequencies.svg").read_text()
    bars = re.search(r'class="mark-rect role-mark layer_0_marks".*?</g>', svg)[0]
    heights = [round(float(height) / (280 / 3)) for height in re.findall(r"v(\d[\d.]*)", bars)]
    assert heights == [*([3, 2, 3, 2] if complete else []), 3, 1, 1, 1]
    assert len(re.findall("<line", re.search(r'class="mark-rule role-mark layer_1_marks".*?</g>', svg)[0])) == 1


def test_the_chart_of_cooccurrence_has_the_matrix_without_its_diagonal(stream, tmp_path, chart_texts):
    figures.write_charts(describe(stream), tmp_path)
    drawn = chart_texts(tmp_path / "cooccurrence.svg")
    assert [drawn.count(name) for name in CLASSES] == [2, 2, 2, 2] and "P(row | column)" in drawn
    svg = (tmp_path / "cooccurrence.svg").read_text()
    cells = re.search(r'class="mark-rect role-mark layer_0_marks".*?</g>', svg)[0]
    assert len(re.findall("<path", cells)) == 12


@pytest.mark.parametrize(("classes", "named"), [(80, True), (81, False)])
def test_up_to_eighty_classes_are_named(classes, named, tmp_path, chart_texts):
    names = tuple(f"class {n}" for n in range(classes))
    labels = Labels.from_lists([[n] for n in range(classes)], classes)
    one = Split(Photographs(classes), Names(map(str, range(classes))), labels, (np.arange(classes),))
    figures.write_charts(describe(Stream("wide", classes_to_tasks(names, [classes]), one, one)), tmp_path)
    assert ("class 7" in chart_texts(tmp_path / "frequencies.svg")) == named


def test_without_vega_there_are_no_charts(stream, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "chart_obstacle", lambda: "needs other packages")
    assert figures.write_charts(describe(stream), tmp_path) == [] == list(tmp_path.iterdir())
