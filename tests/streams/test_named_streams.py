"""Streams by name or by file, built from data sets of one image per class."""

import zipfile

import pytest
from support.data_sets import write_instances, write_nus_wide, write_voc

from lifelabel.errors import UserError
from lifelabel.streams import STREAMS, build
from lifelabel.streams.class_names import COCO_CLASSES, NUS_WIDE_CLASSES, VOC_CLASSES
from lifelabel.streams.named_streams import resolve
from lifelabel.streams.paper import SPLIT_COCO, SPLIT_WIDE

LISTS = {"cocoseq", "nuswideseq"}
"""The streams of PRS. They need its lists too: see test_prs.py."""
DATASET = {name: name.partition("-")[0] for name in STREAMS.keys() - LISTS if name.startswith(("coco", "voc"))} | {
    "split-coco": "coco", "split-wide": "nus-wide", "nus-wide": "nus-wide",
}  # fmt: skip
"""The data set of each stream that needs one."""


def write_data_sets(folder):
    """One image of each class of COCO and VOC, in 2012 with a difficult person, and five of each class of NUS-WIDE."""
    for part in ("train2014", "val2014"):
        labels = {f"COCO_{part}_{n:012}.jpg": [name] for n, name in enumerate(COCO_CLASSES)}
        write_instances(folder / "coco", part, COCO_CLASSES, labels)
    for year, parts in (("2007", ("trainval", "test")), ("2012", ("train", "val"))):
        more = [("person", True)] if year == "2012" else []
        sets = [{f"{k}{n:05}": [(name, False), *more] for n, name in enumerate(VOC_CLASSES)} for k in range(2)]
        write_voc(folder / "voc", year, dict(zip(parts, sets, strict=True)))
    labels = {f"{n}.jpg": {NUS_WIDE_CLASSES[n % 81]} for n in range(5 * 81)}
    names = list(labels)
    write_nus_wide(folder / "nus-wide", NUS_WIDE_CLASSES, labels, {"Train": names[81:], "Test": names[:81]})


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """The folder of each data set."""
    folder = tmp_path_factory.mktemp("data")
    write_data_sets(folder)
    return folder


SIZES = {
    "split-coco": [4] * 10, "split-wide": [3] * 7, "coco-b0-c10": [10] * 8, "coco-b40-c10": [40, 10, 10, 10, 10],
    "coco-b0-c5": [5] * 16, "coco-b20-c4": [20, *[4] * 15], "voc-b4-c2": [4, *[2] * 8], "voc-b5-c3": [5, *[3] * 5],
    "voc-b0-c4": [4] * 5, "voc-b10-c2": [10, 2, 2, 2, 2, 2], "coco": [10] * 8, "nus-wide": [9] * 9, "voc": [4] * 5,
}  # fmt: skip
CLASSES = {
    "split-coco": [name for task in SPLIT_COCO for name in task],
    "split-wide": [name for task in SPLIT_WIDE for name in task],
    "coco-b0-c10": sorted(COCO_CLASSES),
    "voc-b10-c2": sorted(VOC_CLASSES),
    "nus-wide": NUS_WIDE_CLASSES,
}
OVERLAP = {name for name in SIZES if "-b" in name}


@pytest.mark.parametrize("name", SIZES)
def test_the_tasks_and_the_protocol_of_a_named_stream(name, roots):
    stream = build(name, {"root": str(roots / DATASET[name])})
    assert (stream.name, stream.dataset) == (name, DATASET[name])
    assert [len(task.classes) for task in stream.tasks] == SIZES[name]
    assert stream.rules["protocol"] == ("overlap" if name in OVERLAP else "disjoint")
    assert list(stream.classes) == list(CLASSES.get(name, stream.classes))


def test_these_streams_need_a_folder():
    assert set(DATASET) == set(SIZES) == set(STREAMS) - {"scenes", "table", "published", "manifest"} - LISTS
    assert {name for name, source in STREAMS.items() if not source.photographs} == {"scenes"}


def test_options_of_the_data_set_are_used_and_in_the_rules(roots):
    official, share = (build("nus-wide", {"root": str(roots / "nus-wide"), "split": s}) for s in ("official", "share"))
    assert set(official.test.names) == {f"{n}.jpg" for n in range(81)} != set(share.test.names)
    assert len(share.test) == round(0.221 * 405)
    assert official.rules["split"] == "official" and "test_share" not in official.rules
    assert (share.rules["split"], share.rules["test_share"]) == ("share", 0.221)
    assert build("split-wide", {"root": str(roots / "nus-wide")}).rules["split"] == "share"  # as in the paper

    persons = {}
    for difficult in ("positive", "negative"):
        voc = build("voc", {"root": str(roots / "voc"), "year": "2012", "difficult": difficult})
        assert (voc.rules["year"], voc.rules["difficult"]) == ("2012", difficult)
        persons[difficult] = int(voc.train.labels.counts()[voc.classes.index("person")])
    assert persons == {"positive": 20, "negative": 1}
    assert build("voc", {"root": str(roots / "voc")}).train.names[0].startswith("VOC2007/")


@pytest.mark.parametrize("name", sorted({*DATASET, *LISTS}))
def test_a_stream_without_the_folder_of_its_data_set(name, tmp_path):
    with pytest.raises(UserError, match=rf"^stream {name} needs the folder of its images and labels: give --root DIR$"):
        build(name, {})
    message = rf"^stream {name}: there is no folder {tmp_path}/none; give another --root DIR$"
    with pytest.raises(UserError, match=message):
        build(name, {"root": str(tmp_path / "none")})


@pytest.mark.parametrize("name", ["table", "published", "manifest"])
def test_a_stream_without_its_file_or_with_a_folder_of_images_that_does_not_exist(name, tmp_path):
    (tmp_path / "file").touch()
    none = tmp_path / "none"
    for given, message in (
        ({}, f"^stream {name} needs a file: give its path in place of the name '{name}'$"),
        ({"file": "none"}, f"^there is no {none}: give the path of the file or folder "),
        ({"file": "file", "root": "none"}, f"^stream {name}: there is no folder {none}; give another --root DIR$"),
    ):
        with pytest.raises(UserError, match=message):
            build(name, {option: str(tmp_path / path) for option, path in given.items()})


# Files in place of a name


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a.csv", "table"), ("a.tsv", "table"), ("a.txt", "table"), ("a.parquet", "table"), ("a.pq", "table"),
        ("a.yaml", "manifest"), ("a.yml", "manifest"), ("a.zip", "published"), ("Photos.CSV", "table"),
        ("split.coco.ZIP", "published"), ("folder.csv/a.yaml", "manifest"),
    ],
)  # fmt: skip
def test_the_stream_of_a_file_follows_from_its_suffix(file, name):
    given = {"root": "photos"}
    assert resolve(file, given) == (name, {"root": "photos", "file": file})
    assert given == {"root": "photos"}


def test_a_name_is_not_a_file_and_a_folder_is_a_published_split(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("coco", "mine"):
        (tmp_path / folder).mkdir()
    assert resolve("coco", {"tasks": 2}) == ("coco", {"tasks": 2})
    assert resolve("mine", {}) == ("published", {"file": "mine"})


@pytest.mark.parametrize("text", ["split-cocoo", "photos.json", "no/folder"])
def test_what_is_neither_a_name_nor_a_file(text):
    with pytest.raises(UserError) as caught:
        resolve(text, {})
    hint = "did you mean 'split-coco'? " if text == "split-cocoo" else ""
    known = ", ".join(sorted([*STREAMS, "FILE.csv", "FILE.yaml", "FILE.zip"]))
    assert str(caught.value) == f"unknown stream '{text}': {hint}(known: {known})"


def test_a_table_and_a_zip_are_built_by_their_path(tmp_path):
    rows = [f"{n}.jpg,{'a;b' if n % 2 else 'a'},{'test' if n == 4 else 'train'}" for n in range(5)]
    (tmp_path / "photos.csv").write_text("\n".join(["image,labels,split", *rows]))
    stream = build(str(tmp_path / "photos.csv"), {"tasks": 2})
    assert (stream.name, stream.classes) == ("photos", ("a", "b"))  # the most frequent class is the first
    assert stream.fingerprint == build("table", {"file": str(tmp_path / "photos.csv"), "tasks": 2}).fingerprint
    with zipfile.ZipFile(tmp_path / "split.zip", "w") as archive:
        for part in ("train", "test"):
            archive.writestr(f"task0/{part}.csv", "1.jpg,1,0\n2.jpg,0,1\n")
    assert [len(task.classes) for task in build(str(tmp_path / "split.zip"), {}).tasks] == [2]


def test_an_unknown_option_is_that_of_the_stream():
    with pytest.raises(UserError, match=r"^unknown option of stream voc-b0-c4 'yaer': did you mean 'year'\?"):
        build("voc-b0-c4", {"yaer": "2007"})


@pytest.mark.parametrize("name", ["x" * 100_000, "a\0b"], ids=["long", "null"])
def test_a_name_that_cannot_be_a_path_is_unknown(name):
    with pytest.raises(UserError, match=r"^unknown stream '") as caught:
        resolve(name, {})
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "option", "value", "line"),
    [
        ("nus-wide", "split", "oficial", "unknown value for stream.split 'oficial': did you mean 'official'"),
        ("nus-wide", "test_share", 0, "stream.test_share must be more than 0, not 0.0"),
        ("nus-wide", "test_share", 1.0, "stream.test_share must be at most 0.9, not 1.0"),
        ("voc", "year", "2010", "unknown value for stream.year '2010'"),
        ("voc", "difficult", "ignore", "unknown value for stream.difficult 'ignore'"),
    ],
)
def test_wrong_options_of_a_data_set_are_refused(name, option, value, line):
    with pytest.raises(UserError, match=f"^{line}"):
        build(name, {option: value})
