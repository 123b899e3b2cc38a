"""COCOseq and NUS-WIDEseq, from small lists in the format of PRS's release over small data sets."""

import json

import numpy as np
import pytest
from PIL import Image
from support.data_sets import write, write_instances, write_nus_wide

from lifelabel.engine import judging
from lifelabel.errors import UserError
from lifelabel.metrics.functions import Scored
from lifelabel.runs.records import summarise
from lifelabel.streams import build, manifest
from lifelabel.streams.subsets import Part, part_of, sort_by_name

CLASSES = ("bird", "boat", "cat", "dog", "fork", "spoon")
"""Two classes of each of three tasks. The data set has a seventh, `person`, which the lists do not use."""
ANIMALS, KITCHEN, TRAVEL = ("cat", "dog"), ("fork", "spoon"), ("bird", "boat")


def labels_of(number):
    """The classes of image `number`: of task number % 3, and a person in every second image."""
    names = (ANIMALS, KITCHEN, TRAVEL)[number % 3]
    shown = [names[number // 3 % 2], *([names[0]] if number % 4 == 0 else []), *(["person"] if number % 2 else [])]
    return sorted(set(shown))


def write_coco(root, images=60):
    """Images 1 … 60, the last third in the validation split."""
    for part, numbers in (("train2014", range(1, 41)), ("val2014", range(41, images + 1))):
        labels = {f"COCO_{part}_{n:012}.jpg": labels_of(n) for n in numbers}
        write_instances(root, part, ("person", *CLASSES), labels)
        for n in numbers:
            (root / part).mkdir(exist_ok=True)
            Image.new("RGB", (8, 8), (4 * n, 0, 0)).save(root / part / f"COCO_{part}_{n:012}.jpg")


def write_lists(folder, suffix="coco", ids=None):
    """Training images 1 … 30 and 41 … 45, test images 46 … 60 (original) or their first nine (balanced)."""
    ids = ids or {"train": [*range(1, 31), *range(41, 46)], "teorg": range(46, 61), "test": range(46, 55)}
    write(folder / "multihot_map.json", {name: k for k, name in enumerate(CLASSES)})
    for kind, numbers in ids.items():
        for task in range(3):
            write(folder / "ids" / f"{kind}_task{task}_id_{suffix}.json", [n for n in numbers if n % 3 == task])


@pytest.fixture
def data(tmp_path):
    write_coco(tmp_path / "coco")
    write_lists(tmp_path / "lists")
    return {"root": str(tmp_path / "coco"), "lists": str(tmp_path / "lists")}


def named(split):
    """The numbers of the images of each task."""
    return [sorted(int(split.names[row][-16:-4]) for row in rows) for rows in split.rows]


def test_the_tasks_classes_and_images_of_the_lists(data):
    stream = build("cocoseq", data)
    assert (stream.name, stream.dataset, stream.rules["protocol"]) == ("cocoseq", "coco", "disjoint")
    assert [task.classes for task in stream.tasks] == [ANIMALS, KITCHEN, TRAVEL]
    trained = [*range(1, 31), *range(41, 46)]  # of both splits of COCO
    assert named(stream.train) == [[n for n in trained if n % 3 == task] for task in range(3)]
    assert named(stream.test) == [[n for n in range(46, 55) if n % 3 == task] for task in range(3)]
    for split in (stream.train, stream.test):
        for name, row in zip(split.names, split.labels, strict=True):
            expected = set(labels_of(int(name[-16:-4]))) - {"person"}
            assert {stream.classes[column] for column in row} == expected
    assert stream.train.images.present.all() and stream.train.complete and stream.truth is not None
    assert not stream.problems and stream.labels == "known"  # no image shows a class of another task


def test_the_test_set_with_the_original_distribution(data):
    original = build("cocoseq", {**data, "test": "original"})
    assert named(original.test) == [[n for n in range(46, 61) if n % 3 == task] for task in range(3)]
    assert original.rules["test"] == "original"
    assert original.fingerprint != build("cocoseq", data).fingerprint
    with pytest.raises(UserError, match="balanced, original"):
        build("cocoseq", {**data, "test": "all"})


def test_the_tasks_are_in_the_order_of_the_experiments_of_the_release(data, tmp_path):
    """With four lists, as COCOseq has them: 0, 3, 1, 2."""
    ids = tmp_path / "lists/ids"
    for kind, taken in (("train", {2, 8, 14, 20, 26}), ("test", {50})):  # images of the class fork
        every = json.loads((ids / f"{kind}_task2_id_coco.json").read_text())
        write(ids / f"{kind}_task2_id_coco.json", [n for n in every if n not in taken])
        write(ids / f"{kind}_task3_id_coco.json", sorted(taken))
    stream = build("cocoseq", data)
    assert stream.rules["files"] == [0, 3, 1, 2] and len(stream.tasks) == 4


def test_what_the_data_set_does_not_have_is_counted(data, tmp_path):
    write(tmp_path / "lists/multihot_map.json", {name: k for k, name in enumerate((*CLASSES, "zebra"))})
    write(tmp_path / "lists/ids/train_task0_id_coco.json", [3, 6, 9, 9, 12, 15, 900, 901])
    write(tmp_path / "lists/ids/train_task1_id_coco.json", [1, 4, 7, 10, 3, 2])
    lines = build("cocoseq", data).problems.lines()
    assert "2 ids of training images that coco does not have: 900, 901" in lines
    assert any(line.startswith("3 training images that are listed twice; the first task has them") for line in lines)
    assert "1 class that coco does not have: zebra" in lines
    (line,) = (line for line in lines if "of another task, which is hidden" in line)
    assert line.endswith("COCO_train2014_000000000002.jpg")
    assert any(line.startswith("1 training image without a label of their task: ") for line in lines)


@pytest.mark.parametrize("layout", ["flat", "ids", "clone"])
def test_where_the_files_may_be(data, tmp_path, layout):
    expected = build("cocoseq", data).fingerprint
    home = tmp_path / layout
    lists = {"flat": home, "ids": home / "ids", "clone": home / "dataset/data_source/COCOseq/ids"}[layout]
    for path in (tmp_path / "lists/ids").iterdir():
        write(lists / path.name, path.read_text())
    there = home / "dataset/data_source/COCOseq" if layout == "clone" else home
    write(there / "multihot_map.json", (tmp_path / "lists/multihot_map.json").read_text())
    assert build("cocoseq", {**data, "lists": str(home)}).fingerprint == expected


# Groups of classes


def test_groups_are_those_of_the_release(data, tmp_path):
    for group, names in {"major": ["dog", "cat", "fork"], "moderate": ["boat", "other"], "minor": ["bird"]}.items():
        write(tmp_path / "lists" / f"{group}_cats.json", names)
    stream = build("cocoseq", data)
    assert stream.groups == {"major": ("cat", "dog", "fork"), "moderate": ("boat",), "minor": ("bird",)}
    assert stream.problems.lines() == ["1 class in no group of the lists: spoon"]
    assert stream.fingerprint != build("cocoseq", {**data, "labels": "task"}).fingerprint
    cut = part_of(stream, Part(first_tasks=2))
    assert cut.groups == {"major": ("cat", "dog", "fork")}
    (tmp_path / "lists/minor_cats.json").unlink()
    other = build("cocoseq", data)
    assert other.problems.lines()[0].startswith("1 list of groups missing; groups are by number of training images")
    assert other.fingerprint != stream.fingerprint


def test_groups_by_the_number_of_training_images(data, monkeypatch):
    assert build("cocoseq", data).groups == {"minor": (*ANIMALS, *KITCHEN, *TRAVEL)}
    stream = build("cocoseq", data)
    counts = dict(zip(stream.classes, stream.train.labels.counts().tolist(), strict=True))
    monkeypatch.setattr("lifelabel.streams.prs_lists._MINOR_BELOW", 6)
    monkeypatch.setattr("lifelabel.streams.prs_lists._MAJOR_ABOVE", 7)
    found = build("cocoseq", data).groups
    group = lambda n: "major" if n > 7 else "minor" if n < 6 else "moderate"  # noqa: E731
    assert {name: g for g, names in found.items() for name in names} == {name: group(n) for name, n in counts.items()}
    assert len(found) > 1


def test_the_figures_of_groups_by_hand(data, tmp_path):
    for group, names in {"major": ["cat", "boat"], "moderate": ["dog", "fork"], "minor": ["bird", "spoon"]}.items():
        write(tmp_path / "lists" / f"{group}_cats.json", names)
    stream = sort_by_name(build("cocoseq", data))
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(len(stream.test), 6)).astype(np.float32)
    record, _ = judging.judge(stream, 3, np.arange(len(stream.test)), scores, None)
    labels = stream.test.labels.dense()
    for group, names in stream.groups.items():
        columns = [stream.classes.index(name) for name in names]
        expected = Scored.from_logits(scores[:, columns], labels[:, columns]).headline()
        assert record["groups"][group] == {name: pytest.approx(expected[name]) for name in ("mAP", "CF1", "OF1")}
    first, _ = judging.judge(stream, 1, np.arange(len(stream.test)), scores[:, :2], None)
    assert "groups" not in first
    summary = summarise([{**record, "cumulative": [record["seen"]] * 3}], stream.tasks)
    assert summary["final"]["groups"] == record["groups"] and set(record["groups"]) == {"major", "moderate", "minor"}


def test_a_manifest_keeps_the_groups(data, tmp_path):
    stream = build("cocoseq", data)
    path = tmp_path / "s.yaml"
    assert manifest.write(stream, path) == stream.fingerprint
    assert manifest.read(path, None).groups == stream.groups
    text = path.read_text()
    for wrong in ("groups: 3", "groups: {minor: [nothing]}", "groups: {minor: []}", "groups: {minor: [[cat]]}"):
        start = text.index("groups:")
        end = text.index("rules:")
        path.write_text(text[:start] + wrong + "\n" + text[end:])
        with pytest.raises(UserError, match="group"):
            manifest.read(path, None)


# NUS-WIDE


@pytest.mark.parametrize("all_labels", [False, True])
def test_ids_of_nus_wide_are_places_in_the_lists_of_its_split(tmp_path, all_labels):
    """The lists of the split are in another order than that of all images."""
    names = [f"{'abc'[n % 3]}/{n:04}.jpg" for n in range(60)]
    train, test = [*range(39, -1, -1)], [*range(59, 39, -1)]
    lists = {"Train": [names[n] for n in train], "Test": [names[n] for n in test]}
    labels = {name: labels_of(n) for n, name in enumerate(names)}
    write_nus_wide(tmp_path / "wide", ("person", *CLASSES), labels, lists, all_labels, not all_labels)
    places = {"train": range(len(train)), "test": range(10), "teorg": range(20)}
    write(tmp_path / "lists/multihot_map.json", {name: k for k, name in enumerate(CLASSES)})
    for kind, numbers in places.items():
        for task in range(3):
            rows = train if kind == "train" else test
            chosen = [place for place in numbers if rows[place] % 3 == task]
            write(tmp_path / "lists" / f"{kind}_task{task}_id_nuswide.json", chosen)
    if all_labels:  # an image that Imagelist.txt does not have moves no other place
        path = tmp_path / "wide/ImageList/TrainImagelist.txt"
        path.write_text(path.read_text().replace(names[train[3]].replace("/", "\\"), "c/gone.jpg"))
    stream = build("nuswideseq", {"root": str(tmp_path / "wide"), "lists": str(tmp_path / "lists")})
    assert (stream.name, stream.dataset) == ("nuswideseq", "nus-wide")
    assert [task.classes for task in stream.tasks] == [ANIMALS, KITCHEN, TRAVEL]
    gone = {train[3]} if all_labels else set()
    assert set(stream.train.names) == {names[n] for n in set(train) - gone}
    assert set(stream.test.names) == {names[test[place]] for place in range(10)}
    for name, row in zip(stream.train.names, stream.train.labels, strict=True):
        assert {stream.classes[k] for k in row} == set(labels_of(names.index(name))) - {"person"}
    counted = [line for line in stream.problems.lines() if "nus-wide does not have" in line]
    assert counted == (["1 id of training images that nus-wide does not have: 3"] if all_labels else [])


# Mistakes


def remove(*names):
    return lambda ids: [path.unlink() for name in names for path in ids.parent.rglob(name)]


def replace(name, value):
    return lambda ids: write(next(ids.parent.rglob(name)), value)


FIRST = "train_task0_id_coco.json"


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (remove("train_task1*"), r"has lists of 1 training tasks and of 3 test tasks"),
        (remove("test_task2*"), r"has lists of 3 training tasks and of 2 test tasks: add them$"),
        (
            remove("t*.json"),
            "has no train_task0_id_coco.json: give the folder of PRS's lists, dataset/data_source/COCO",
        ),
        (remove("multihot_map.json"), r"has no multihot_map.json: give the folder of PRS's lists"),
        (replace(FIRST, "[1, 2"), r"train_task0_id_coco.json is damaged: it is not valid JSON; download it again$"),
        (replace(FIRST, "[" * 10**5), r"train_task0_id_coco.json is damaged"),
        (replace(FIRST, {"a": 1}), r"train_task0_id_coco.json must hold a list of image ids, \[139, 285, …\], not "),
        (replace(FIRST, [True]), r"must hold a list of image ids"),
        (replace("multihot_map.json", {"cat": 1}), r"must hold the number of each class, \{'airplane': 0, …\}, not "),
        (replace("multihot_map.json", {"cat": "0"}), r"must hold the number of each class"),
        (replace(FIRST, [999]), r"^task 0 of the lists has no class: no training image of it in .* shows one"),
        (
            lambda ids: [write(path, []) for path in ids.glob("test_*")],
            "^no test image of the lists is in the data set",
        ),
    ],
)
def test_a_mistake_is_one_line(data, tmp_path, damage, line):
    damage(tmp_path / "lists/ids")
    with pytest.raises(UserError, match=line) as caught:
        build("cocoseq", data)
    assert "\n" not in str(caught.value)


def test_pickles_are_named_and_not_read(data, tmp_path):
    path = tmp_path / "lists/ids/train_task0_id_coco.json"
    path.rename(path.with_suffix(".pkl"))
    with pytest.raises(UserError, match=r"train_task0_id_coco.pkl is not read: lists must be JSON, a list of ids in "):
        build("cocoseq", data)


def test_the_lists_must_be_given(data, tmp_path):
    with pytest.raises(UserError, match=r"^stream cocoseq needs the folder of the lists .*: --set stream.lists=DIR$"):
        build("cocoseq", {"root": data["root"]})
    with pytest.raises(UserError, match=r"^there is no folder .*/none: give the folder of the lists of PRS"):
        build("cocoseq", {**data, "lists": str(tmp_path / "none")})
