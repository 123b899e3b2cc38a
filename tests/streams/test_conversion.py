"""Tables from folders of images and from the exports of annotation tools. The samples follow the published formats."""

import csv
import json
import os

import pytest

from lifelabel.errors import UserError
from lifelabel.streams import conversion as module
from lifelabel.streams import table
from lifelabel.streams.conversion import convert


class Here:
    """The folder of a test: files are written below it, sources in it converted, and the table read."""

    def __init__(self, folder):
        self.folder, self.out = folder, folder / "out.csv"

    def write(self, name, content=""):
        """Write a file, of JSON or of text. Images are empty files: they are not decoded. Returns its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def touch(self, *names):
        for name in names:
            self.write(name)

    def run(self, source, **options):
        return convert(self.folder / source, self.out, **{"overwrite": True, **options})

    def refused(self, message, source, **options):
        with pytest.raises(UserError, match=message):
            self.run(source, **options)

    def column(self, name):
        """A column of the table, by image; None if there is none."""
        return {row["image"]: row.get(name) for row in csv.DictReader(self.out.read_text("utf-8").splitlines())}

    @property
    def rows(self):
        return self.column("labels")

    @property
    def splits(self):
        return self.column("split")


@pytest.fixture
def here(tmp_path):
    return Here(tmp_path)


# Folders


def test_the_first_folder_is_the_class(here):
    used = {"dog/1.jpg": "dog", "dog/old/deep/2.JPEG": "dog", "cat/3.webp": "cat", "black, white/4.png": "black, white"}
    others = "5.jpg", "dog/8.HEIC", "_unlabeled/6.jpg", "dog/notes.txt", ".hidden/7.jpg", "cat/._3.jpg"
    here.touch(*(f"photos/{name}" for name in (*used, *others)))
    done = here.run("photos")
    assert here.rows == used
    assert (done.format, done.root, done.splits) == ("folders", here.folder / "photos", {})
    assert (done.images, done.found, done.labels) == (4, 4, 4)
    assert set(done.classes) == {"dog", "cat", "black, white"}
    assert done.problems.lines() == [
        "1 photograph in HEIC, which is not read; convert to JPEG first: dog/8.HEIC",
        "1 file that is not an image: dog/notes.txt",
        "2 images that are in no class folder: 5.jpg, _unlabeled/6.jpg",
    ]
    found = table.read(here.out, done.root, test_share=1, required=("test",))
    assert {name: found.classes[row[0]] for name, row in zip(found.test.names, found.test.labels, strict=True)} == used


def test_folders_of_splits(here):
    here.touch("photos/train/dog/1.jpg", "photos/Valid/dog/x/1.jpg", "photos/test/cat/1.jpg", "photos/train/2.jpg")
    done = here.run("photos")
    assert here.splits == {"train/dog/1.jpg": "train", "Valid/dog/x/1.jpg": "val", "test/cat/1.jpg": "test"}
    assert here.rows["test/cat/1.jpg"] == "cat"
    assert done.splits == {"train": 1, "val": 1, "test": 1}
    assert done.problems.lines() == ["1 image that is in no class folder: train/2.jpg"]
    found = table.read(here.out, done.root)
    assert list(found.train.names) == ["train/dog/1.jpg"] and list(found.test.names) == ["test/cat/1.jpg"]


@pytest.mark.parametrize(
    "rows",
    [
        {"train/1.jpg": "train", "train/red/2.jpg": "train", "car/1.jpg": "car"},  # a class called train
        {"train/cat/1.jpg": "cat", "train/dog/1.jpg": "dog"},  # one split alone
    ],
)
def test_folders_that_are_not_several_splits_give_no_column_split(here, rows):
    here.touch(*(f"photos/{name}" for name in rows))
    assert here.run("photos").splits == {}
    assert here.rows == rows and set(here.splits.values()) == {None}


def test_links_to_folders_are_followed_once(here):
    here.touch("photos/dog/1.jpg", "elsewhere/1.jpg")
    (here.folder / "photos/dog/up").symlink_to(here.folder / "photos")
    (here.folder / "photos/a-dog").symlink_to(here.folder / "photos/dog")
    (here.folder / "photos/cat").symlink_to(here.folder / "elsewhere")
    (here.folder / "photos/self").symlink_to("self")
    done = here.run("photos")
    assert here.rows == {"dog/1.jpg": "dog", "cat/1.jpg": "cat"}
    assert done.problems.counts["links to a folder that was already read"] == 2


def test_files_that_a_table_cannot_name_are_counted(here):
    names = "dog/1.jpg", "dog/a\\b.jpg", "dog/a\nb.jpg", " dog/2.jpg", "x" * 201 + "/1.jpg"
    here.touch(*(f"photos/{name}" for name in names))
    with open(os.fsencode(here.folder / "photos/dog") + b"/\xff.jpg", "w"):
        pass
    done = here.run("photos")
    assert here.rows == {"dog/1.jpg": "dog"}
    assert done.problems.counts == {
        "images with a path that begins or ends with a space": 1,
        "images with a path that is not allowed": 3,
        "images with a class name that is not allowed": 1,
    }


@pytest.mark.parametrize(("name", "reason"), [("a;b", "contains ';'"), ("?a", "begins with '[?]'")])
def test_class_names_with_a_meaning_in_tables_are_refused(here, name, reason):
    here.touch(f"photos/{name}/1.jpg", "photos/dog/1.jpg")
    here.refused(f"^class '{name.replace('?', '[?]')}' {reason}.* rename it in the source$", "photos")


# YOLO and image folders


BOX = "0.5 0.5 0.2 0.3\n"


def test_yolo_has_the_classes_of_the_boxes_and_the_splits_of_data_yaml(here):
    images = "train/images/a.jpg", "train/images/b.png", "valid/images/c.jpg", "valid/images/e.jpg"
    here.touch(*(f"set/{name}" for name in images), "set/extra/images/d.jpg", "set/train/labels/b.txt")
    splits = "train: ../train/images\nval: [valid/images]\ntest: ../test/images\n"
    here.write("set/data.yaml", f"path: ../datasets/mine\n{splits}nc: 2\nnames: ['person', 'car']\n")
    here.write("set/train/labels/a.txt", f"1 {BOX}1 0.1 0.1 0.2 0.1 0.2 0.2\n0 {BOX}\nx {BOX}7 {BOX}")
    here.write("set/valid/labels/c.txt", f"1.0 {BOX}")
    done = here.run("set")
    labels = {"train/images/a.jpg": "car;person", "train/images/b.png": "", "valid/images/c.jpg": "car"}
    assert here.rows == {**labels, "valid/images/e.jpg": ""}
    assert (done.format, done.root, done.found) == ("yolo", here.folder / "set", 4)
    assert done.splits == {"train": 2, "val": 2}
    assert done.problems.lines() == [
        "1 split of data.yaml without a folder: test: ../test/images",
        "1 image that is in no split of data.yaml: extra/images/d.jpg",
        "1 image without a label file, read as images without labels: valid/images/e.jpg",
        "1 line of label files that cannot be read: train/labels/a.txt, line 5",
        "1 box of a class that has no name: class 7 in train/labels/a.txt, line 6",
    ]
    here.write("set/data.yaml", f"train: [train.txt, {here.folder}/set/extra]\nnames: {{0: person, 1: car}}\n")
    here.write("set/train.txt", "./train/images/a.jpg\n../secret.jpg\n\n")
    done = here.run("set/data.yaml")
    assert here.rows == {"train/images/a.jpg": "car;person", "extra/images/d.jpg": ""}
    assert "1 image of train.txt without a file: ../secret.jpg" in done.problems.lines()


def test_yolo_without_data_yaml_needs_the_names(here):
    here.touch("set/images/val/a.jpg", "set/images/train/b.jpg")
    here.write("set/labels/val/a.txt", f"0 {BOX}")
    here.refused(r"is a YOLO data set without class names: add a data\.yaml with names", "set")
    here.write("set/classes.txt", "dog\ncat\n")
    assert (here.run("set").format, here.rows) == ("yolo", {"images/train/b.jpg": "", "images/val/a.jpg": "dog"})
    assert here.splits == {"images/train/b.jpg": "train", "images/val/a.jpg": "val"}
    here.write("set/data.yaml", "names: [dog]\ntrain: /elsewhere/images\n")
    here.refused(r"train is '/elsewhere/images', which is not in .*set: correct the path", "set")
    here.touch("other/images/a.jpg")
    here.write("other/data.yaml", "names: [dog]\ntrain: images\n")
    here.refused(r"other has no label file of an image \(such as labels/a.txt\)", "other")
    here.write("other/data.yaml", "names: &x [dog]\n")
    here.refused("has an anchor", "other")


def test_a_hugging_face_image_folder_has_the_labels_of_its_metadata(here):
    here.touch(*(f"set/train/{i}.png" for i in range(5)), "set/test/0.png", "set/test/dog/1.png")
    boxes = {"bbox": [[1, 2, 3, 4]], "categories": ["dog", "dog", "cat"]}
    objects = [boxes, {"bbox": [], "categories": []}, [{"categories": "cat"}], None]
    lines = [{"file_name": f"{i}.png", "text": "a dog", "objects": each} for i, each in enumerate(objects)]
    here.write("set/train/metadata.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
    here.write("set/test/metadata.csv", "file_name,text,labels\n0.png,x,\"['cat', 'dog']\"\ndog/1.png,y,bird; dog\n")
    done = here.run("set")
    assert (done.format, done.splits) == ("imagefolder", {"train": 3, "test": 2})
    expected = {"test/0.png": "cat;dog", "test/dog/1.png": "bird;dog", "train/0.png": "dog;cat"}
    assert here.rows == {**expected, "train/1.png": "", "train/2.png": "cat"}
    assert done.problems.lines() == [
        "1 image without a value of 'objects.categories': train/3.png",
        "1 image that is in no metadata file: train/4.png",
    ]
    here.write("set/train/metadata.jsonl", '{"file_name": "0.png", "label": 3}\n')
    assert here.run("set/train/metadata.jsonl").classes == ("3",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"file_name": "0.png", "text": "a dog"}', r"no column of labels .*: give --field NAME \(file_name, text\)"),
        ('{"file_name": "0.png", "tags": ["a"], "label": "b"}', r"has several columns .*--field NAME \(tags, label\)"),
        ('{"image": "0.png", "label": "b"}', "has no file_name in row 1; if its folders are classes"),
        ('{"file_name": "0.png", "label": 1.5}', "row 1, label is a fraction"),
        ('{"file_name": "0.png"', "is not valid JSON"),
        ("[1]", "row 1 is a list"),
    ],
)
def test_an_image_folder_without_usable_metadata_is_refused(here, content, message):
    here.touch("set/train/0.png")
    here.write("set/train/metadata.jsonl", content)
    here.refused(message, "set")


# COCO


def coco(*names, **more):
    """A file with one image per name; image i has the classes dog and, if i is odd, cat."""
    shapes = {"bbox": [0, 0, 1, 1], "segmentation": [[0, 0, 1, 1]]}
    return {
        "info": {},
        "images": [{"id": 7 + i, "file_name": name, "width": 4, "height": 4} for i, name in enumerate(names)],
        "annotations": [
            {"id": 2 * i + c, "image_id": 7 + i, "category_id": 3 + c, **shapes}
            for i in range(len(names))
            for c in range(1 + i % 2)
        ],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cat"}, {"id": 5, "name": "bird"}],
        **more,
    }


def test_a_coco_file(here):
    here.write("set/labels.json", coco("a.jpg", "b/c.jpg"))
    here.touch("set/data/a.jpg", "set/data/b/c.jpg")
    done = here.run("set/labels.json")
    assert (done.format, done.root, done.found, done.labels) == ("coco", here.folder / "set", 2, 3)
    assert here.rows == {"data/a.jpg": "dog", "data/b/c.jpg": "dog;cat"}
    assert not done.problems


@pytest.mark.parametrize(
    ("files", "images"),
    [
        (("annotations/instances_train.json", "annotations/instances_val.json"), ("images/train/", "images/val/")),
        (("annotations/Train.json", "annotations/Test.json"), ("images/", "images/")),
        (("train/_annotations.coco.json", "valid/_annotations.coco.json"), ("train/", "valid/")),
        (("train/labels.json", "val/labels.json"), ("train/data/", "val/data/")),
        (("instances_train2017.json", "instances_val2017.json"), ("train2017/", "val2017/")),
    ],
)
def test_coco_files_of_splits(here, files, images):
    for file, folder, name in zip(files, images, ("a.jpg", "b.jpg"), strict=True):
        here.write(f"set/{file}", coco(name))
        here.touch(f"set/{folder}{name}")
    done = here.run("set")
    assert (done.format, done.root, done.found) == ("coco", here.folder / "set", 2)
    assert list(here.splits) == [f"{images[0]}a.jpg", f"{images[1]}b.jpg"]
    assert next(iter(here.splits.values())) == "train" and len(done.splits) == 2


def test_the_root_of_a_file_in_a_folder_of_annotations_is_above_it(here):
    here.write("set/annotations/instances_default.json", coco("a.jpg", "b.jpg"))
    images = ["images/default/a.jpg", "images/default/b.jpg"]
    here.touch(*(f"set/{name}" for name in images))
    done = here.run("set/annotations/instances_default.json")
    assert (done.root, done.found, list(here.rows)) == (here.folder / "set", 2, images)
    assert here.run("set/annotations").root == here.folder / "set"


def test_entries_of_coco_that_cannot_be_used_are_counted(here):
    annotations = [{"image_id": i, "category_id": c} for i, c in ((7, "3"), (99, 3), (7, 9))]
    here.write("x.json", coco("a.jpg", "a.jpg", "../b.jpg", "c.jpg", annotations=annotations))
    done = here.run("x.json")
    assert here.rows == {"a.jpg": "dog", "c.jpg": ""}
    assert done.found == 0 and done.problems.lines() == [
        "1 annotation of an image that is not listed: annotations[1] in x.json",
        "1 annotation of a category that is not listed: annotations[2] in x.json",
        "1 image that occurs again; their labels are united: a.jpg",
        "1 image with a path that is not allowed: '../b.jpg': leads out of its folder (\"..\")",
        "2 images without a file in the folder of images: a.jpg, c.jpg",
    ]


def test_absolute_paths_are_relative_to_their_common_folder_or_to_the_root(here):
    here.touch("photos/a/1.jpg", "photos/b/2.jpg", "moved/a/1.jpg", "moved/b/2.jpg")
    here.write("x.json", coco(f"{here.folder}/photos/a/1.jpg", f"{here.folder}/photos/b/2.jpg"))
    for root, found in ((None, "photos"), (here.folder / "photos", "photos"), (here.folder / "moved", "moved")):
        done = here.run("x.json", root=root)
        assert (done.root, done.found, list(here.rows)) == (here.folder / found, 2, ["a/1.jpg", "b/2.jpg"])
    done = here.run("x.json", root=here.folder)
    assert list(here.rows) == ["photos/a/1.jpg", "photos/b/2.jpg"]
    here.write("y.json", coco("C:\\photos\\a\\1.jpg", "C:\\photos\\b\\2.jpg"))
    assert here.run("y.json", root=here.folder / "photos").found == 2


# Label Studio


def task(image, *results, **more):
    annotations = [{"id": 5, "result": list(results), **more}]
    return {"id": 1, "data": {"image": image}, "annotations": annotations, "predictions": []}


def result(kind, *labels, name="tag"):
    return {"from_name": name, "to_name": "img", "type": kind, "value": {"x": 1.5, "rotation": 0, kind: list(labels)}}


def test_label_studio_json(here):
    note = {"type": "textarea", "value": {"text": ["hm"]}}
    tasks = [
        task("/data/upload/3/0a1b2c3d-a.jpg", result("choices", "dog", "cat"), result("rectanglelabels", "dog")),
        task("/data/local-files/?d=photos/b%20c+1.jpg", result("polygonlabels", "cat")),
        task("s3://bucket/photos/d.jpg", result("brushlabels", "bird"), note),
        task("gs://bucket/e.jpg", result("labels", "bird"), result("ellipselabels", "egg")),
        task("https://example.com/web/f.jpg?size=2"),
        task("g.jpg", result("choices", "dog"), was_cancelled=True),
        {"id": 7, "data": {"image": "h.jpg"}, "annotations": []},
        {"id": 8, "data": {"text": "no image"}, "annotations": [{"result": []}]},
        {"id": 9, "data": {"photo": "/data/upload/i.jpg"}, "completions": [{"result": [result("choices", "dog")]}]},
    ]
    here.write("x.json", tasks)
    done = here.run("x.json")
    expected = {"upload/3/0a1b2c3d-a.jpg": "dog;cat", "photos/b c+1.jpg": "cat", "photos/d.jpg": "bird"}
    expected |= {"e.jpg": "bird;egg", "web/f.jpg": "", "upload/i.jpg": "dog"}
    assert here.rows == expected
    assert (done.format, done.labels, set(done.classes)) == ("label-studio JSON", 7, {"dog", "cat", "bird", "egg"})
    assert done.problems.lines()[:2] == [
        "2 tasks without an annotation: tasks[5] in x.json, tasks[6] in x.json",
        "1 task without an image: tasks[7] in x.json",
    ]


@pytest.mark.parametrize(
    "place", ["upload/3/0a1b2c3d-dog.jpg", "0a1b2c3d-dog.jpg", "images/0a1b2c3d-dog.jpg", "dog.jpg"]
)
def test_uploads_are_found_by_their_path_or_by_their_file_name(here, place):
    here.write("x.json", [task("/data/upload/3/0a1b2c3d-dog.jpg", result("choices", "dog"))])
    here.touch(f"photos/{place}")
    assert (here.run("x.json", root=here.folder / "photos").found, list(here.rows)) == (1, [place])


def test_label_studio_with_the_labels_of_one_field(here):
    results = result("choices", "dog", name="what"), result("choices", "blurred", name="quality")
    here.write("x.json", [task("a.jpg", *results)])
    here.run("x.json")
    assert here.rows == {"a.jpg": "dog;blurred"}
    here.run("x.json", field="what")
    assert here.rows == {"a.jpg": "dog"}
    here.refused(r"unknown field of .*x.json 'waht': did you mean 'what'", "x.json", field="waht")


def test_label_studio_json_min(here):
    common = {"annotator": 1, "annotation_id": 3, "created_at": "2024", "updated_at": "2024", "lead_time": 2.5}
    box = {"x": 1, "y": 2, "rectanglelabels": ["cat"], "original_width": 100}
    records = [
        {"image": "a.jpg", "id": 1, "choice": "dog", **common},
        {"image": "b.jpg", "id": 2, "choice": {"choices": ["dog", "cat"]}, "comment": "nice", **common},
        {"image": "c.jpg", "id": 3, "label": [box, {**box, "rectanglelabels": ["bird"]}], **common},
        {"image": "c.jpg", "id": 3, "choice": "dog", **common, "annotation_id": 4},
        {"image": "d.jpg", "id": 4, **common},
        {"image": "e.jpg", "id": 5, **common, "annotation_id": None},
    ]
    here.write("x.json", records)
    done = here.run("x.json")
    assert done.format == "label-studio JSON-MIN"
    assert here.rows == {"a.jpg": "dog", "b.jpg": "dog;cat", "c.jpg": "cat;bird;dog", "d.jpg": ""}
    assert done.problems.counts["tasks without an annotation"] == 1


@pytest.mark.parametrize(("name", "delimiter"), [("x.csv", ","), ("x.tsv", "\t")])
def test_label_studio_csv(here, name, delimiter):
    boxes = json.dumps([{"x": 1.5, "rectanglelabels": ["cat"]}, {"x": 2.5, "rectanglelabels": ["bird"]}])
    records = ("a.jpg", "dog", ""), ("b.jpg", '{"choices": ["dog", "cat"]}', ""), ("c.jpg", "", boxes)
    with open(here.folder / name, "w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["image", "id", "choice", "label", "comment", "annotator", "annotation_id", "lead_time"])
        writer.writerows([*record[:1], "1", *record[1:], "so; so", "1", "2", "3.5"] for record in records)
    done = here.run(name)
    assert done.format == "label-studio CSV"
    assert here.rows == {"a.jpg": "dog", "b.jpg": "dog;cat", "c.jpg": "cat;bird"}


def test_a_text_column_of_label_studio_must_be_named_if_there_are_several(here):
    here.write("x.csv", "image,animal,annotation_id\na.jpg,dog,1\nb.jpg,cat,2\n")
    here.run("x.csv")
    assert here.rows == {"a.jpg": "dog", "b.jpg": "cat"}
    here.write("x.csv", "photo,animal,comment,annotation_id\na.jpg,dog,nice,1\nb.jpg,cat,nicer,2\n")
    here.refused(r"not clear which column has the labels: give --field NAME \(animal, comment\)", "x.csv")
    here.run("x.csv", field="animal")
    assert here.rows == {"a.jpg": "dog", "b.jpg": "cat"}


# CVAT


def datumaro(*items):
    labels = [{"name": name, "parent": "", "attributes": []} for name in ("dog", "cat")]
    return {"info": {}, "categories": {"label": {"labels": labels, "attributes": []}}, "items": list(items)}


def item(key, *labels, **more):
    kinds = "label", "bbox", "polygon"
    annotations = [{"id": n, "type": kinds[n], "label_id": label, "points": [1.0]} for n, label in enumerate(labels)]
    return {"id": key, "annotations": annotations, "attr": {"frame": 0}, **more}


def test_cvat_datumaro(here):
    items = [
        item("a", 0, 1, 1, image={"path": "a.jpg", "size": [4, 4]}),
        item("sub/b", 1, media={"path": "sub/b.jpg"}),
        item("c", image={"path": ""}),
        item("gone", 0),
        item("d.jpg", None, 0),
    ]
    here.write("set/annotations/default.json", datumaro(*items))
    expected = {"a.jpg": "dog;cat", "sub/b.jpg": "cat", "c.png": "", "d.jpg": "dog"}
    here.touch(*(f"set/images/default/{name}" for name in expected))
    done = here.run("set", format="cvat")
    assert here.rows == {f"images/default/{name}": labels for name, labels in expected.items()}
    assert (done.format, done.root, done.found) == ("cvat Datumaro", here.folder / "set", 4)
    assert done.problems.lines() == [
        "1 annotation without a label that is listed: items[4].annotations[0] in default.json",
        "1 image that has no file: gone in default.json",
    ]


@pytest.mark.parametrize("source", ["set", "set/annotations.xml"])
def test_cvat_xml_is_refused_with_the_exports_that_work(here, source):
    here.write("set/annotations.xml", "<annotations/>")
    here.touch("set/images/a.jpg")
    here.refused(r"annotations.xml: XML cannot be read; .*Datumaro 1.0 or COCO 1.0 .* ImageNet 1.0", source)


# FiftyOne


def label(name, kind="Classification"):
    return {"_id": {"$oid": "6"}, "_cls": kind, "tags": [], "attributes": {}, "label": name, "confidence": None}


def sample(path, value, *tags, **more):
    shared = {"filepath": path, "tags": list(tags), "metadata": None, "_media_type": "image"}
    return {**shared, "ground_truth": value, **more}


def several(kind, *names):
    """The value of a field with several labels: of the kind classifications or detections."""
    return {"_cls": kind.title(), kind: [label(name, kind.title()[:-1]) for name in names]}


def test_fiftyone_samples(here):
    samples = [
        sample("data/a.jpg", label("dog"), "train", "mine", predictions=several("detections", "no")),
        sample("data/b.jpg", several("classifications", "cat", "bird"), "validation"),
        sample("data/c.jpg", several("detections", "dog", "cat"), "test"),
        sample("data/d.jpg", several("detections"), "train"),
        sample("data/e.jpg", None, "train"),
        sample("data/f.jpg", label("dog")),
        sample("data/g.jpg", label("dog"), "train", "test"),
    ]
    here.write("set/samples.json", {"samples": samples})
    here.write("set/metadata.json", {"name": "mine", "version": "1.0"})
    here.touch(*(f"set/data/{name}.jpg" for name in "abcd"))
    done = here.run("set")
    assert here.rows == {"data/a.jpg": "dog", "data/b.jpg": "cat;bird", "data/c.jpg": "dog;cat", "data/d.jpg": ""}
    assert list(here.splits.values()) == ["train", "val", "test", "train"]
    assert (done.format, done.root, done.found) == ("fiftyone samples", here.folder / "set", 4)
    assert done.problems.lines() == [
        "1 sample without the field 'ground_truth': samples[4] in samples.json",
        "1 sample with the tags of several splits: samples[6] in samples.json",
        "1 file that is not an export, not used: metadata.json",
        "2 images without a split, left out because other images have one: data/f.jpg, data/g.jpg",
    ]
    here.run("set", field="predictions")
    assert here.rows == {"data/a.jpg": "no"}


def test_several_fields_of_fiftyone_need_a_choice(here):
    one = {"filepath": "a.jpg", "mine": label("dog"), "yours": label("cat")}
    here.write("samples.json", {"samples": [one]})
    here.refused(r"has several fields of labels: give --field NAME \(mine, yours\)", "samples.json")
    here.write("samples.json", {"samples": [{"filepath": "a.jpg"}]})
    here.refused("has no field of labels", "samples.json")


@pytest.mark.parametrize(
    ("classes", "targets"),
    [
        (["dog", "cat"], [0, [0, 1], []]),
        (["dog", "cat"], [{"label": 0, "confidence": 0.5}, [{"label": 0}, {"label": 1, "bounding_box": [0]}], []]),
        (None, ["dog", ["dog", "cat"], []]),
    ],
)
def test_fiftyone_labels(here, classes, targets):
    labels = dict(zip(("a", "sub/b", "c.v2"), targets, strict=True))
    here.write("set/labels.json", {"classes": classes, "labels": {**labels, "none": None, "gone": "dog"}})
    here.touch("set/data/a.jpg", "set/data/sub/b.png", "set/data/c.v2.jpg")
    done = here.run("set")
    assert here.rows == {"data/a.jpg": "dog", "data/sub/b.png": "dog;cat", "data/c.v2.jpg": ""}
    assert (done.format, done.found) == ("fiftyone labels", 3)
    assert done.problems.counts == {"images without a label": 1, "images that have no file": 1}


def test_fiftyone_labels_that_are_not_in_the_list_are_counted(here):
    here.write("labels.json", {"classes": ["dog"], "labels": {"a.jpg": [0, 1, -1]}})
    assert here.run("labels.json").problems.counts["labels that are not in the list of classes"] == 2
    assert here.rows == {"a.jpg": "dog"}


def test_fiftyone_csv(here):
    text = 'filepath,tags,ground_truth.detections.label\na.jpg,"train,x","dog,cat,dog"\nb.jpg,test,cat\nc.jpg,train,\n'
    here.write("set/labels.csv", text)
    here.touch("set/data/a.jpg", "set/data/b.jpg", "set/data/c.jpg")
    done = here.run("set")
    assert here.rows == {"data/a.jpg": "dog;cat", "data/b.jpg": "cat", "data/c.jpg": ""}
    assert (done.format, done.found, done.splits) == ("fiftyone CSV", 3, {"train": 2, "test": 1})
    assert here.run("set", field="ground_truth").labels == 3
    here.write("set/labels.csv", "filepath,tags\na.jpg,train\n")
    here.refused(r"no column of labels: export it with the fields filepath, tags and FIELD.label", "set/labels.csv")


# What is refused


WRONG = [
    (coco("a.jpg", annotations=[{"image_id": 7, "category_id": [3]}]), "annotations[0].category_id is a list"),
    (coco("a.jpg", annotations=[{"image_id": 7}]), "annotations[0].category_id is missing"),
    (coco("a.jpg", annotations=[7]), "annotations[0] is a whole number, but must be an object"),
    (coco("a.jpg", images=[{"id": 1, "file_name": None}]), "images[0].file_name is missing"),
    (coco("a.jpg", images=[{"id": True, "file_name": "a"}]), "images[0].id is true or false"),
    (coco("a.jpg", images=[{"id": 1, "file_name": "a"}, {"id": "1", "file_name": "b"}]), "images[1].id is 1, w"),
    (coco("a.jpg", categories=[{"id": 1, "name": 2}]), "categories[0].name is a whole number, but must be a text"),
    (coco("a.jpg", categories=[{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]), "categories[1].id is 1, which an e"),
    ([task("a.jpg", {"value": []})], "tasks[0].annotations[0].result[0].value is a list, but must be an object"),
    ([task("a.jpg", result("choices", 1))], "tasks[0].annotations[0].result[0].value.choices[0] is a whole number"),
    ([task("a.jpg"), 5], "tasks[1] is a whole number"),
    ([{"data": {"image": "a.jpg"}, "annotations": {"a": 1}}], "tasks[0].annotations is an object, but must be a list"),
    ([{"image": "a.jpg", "label": [{"labels": 1}], "annotation_id": 1}], "rows[0].label.labels is a whole number"),
    (datumaro(item("a", "x")), "items[0].annotations[0].label_id is a text"),
    (datumaro(item("a", image=[])), "items[0].image is a list"),
    ({"items": [], "categories": {}}, "categories.label is missing"),
    ({"samples": [sample(None, label("dog"))]}, "samples[0].filepath is missing"),
    ({"samples": [sample("a", label("dog")), sample("b", 3)]}, "samples[1].ground_truth is a whole number"),
    ({"samples": [sample("a", {"detections": [{"label": 3}]})]}, "samples[0].ground_truth.label is a whole number"),
    ({"classes": [1], "labels": {}}, "classes[0] is a whole number"),
    ({"classes": [], "labels": {"a%s": 0.5}}, "labels['a%s'] is a fraction, but must be a whole number or a text"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_value_of_the_wrong_type_is_refused_with_its_place(here, content, message):
    path = here.write("x.json", content)
    with pytest.raises(UserError) as error:
        here.run("x.json")
    assert str(error.value).startswith(f"{path}: {message}")
    assert not (here.folder / "out.csv").exists()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", '{"images": [', "is not valid JSON: Expecting value.*; export it again"),
        ("x.json", "[" * 200_000, "is nested too deeply"),
        ("x.json", '{"a": ' + "9" * 5000 + "}", "is not valid JSON"),
        ("x.json", "{}", "is not an export that is known: give an export of COCO"),
        ("x.json", "[]", "is not an export that is known"),
        ("x.csv", "image,labels\na.jpg,dog\n", "is not an export that is known: if it is a table already"),
        ("x.csv", 'image,annotator\n"a', "line 2 cannot be read: unexpected end of data; export it again"),
        ("x.csv", "image,annotator\n" + "a" * 140_000, "line 2 cannot be read: .*; choose the JSON export instead"),
        ("x.zip", "", "is an archive: unpack it and give the folder"),
        ("x.txt", "", "cannot be read: give a folder of images, or an export as .json or .csv"),
        ("x/a.json", "{", "a.json is not valid JSON.*; if its folders are classes, give --format folders"),
        ("x/a.jpg", "", "folders: there is no image that can be used .1 image that is in no class folder."),
        ("x/note.txt", "", "there is no image that can be used .1 file that is not an image."),
    ],
)
def test_files_that_cannot_be_read(here, name, text, message):
    here.write(name, text)
    here.refused(message, name.split("/")[0])


def test_bytes_that_are_not_read(here, monkeypatch):
    monkeypatch.setattr("lifelabel.streams.label_files._MAX_BYTES", 1000)
    path = here.folder / "x.csv"
    path.write_bytes(b"image,annotator,choice\na.jpg,1,caf\xe9\n")
    here.refused("is not UTF-8: see line 2; save it as", "x.csv")
    path.write_bytes(b"x" * 2000)
    here.refused("more than 1,000 bytes", "x.csv")
    path.unlink()
    os.mkfifo(path)
    here.refused("not a regular file", "x.csv")


def test_the_format_must_fit(here):
    here.write("x.json", coco("a.jpg"))
    here.touch("photos/dog/1.jpg")
    for format in ("coco", "label-studio", "cvat", "fiftyone"):
        assert here.run("x.json", format=format).format == "coco"
    for format in ("folders", "cvat", "fiftyone"):  # both tools export ImageNet's layout
        assert here.run("photos", format=format).format == "folders"
    here.refused(r"x.json is not a folder: --format folders needs", "x.json", format="folders")
    here.refused("photos has no coco export", "photos", format="coco")
    here.write("y.json", datumaro(item("a.jpg", 0)))
    here.refused(r"another format .cvat Datumaro.: leave out --format fiftyone", "y.json", format="fiftyone")
    here.refused("unknown format 'coca': did you mean 'coco'", "x.json", format="coca")
    here.refused("leave out --root", "photos", root=here.folder)


def test_folders_with_other_json_files_are_still_folders(here):
    here.touch("photos/dog/1.jpg")
    here.write("photos/notes.json", {"by": "me"})
    assert here.run("photos").format == "folders"
    here.write("photos/broken.json", "{")
    assert here.run("photos", format="folders").problems.counts["files that are not an image"] == 2


def test_exports_of_several_formats_or_too_many_files_are_refused(here, monkeypatch):
    here.write("set/a.json", coco("a.jpg"))
    here.write("set/b.json", datumaro(item("a.jpg", 0)))
    here.refused(r"several formats .coco, cvat Datumaro.: give one of the files", "set")
    monkeypatch.setattr(module, "_MAX_FILES", 1)
    here.refused("has 2 JSON and CSV files: give one exported file", "set")


def test_an_image_in_two_splits_is_a_training_image(here):
    here.write("set/train.json", coco("a.jpg", "b.jpg"))
    here.write("set/test.json", coco("c.jpg", "b.jpg"))
    done = here.run("set")
    assert done.problems.counts["images that occur again in another split; the first one counts"] == 1
    assert here.splits == {"a.jpg": "train", "b.jpg": "train", "c.jpg": "test"}


@pytest.mark.parametrize(
    ("source", "out", "options", "message"),
    [
        ("none.json", "out.csv", {}, "coco: none of the images has a label"),
        ("x.json", "there.csv", {"overwrite": False}, r"there.csv exists: give another --out, or --overwrite"),
        ("x.json", "out.txt", {}, "must end in .csv"),
        ("x.json", "folder.csv", {}, "exists"),
        ("x.json", "x.json/a/b.csv", {}, "cannot write to"),
        ("z.csv", "z.csv", {}, "is the source itself"),
        ("nowhere", "out.csv", {}, r"there is no .*nowhere: give a folder of images"),
        ("x.json", "out.csv", {"root": "nowhere"}, r"there is no folder .*nowhere: give another --root DIR"),
    ],
)
def test_labels_and_the_output_are_checked(here, source, out, options, message):
    here.write("none.json", coco("a.jpg", annotations=[]))
    here.write("x.json", coco("a.jpg"))
    here.touch("there.csv", "folder.csv/a.jpg", "z.csv")
    options = options | ({"root": here.folder / options["root"]} if "root" in options else {})
    here.out = here.folder / out
    here.refused(message, source, **options)


def test_the_table_may_replace_one_or_be_in_a_new_folder(here):
    here.write("x.json", coco("a.jpg"))
    here.touch("out.csv")
    here.run("x.json")
    assert here.rows == {"a.jpg": "dog"}
    here.out = here.folder / "new/folder/out.csv"
    here.run("x.json")
    assert here.rows == {"a.jpg": "dog"}
