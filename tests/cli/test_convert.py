"""`lifelabel data convert`: its output, the command that it prints, and mistakes."""

import json
import shlex

import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def draw(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20), "red").save(path)


def test_the_printed_command_reads_the_table(output, tmp_path):
    draw(*(tmp_path / "my photos" / name / f"{i}.jpg" for name in ("dog", "cat", "bird") for i in range(8)))
    text = output("data", "convert", "my photos", "--out", "my photos.csv")
    assert text == (
        "format: folders\nimages: 24 (24 with a file)\nclasses: 3 (bird, cat, dog)\nlabels: 24\n"
        "split: none; a share of the images is used for test (stream.test_share)\nwritten to my photos.csv\n"
        "next: lifelabel data inspect 'my photos.csv' --root 'my photos'\n"
    )
    next_command = shlex.split(text.splitlines()[-1].removeprefix("next: lifelabel "))
    output(*next_command, "--no-sheets")
    found = json.loads((tmp_path / "runs/inspect/my-photos/stream.json").read_text())
    assert sum(split["images"] for split in found["splits"].values()) == 24
    assert all(split["missing"] == 0 for split in found["splits"].values())


def test_splits_problems_and_missing_images(output, tmp_path):
    for name, image in (("train", "a.jpg"), ("val", "b.jpg")):
        content = {
            "images": [{"id": 1, "file_name": image}],
            "annotations": [{"image_id": 1, "category_id": c} for c in range(14)],
            "categories": [{"id": c, "name": f"c{c}"} for c in range(12)],
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    lines = output("data", "convert", ".", "--out", "out/photos.csv").splitlines()
    assert lines[:5] == [
        "format: coco",
        "images: 2 (0 with a file)",
        "classes: 12 (c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, …)",
        "labels: 24",
        "split: train 1, val 1",
    ]
    assert lines[5].startswith(
        "problem: 4 annotations of a category that is not listed: annotations[12] in train.json, "
    )
    assert lines[6] == "problem: 2 images without a file in the folder of images: a.jpg, b.jpg"
    assert lines[-2] == "no image has a file in .: run this again with --root DIR, the folder of the images"
    assert lines[-1] == "next: lifelabel data inspect out/photos.csv --root DIR"


def test_mistakes_are_one_line(refused, tmp_path):
    draw(tmp_path / "photos/dog/1.jpg", tmp_path / "photos/a;b/1.jpg")
    assert refused("data", "convert", "photos", "--out", "x.csv") == (
        "class 'a;b' contains ';', which separates labels in a table: rename it in the source"
    )
    assert "did you mean 'coco'" in refused("data", "convert", "photos", "--out", "x.csv", "--format", "cocoo")
    assert "--out" in refused("data", "convert", "photos")
