import os
import pickle

import numpy as np
import pytest
from PIL import Image

from lifelabel.images.photographs import FOLDERS, FileImages, safe_path
from lifelabel.images.source import BadImage, Names

SAFE = {
    "a.jpg": "a.jpg",
    "./train2014//a.jpg": "train2014/a.jpg",
    r"actor\0001_2124494179.jpg": "actor/0001_2124494179.jpg",
    r".\a\.\b.jpg": "a/b.jpg",
    "a..b/...jpg": "a..b/...jpg",
    "été/日本 1.jpg": "été/日本 1.jpg",
    "caf\udce9.jpg": "caf\udce9.jpg",  # a byte of a file name that is not UTF-8
    "x" * 1024: "x" * 1024,
}
UNSAFE = {
    "empty": ["", "./"],
    "absolute": ["/etc/passwd", r"\\server\share\a.jpg"],
    "drive letter": [r"C:\a.jpg", "c:a.jpg"],
    "leads out": ["..", "a/../../b.jpg", r"a\..\b.jpg"],
    "control": ["a\0.jpg", "a\n.jpg", "a\x1b[2J.jpg", "a\x85.jpg", "a\ud800.jpg"],  # UTF-8 cannot have the last one
    "longer than 1,024": ["x" * 1025],
}


def test_a_safe_path_is_relative_with_forward_slashes():
    assert {text: safe_path(text) for text in SAFE} == SAFE


@pytest.mark.parametrize("why", UNSAFE)
def test_an_unsafe_path_is_refused_with_a_reason(why):
    for text in UNSAFE[why]:
        with pytest.raises(ValueError, match=why):
            safe_path(text)


def put(root, path, colour=(255, 0, 0)):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), colour).save(root / path, "PNG")


def found(root, *names):
    return list(FileImages(root, Names(names)).found)


@pytest.mark.parametrize("folder", ["", *(f"{folder}/" for folder in FOLDERS)])
def test_photographs_are_found_in_the_usual_folders(tmp_path, folder):
    put(tmp_path, f"{folder}a.jpg")
    put(tmp_path, f"{folder}actor/b.jpg")
    assert found(tmp_path, "a.jpg", r".\actor\b.jpg", "c.jpg") == [f"{folder}a.jpg", f"{folder}actor/b.jpg", ""]


def test_the_root_is_searched_first_and_no_other_folder_is_used_but_a_linked_one(tmp_path):
    put(tmp_path, "root/a.jpg")
    put(tmp_path, "root/images/a.jpg")
    put(tmp_path, "root/cats/b.jpg")
    put(tmp_path, "disk/c.jpg")
    (tmp_path / "root/train2014").symlink_to(tmp_path / "disk")
    names = ["a.jpg", "dogs/b.jpg", "b.jpg", "dogs/a.jpg", "c.jpg"]
    assert found(tmp_path / "root", *names) == ["a.jpg", "", "", "", "train2014/c.jpg"]


def test_coco_names_are_found_in_either_edition_and_any_of_its_folders(tmp_path):
    put(tmp_path, "val2017/000000000009.jpg")
    put(tmp_path, "images/COCO_val2014_000000000042.jpg")
    put(tmp_path, "train2017/000000000042.jpg")
    names = ["COCO_train2014_000000000009.jpg", "train2014/COCO_train2014_000000000009.jpg"]
    assert found(tmp_path, *names) == ["val2017/000000000009.jpg"] * 2
    assert found(tmp_path, "val2014/COCO_val2014_000000000042.jpg") == ["images/COCO_val2014_000000000042.jpg"]
    assert found(tmp_path, "COCO_train2014_000000000010.jpg", "MY_train2014_000000000009.jpg") == ["", ""]


def test_names_of_a_mac_find_their_file_and_names_in_another_case_are_reported(tmp_path):
    put(tmp_path, "images/Cafe\u0301/e\u0301te\u0301.jpg")
    for name in ("a.JPG", "b.jpg", "B.jpg", "Dogs/C.jpg"):
        put(tmp_path, name)
    if (tmp_path / "A.jpg").exists():
        pytest.skip("the file system ignores case")
    source = FileImages(tmp_path, Names(["Caf\u00e9/\u00e9t\u00e9.jpg", "a.jpg", "b.JPG", "dogs/c.jpg", "none.jpg"]))
    assert list(source.found) == ["images/Cafe\u0301/e\u0301te\u0301.jpg", "", "", "", ""]
    assert source.read(0).size == (6, 4)
    kind = "images have a file whose name differs in case only; correct the names"
    assert source.problems.lines() == [f"2 {kind}: a.JPG for a.jpg, Dogs/C.jpg for dogs/c.jpg"]


def test_images_are_read_by_row(tmp_path):
    put(tmp_path, "images/red.jpg")
    put(tmp_path, "images/blue.jpg", (0, 0, 255))
    source = FileImages(tmp_path, Names(["blue.jpg", "none.jpg", "red.jpg"]))
    assert len(source) == 3 and source.present.tolist() == [True, False, True]
    assert source.drawn_from_labels is False and source.name(1) == "none.jpg"
    for copy in (source, pickle.loads(pickle.dumps(source))):
        assert copy.read(0).getpixel((0, 0)) == (0, 0, 255)
        assert copy.read(2, 100).getpixel((0, 0)) == (255, 0, 0)
        with pytest.raises(BadImage, match="no such file"):
            copy.read(1)
    (tmp_path / "images/red.jpg").unlink()
    with pytest.raises(BadImage, match="no such file"):
        source.read(2)


@pytest.mark.parametrize("root", [None, "nowhere", "a.jpg"])
def test_without_a_folder_all_are_absent(tmp_path, root):
    put(tmp_path, "a.jpg")
    source = FileImages(root and tmp_path / root, Names(["a.jpg", "b.jpg"]))
    assert source.present.dtype == bool and not source.present.any()
    assert FileImages(root and tmp_path / root, Names([])).present.shape == (0,)


def test_a_name_that_points_outside_the_root_is_never_opened(tmp_path, monkeypatch):
    put(tmp_path, "secret.jpg")
    root = tmp_path / "data"
    put(root, "a.jpg")
    put(root, "images/b.jpg")
    names = ["../secret.jpg", "images/../../secret.jpg", r"..\secret.jpg", str(tmp_path / "secret.jpg"), "a\0.jpg", ""]
    source = FileImages(root, Names(names))
    assert not source.present.any()
    monkeypatch.setattr("lifelabel.images.photographs.open_image", lambda *_: pytest.fail("opened"))
    for row in range(len(names)):
        with pytest.raises(BadImage):
            source.read(row)


def test_a_folder_is_listed_once_for_any_number_of_images(tmp_path, monkeypatch):
    (tmp_path / "train2014" / "b").mkdir(parents=True)
    for n in range(0, 1000, 2):
        (tmp_path / "train2014" / f"{n}.jpg").touch()
    listed, checked = [], []
    listdir, status = os.listdir, os.stat
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or listdir(path))
    monkeypatch.setattr(os, "stat", lambda path, **more: checked.append(str(path)) or status(path, **more))
    names = [f"{n}.jpg" for n in range(1000)] + [f"b/{n}.jpg" for n in range(1000)]
    source = FileImages(tmp_path, Names(names))
    assert np.flatnonzero(source.present).tolist() == list(range(0, 1000, 2))
    assert len(listed) == len(set(listed)) == 4 and len(checked) <= len(FOLDERS)


def test_a_hundred_thousand_names_are_small_to_send():
    names = [f"COCO_train2014_{n:012d}.jpg" for n in range(100_000)]
    source = FileImages(None, Names(names))
    assert len(pickle.dumps(source)) < sum(map(len, names)) + 18 * len(names)
