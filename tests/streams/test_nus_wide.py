import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.streams import nus_wide

CONCEPTS = ("sky", "clouds", "train")
IMAGES = [rf"actor\{n:04}_212449{n}.jpg" for n in range(6)] + [rf"zoo\{n:04}_9{n}.jpg" for n in range(4)]
NAMES = [image.replace("\\", "/") for image in IMAGES]
LABELS = np.array([[n % 2, n % 3 == 0, n > 7] for n in range(10)], int)
TRAIN, TEST = [7, 0, 3, 9, 1, 2], [8, 4, 5, 6]


def write(path, lines, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}{end}" for line in lines).encode())


def make(root, lists="ImageList", concepts="ConceptsList", labels="Groundtruth", end="\n"):
    """Write NUS-WIDE. Each list has another order of the images, and label files in the same order."""
    write(root / concepts / "Concepts81.txt", CONCEPTS, end)
    for part, rows in (("", range(10)), ("Train", TRAIN), ("Test", TEST)):
        write(root / lists / f"{part}Imagelist.txt", [IMAGES[row] for row in rows], end)
        for column, concept in enumerate(CONCEPTS):
            name = f"TrainTestLabels/Labels_{concept}_{part}.txt" if part else f"AllLabels/Labels_{concept}.txt"
            write(root / labels / name, [LABELS[row, column] for row in rows], end)
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


def test_the_official_split_by_its_own_labels(tmp_path):
    without(make(tmp_path), "AllLabels")
    found = nus_wide.read(tmp_path)
    assert (found.name, found.root) == ("nus-wide", tmp_path)
    check_official(found)


def test_the_official_split_by_all_labels(tmp_path):
    without(make(tmp_path), "TrainTestLabels")
    check_official(nus_wide.read(tmp_path))


def test_listed_images_without_labels_are_skipped_and_counted(tmp_path):
    without(make(tmp_path), "TrainTestLabels")
    write(tmp_path / "ImageList/TestImagelist.txt", [IMAGES[4], r"new\1.jpg", r"new\2.jpg"])
    found = nus_wide.read(tmp_path)
    assert list(found.test.names) == [NAMES[4]]
    assert found.problems.lines() == ["2 images of TestImagelist.txt that are not in Imagelist.txt: new/1.jpg, …"]


@pytest.mark.parametrize(
    "layout",
    [
        {"lists": ".", "concepts": ".", "labels": "."},
        {"lists": "NUS-WIDE/imagelist", "concepts": "NUS-WIDE", "labels": "nus_wide/GroundTruth/Groundtruth"},
        {"end": "\r\n"},
        {"end": " \n\n"},
    ],
)
def test_other_layouts(tmp_path, layout):
    check_official(nus_wide.read(make(tmp_path, **layout)))


def test_file_names_in_another_case(tmp_path):
    make(tmp_path)
    (tmp_path / "ImageList/TrainImagelist.txt").rename(tmp_path / "ImageList/trainImageList.TXT")
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


def test_the_draw_does_not_depend_on_machine_or_version(tmp_path):
    found = nus_wide.read(make(tmp_path), "share", share=0.3, seed=0)
    assert list(found.test.names) == ["actor/0001_2124491.jpg", "zoo/0000_90.jpg", "zoo/0001_91.jpg"]


def test_wrong_arguments_are_refused(tmp_path):
    make(tmp_path)
    for root, options, message in (
        (tmp_path, {"split": "oficial"}, "unknown split of NUS-WIDE 'oficial': did you mean 'official'"),
        (tmp_path, {"split": "share", "share": 1.0}, "the share of test images must be between 0 and 1, not 1"),
        (tmp_path / "nowhere", {}, r"there is no folder .*nowhere: give the folder that contains NUS-WIDE's folders"),
    ):
        with pytest.raises(UserError, match=message):
            nus_wide.read(root, **options)


@pytest.mark.parametrize("name", ["ConceptsList/Concepts81.txt", "ImageList/TestImagelist.txt"])
def test_missing_lists_are_named(tmp_path, name):
    (make(tmp_path) / name).unlink()
    with pytest.raises(UserError, match=f"there is no {name.split('/')[1]} under {tmp_path}, nor in its folders"):
        nus_wide.read(tmp_path)


def test_missing_labels_are_named(tmp_path):
    make(tmp_path)
    (tmp_path / "Groundtruth/AllLabels/Labels_sky.txt").unlink()
    check_official(nus_wide.read(tmp_path))
    with pytest.raises(UserError, match=r"there is no Labels_sky.txt under"):
        nus_wide.read(tmp_path, "share")
    (tmp_path / "Groundtruth/TrainTestLabels/Labels_train_Test.txt").unlink()
    with pytest.raises(UserError, match=r"there is no Labels_train_Test.txt and no Labels_sky.txt under"):
        nus_wide.read(tmp_path)


def test_counts_must_agree(tmp_path):
    make(tmp_path)
    write(tmp_path / "Groundtruth/TrainTestLabels/Labels_clouds_Train.txt", [0, 1, 1, 0])
    with pytest.raises(UserError, match=r"Labels_clouds_Train.txt has 4 labels for the 6 images of .*TrainImagelist"):
        nus_wide.read(tmp_path)


@pytest.mark.parametrize("text", ["0\n2\n0\n1\n0\n0\n", "0\n1\n0\n1\n00\n", "0\n1\n0\n1\n0\n-1\n", "<html>"])
def test_labels_must_be_zeros_and_ones(tmp_path, text):
    (make(tmp_path) / "Groundtruth/TrainTestLabels/Labels_sky_Train.txt").write_text(text)
    with pytest.raises(UserError, match=r"Labels_sky_Train.txt must contain one 0 or 1 per line"):
        nus_wide.read(tmp_path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "not a text file"),
        (b"..\\..\\up.jpg\n", "which is not allowed: leads out of its folder"),
    ],
)
def test_damaged_lists_are_refused(tmp_path, data, message):
    (make(tmp_path) / "ImageList/TrainImagelist.txt").write_bytes(data)
    with pytest.raises(UserError, match=rf"TrainImagelist.txt .*{message}"):
        nus_wide.read(tmp_path)


def test_a_concept_listed_twice_is_refused(tmp_path):
    write(make(tmp_path) / "ConceptsList/Concepts81.txt", ["sky", "sky"])
    with pytest.raises(UserError, match="lists a concept twice"):
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


def test_concepts_with_control_characters_are_refused(tmp_path):
    make(tmp_path)
    write(tmp_path / "ConceptsList/Concepts81.txt", ["sky", "\x1b[31mclouds", "train"])
    with pytest.raises(UserError, match=r"Concepts81.txt has a class name with control characters"):
        nus_wide.read(tmp_path)
