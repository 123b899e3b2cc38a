"""The description of a stream, from streams small enough to count by hand."""

import dataclasses
import io
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw
from report.untrusted import HOSTILE, PRINTABLE, render
from rich.console import Console

from lifelabel.report import stream as description_module
from lifelabel.report import stream_figures as figures
from lifelabel.report.stream import describe
from lifelabel.report.stream_text import _EXPLANATION, listed, markdown, terminal
from lifelabel.streams import paper
from lifelabel.streams.base import BadImage, Names, Split, Stream, classes_to_tasks
from lifelabel.streams.labels import Labels
from lifelabel.streams.scenes import ScenesOptions, build
from lifelabel.utils.text import printable

CLASSES = ("cat", "dog", "cup", "fork")


class Photographs:
    """Plain images whose red is their row number. Those in `broken` cannot be read."""

    drawn_from_labels = False

    def __init__(self, count, absent=(), broken=()):
        self.present = np.ones(count, bool)
        self.present[list(absent)] = False
        self.broken = frozenset(broken)

    def __len__(self):
        return len(self.present)

    def name(self, row):
        return f"photo-{row}.jpg"

    def read(self, row, min_side=0):
        assert self.present[row]
        if row in self.broken:
            raise BadImage("cut short" if row % 2 else "not an image")
        return Image.new("RGB", (80, 60), (row, 0, 200))


def split(lists, rows, complete=True, names=None, **images):
    names = Names(names or (f"photo-{row}.jpg" for row in range(len(lists))))
    rows = tuple(np.array(r, np.int64) for r in rows)
    return Split(Photographs(len(lists), **images), names, Labels.from_lists(lists, len(CLASSES)), rows, complete)


@pytest.fixture
def stream():
    """Two tasks of two classes: five training images of which three hide a label, four test images, one file twice."""
    train = split([[0], [0, 1, 2], [0, 2, 3], [2], [1, 3], [0]], [[0, 1, 2], [3, 4]], absent=[4])  # the last is unused
    test = split([[0, 2], [1], [3], [2, 3]], [[0, 1], [2, 3]], names=["a.jpg", "b.jpg", "c.jpg", "b.jpg"])
    stream = Stream("pets", classes_to_tasks(CLASSES, [2, 2]), train, test, rules={"protocol": "disjoint", "seed": 3})
    stream.problems.add("rows without a label", "line 7")
    return stream


def printed(description, width=100):
    console = Console(width=width, file=io.StringIO())
    console.print(terminal(description), highlight=False)
    return console.file.getvalue()


def test_the_figures(stream):
    found = describe(stream)
    assert found["name"] == "pets"
    assert found["sha256"] == stream.fingerprint
    assert found["rules"] == {"protocol": "disjoint", "seed": 3}
    assert found["splits"] == {
        "train": {"images": 5, "rows": 5, "missing": 1},
        "test": {"images": 3, "rows": 4, "missing": 0},
    }
    first, second = found["tasks"]
    assert first == {
        "task": 1, "classes": ["cat", "dog"], "train": 3, "special": 1, "mixed": 2, "paper": None, "test_new": 2,
        "test_cumulative": 2, "images_per_class": [3, 1], "labels": {"visible": 4, "true": 7},
    }  # fmt: skip
    assert (second["train"], second["special"], second["mixed"]) == (2, 1, 1)
    assert (second["test_new"], second["test_cumulative"], second["images_per_class"]) == (2, 4, [1, 1])
    assert found["labels_per_image"] == {"true": 10 / 5, "visible": 6 / 5, "test": 6 / 4}
    assert found["hidden"] == {"labels": 4 / 10, "images": 3 / 5}
    assert found["classes"] == [
        {"name": "cat", "task": 1, "visible": 3, "true": 3, "test": 1},
        {"name": "dog", "task": 1, "visible": 1, "true": 2, "test": 1},
        {"name": "cup", "task": 2, "visible": 1, "true": 3, "test": 2},
        {"name": "fork", "task": 2, "visible": 1, "true": 2, "test": 2},
    ]
    assert found["bad"] is None
    assert found["problems"] == ["1 rows without a label: line 7"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_what_is_not_known_is_not_counted(stream):
    stream = dataclasses.replace(stream, train=dataclasses.replace(stream.train, complete=False))
    found = describe(stream)
    assert found["hidden"] == {"labels": None, "images": None}
    assert found["labels_per_image"] == {"true": None, "visible": 6 / 5, "test": 6 / 4}
    assert {task["special"] for task in found["tasks"]} == {task["mixed"] for task in found["tasks"]} == {None}
    assert {c["true"] for c in found["classes"]} == {None}
    assert found["cooccurrence"]["labels"] == "complete test labels"
    assert found["cooccurrence"]["images"] == 4
    for text in (printed(found), markdown(found)):
        assert "special / mixed" not in text
        assert "hidden labels: not known" in text


def test_an_image_of_several_tasks_is_one_image_and_two_rows(stream):
    rows = (np.array([0, 1, 2]), np.array([1, 2, 3]))
    found = describe(dataclasses.replace(stream, train=dataclasses.replace(stream.train, rows=rows)))
    assert found["splits"]["train"] == {"images": 4, "rows": 6, "missing": 0}
    assert found["classes"][2] == {"name": "cup", "task": 2, "visible": 3, "true": 3, "test": 2}


def test_cooccurrence_is_the_one_of_the_labels():
    dense = np.random.default_rng(0).random((300, 4)) < [0.9, 0.5, 0.3, 0.01]
    lists = [np.flatnonzero(row) for row in dense]
    both = split(lists, [range(0, 200), range(200, 300)])
    found = describe(Stream("s", classes_to_tasks(CLASSES, [2, 2]), both, both))["cooccurrence"]
    cooccurrence = dense.T.astype(int) @ dense.astype(int)
    expected = cooccurrence / np.diag(cooccurrence)
    assert np.allclose(found["matrix"], expected, atol=1e-4)
    strongest = found["strongest"]
    chances = [pair["probability"] for pair in strongest]
    assert chances == sorted(chances, reverse=True)
    for pair in strongest:
        i, j = CLASSES.index(pair["class"]), CLASSES.index(pair["given"])
        assert pair["images"] == cooccurrence[i, j]
        assert pair["probability"] == pytest.approx(expected[i, j], abs=1e-4)
        assert pair["prior"] == pytest.approx(cooccurrence[i, i] / 300, abs=1e-4)
        assert pair["tasks"] == [1 + i // 2, 1 + j // 2]
    assert 0 < cooccurrence[3, 3] < 5  # too rare for P(. | fork)
    assert {(p["class"], p["given"]) for p in strongest} >= {("cat", "dog"), ("cat", "cup"), ("dog", "cat")}
    assert "fork" not in {p["given"] for p in strongest}


def test_many_classes_have_no_matrix_and_no_heat_map(tmp_path):
    classes = tuple(f"class {c}" for c in range(description_module.MAX_MATRIX_CLASSES + 1))
    labels = Labels.from_lists([[c] for c in range(len(classes))], len(classes))
    one = Split(Photographs(len(labels)), Names(map(str, range(len(labels)))), labels, (np.arange(len(labels)),))
    found = describe(Stream("wide", classes_to_tasks(classes, [len(classes)]), one, one))
    assert found["cooccurrence"]["matrix"] is None
    assert not figures.draw_cooccurrence(found, tmp_path / "c.png")
    figures.draw_frequencies(found, tmp_path / "f.png")
    assert [path.name for path in tmp_path.iterdir()] == ["f.png"]


def test_the_figures_of_the_paper_are_next_to_ours():
    """Only if the data set and the tasks are those of the paper."""
    tasks = classes_to_tasks(tuple(name for task in paper.SPLIT_WIDE for name in task), [3] * 7)
    labels = Labels.from_lists([[3 * t] for t in range(7)], 21)
    one = Split(Photographs(7), Names(map(str, range(7))), labels, tuple(np.array([t]) for t in range(7)))
    stream = Stream("wide", tasks, one, one, dataset="nus-wide")
    found = describe(stream)
    assert found["tasks"][1]["paper"] == [3627, 17012]
    assert (found["tasks"][1]["special"], found["tasks"][1]["mixed"]) == (1, 0)
    assert "| 1 / 0 | 3,627 / 17,012 | 1 | 2 |" in markdown(found)
    assert "| 7 / 0 | 59,516 / 85,342 | 7 | 7 |" in markdown(found)
    assert "59,516 / 85,342" in printed(found)
    for other in (dataclasses.replace(stream, dataset="coco"), dataclasses.replace(stream, dataset="")):
        assert describe(other)["tasks"][1]["paper"] is None
        assert "in the paper" not in printed(describe(other))


# Opening every image


def test_bad_images_are_counted_by_reason_and_listed(stream):
    train = dataclasses.replace(stream.train, images=Photographs(6, absent=[4], broken=[1, 2, 3, 5]))
    seen = []
    found = describe(dataclasses.replace(stream, train=train), decode=True, progress=lambda *now: seen.append(now))
    assert found["bad"]["opened"] == 8  # image 4 has no file, image 5 is in no task
    assert found["bad"]["reasons"] == {"cut short": 2, "not an image": 1}
    assert found["bad"]["images"][0] == {"split": "train", "image": "photo-1.jpg", "reason": "cut short"}
    assert seen[-1] == (8, 8)
    for text in (printed(found), markdown(found)):
        assert "opened 8 images, 3 of them cannot be used" in text
        assert "2 × cut short" in text
    assert "- train: photo-2.jpg: not an image" in markdown(found)


def test_many_images_are_opened_by_several_processes():
    count = description_module._MAX_SERIAL_IMAGES + 50
    images = Photographs(count, broken=[3, count - 1])
    found = list(description_module._open_all(images, np.arange(count)))
    assert sum(opened for opened, _ in found) == count
    assert [bad for _, some in found for bad in some] == [(3, "cut short"), (count - 1, "cut short")]


# Text


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
    rows = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert (
        "12" in rows and "13" not in rows and "19" in rows and "30" in rows
    )  # many tasks: only the first and the last
    assert markdown(found).count("number 17 |") == 2  # report.md has all of them: task and class
    text = printed(describe(stream))
    for numbers in ("images                5     3", "rows                  5     4", "missing files         1     0"):
        assert numbers.split() in [line.split() for line in text.splitlines()]
    assert "labels per image: training 2.00 true, 1.20 visible; test 1.50" in text
    assert "hidden labels: 40.0 % of the labels, in 60.0 % of the training rows" in text
    assert "problem: 1 rows without a label: line 7" in text


def test_names_are_escaped_in_the_terminal_and_in_markdown(stream):
    names = ("\x1b[2Jcat", "do|g", "<b>cup</b>", "fo\udcffrk")
    stream = dataclasses.replace(stream, name="\x1b]0;pets", tasks=classes_to_tasks(names, [2, 2]))
    found = describe(stream)
    text, page = printed(found), markdown(found)
    for output in (text, page):
        assert "\x1b" not in output
        output.encode()
    assert "do\\|g" in page
    assert "<b>" not in page
    json.dumps(found).encode()


def test_untrusted_text_is_rendered_as_it_is_by_markdown(stream):
    """The names of the stream and of the classes, its rules, its bad images and its problems."""
    names = tuple(f"{number} {HOSTILE}" for number in range(4))
    rules = {HOSTILE: [HOSTILE], "seed": HOSTILE}
    stream = dataclasses.replace(stream, name=HOSTILE, tasks=classes_to_tasks(names, [2, 2]), rules=rules)
    stream.problems.add(HOSTILE, HOSTILE)
    found = describe(stream)
    found["bad"] = {
        "opened": 9,
        "reasons": {HOSTILE: 1},
        "images": [{"split": "train", "image": HOSTILE, "reason": HOSTILE}],
    }
    text = markdown(found)
    text.encode()
    tags, lines = render(text)
    assert tags == {"h1", "h2", "p", "code", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
    for expected in (
        f"Stream {PRINTABLE}",
        f"seed: {PRINTABLE}",
        f"1 × {PRINTABLE}",
        f"train: {PRINTABLE}: {PRINTABLE}",
    ):
        assert expected in lines
    assert {f"{number} {PRINTABLE}" for number in range(4)} <= set(lines)
    assert "\x1b" not in printed(found)


def test_lists_of_names_are_shortened():
    assert printable("né\n") == "né�"
    assert listed(["a" * 50], 10) == "aaaaaaaaa…"
    for width in range(4, 40):
        assert len(listed(["tennis racket", "bottle", "cup"], width)) <= width


def test_the_page_has_the_figures(stream):
    page = markdown(describe(stream), ["task-1.png", "frequencies.png"])
    assert "![task-1.png](task-1.png)" in page
    assert page.startswith("# Stream pets\n")
    assert "| cat | 1 | 3 | 3 | 1 |" in page
    assert page.endswith("\n") and not page.endswith("\n\n")


# Figures


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
    assert caption([("fork", True)]).min() == 0
    assert caption([("fork", False)]).min() == 0x8C


def caption(words):
    sheet = Image.new("L", (600, 100), "white")
    figures._draw_caption(ImageDraw.Draw(sheet), 0, 0, words)
    return np.asarray(sheet)


@pytest.mark.parametrize("length", [1, 5, 12, 100])
def test_a_caption_is_not_wider_than_its_image(length):
    inked = np.argwhere(caption([("w" * (length + k % 3), k < 3) for k in range(60)]) < 255)
    assert inked[:, 1].max() < figures._WIDTH + figures._GAP
    assert figures._LINE * 2 < inked[:, 0].max() < figures._LINE * figures._CAPTION_LINES + 2


def test_scenes(tmp_path):
    stream = build(ScenesOptions(train_images=60, test_images=60))
    found = describe(stream, decode=True)
    assert found["bad"] == {"opened": 120, "reasons": {}, "images": []}
    assert sum(task["special"] + task["mixed"] for task in found["tasks"]) == 60
    assert found["tasks"][-1]["test_cumulative"] == 60
    assert figures.write_sheets(stream, tmp_path) == [f"task-{t}.png" for t in range(1, 6)]
    figures.draw_frequencies(found, tmp_path / "frequencies.png")
    assert figures.draw_cooccurrence(found, tmp_path / "cooccurrence.png")
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG"
            image.load()
            assert len(image.convert("RGB").getcolors(1 << 22)) > 50
    assert _EXPLANATION in markdown(found)


@pytest.mark.parametrize("classes", [(r"$\alpha", "$$", "犬", "_^"), ("$5_to_$10", "$" * 99, "a$\\", "\x1b[2J\n")])
def test_hostile_names_are_drawn(stream, tmp_path, classes):
    odd = dataclasses.replace(stream, name=r"$\frac$" * 1000, tasks=classes_to_tasks(classes, [2, 2]))
    found = describe(odd)
    figures.draw_frequencies(found, tmp_path / "f.png")
    assert figures.draw_cooccurrence(found, tmp_path / "c.png")
    assert figures.write_sheets(odd, tmp_path) == ["task-1.png", "task-2.png"]
