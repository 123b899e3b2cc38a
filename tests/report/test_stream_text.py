"""The description of a stream as text: the summary for the terminal, and report.md."""

import dataclasses
import json

import numpy as np
import pytest
from report.small_streams import Photographs, printed
from report.untrusted import HOSTILE, PRINTABLE, render

from lifelabel.images.source import Names
from lifelabel.report.stream_counts import describe
from lifelabel.report.stream_text import listed, markdown
from lifelabel.streams.labels import Labels
from lifelabel.streams.stream import Split, Stream, classes_to_tasks
from lifelabel.utils.text import printable


def test_the_summary_fits_the_terminal(stream):
    long = tuple(f"a class with a rather long name, number {c}" for c in range(30))
    labels = Labels.from_lists([list(range(30))] * 8, 30)
    one = Split(Photographs(8), Names(map(str, range(8))), labels, tuple(np.arange(8) for _ in range(30)))
    found = describe(
        Stream("long", classes_to_tasks(long, [1] * 30), one, one, rules={"order": list(long), "x": {"y": 1}})
    )
    text = printed(found)
    assert max(map(len, text.splitlines())) <= 100
    assert "strongest co-occurrence" in text
    rows = {line.split()[0] for line in text.splitlines() if line.strip()}
    assert {"12", "19", "30"} <= rows and "13" not in rows  # many tasks: only the first and the last
    assert markdown(found).count("number 17 |") == 2  # report.md has all of them: task and class
    text = printed(describe(stream))
    for numbers in ("images                5     3", "rows                  5     4", "missing files         1     0"):
        assert numbers.split() in [line.split() for line in text.splitlines()]
    assert "labels per image: training 2.00 true, 1.20 visible; test 1.50" in text
    assert "hidden labels: 40.0 % of the labels, in 60.0 % of the training rows" in text
    assert "problem: 1 row without a label: line 7" in text
    lines = [line.rstrip() for line in text.splitlines()]
    assert "classes with the most visible images: cat 3, dog 1, cup 1, fork 1" in lines
    assert "classes with the fewest visible images: cat 3, dog 1, cup 1, fork 1" in lines


def test_untrusted_text_is_rendered_as_it_is_by_markdown(stream):
    """The names of the stream and of the classes, its rules, its bad images and its problems."""
    names = tuple(f"{number} {HOSTILE}" for number in range(4))
    rules = {HOSTILE: [HOSTILE], "seed": HOSTILE}
    stream = dataclasses.replace(stream, name=HOSTILE, tasks=classes_to_tasks(names, [2, 2]), rules=rules)
    stream.problems.add(HOSTILE, HOSTILE)
    found = describe(stream)
    images = [{"split": "train", "image": HOSTILE, "reason": HOSTILE}]
    found["bad"] = {"opened": 9, "reasons": {HOSTILE: 1}, "images": images}
    json.dumps(found).encode()
    text = markdown(found)
    text.encode()
    tags, lines = render(text)
    assert tags == {"h1", "h2", "p", "code", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
    expected = {f"Stream {PRINTABLE}", f"seed: {PRINTABLE}", f"1 × {PRINTABLE}", f"train: {PRINTABLE}: {PRINTABLE}"}
    assert expected | {f"{number} {PRINTABLE}" for number in range(4)} <= set(lines)
    summary = printed(found)
    summary.encode()
    assert "\x1b" not in text + summary


def test_lists_of_names_are_shortened():
    assert printable("né\n") == "né�"
    assert listed(["a" * 50], 10) == "aaaaaaaaa…"
    for width in range(4, 40):
        assert len(listed(["tennis racket", "bottle", "cup"], width)) <= width


@pytest.mark.parametrize(("count", "more"), [(50, 0), (51, 1), (1200, 1)])
def test_the_page_lists_up_to_fifty_bad_images(count, more, stream):
    found = describe(stream)
    images = [{"split": "train", "image": f"{n}.jpg", "reason": "cut short"} for n in range(count)]
    found["bad"] = {"opened": 2000, "reasons": {"cut short": count}, "images": images}
    lines = markdown(found).splitlines()
    assert sum(line.endswith(": cut short") for line in lines) == 50
    assert "- train: 49.jpg: cut short" in lines
    assert lines.count(f"- … (all {count:,} are in stream.json)") == more
    assert f"opened 2,000 images, {count:,} of them cannot be used" in printed(found)


def test_a_stream_without_pairs_of_labels_has_no_table_of_them(stream):
    """One label per image: there is no co-occurrence."""
    one = dataclasses.replace(stream.train, labels=Labels.from_lists([[0], [0], [1], [2], [3], [0]], 4))
    found = describe(dataclasses.replace(stream, train=one))
    assert found["cooccurrence"]["strongest"] == []
    assert "strongest co-occurrence" not in printed(found)


def test_long_rules_are_cut_in_the_terminal_only(stream):
    rules = {"order": [f"class {n}" for n in range(99)], "loads": {f"k{n}": n for n in range(99)}, "name": "x" * 200}
    found = describe(dataclasses.replace(stream, rules=rules))
    text = " ".join(printed(found).split())
    assert "order: [class 0, class 1, … (99)], loads: {k0, k1, k2, k3, k4, k5, … (99)}, name: xxx" in text
    assert "x" * 60 not in printed(found) and "x" * 200 in markdown(found) and "class 98" in markdown(found)
