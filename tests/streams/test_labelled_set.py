"""Labelled images of tables and streams: which rows are used, and their labels."""

import dataclasses

import numpy as np
import pytest
from PIL import Image

from lifelabel import streams
from lifelabel.errors import UserError
from lifelabel.images.hashes import TrainedImages, hash_images, hash_names
from lifelabel.images.photographs import FileImages
from lifelabel.images.source import Names
from lifelabel.streams.labelled_set import Trained, check_rows, from_stream, from_table

ROWS = [
    ("a.png", "cat;dog", "train"), ("b.png", "", "test"), ("c.png", "dog;?cat", "test"), ("d.png", "?dog", "train"),
    ("e.png", "cat", "val"),
]  # fmt: skip


def write(folder, with_split=True, rows=ROWS):
    lines = [",".join(row if with_split else row[:2]) for row in [("image", "labels", "split"), *rows]]
    path = folder / "photos.csv"
    path.write_text("\n".join(lines) + "\n")
    for row in rows:
        Image.new("RGB", (8, 6), (len(row[0]), *row[0].encode()[:2])).save(folder / row[0])
    return path


def content(labelled):
    """The labels and the unknown labels of each image, by name."""
    found = {}
    for part in labelled.parts:
        unknown = np.zeros((len(part), len(labelled.classes)), bool) if part.unknown is None else part.unknown.dense()
        for k, row in enumerate(part.rows.tolist()):
            names = [[labelled.classes[c] for c in cs] for cs in (part.labels[k], np.flatnonzero(unknown[k]))]
            found[part.images.name(row)] = ";".join([*names[0], *(f"?{name}" for name in names[1])])
    return found


@pytest.mark.parametrize(("rows", "images"), [("test", "bc"), ("train", "ad"), ("val", "e"), ("all", "abcde")])
def test_rows_of_a_table_with_a_column_split(tmp_path, rows, images):
    found = from_table(write(tmp_path), None, rows)
    assert content(found) == {name: labels for name, labels, _ in ROWS if name[0] in images}
    assert len(found) == len(images) and found.kind == f"{rows} rows" and found.name == "photos.csv"
    assert all(part.images.present.all() for part in found.parts)


def test_all_rows_of_a_table_without_a_column_split(tmp_path):
    path = write(tmp_path, with_split=False)
    assert len(from_table(path, None)) == 5 and from_table(path, None).kind == "all rows"
    with pytest.raises(UserError, match=r"photos.csv has no train row: .* --rows all"):
        from_table(path, None, "train")


def test_without_a_choice_the_first_rows_that_there_are(tmp_path):
    path = write(tmp_path)
    assert set(content(from_table(path, None))) == {"b.png", "c.png"}
    assert set(content(from_table(path, None, first="val"))) == {"e.png"}
    path = write(tmp_path, rows=ROWS[:4])
    assert from_table(path, None, first="val").kind == "test rows"
    assert from_table(write(tmp_path, rows=[ROWS[0], ROWS[4]]), None).kind == "val rows"


@pytest.mark.parametrize(("name", "rows"), [("Training", "train"), ("dev", "val"), ("testing", "test"), ("all", "all")])
def test_names_of_rows(name, rows):
    assert check_rows(name) == rows


def test_training_images_are_left_out(tmp_path):
    path = write(tmp_path, with_split=False)
    trained = TrainedImages.of_names(hash_names(["d.png"]), 16)
    trained.add(["moved/a.png"], hash_images(FileImages(tmp_path, Names(["a.png"])), np.arange(1), 16)[0])
    trained.add(["e.png"], 7)
    found = from_table(path, None, trained=Trained(trained))
    assert set(content(found)) == {"b.png", "c.png", "e.png"} and found.kind == "all rows without training images"
    assert (found.found, found.examples, found.namesakes) == (2, ("a.png", "d.png"), 1)
    both = from_table(path, None, trained=Trained(trained, included=True))
    assert len(both) == 5 and both.found == 2 and both.kind == "all rows"
    trained.add(["b.png", "c.png", "e.png"])
    with pytest.raises(UserError, match=r"^all 5 images \(all rows of photos.csv\) are training .* --include-trained"):
        from_table(path, None, trained=Trained(trained))


def test_the_labels_may_have_another_separator(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("image,labels\na.png,cat|dog\n")
    assert set(from_table(path, None, separator="|").classes) == {"cat", "dog"}


def test_a_split_without_test_rows(tmp_path):
    path = write(tmp_path, rows=[ROWS[0], ROWS[3]])
    with pytest.raises(UserError, match="has no test row"):
        from_table(path, None)


@pytest.mark.parametrize("split", ["val", "test"])
def test_labels_of_later_tasks_are_unknown(tmp_path, split):
    """Also if the table has no test row."""
    rows = [("a.png", "cat", "1", "train"), ("b.png", "dog", "2", "train"), ("c.png", "cat", "1"), ("d.png", "", "2")]
    lines = ["image,labels,task,split", *(",".join((*row, split)[:4]) for row in rows)]
    path = write(tmp_path, rows=ROWS[:4])
    path.write_text("\n".join(lines) + "\n")
    found = from_table(path, None, trained=Trained(task_of_class={"cat": 0, "dog": 1}))
    assert content(found) == {"c.png": "cat;?dog", "d.png": ""} and found.kind == f"{split} rows"


def test_images_of_a_stream():
    stream = streams.build("scenes", {"train_images": 20, "test_images": 10, "tasks": 2})
    test, both = from_stream(stream), from_stream(stream, "all")
    assert len(test) == len(stream.test.used()) and test.kind == "test images" and test.classes == stream.classes
    assert len(both) == len(test) + len(stream.train.used()) and len(both.parts) == 2
    part = test.parts[0]
    assert part.labels == stream.test.labels.take(part.rows)
    for index, rows in enumerate(stream.test.rows):
        assert set(part.rows[part.task == index]) <= set(rows.tolist())


def test_training_images_with_partial_labels_are_refused():
    stream = streams.build("scenes", {"train_images": 20, "test_images": 10})
    stream = dataclasses.replace(stream, train=dataclasses.replace(stream.train, complete=False))
    with pytest.raises(UserError, match="only the labels of their own task: give --rows test"):
        from_stream(stream, "all")
    assert len(from_stream(stream))


def test_the_fingerprint_is_that_of_images_and_labels(tmp_path):
    path = write(tmp_path, with_split=False)
    first = from_table(path, None).fingerprint()
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1], *lines[:1:-1]]) + "\n")  # the first row sets the order of classes
    assert from_table(path, None).fingerprint() == first
    for old, new in (("cat;dog", "cat"), ("dog;?cat", "dog"), ("b.png", "d.jpg")):
        path.write_text("\n".join(lines).replace(old, new) + "\n")
        assert from_table(path, None).fingerprint() != first
