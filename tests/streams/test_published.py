import json
import shutil
import zipfile

import numpy as np
import pytest

from lifelabel.errors import UserError
from lifelabel.streams import manifest, paper, published

SMALL = {  # two tasks of two and one classes; a training row is repeated, and test files are cumulative
    "task0/train.csv": "a.jpg,1,0\r\nb.jpg,0,1\r\na.jpg,1,0\r\n",
    "task1/train.csv": "c.jpg,1\r\nd.jpg,1",
    "task0/test.csv": "t.jpg,1,1\r\n",
    "task1/test.csv": "u.jpg,0,1,1\r\nt.jpg,1,1,0\r\n",
}


def lay(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return folder


def pack(path, files, top="Split/"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, text in files.items():
            out.writestr(top + name, text)
            out.writestr(f"__MACOSX/{top}{name.replace('/', '/._')}", b"\x00\x05\x16\x07")
        out.writestr(f"{top}.DS_Store", b"\x00\x00\x00\x01Bud1")
    return path


def shown(split):
    return {name: split.labels[row].tolist() for row, name in enumerate(split.names)}


def by_task(split):
    return [[split.names[row] for row in rows] for rows in split.rows]


def said(stream):
    return "\n".join(stream.problems.lines()) + "\n"


def test_a_split_of_any_shape_from_a_folder(tmp_path):
    stream = published.read(lay(tmp_path / "mine", SMALL), None)
    assert (stream.name, stream.dataset) == ("published", "")
    assert [task.classes for task in stream.tasks] == [("class 1", "class 2"), ("class 3",)]
    assert shown(stream.train) == {"a.jpg": [0], "b.jpg": [1], "c.jpg": [2], "d.jpg": [2]}
    assert by_task(stream.train) == [["a.jpg", "b.jpg"], ["c.jpg", "d.jpg"]]
    assert shown(stream.test) == {"t.jpg": [0, 1], "u.jpg": [1, 2]}
    assert by_task(stream.test) == [["t.jpg"], ["u.jpg"]]
    assert (stream.train.complete, stream.truth) == (False, None)
    assert stream.rules == {"source": "published split", "file": "mine"}
    assert "1 rows that repeat an earlier one: a.jpg in task0/train.csv of 3 rows\n" in said(stream)
    assert "3 classes have no name: put a classes.txt" in said(stream)
    assert len(stream.problems.counts) == 2
    assert not stream.train.images.present.any()


def test_the_folder_above_two_levels_up_and_the_zip_are_the_same_stream(tmp_path):
    lay(tmp_path / "up/split", SMALL)
    lay(tmp_path, {"up/split/.DS_Store": "", "up/split/task0/.DS_Store": "", "up/readme.txt": ""})
    paths = [tmp_path / "up/split", tmp_path / "up", tmp_path]
    paths += [pack(tmp_path / f"{i}.zip", SMALL, top) for i, top in enumerate(("", "Split/", "a/b/"))]
    assert len({published.read(path, None).fingerprint for path in paths}) == 1


def test_classes_have_the_names_of_a_list_beside_the_tasks(tmp_path):
    files = SMALL | {"classes.txt": "\ufeffcat\r\n caf\u00e9 \n\ndog\n"}
    for path in (lay(tmp_path / "folder", files), pack(tmp_path / "a.zip", files)):
        stream = published.read(path, None)
        assert stream.classes == ("cat", "caf\u00e9", "dog")
        assert list(stream.problems.counts) == ["rows that repeat an earlier one"]
    for text, why in (("cat\ndog\n", "names 2 classes where"), ("cat\ndog\ncat", "twice"), ("a\nb\n\x01", "control")):
        with pytest.raises(UserError, match=why):
            published.read(lay(tmp_path / "folder", {"classes.txt": text}), None)


def test_quirks_are_counted(tmp_path):
    files = {
        "task0/train.csv": "a.jpg,1,0\nb.jpg,0,0\nb.jpg,0,1\nn.jpg,0,0\n",
        "task1/train.csv": "c.jpg,1\nb.jpg,1\n",
        "task0/test.csv": "t.jpg,1,1\nlost.jpg,0,1\nturned.jpg,1,0\nturned2.jpg,1,0\na.jpg,1,0\n",
        "task1/test.csv": "t.jpg,1,1,0\nturned.jpg,0,1,0\na.jpg,1,0,1\nempty.jpg,0,0,0\nturned2.jpg,0,0,0\n",
    }
    stream = published.read(lay(tmp_path, files), None)
    for line in (
        "1 rows that give other labels; they are united: b.jpg in task0/train.csv of 4 rows\n",
        "1 training images that an earlier task has too: b.jpg in task1/train.csv\n",
        "1 training images without any label: n.jpg\n",
        "1 test images that a later test file lacks: lost.jpg in task1/test.csv\n",
        "2 test images whose labels differ in a later test file; the later ones count: turned.jpg in",
        "2 test images without any label: turned2.jpg, empty.jpg\n",
        "1 images that are in both training and test: a.jpg\n",
    ):
        assert line in said(stream), line
    assert shown(stream.train) == {"a.jpg": [0], "b.jpg": [1, 2], "n.jpg": [], "c.jpg": [2]}
    assert by_task(stream.train) == [["a.jpg", "b.jpg", "n.jpg"], ["c.jpg", "b.jpg"]]
    expected = {
        "t.jpg": [0, 1],
        "lost.jpg": [1],
        "turned.jpg": [1],
        "turned2.jpg": [],
        "a.jpg": [0, 2],
        "empty.jpg": [],
    }
    assert shown(stream.test) == expected
    assert by_task(stream.test)[1] == ["empty.jpg"]


def test_rows_that_cannot_be_used_are_left_out(tmp_path):
    rows = "name,x,y\n../a.jpg,1,0\n/b.jpg,1,0\nshort.jpg,1\nlong.jpg,1,0,1\nodd.jpg,1,2\n\n,1,0\nok.jpg,1,0\nx\n"
    stream = published.read(lay(tmp_path, SMALL | {"task0/train.csv": "\ufeff" + rows}), None)
    assert by_task(stream.train)[0] == ["ok.jpg"]
    assert shown(stream.train)["ok.jpg"] == [0]
    assert "8 rows left out, which are not an image and 2 times 0 or 1: task0/train.csv line 1," in said(stream)


def test_the_first_row_that_is_whole_says_how_many_labels_there_are():
    with pytest.raises(ValueError, match="no row of an image and labels"):
        published.parse(b"a.jpg\nb.jpg,2,3\n", "task0/train.csv", published.Problems())
    with pytest.raises(ValueError, match="no row that can be used"):
        published.parse(b"../a.jpg,1\n", "task0/train.csv", published.Problems())


def test_many_rows_are_read_as_one_would_read_them_one_by_one(monkeypatch):
    rng = np.random.default_rng(0)
    dense = rng.random((500, 7)) < 0.3
    text = "\n".join(f"{i * i}.jpg," + ",".join(map(str, row.astype(int))) for i, row in enumerate(dense))
    monkeypatch.setattr(published, "_CELLS", 300)  # in many pieces
    table = published.parse(text.encode(), "", published.Problems())
    assert np.array_equal(table.labels.dense(), dense)
    assert table.names == [f"{i * i}.jpg" for i in range(500)]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"task1/test.csv": "t.jpg,1,1\n"}, r"task1/test.csv has 2 labels a row where .* have 3"),
        ({"task1/test.csv": ""}, "task1/test.csv has no row"),
        ({"task3/train.csv": "x,1\n"}, "lacks task2/train.csv"),
        ({"task1/train.csv": None}, "lacks task1/train.csv"),
        ({"other/task0/train.csv": "x,1\n"}, None),
    ],
)
def test_what_is_wrong_with_the_files_is_said_in_one_line(tmp_path, change, why):
    files = {name: text for name, text in (SMALL | change).items() if text is not None}
    if why is None:  # files further down do not count where the task folders have been found
        assert len(published.read(lay(tmp_path, files), None).tasks) == 2
        return
    with pytest.raises(UserError, match=why) as error:
        published.read(lay(tmp_path, files), None)
    assert "\n" not in str(error.value)


def test_two_splits_or_none(tmp_path):
    lay(tmp_path / "one", SMALL)
    lay(tmp_path / "two", SMALL)
    with pytest.raises(UserError, match="several splits, one/, two/"):
        published.read(tmp_path, None)
    with pytest.raises(UserError, match=r"holds no task0/train.csv"):
        published.read(tmp_path / "one/task0", None)
    with pytest.raises(UserError, match="there is no"):
        published.read(tmp_path / "three", None)


def test_a_damaged_zip_is_refused(tmp_path):
    path = pack(tmp_path / "a.zip", SMALL)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a whole zip, download it again"):
        published.read(path, None)
    place = whole.index(b"task0/train.csv") + len("task0/train.csv") + 2
    path.write_bytes(whole[:place] + b"\xff\xff\xff" + whole[place + 3 :])
    with pytest.raises(UserError, match=r"task0/train.csv cannot be unpacked"):
        published.read(path, None)


def test_a_zip_that_would_swell_is_refused(tmp_path, monkeypatch):
    path = pack(tmp_path / "a.zip", SMALL | {"task0/train.csv": "a.jpg,1,0\n" * 100_000})
    with pytest.raises(UserError, match="packed more than 200 times"):
        published.read(path, None)
    monkeypatch.setattr(published, "MAX_BYTES", 20)
    for path in (pack(tmp_path / "b.zip", SMALL), lay(tmp_path / "folder", SMALL)):
        with pytest.raises(UserError, match=r"task0/train.csv has more than 20 bytes"):
            published.read(path, None)


def make_coco(folder):
    """Split-COCO in little: one training and one test image a task, with the first class of it, and the person."""
    classes = [name for task in paper.SPLIT_COCO for name in task]
    files, labels = {}, {}
    tests = []
    for t in range(10):
        labels[train := f"COCO_train2014_{t + 1:012}.jpg"] = {4 * t, 0}
        files[f"task{t}/train.csv"] = train + "".join(f",{int(c in labels[train])}" for c in range(4 * t, 4 * t + 4))
        tests.append(f"COCO_val2014_{t + 101:012}.jpg")
        rows = (test + "".join(f",{int(c == 4 * k)}" for c in range(4 * t + 4)) for k, test in enumerate(tests))
        files[f"task{t}/test.csv"] = "\n".join(rows)
    return lay(folder, files), classes, labels


def write_instances(root, classes, labels):
    ids = {name: number for number, name in enumerate(["boat", *classes], start=1)}
    images = [{"id": i, "file_name": name} for i, name in enumerate(labels)]
    pairs = [(i, classes[c]) for i, name in enumerate(labels) for c in labels[name]] + [(0, "boat")]
    found = {
        "images": images,
        "annotations": [{"id": k, "image_id": i, "category_id": ids[c]} for k, (i, c) in enumerate(pairs)],
        "categories": [{"id": i, "name": name} for name, i in ids.items()],
    }
    lay(root, {"annotations/instances_train2014.json": json.dumps(found)})


def test_split_coco_is_known_by_its_shape_and_names(tmp_path):
    folder, classes, _ = make_coco(tmp_path / "split")
    stream = published.read(folder, tmp_path)
    assert (stream.name, stream.dataset, stream.classes) == ("split-coco", "coco", tuple(classes))
    assert stream.train.complete is False
    (tmp_path / "split/classes.txt").write_text("\n".join(classes[::-1]))
    other = published.read(folder, tmp_path)
    assert (other.name, other.dataset, other.classes) == ("published", "", tuple(classes[::-1]))


def test_coco_s_own_labels_complete_those_of_the_training_images(tmp_path):
    folder, classes, labels = make_coco(tmp_path / "split")
    before = published.read(folder, tmp_path)
    renamed = {name.removeprefix("COCO_train2014_") if "3.jpg" in name else name: cs for name, cs in labels.items()}
    write_instances(tmp_path, classes, renamed)
    stream = published.read(folder, tmp_path)
    assert stream.train.complete
    assert shown(stream.train) == {name: sorted(cs) for name, cs in labels.items()}
    assert stream.truth[0, 4] == 1.0 and stream.truth[4, 0] == 0.1  # P(person | airplane), P(airplane | person)
    assert "otherwise" not in said(stream)
    assert stream.fingerprint == before.fingerprint  # what the protocol shows is the same
    assert [stream.train_view(t).labels.dense().tolist() for t in range(10)] == [
        before.train_view(t).labels.dense().tolist() for t in range(10)
    ]


def test_where_both_speak_the_split_has_the_last_word(tmp_path):
    folder, classes, labels = make_coco(tmp_path / "split")
    name = "COCO_train2014_000000000003.jpg"
    write_instances(tmp_path, classes, labels | {name: {9, 10, 20}})  # task 3 has the classes 8 … 11, and shows 8
    stream = published.read(folder, tmp_path)
    assert shown(stream.train)[name] == [8, 20]
    assert f"1 training images that the data set labels otherwise; the split's own count: {name}\n" in said(stream)


def test_labels_are_completed_for_all_or_not_at_all(tmp_path):
    folder, classes, labels = make_coco(tmp_path / "split")
    name = labels.popitem()[0]
    write_instances(tmp_path, classes, labels)
    stream = published.read(folder, tmp_path)
    assert (stream.train.complete, stream.truth) == (False, None)
    assert f"1 training images that COCO's annotations lack; no labels are completed: {name}\n" in said(stream)


def make_wide(folder, base, rng):
    """Split-WIDE in little, and the labels of the 400 images that it numbers, from `base` on."""
    truth = rng.random((400, 21)) < 0.3
    numbers = rng.permutation(np.arange(1, 400))
    train, test = np.array_split(numbers[:280], 7), np.array_split(numbers[280:], 7)
    files = {}
    for t in range(7):
        for kind, some, columns in (("train", train[t], range(3 * t, 3 * t + 3)), ("test", None, range(3 * t + 3))):
            some = np.concatenate(test[: t + 1]) if some is None else some
            rows = (f"{n}," + ",".join(str(int(truth[n - base, c])) for c in columns) for n in some)
            files[f"task{t}/{kind}.csv"] = "\n".join(rows)
    return lay(folder, files), truth


def write_wide(root, truth, classes):
    files = {"ImageList/Imagelist.txt": "".join(f"sky\\{i:04}.jpg\n" for i in range(len(truth)))}
    for column, name in enumerate(classes):
        files[f"Groundtruth/AllLabels/Labels_{name}.txt"] = "".join(f"{int(v)}\n" for v in truth[:, column])
    lay(root, files)


WIDE = [name for task in paper.SPLIT_WIDE for name in task]


def test_numbers_without_nus_wide_s_list_are_file_names(tmp_path):
    folder, _ = make_wide(tmp_path / "split", 0, np.random.default_rng(0))
    first = published.read(folder, None).train.names[0]
    (tmp_path / "images").mkdir()
    (tmp_path / f"images/{first}.jpg").write_bytes(b"")
    stream = published.read(folder, tmp_path)
    assert (stream.name, stream.dataset, stream.classes) == ("split-wide", "nus-wide", tuple(WIDE))
    assert np.flatnonzero(stream.train.images.present).tolist() == [0]


@pytest.mark.parametrize("base", [0, 1])
def test_nus_wide_s_labels_tell_where_its_numbers_start(tmp_path, base):
    folder, truth = make_wide(tmp_path / "split", base, np.random.default_rng(0))
    write_wide(tmp_path, truth, WIDE)
    stream = published.read(folder, tmp_path)
    assert stream.rules["numbers_from"] == base
    assert (stream.rules["agreement"], stream.rules["misfits"]) == (1.0, [])
    number = int(stream.train.names[0])
    assert stream.train.images.name(0) == f"sky/{number - base:04}.jpg"
    assert stream.train.complete
    assert np.array_equal(stream.train.labels.dense()[0], truth[number - base])
    assert "NUS-WIDE" not in said(stream)


def test_a_class_that_fits_another_concept_better_is_named(tmp_path):
    folder, truth = make_wide(tmp_path / "split", 1, np.random.default_rng(0))
    truth[:5, 0] ^= True
    write_wide(tmp_path, truth, [*WIDE[:4], WIDE[5], WIDE[4], *WIDE[6:]])
    stream = published.read(folder, tmp_path)
    assert [text.split()[0] for text in stream.rules["misfits"]] == [WIDE[4], WIDE[5]]
    assert f"is more like {WIDE[5]} (100.0%)" in stream.rules["misfits"][0]
    assert "2 classes that fit another concept of NUS-WIDE better; no labels are completed" in said(stream)
    assert f"1 classes whose labels are not quite NUS-WIDE's: {WIDE[0]} (9" in said(stream)
    assert not stream.train.complete
    assert stream.train.images.name(0).startswith("sky/")


def test_a_list_that_was_not_the_one_numbered_is_not_used(tmp_path):
    rng = np.random.default_rng(0)
    folder, truth = make_wide(tmp_path / "split", 0, rng)
    write_wide(tmp_path, rng.permutation(truth), WIDE)
    stream = published.read(folder, tmp_path)
    assert "NUS-WIDE list that is not the one the split numbers: labels agree to" in said(stream)
    assert stream.train.images.name(0) == f"{stream.train.names[0]}.jpg"
    write_wide(tmp_path, truth[:50], WIDE)
    assert "NUS-WIDE list that is too short" in said(published.read(folder, tmp_path))


def test_a_list_without_labels_is_counted_from_0_and_that_is_said(tmp_path):
    folder, truth = make_wide(tmp_path / "split", 0, np.random.default_rng(0))
    write_wide(tmp_path, truth, WIDE)
    shutil.rmtree(tmp_path / "Groundtruth")
    stream = published.read(folder, tmp_path)
    assert stream.train.images.name(0) == f"sky/{int(stream.train.names[0]):04}.jpg"
    assert "places are counted from 0" in said(stream)
    assert not stream.train.complete


@pytest.mark.parametrize("base", [0, 1])
def test_a_manifest_finds_the_photographs_that_numbers_stand_for(tmp_path, base):
    folder, truth = make_wide(tmp_path / "split", base, np.random.default_rng(0))
    write_wide(tmp_path, truth, WIDE)
    stream = published.read(folder, tmp_path)
    manifest.write(published.read(folder, None), tmp_path / "m.yaml")  # by someone who has no photographs
    again = manifest.read(tmp_path / "m.yaml", tmp_path)
    assert again.fingerprint == stream.fingerprint
    assert dict(zip(again.train.names, again.train.images.names, strict=True)) == dict(
        zip(stream.train.names, stream.train.images.names, strict=True)
    )
    assert again.test.images.name(0) == f"sky/{int(again.test.names[0]) - base:04}.jpg"
    shutil.rmtree(tmp_path / "ImageList")
    assert manifest.read(tmp_path / "m.yaml", tmp_path).test.images.name(0) == f"{again.test.names[0]}.jpg"
