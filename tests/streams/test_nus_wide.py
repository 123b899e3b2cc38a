import shutil

import numpy as np
import pytest
from support.data_sets import write, write_nus_wide

from lifelabel.errors import UserError
from lifelabel.streams import nus_wide

CONCEPTS = ("sky", "clouds", "train")
NAMES = [f"actor/{n:04}_212449{n}.jpg" for n in range(6)] + [f"zoo/{n:04}_9{n}.jpg" for n in range(4)]
LABELS = np.array([[n % 2, n % 3 == 0, n > 7] for n in range(10)], int)
TRAIN, TEST = [7, 0, 3, 9, 1, 2], [8, 4, 5, 6]


def make(root):
    """Write NUS-WIDE. Each list has another order of the images, and label files in the same order."""
    labels = {name: [CONCEPTS[k] for k in np.flatnonzero(row)] for name, row in zip(NAMES, LABELS, strict=True)}
    lists = {part: [NAMES[row] for row in rows] for part, rows in (("Train", TRAIN), ("Test", TEST))}
    write_nus_wide(root, CONCEPTS, labels, lists, of_lists=True)
    return root


def without(root, folder):
    for path in (root / "Groundtruth" / folder).iterdir():
        path.unlink()


def check_official(found):
    assert found.classes == CONCEPTS
    assert list(found.train.names) == [NAMES[row] for row in TRAIN]
    assert list(found.test.names) == [NAMES[row] for row in TEST]
    assert found.train.labels.dense().astype(int).tolist() == LABELS[TRAIN].tolist()
    assert found.test.labels.dense().astype(int).tolist() == LABELS[TEST].tolist()


@pytest.mark.parametrize("missing", ["AllLabels", "TrainTestLabels"])
def test_the_official_split_by_its_own_labels_and_by_all_labels(tmp_path, missing):
    without(make(tmp_path), missing)
    found = nus_wide.read(tmp_path)
    assert (found.name, found.root) == ("nus-wide", tmp_path)
    check_official(found)


def test_listed_images_without_labels_are_skipped_and_counted(tmp_path):
    without(make(tmp_path), "TrainTestLabels")
    write(tmp_path / "ImageList/TestImagelist.txt", f"{NAMES[4]}\nnew\\1.jpg\nnew\\2.jpg\n")
    found = nus_wide.read(tmp_path)
    assert list(found.test.names) == [NAMES[4]]
    assert found.problems.lines() == ["2 images of TestImagelist.txt that are not in Imagelist.txt: new/1.jpg, …"]


@pytest.mark.parametrize(
    "folders", [(".", ".", "."), ("NUS-WIDE/imagelist", "NUS-WIDE", "nus_wide/GroundTruth/Groundtruth")]
)
def test_other_folders_and_file_names_in_another_case(tmp_path, folders):
    made, root = make(tmp_path / "made"), tmp_path / "root"
    (made / "ImageList/TrainImagelist.txt").rename(made / "ImageList/trainImageList.TXT")
    for folder, other in zip(("ImageList", "ConceptsList", "Groundtruth"), folders, strict=True):
        shutil.copytree(made / folder, root / other, dirs_exist_ok=True)
    check_official(nus_wide.read(root))


@pytest.mark.parametrize("end", [b"\r\n", b" \n\n"])
def test_other_line_ends(tmp_path, end):
    for path in make(tmp_path).rglob("*.txt"):
        path.write_bytes(path.read_bytes().replace(b"\n", end))
    check_official(nus_wide.read(tmp_path))


def test_a_share_is_the_same_every_time_and_differs_by_seed(tmp_path):
    make(tmp_path)
    draws = [nus_wide.read(tmp_path, "share", share=0.3, seed=seed) for seed in (0, 0, 1)]
    tests = [list(draw.test.names) for draw in draws]
    assert tests[0] == tests[1] != tests[2]
    for draw in draws:
        assert len(draw.test.names) == 3
        assert sorted([*draw.train.names, *draw.test.names]) == sorted(NAMES)
        for pool in (draw.train, draw.test):
            rows = [NAMES.index(name) for name in pool.names]
            assert pool.labels.dense().astype(int).tolist() == LABELS[rows].tolist()
    # on every machine and with every version
    assert tests[0] == ["actor/0001_2124491.jpg", "zoo/0000_90.jpg", "zoo/0001_91.jpg"]


def test_missing_folders_lists_and_labels_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no folder .*nowhere: give the folder that contains NUS-WIDE's folders"):
        nus_wide.read(tmp_path / "nowhere")
    for name in ("ConceptsList/Concepts81.txt", "ImageList/TestImagelist.txt"):
        (make(tmp_path) / name).unlink()
        with pytest.raises(UserError, match=f"there is no {name.split('/')[1]} under {tmp_path}, nor in its folders"):
            nus_wide.read(tmp_path)
    make(tmp_path)
    (tmp_path / "Groundtruth/AllLabels/Labels_sky.txt").unlink()
    check_official(nus_wide.read(tmp_path))
    with pytest.raises(UserError, match=r"there is no Labels_sky.txt under"):
        nus_wide.read(tmp_path, "share")
    (tmp_path / "Groundtruth/TrainTestLabels/Labels_train_Test.txt").unlink()
    with pytest.raises(UserError, match=r"there is no Labels_train_Test.txt and no Labels_sky.txt under"):
        nus_wide.read(tmp_path)


DAMAGED = {
    "ImageList/TrainImagelist.txt": {
        b"": "is empty",
        b"\xff\xfe\x00": "not a text file",
        b"..\\..\\up.jpg\n": "which is not allowed: leads out of its folder",
    },
    "Groundtruth/TrainTestLabels/Labels_sky_Train.txt": {
        b"0\n1\n1\n0\n": r"has 4 labels for the 6 images of .*TrainImagelist",
        b"0\n2\n0\n1\n0\n0\n": "must contain one 0 or 1 per line",
        b"0\n1\n0\n1\n00\n": "must contain one 0 or 1 per line",
        b"0\n1\n0\n1\n0\n-1\n": "must contain one 0 or 1 per line",
        b"<html>": "must contain one 0 or 1 per line",
    },
    "ConceptsList/Concepts81.txt": {
        b"sky\nsky\n": "lists a concept twice",
        b"sky\n\x1b[31mclouds\ntrain\n": "has a class name with control characters",
    },
}


@pytest.mark.parametrize(
    ("name", "data", "message"), [(name, *case) for name, cases in DAMAGED.items() for case in cases.items()]
)
def test_damaged_files_are_refused(tmp_path, name, data, message):
    (make(tmp_path) / name).write_bytes(data)
    with pytest.raises(UserError, match=rf"{name.split('/')[-1]} .*{message}"):
        nus_wide.read(tmp_path)


def test_all_images_and_chosen_concepts(tmp_path):
    assert nus_wide.image_list(tmp_path / "nowhere") is None
    assert nus_wide.all_labels(tmp_path, ["sky"]) is None
    make(tmp_path)
    assert nus_wide.image_list(tmp_path) == NAMES
    labels = nus_wide.all_labels(tmp_path, ["train", "sky"])
    assert labels.dense().astype(int).tolist() == LABELS[:, [2, 0]].tolist()
    with pytest.raises(UserError, match=r"no Labels_moon.txt"):
        nus_wide.all_labels(tmp_path, ["sky", "moon"])
    without(tmp_path, "AllLabels")
    assert nus_wide.all_labels(tmp_path, ["sky"]) is None
