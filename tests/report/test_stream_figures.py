"""Figures of a stream: contact sheets, frequencies and co-occurrence."""

import dataclasses

import numpy as np
import pytest
from lifelabel.report.charts import save_figure
from report.small_streams import CLASSES, Photographs, split

from lifelabel.images.source import Names
from lifelabel.report import stream_figures as figures
from lifelabel.report.stream import describe
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
def test_hostile_names_are_drawn(stream, tmp_path, classes):
    odd = dataclasses.replace(stream, name=r"$\frac$" * 1000, tasks=classes_to_tasks(classes, [2, 2]))
    found = describe(odd)
    figures.draw_frequencies(found, tmp_path / "f.png")
    assert figures.draw_cooccurrence(found, tmp_path / "c.png")
    assert figures.write_sheets(odd, tmp_path) == ["task-1.png", "task-2.png"]


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    saved = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: (saved.append(figure), save_figure(figure, path)))
    return saved


@pytest.mark.parametrize("complete", [True, False])
def test_the_chart_of_frequencies_has_the_counts_of_all_classes(complete, stream, drawn, tmp_path):
    """Bars of true labels are behind those of visible ones, and only if true labels are known."""
    stream = dataclasses.replace(stream, train=dataclasses.replace(stream.train, complete=complete))
    figures.draw_frequencies(describe(stream), tmp_path / "f.png")
    (axis,) = drawn[0].axes
    bars = {patch.get_label(): patch.get_data().values[::2].tolist() for patch in axis.patches}
    assert bars == {**({"true label": [3, 2, 3, 2]} if complete else {}), "visible label": [3, 1, 1, 1]}
    assert [text.get_text() for text in axis.get_legend().get_texts()] == list(bars)
    assert [label.get_text() for label in axis.get_xticklabels()] == list(CLASSES)
    assert [line.get_xdata()[0] for line in axis.get_lines()] == [1.5]  # the border between the two tasks


def test_the_chart_of_cooccurrence_has_the_matrix_without_its_diagonal(stream, drawn, tmp_path):
    found = describe(stream)
    assert figures.draw_cooccurrence(found, tmp_path / "c.png")
    axis, bar = drawn[0].axes
    (image,) = axis.get_images()
    off_diagonal = ~np.eye(4, dtype=bool)
    matrix = np.array(found["cooccurrence"]["matrix"])
    assert np.array_equal(image.get_array()[off_diagonal], matrix[off_diagonal]) and matrix[off_diagonal].any()
    assert image.get_array().mask[~off_diagonal].all() and image.get_clim() == (0, 1)
    for labels in (axis.get_xticklabels(), axis.get_yticklabels()):
        assert [label.get_text() for label in labels] == list(CLASSES)
    borders = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axis.get_lines()]
    assert borders == [(1.5, 0), (0, 1.5)]  # one vertical and one horizontal line
    assert bar.get_ylabel() == "P(row | column)"


@pytest.mark.parametrize(("classes", "named"), [(80, True), (81, False)])
def test_up_to_eighty_classes_are_named(classes, named, drawn, tmp_path):
    names = tuple(f"class {n}" for n in range(classes))
    labels = Labels.from_lists([[n] for n in range(classes)], classes)
    one = Split(Photographs(classes), Names(map(str, range(classes))), labels, (np.arange(classes),))
    figures.draw_frequencies(describe(Stream("wide", classes_to_tasks(names, [classes]), one, one)), tmp_path / "f.png")
    (axis,) = drawn[0].axes
    assert ("class 7" in {label.get_text() for label in axis.get_xticklabels()}) == named
