import shutil
import zipfile

import numpy as np
import pytest
from support.data_sets import write_instances, write_nus_wide

from lifelabel.errors import UserError
from lifelabel.images.source import Problems
from lifelabel.streams import manifest, paper, published
from lifelabel.streams.labels import Labels
from lifelabel.utils.text import counted

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


def labels_of(split):
    return {name: split.labels[row].tolist() for row, name in enumerate(split.names)}


def by_task(split):
    return [[split.names[row] for row in rows] for rows in split.rows]


def test_a_split_of_any_shape_from_a_folder(tmp_path):
    stream = published.read(lay(tmp_path / "mine", SMALL), None)
    assert (stream.name, stream.dataset) == ("published", "")
    assert [task.classes for task in stream.tasks] == [("class 1", "class 2"), ("class 3",)]
    assert labels_of(stream.train) == {"a.jpg": [0], "b.jpg": [1], "c.jpg": [2], "d.jpg": [2]}
    assert by_task(stream.train) == [["a.jpg", "b.jpg"], ["c.jpg", "d.jpg"]]
    assert labels_of(stream.test) == {"t.jpg": [0, 1], "u.jpg": [1, 2]}
    assert by_task(stream.test) == [["t.jpg"], ["u.jpg"]]
    assert (stream.train.complete, stream.truth) == (False, None)
    assert stream.rules == {"source": "published split", "file": "mine"}
    assert stream.problems.lines() == [
        "1 row that repeats an earlier one: a.jpg in task0/train.csv of 3 rows",
        "3 classes have no name: put a classes.txt (one name per line, in the order of the columns) next to task0",
    ]
    assert not stream.train.images.present.any()


def test_the_folder_its_parents_and_the_zip_give_the_same_stream(tmp_path):
    lay(tmp_path / "up/split", SMALL | {".DS_Store": "", "task0/.DS_Store": "", "deeper/task0/train.csv": "x,1\n"})
    lay(tmp_path, {"up/readme.txt": ""})
    paths = [tmp_path / "up/split", tmp_path / "up", tmp_path]
    paths += [pack(tmp_path / f"{i}.zip", SMALL, top) for i, top in enumerate(("", "Split/", "a/b/"))]
    assert len({published.read(path, None).fingerprint for path in paths}) == 1


def test_class_names_come_from_a_list_next_to_the_tasks(tmp_path):
    files = SMALL | {"classes.txt": "\ufeffcat\r\n caf\u00e9 \n\ndog\n"}
    for path in (lay(tmp_path / "folder", files), pack(tmp_path / "a.zip", files)):
        stream = published.read(path, None)
        assert stream.classes == ("cat", "caf\u00e9", "dog")
        assert list(stream.problems.counts) == ["rows that repeat an earlier one"]
    for text, why in (
        ("cat\ndog\n", "classes.txt names 2 classes, but the files have 3 columns: write one name per column"),
        ("cat\ndog\ncat", "classes.txt names a class twice"),
        ("a\nb\n\x01", "control"),
    ):
        with pytest.raises(UserError, match=why):
            published.read(lay(tmp_path / "folder", {"classes.txt": text}), None)


def test_problems_are_counted(tmp_path):
    files = {
        "task0/train.csv": "a.jpg,1,0\nb.jpg,0,0\nb.jpg,0,1\nn.jpg,0,0\n",
        "task1/train.csv": "c.jpg,1\nb.jpg,1\n",
        "task0/test.csv": "t.jpg,1,1\nlost.jpg,0,1\nturned.jpg,1,0\nturned2.jpg,1,0\na.jpg,1,0\n",
        "task1/test.csv": "t.jpg,1,1,0\nturned.jpg,0,1,0\na.jpg,1,0,1\nempty.jpg,0,0,0\nturned2.jpg,0,0,0\n",
    }
    stream = published.read(lay(tmp_path, files), None)
    assert stream.problems.lines() == [
        "1 row that gives an image other labels; the labels are united: b.jpg in task0/train.csv of 4 rows",
        "1 training image that an earlier task has too: b.jpg in task1/train.csv",
        "1 test image that a later test file does not have: lost.jpg in task1/test.csv",
        "2 test images whose labels differ in a later test file; the later labels are used: "
        "turned.jpg in task1/test.csv, turned2.jpg in task1/test.csv",
        "3 classes have no name: put a classes.txt (one name per line, in the order of the columns) next to task0",
        "1 training image without any label: n.jpg",
        "2 test images without any label: turned2.jpg, empty.jpg",
        "1 image that is in both training and test: a.jpg",
    ]
    assert labels_of(stream.train) == {"a.jpg": [0], "b.jpg": [1, 2], "n.jpg": [], "c.jpg": [2]}
    assert by_task(stream.train) == [["a.jpg", "b.jpg", "n.jpg"], ["c.jpg", "b.jpg"]]
    of_task_1 = {"t.jpg": [0, 1], "lost.jpg": [1], "turned.jpg": [1], "turned2.jpg": [], "a.jpg": [0, 2]}
    assert labels_of(stream.test) == {**of_task_1, "empty.jpg": []}
    assert by_task(stream.test)[1] == ["empty.jpg"]


def parse(text):
    """The names and labels of a file, and its problems."""
    problems = Problems()
    table = published._parse(text if isinstance(text, bytes) else text.encode(), "f.csv", problems, {})
    return {name: sorted(columns) for name, columns in table.labels.items()}, problems.lines()


LEFT_OUT = "rows left out because they are not an image and 2 times 0 or 1: f.csv line"


ODD_LABELS = (
    "name,x,y", "short.jpg,1", "no labels.jpg", "odd.jpg,1,2", "odd.jpg,1,0,2", "spaces.jpg, 1, 0", "digits.jpg,１,0",
    ",1,0", "   ", "\r",
)  # fmt: skip
ODD_NAMES = {
    "long.jpg,1,0,1": ": too many fields", "long.jpg,x,1,0": ": too many fields", ",1,1,0": ": too many fields",
    " ,1,0": ": an empty path", "/a.jpg,1,0": ": an absolute path", "a\0.jpg,1,0": ": control characters in a path",
}  # fmt: skip


@pytest.mark.parametrize(("row", "why"), [*((row, "") for row in ODD_LABELS), *ODD_NAMES.items()])
def test_why_a_row_cannot_be_used(row, why):
    assert parse(f"ok.jpg,1,0\n{row}\r\n") == ({"ok.jpg": [0]}, [f"{counted(1, LEFT_OUT)} 2{why}"])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("start", ["", "\ufeff", "\n", "\r\n\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_blank_lines_and_a_byte_order_mark(start, end, last):
    text = start + f"a.jpg,1,0{end}{end} b b.jpg ,0,1" + (end if last else "")
    assert parse(text) == ({"a.jpg": [0], "b b.jpg": [1]}, [])


def test_names_that_are_not_utf_8_keep_their_bytes():
    rows = b"caf\xc3\xa9.jpg,1,0\ncaf\xe9.jpg,0,1\n\xff,1,1\n\xe9\xa9,1,1\n"
    names = ["caf\u00e9.jpg", "caf\udce9.jpg", "\udcff", "\udce9\udca9"]
    found, problems = parse(rows)
    assert (list(found), problems) == (names, [])
    assert [name.encode("utf-8", "surrogateescape") for name in found] == [row[:-4] for row in rows.split(b"\n")[:-1]]


def test_rows_of_one_image_are_compared_with_its_first_row_and_united():
    repeats, differs = "rows that repeat an earlier one", "rows that give an image other labels; the labels are united"
    assert parse("a,1,0\nb,1,1\na,0,1\na,1,0\na,1,1\n./a,1,0\n") == (
        {"a": [0, 1], "b": [0, 1]},
        [
            f"2 {differs}: a in f.csv of 6 rows, a in f.csv of 6 rows",
            f"2 {repeats}: a in f.csv of 6 rows, a in f.csv of 6 rows",
        ],
    )


def test_the_first_complete_row_defines_the_number_of_labels():
    assert parse("head,x\na.jpg,1,0\nb.jpg,1\n")[0] == {"a.jpg": [0]}
    for rows, why in (
        (b"a.jpg\nb.jpg,2,3\n", "has no row with an image and labels: a row must look like 'a.jpg,0,1'"),
        (b"", "has no row with an image and labels: a row must look like 'a.jpg,0,1'"),
        (b"../a.jpg,1\n", "has no row that can be used: a row must look like 'a.jpg,0,1'"),
    ):
        with pytest.raises(ValueError, match=f"^{why}$"):
            parse(rows)


def test_agreement_is_counted_in_parts_as_in_one(monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.random((500, 7)) < 0.3, rng.random((500, 4)) < 0.3
    expected = [[(a[:, i] & b[:, j]).sum() / (a[:, i] | b[:, j]).sum() for j in range(4)] for i in range(7)]
    for cells in (published._CELLS, 300):
        monkeypatch.setattr(published, "_CELLS", cells)
        assert published._agreement(Labels.from_dense(a), Labels.from_dense(b)).tolist() == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"task1/test.csv": "t,1,1\n"},
            r"task1/test.csv has 2 labels per row, but the training files up to task 1 have 3",
        ),
        (
            {"task1/test.csv": ""},
            "task1/test.csv has no row with an image and labels: a row must look like 'a.jpg,0,1'",
        ),
        ({"task3/train.csv": "x,1\n"}, "has no task2/train.csv: add the file"),
        ({"task1/train.csv": None}, "has no task1/train.csv: add the file"),
    ],
)
def test_an_error_in_the_files_is_one_line(tmp_path, change, why):
    files = {name: text for name, text in (SMALL | change).items() if text is not None}
    with pytest.raises(UserError, match=why) as error:
        published.read(lay(tmp_path, files), None)
    assert "\n" not in str(error.value)


def test_two_splits_or_none(tmp_path):
    lay(tmp_path / "one", SMALL)
    lay(tmp_path / "two", SMALL)
    for path, why in (
        (tmp_path, "contains several splits, one/, two/: give the folder of one"),
        (tmp_path / "one/task0", r"holds no task0/train.csv: give the folder or the zip that contains task0, task1, …"),
        (tmp_path / "three", r"there is no .*three: give the folder or the zip that contains task0, task1, …"),
    ):
        with pytest.raises(UserError, match=why):
            published.read(path, None)


def test_a_damaged_zip_is_refused(tmp_path):
    path = pack(tmp_path / "a.zip", SMALL)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is not a complete zip, download it again"):
        published.read(path, None)
    place = whole.index(b"task0/train.csv") + len("task0/train.csv") + 2
    path.write_bytes(whole[:place] + b"\xff\xff\xff" + whole[place + 3 :])
    with pytest.raises(UserError, match=r"task0/train.csv cannot be unpacked, download the zip again"):
        published.read(path, None)


def test_a_zip_with_extreme_compression_is_refused(tmp_path, monkeypatch):
    path = pack(tmp_path / "a.zip", SMALL | {"task0/train.csv": "a.jpg,1,0\n" * 100_000})
    with pytest.raises(UserError, match=r"task0/train.csv is compressed more than 200 times: unpack the zip and give"):
        published.read(path, None)
    monkeypatch.setattr(published, "_MAX_BYTES", 20)
    for path in (pack(tmp_path / "b.zip", SMALL), lay(tmp_path / "folder", SMALL)):
        with pytest.raises(UserError, match=r"task0/train.csv has more than 20 bytes"):
            published.read(path, None)


def make_coco(folder):
    """A small Split-COCO: one training and one test image per task, with its first class, and with person."""
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


def complete(root, classes, labels):
    """The annotations of COCO for the training images, with another category in the first image."""
    names = {name: [classes[column] for column in columns] for name, columns in labels.items()}
    names[next(iter(names))].append("boat")
    write_instances(root, "train2014", ["boat", *classes], names)


def test_split_coco_is_recognised_by_its_shape_and_names(tmp_path):
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
    complete(tmp_path, classes, renamed)
    stream = published.read(folder, tmp_path)
    assert stream.train.complete
    assert labels_of(stream.train) == {name: sorted(cs) for name, cs in labels.items()}
    assert stream.truth[0, 4] == 1.0 and stream.truth[4, 0] == 0.1  # P(person | airplane), P(airplane | person)
    assert not any("labels differently" in line for line in stream.problems.lines())
    assert stream.fingerprint == before.fingerprint  # visible labels are the same


def test_the_labels_of_the_split_are_used_where_both_have_labels(tmp_path):
    folder, classes, labels = make_coco(tmp_path / "split")
    name = "COCO_train2014_000000000003.jpg"
    complete(tmp_path, classes, labels | {name: {9, 10, 20}})  # task 3 has the classes 8 … 11, and the file has 8
    stream = published.read(folder, tmp_path)
    assert labels_of(stream.train)[name] == [8, 20]
    line = f"1 training image that the data set labels differently; the labels of the split are used: {name}"
    assert line in stream.problems.lines()


def test_labels_are_completed_for_all_or_not_at_all(tmp_path):
    folder, classes, labels = make_coco(tmp_path / "split")
    name = labels.popitem()[0]
    complete(tmp_path, classes, labels)
    stream = published.read(folder, tmp_path)
    assert (stream.train.complete, stream.truth) == (False, None)
    line = f"1 training image that COCO's annotations do not have; no labels are completed: {name}"
    assert line in stream.problems.lines()


def make_wide(folder, base, rng):
    """A small Split-WIDE, and the labels of the 400 images that it numbers, from `base` on."""
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
    labels = {f"sky/{i:04}.jpg": {classes[k] for k in np.flatnonzero(row)} for i, row in enumerate(truth)}
    write_nus_wide(root, classes, labels)


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
def test_nus_wide_s_labels_decide_where_its_numbers_start(tmp_path, base):
    folder, truth = make_wide(tmp_path / "split", base, np.random.default_rng(0))
    write_wide(tmp_path, truth, WIDE)
    stream = published.read(folder, tmp_path)
    assert stream.rules["numbers_from"] == base
    assert (stream.rules["agreement"], stream.rules["misfits"]) == (1.0, [])
    number = int(stream.train.names[0])
    assert stream.train.images.name(0) == f"sky/{number - base:04}.jpg"
    assert stream.train.complete
    assert np.array_equal(stream.train.labels.dense()[0], truth[number - base])
    assert not any("NUS-WIDE" in line for line in stream.problems.lines())


def test_a_class_that_agrees_better_with_another_concept_is_reported(tmp_path):
    folder, truth = make_wide(tmp_path / "split", 1, np.random.default_rng(0))
    truth[:5, 0] ^= True
    write_wide(tmp_path, truth, [*WIDE[:4], WIDE[5], WIDE[4], *WIDE[6:]])
    stream = published.read(folder, tmp_path)
    assert [text.split()[0] for text in stream.rules["misfits"]] == [WIDE[4], WIDE[5]]
    assert f"is more like {WIDE[5]} (100.0%)" in stream.rules["misfits"][0]
    problems = "\n".join(stream.problems.lines())
    assert "2 classes that agree better with another concept of NUS-WIDE; no labels are completed: " in problems
    assert f"1 class whose labels differ a little from NUS-WIDE's: {WIDE[0]} (9" in problems
    assert not stream.train.complete
    assert stream.train.images.name(0).startswith("sky/")


def test_a_list_that_does_not_fit_the_numbers_is_not_used(tmp_path):
    rng = np.random.default_rng(0)
    folder, truth = make_wide(tmp_path / "split", 0, rng)
    write_wide(tmp_path, rng.permutation(truth), WIDE)
    stream = published.read(folder, tmp_path)
    line = "1 NUS-WIDE list that does not fit the numbers of the split: labels agree to "
    assert any(found.startswith(line) for found in stream.problems.lines())
    assert stream.train.images.name(0) == f"{stream.train.names[0]}.jpg"
    write_wide(tmp_path, truth[:50], WIDE)
    line = "1 NUS-WIDE list that is too short for the numbers of the split: 50 images"
    assert line in published.read(folder, tmp_path).problems.lines()


def test_a_list_without_labels_is_counted_from_0_and_this_is_reported(tmp_path):
    folder, truth = make_wide(tmp_path / "split", 0, np.random.default_rng(0))
    write_wide(tmp_path, truth, WIDE)
    shutil.rmtree(tmp_path / "Groundtruth")
    stream = published.read(folder, tmp_path)
    assert stream.train.images.name(0) == f"sky/{int(stream.train.names[0]):04}.jpg"
    line = f"1 NUS-WIDE list without labels to check it; numbers are counted from 0: {tmp_path}"
    assert line in stream.problems.lines()
    assert not stream.train.complete


@pytest.mark.parametrize("base", [0, 1])
def test_a_manifest_finds_the_photographs_that_numbers_stand_for(tmp_path, base):
    folder, truth = make_wide(tmp_path / "split", base, np.random.default_rng(0))
    write_wide(tmp_path, truth, WIDE)
    stream = published.read(folder, tmp_path)
    manifest.write(published.read(folder, None), tmp_path / "m.yaml")  # written without photographs
    again = manifest.read(tmp_path / "m.yaml", tmp_path)
    assert again.fingerprint == stream.fingerprint
    assert dict(zip(again.train.names, again.train.images.names, strict=True)) == dict(
        zip(stream.train.names, stream.train.images.names, strict=True)
    )
    assert again.test.images.name(0) == f"sky/{int(again.test.names[0]) - base:04}.jpg"
    shutil.rmtree(tmp_path / "ImageList")
    assert manifest.read(tmp_path / "m.yaml", tmp_path).test.images.name(0) == f"{again.test.names[0]}.jpg"
