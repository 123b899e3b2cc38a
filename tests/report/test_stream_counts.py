"""The description of a stream, from streams small enough to count by hand."""

import dataclasses
import json

import numpy as np
import pytest
from PIL import Image
from report.small_streams import CLASSES, Photographs, printed, split

from lifelabel.images.source import Names
from lifelabel.report import stream_counts as description_module
from lifelabel.report import stream_figures as figures
from lifelabel.report.stream_counts import describe
from lifelabel.report.stream_text import _EXPLANATION, markdown
from lifelabel.streams import paper
from lifelabel.streams.labels import Labels
from lifelabel.streams.scenes import ScenesOptions, build
from lifelabel.streams.stream import Split, Stream, classes_to_tasks


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
        "rows_with_hidden_labels": 2,
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
    assert found["problems"] == ["1 row without a label: line 7"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    page = markdown(found, ["task-1.png", "frequencies.png"])
    assert page.startswith("# Stream pets\n") and page.endswith("\n") and not page.endswith("\n\n")
    assert "![task-1.png](task-1.png)" in page and "| cat | 1 | 3 | 3 | 1 |" in page


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
    assert figures.write_charts(found, tmp_path) == ["frequencies.png"]


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


def test_images_with_equal_pixels_are_named_first_those_in_both_splits(stream):
    class Copies(Photographs):
        def read(self, row, min_side=0):
            return Image.new("RGB", (80, 60), (min(row, 3), 0, 200))

    test = dataclasses.replace(stream.test, images=Copies(len(stream.test)))
    found = describe(
        dataclasses.replace(stream, train=dataclasses.replace(stream.train, images=Copies(6)), test=test), None
    )
    same = [[f"{image['split']} {image['image']}" for image in images] for images in found["equal"]]
    assert same[0][:2] == ["train photo-0.jpg", "test photo-0.jpg"] and len(same) == 4
    for text in (printed(found), markdown(found)):
        assert (
            "images are there under several names, both in training and test: photo-0.jpg (train) = photo-0.jpg" in text
        )


def test_scenes(tmp_path):
    stream = build(ScenesOptions(train_images=60, test_images=60))
    found = describe(stream, decode=True)
    assert found["bad"] == {"opened": 120, "reasons": {}, "images": []} and found["equal"] == []
    assert describe(stream, decode=None)["bad"] is None  # only photographs are opened without being asked for
    assert sum(task["special"] + task["mixed"] for task in found["tasks"]) == 60
    assert found["tasks"][-1]["test_cumulative"] == 60
    assert figures.write_sheets(stream, tmp_path) == [f"task-{t}.png" for t in range(1, 6)]
    assert figures.write_charts(found, tmp_path) == ["frequencies.png", "cooccurrence.png"]
    for path in tmp_path.iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG"
            image.load()
            assert len(image.convert("RGB").getcolors(1 << 22)) > 20
    assert _EXPLANATION in markdown(found)
