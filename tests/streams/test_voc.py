import pytest

from lifelabel.errors import UserError
from lifelabel.streams import voc
from lifelabel.streams.class_names import VOC_CLASSES

PARTS = {"2007": ("trainval", "test"), "2012": ("train", "val")}
OBJECTS = {
    "000005": [("chair", 0), ("chair", 1), ("person", 1)],
    "000007": [("car", 0)],
    "000012": [],
    "000001": [("person", 0), ("dog", 1)],
}
"""The objects of each image, and whether each is difficult. The last image is for test."""
PERSON, CAR, CHAIR, DOG = (VOC_CLASSES.index(name) for name in ("person", "car", "chair", "dog"))


def annotation(objects, top=""):
    inner = "".join(
        f"<object><name>{name}</name><difficult>{hard}</difficult><part><name>head</name></part></object>"
        for name, hard in objects
    )
    return f"{top}<annotation><folder>VOC2007</folder>{inner}</annotation>"


def value(objects, name):
    return max((0 if hard else 1 for other, hard in objects if other == name), default=-1)


def make(root, year="2007", lists=True, annotations=True):
    """Write VOCdevkit under root, with lists per class, annotations, or both. Returns the folder of the year."""
    home = root / "VOCdevkit" / f"VOC{year}"
    main = home / "ImageSets" / "Main"
    main.mkdir(parents=True)
    for part, keys in zip(PARTS[year], (list(OBJECTS)[:3], list(OBJECTS)[3:]), strict=True):
        (main / f"{part}.txt").write_text("".join(f"{key}\n" for key in keys))
        for name in VOC_CLASSES if lists else ():
            (main / f"{name}_{part}.txt").write_text("".join(f"{k} {value(OBJECTS[k], name):2}\n" for k in keys))
    if annotations:
        (home / "Annotations").mkdir()
        for key, objects in OBJECTS.items():
            (home / "Annotations" / f"{key}.xml").write_text(annotation(objects))
    return home


def rows(pool):
    return [row.tolist() for row in pool.labels]


@pytest.mark.parametrize("source", [{"annotations": False}, {"lists": False}])
@pytest.mark.parametrize("year", PARTS)
def test_both_years_from_lists_and_from_annotations(tmp_path, year, source):
    make(tmp_path, year, **source)
    found = voc.read(tmp_path, year)
    assert (found.name, found.root, found.classes) == ("voc", tmp_path, VOC_CLASSES)
    assert list(found.train.names) == [f"VOC{year}/JPEGImages/{key}.jpg" for key in ("000005", "000007", "000012")]
    assert list(found.test.names) == [f"VOC{year}/JPEGImages/000001.jpg"]
    assert rows(found.train) == [[CHAIR, PERSON], [CAR], []]
    assert rows(found.test) == [[DOG, PERSON]]
    assert not found.problems
    found = voc.read(tmp_path, year, difficult="negative")  # difficult objects count as absent
    assert rows(found.train) == [[CHAIR], [CAR], []]
    assert rows(found.test) == [[PERSON]]


def test_lists_are_used_before_annotations_but_only_if_all_exist(tmp_path):
    home = make(tmp_path)
    (home / "Annotations/000007.xml").write_text(annotation([("bus", 0)]))
    assert rows(voc.read(tmp_path).train)[1] == [CAR]
    (home / "ImageSets/Main/sheep_trainval.txt").unlink()
    assert rows(voc.read(tmp_path).train)[1] == [VOC_CLASSES.index("bus")]


def test_the_root_may_be_any_of_three_folders_and_names_are_the_same(tmp_path, monkeypatch):
    home = make(tmp_path)
    names = list(voc.read(tmp_path).train.names)
    assert list(voc.read(home.parent).train.names) == names
    inside = voc.read(home)
    assert list(inside.train.names) == names and inside.root == home.parent
    monkeypatch.chdir(home)
    here = voc.read(type(home)("."))
    assert list(here.train.names) == names and here.root.resolve() == home.parent.resolve()
    home = home.rename(tmp_path / "mine")  # a folder of another name is its own root
    found = voc.read(home)
    assert found.root == home and found.train.names[0] == "JPEGImages/000005.jpg"


def test_missing_folders_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"there is no folder .*nowhere: give the folder that contains VOCdevkit"):
        voc.read(tmp_path / "nowhere")
    home = make(tmp_path, annotations=False)
    for root in (tmp_path, home.parent, home):
        message = f"there is no VOC2012 in {root}: give a folder that contains VOCdevkit/VOC2012"
        with pytest.raises(UserError, match=message):
            voc.read(root, "2012")
    (home / "ImageSets/Main/aeroplane_test.txt").unlink()
    with pytest.raises(UserError, match=r"test images: neither .*aeroplane_test.txt nor .*Annotations exists"):
        voc.read(tmp_path)
    (home / "ImageSets/Main/test.txt").unlink()
    with pytest.raises(UserError, match=r"cannot read .*VOC2007/ImageSets/Main/test.txt: No such file"):
        voc.read(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("car_test.txt", b"000001 2\n", "line 1: expected 1, 0 or -1 after 000001, not '2'"),
        ("car_test.txt", b"\n000001\n", "line 2: expected"),
        ("test.txt", b"../../up\n", "is not an image id"),
        ("test.txt", b"\xff\xfe", "not a text file"),
        ("test.txt", b"", "none of the images of .*test.txt has labels: the list is empty"),
    ],
)
def test_damaged_lists_are_refused(tmp_path, name, data, message):
    path = make(tmp_path) / "ImageSets/Main" / name
    path.write_bytes(data)
    with pytest.raises(UserError, match=message) as error:
        voc.read(tmp_path)
    assert str(path) in str(error.value)


def test_an_image_that_is_missing_in_a_list_is_skipped(tmp_path):
    (make(tmp_path) / "ImageSets/Main/cat_trainval.txt").write_text("000005 -1\n000012 -1\n000099 1\n")
    found = voc.read(tmp_path)
    assert rows(found.train) == [[CHAIR, PERSON], []] and len(found.train.names) == 2
    assert found.problems.lines() == ["1 image skipped: missing in the list of a class: 000007 in cat_trainval.txt"]


ENTITY = '<!DOCTYPE annotation [<!ENTITY thing "car">]>'
OUTSIDE = '<!DOCTYPE annotation [<!ENTITY thing SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "No such file"),
        (b"<annotation><object>", "no element found"),
        (annotation([("&thing;", 0)], ENTITY).encode(), "DOCTYPE"),
        (annotation([("&thing;", 0)], OUTSIDE).encode(), "DOCTYPE"),
        (annotation([("&thing;", 0)], f'<?xml version="1.0" encoding="utf-16"?>{ENTITY}').encode("utf-16"), "decode"),
        (annotation([("&thing;", 0)]).encode(), "undefined entity"),
        (annotation([("car", 0)] * 20_000).encode(), "more than 1,048,576 bytes"),
    ],
    ids=["missing", "cut off", "entity", "outside entity", "utf-16", "undefined entity", "large"],
)
def test_an_image_whose_annotation_cannot_be_used_is_skipped(tmp_path, data, reason):
    path = make(tmp_path, lists=False) / "Annotations/000007.xml"
    path.unlink() if data is None else path.write_bytes(data)
    found = voc.read(tmp_path)
    assert rows(found.train) == [[CHAIR, PERSON], []]
    assert list(found.train.names) == ["VOC2007/JPEGImages/000005.jpg", "VOC2007/JPEGImages/000012.jpg"]
    (line,) = found.problems.lines()
    assert line.startswith("1 image skipped: the annotation cannot be read: 000007.xml") and reason in line


def test_unknown_objects_are_counted(tmp_path):
    path = make(tmp_path, lists=False) / "Annotations/000007.xml"
    path.write_text(annotation([("car", 0), ("unicorn", 0)]))
    found = voc.read(tmp_path)
    assert rows(found.train)[1] == [CAR]
    assert found.problems.lines() == ["1 object of an unknown class: 'unicorn' in 000007.xml"]


def test_a_set_without_any_label_is_refused(tmp_path):
    (make(tmp_path, lists=False) / "Annotations/000001.xml").unlink()
    with pytest.raises(UserError, match=r"none of the images of .*test.txt has labels: 1 image skipped"):
        voc.read(tmp_path)
