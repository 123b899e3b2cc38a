"""Fixtures of several tests of reports."""

import html
import re

import pytest
from report.small_streams import CLASSES, split

from lifelabel.report import evaluation, stream_figures
from lifelabel.report.vega import write_spec
from lifelabel.streams.stream import Stream, classes_to_tasks


@pytest.fixture
def stream():
    """Two tasks of two classes: five training images of which three hide a label, four test images, one file twice."""
    train = split([[0], [0, 1, 2], [0, 2, 3], [2], [1, 3], [0]], [[0, 1, 2], [3, 4]], absent=[4])  # the last is unused
    test = split([[0, 2], [1], [3], [2, 3]], [[0, 1], [2, 3]], names=["a.jpg", "b.jpg", "c.jpg", "b.jpg"])
    stream = Stream("pets", classes_to_tasks(CLASSES, [2, 2]), train, test, rules={"protocol": "disjoint", "seed": 3})
    stream.problems.add("rows without a label", "line 7")
    return stream


@pytest.fixture
def chart_texts(monkeypatch):
    """Charts that are written as PNG are written as SVG too; the fixture reads the texts in one."""
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed")

    def write(spec, folder, name, suffixes):
        return write_spec(spec, folder, name, (*suffixes, ".svg"))[: len(suffixes)]

    for module in (evaluation, stream_figures):
        monkeypatch.setattr(module, "write_spec", write)

    def read(path):
        found = re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text(encoding="utf-8"))
        return [html.unescape(text) for text in found]

    return read
