"""Tables from folders of images and from the exports of annotation tools. The samples follow the published formats."""

import contextlib
import csv
import json
import os

import pytest

from lifelabel.errors import UserError
from lifelabel.streams import conversion as module
from lifelabel.streams import table
from lifelabel.streams.conversion import convert


@pytest.fixture
def run(tmp_path):
    """`convert` of a source below the folder of the test."""
    return lambda source, **options: convert(tmp_path / source, tmp_path / "out.csv", **options)


@pytest.fixture
def write(tmp_path):
    """Write a file: JSON, or text. Returns its path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


@pytest.fixture
def touch(tmp_path):
    """Empty files: images are not decoded."""

    def touch(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    return touch


def rows(tmp_path):
    """The rows of the table: labels by image."""
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        return {row["image"]: row["labels"] for row in csv.DictReader(file)}


def splits(tmp_path):
    with open(tmp_path / "out.csv", encoding="utf-8", newline="") as file:
        return {row["image"]: row.get("split") for row in csv.DictReader(file)}


def read(tmp_path, root):
    """What the reader of tables makes of the table: classes, and labels by image."""
    for seed in range(20):  # with few images, some seeds leave no training or no test image
        with contextlib.suppress(UserError):
            found = table.read(tmp_path / "out.csv", root, test_share=0.5, seed=seed)
            break
    pools = [(pool.names, pool.labels) for pool in (found.train, found.test)]
    return set(found.classes), {
        name: {found.classes[c] for c in labels[row]} for names, labels in pools for row, name in enumerate(names)
    }


# Folders


def test_the_first_folder_is_the_class(run, touch, tmp_path):
    touch("photos/dog/1.jpg", "photos/dog/old/deep/2.JPEG", "photos/cat/3.webp", "photos/black, white/4.png")
    touch(
        "photos/5.jpg",
        "photos/dog/8.HEIC",
        "photos/_unlabeled/6.jpg",
        "photos/dog/notes.txt",
        "photos/.hidden/7.jpg",
        "photos/cat/._3.jpg",
    )
    done = run("photos")
    expected = {
        "dog/1.jpg": "dog",
        "dog/old/deep/2.JPEG": "dog",
        "cat/3.webp": "cat",
        "black, white/4.png": "black, white",
    }
    assert rows(tmp_path) == expected
    assert (done.format, done.root, done.images, done.found, done.labels) == ("folders", tmp_path / "photos", 4, 4, 4)
    assert set(done.classes) == {"dog", "cat", "black, white"} and done.splits == {}
    assert done.problems.lines() == [
        "1 photograph in HEIC, which is not read; convert to JPEG first: dog/8.HEIC",
        "1 file that is not an image: dog/notes.txt",
        "2 images that are in no class folder: 5.jpg, _unlabeled/6.jpg",
    ]
    assert read(tmp_path, done.root)[1] == {name: {label} for name, label in expected.items()}


def test_folders_of_splits(run, touch, tmp_path):
    touch("photos/train/dog/1.jpg", "photos/Valid/dog/x/1.jpg", "photos/test/cat/1.jpg", "photos/train/2.jpg")
    done = run("photos")
    assert splits(tmp_path) == {"train/dog/1.jpg": "train", "Valid/dog/x/1.jpg": "val", "test/cat/1.jpg": "test"}
    assert rows(tmp_path)["test/cat/1.jpg"] == "cat"
    assert done.splits == {"train": 1, "val": 1, "test": 1}
    assert done.problems.lines() == ["1 image that is in no class folder: train/2.jpg"]
    found = table.read(tmp_path / "out.csv", done.root)
    assert list(found.train.names) == ["train/dog/1.jpg"] and list(found.test.names) == ["test/cat/1.jpg"]


def test_a_class_called_train_is_a_class_if_other_classes_are_beside_it(run, touch, tmp_path):
    touch("photos/train/1.jpg", "photos/train/red/2.jpg", "photos/car/1.jpg")
    run("photos")
    assert rows(tmp_path) == {"train/1.jpg": "train", "train/red/2.jpg": "train", "car/1.jpg": "car"}
    assert set(splits(tmp_path).values()) == {None}


def test_one_split_alone_is_not_written(run, touch, tmp_path):
    touch("photos/train/dog/1.jpg", "photos/train/cat/1.jpg")
    assert run("photos").splits == {}
    assert rows(tmp_path) == {"train/cat/1.jpg": "cat", "train/dog/1.jpg": "dog"}
    assert set(splits(tmp_path).values()) == {None}


def test_links_to_folders_are_followed_once(run, touch, tmp_path):
    touch("photos/dog/1.jpg", "elsewhere/1.jpg")
    (tmp_path / "photos/dog/up").symlink_to(tmp_path / "photos")
    (tmp_path / "photos/a-dog").symlink_to(tmp_path / "photos/dog")
    (tmp_path / "photos/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "photos/self").symlink_to("self")
    done = run("photos")
    assert rows(tmp_path) == {"dog/1.jpg": "dog", "cat/1.jpg": "cat"}
    assert done.problems.counts["links to a folder that was already read"] == 2


def test_files_that_a_table_cannot_name_are_counted(run, touch, tmp_path):
    touch(
        "photos/dog/1.jpg",
        "photos/dog/a\\b.jpg",
        "photos/dog/a\nb.jpg",
        "photos/ dog/2.jpg",
        "photos/" + "x" * 201 + "/1.jpg",
    )
    with open(os.fsencode(tmp_path / "photos/dog") + b"/\xff.jpg", "w"):
        pass
    done = run("photos")
    assert rows(tmp_path) == {"dog/1.jpg": "dog"}
    assert done.problems.counts == {
        "images with a path that begins or ends with a space": 1,
        "images with a path that is not allowed": 3,
        "images with a class name that is not allowed": 1,
    }


@pytest.mark.parametrize(("name", "reason"), [("a;b", "contains ';'"), ("?a", "begins with '[?]'")])
def test_class_names_with_a_meaning_in_tables_are_refused(run, touch, name, reason):
    touch(f"photos/{name}/1.jpg", "photos/dog/1.jpg")
    with pytest.raises(UserError, match=f"^class '{name.replace('?', '[?]')}' {reason}.* rename it in the source$"):
        run("photos")


def test_a_folder_with_many_files_is_not_decoded(run, touch, tmp_path, monkeypatch):
    touch(*(f"photos/c{i % 7}/{i}.jpg" for i in range(3000)))
    monkeypatch.setattr("PIL.Image.open", None)
    assert run("photos").images == len(rows(tmp_path)) == 3000


# YOLO and image folders


BOX = "0.5 0.5 0.2 0.3\n"


def test_yolo_has_the_classes_of_the_boxes_and_the_splits_of_data_yaml(run, write, touch, tmp_path):
    images = (
        "train/images/a.jpg",
        "train/images/b.png",
        "valid/images/c.jpg",
        "extra/images/d.jpg",
        "valid/images/e.jpg",
    )
    touch(*(f"set/{name}" for name in images), "set/train/labels/b.txt")
    write("set/data.yaml", "path: ../datasets/mine\ntrain: ../train/images\nval: [valid/images]\ntest: ../test/images\n"
          "nc: 2\nnames: ['person', 'car']\n")  # fmt: skip
    write("set/train/labels/a.txt", f"1 {BOX}1 0.1 0.1 0.2 0.1 0.2 0.2\n0 {BOX}\nx {BOX}7 {BOX}")
    write("set/valid/labels/c.txt", f"1.0 {BOX}")
    done = run("set")
    labels = {"train/images/a.jpg": "car;person", "train/images/b.png": "", "valid/images/c.jpg": "car"}
    assert rows(tmp_path) == {**labels, "valid/images/e.jpg": ""}
    assert (done.format, done.root, done.found) == ("yolo", tmp_path / "set", 4)
    assert done.splits == {"train": 2, "val": 2}
    assert done.problems.lines() == [
        "1 split of data.yaml without a folder: test: ../test/images",
        "1 image that is in no split of data.yaml: extra/images/d.jpg",
        "1 image without a label file, read as images without labels: valid/images/e.jpg",
        "1 line of label files that cannot be read: train/labels/a.txt, line 5",
        "1 box of a class that has no name: class 7 in train/labels/a.txt, line 6",
    ]
    write("set/data.yaml", f"train: [train.txt, {tmp_path}/set/extra]\nnames: {{0: person, 1: car}}\n")
    write("set/train.txt", "./train/images/a.jpg\n../secret.jpg\n\n")
    done = run("set/data.yaml", overwrite=True)
    assert rows(tmp_path) == {"train/images/a.jpg": "car;person", "extra/images/d.jpg": ""}
    assert "1 image of train.txt without a file: ../secret.jpg" in done.problems.lines()


def test_yolo_without_data_yaml_needs_the_names(run, write, touch, tmp_path):
    touch("set/images/val/a.jpg", "set/images/train/b.jpg")
    write("set/labels/val/a.txt", f"0 {BOX}")
    with pytest.raises(UserError, match=r"is a YOLO data set without class names: add a data\.yaml with names"):
        run("set")
    write("set/classes.txt", "dog\ncat\n")
    assert (run("set").format, rows(tmp_path)) == ("yolo", {"images/train/b.jpg": "", "images/val/a.jpg": "dog"})
    assert splits(tmp_path) == {"images/train/b.jpg": "train", "images/val/a.jpg": "val"}
    write("set/data.yaml", "names: [dog]\ntrain: /elsewhere/images\n")
    with pytest.raises(UserError, match=r"train is '/elsewhere/images', which is not in .*set: correct the path"):
        run("set", overwrite=True)
    touch("other/images/a.jpg")
    write("other/data.yaml", "names: [dog]\ntrain: images\n")
    with pytest.raises(UserError, match=r"other has no label file of an image \(such as labels/a.txt\)"):
        run("other", overwrite=True)
    write("other/data.yaml", "names: &x [dog]\n")
    with pytest.raises(UserError, match="has an anchor"):
        run("other", overwrite=True)


def test_a_hugging_face_image_folder_has_the_labels_of_its_metadata(run, write, touch, tmp_path):
    touch(*(f"set/train/{i}.png" for i in range(5)), "set/test/0.png", "set/test/dog/1.png")
    lines = [
        {
            "file_name": "0.png",
            "text": "a dog",
            "objects": {"bbox": [[1, 2, 3, 4]], "categories": ["dog", "dog", "cat"]},
        },
        {"file_name": "1.png", "objects": {"bbox": [], "categories": []}},
        {"file_name": "2.png", "objects": [{"categories": "cat"}]},
        {"file_name": "3.png", "objects": None},
    ]
    write("set/train/metadata.jsonl", "\n".join(map(json.dumps, lines)) + "\n")
    write("set/test/metadata.csv", "file_name,text,labels\n0.png,x,\"['cat', 'dog']\"\ndog/1.png,y,bird; dog\n")
    done = run("set")
    expected = {"test/0.png": "cat;dog", "test/dog/1.png": "bird;dog", "train/0.png": "dog;cat", "train/1.png": "",
                "train/2.png": "cat"}  # fmt: skip
    assert (done.format, done.splits, rows(tmp_path)) == ("imagefolder", {"train": 3, "test": 2}, expected)
    assert done.problems.lines() == [
        "1 image without a value of 'objects.categories': train/3.png",
        "1 image that is in no metadata file: train/4.png",
    ]
    write("set/train/metadata.jsonl", '{"file_name": "0.png", "label": 3}\n')
    assert run("set/train/metadata.jsonl", overwrite=True).classes == ("3",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '{"file_name": "0.png", "text": "a dog"}',
            r"has no column of labels .*: give --field NAME \(file_name, text\)",
        ),
        ('{"file_name": "0.png", "tags": ["a"], "label": "b"}', r"has several columns .*--field NAME \(tags, label\)"),
        ('{"image": "0.png", "label": "b"}', "has no file_name in row 1; if its folders are classes"),
        ('{"file_name": "0.png", "label": 1.5}', "row 1, label is a fraction"),
        ('{"file_name": "0.png"', "is not valid JSON"),
        ("[1]", "row 1 is a list"),
    ],
)
def test_an_image_folder_without_usable_metadata_is_refused(run, write, touch, content, message):
    touch("set/train/0.png")
    write("set/train/metadata.jsonl", content)
    with pytest.raises(UserError, match=message):
        run("set")


# COCO


def coco(*names, **more):
    """A file with one image per name; image i has the classes dog and, if i is odd, cat."""
    return {
        "info": {},
        "images": [{"id": 7 + i, "file_name": name, "width": 4, "height": 4} for i, name in enumerate(names)],
        "annotations": [
            {
                "id": 2 * i + c,
                "image_id": 7 + i,
                "category_id": 3 + c,
                "bbox": [0, 0, 1, 1],
                "segmentation": [[0, 0, 1, 1]],
            }
            for i in range(len(names))
            for c in range(1 + i % 2)
        ],
        "categories": [{"id": 3, "name": "dog"}, {"id": 4, "name": "cat"}, {"id": 5, "name": "bird"}],
        **more,
    }


def test_a_coco_file(run, write, touch, tmp_path):
    write("set/labels.json", coco("a.jpg", "b/c.jpg"))
    touch("set/data/a.jpg", "set/data/b/c.jpg")
    done = run("set/labels.json")
    assert (done.format, done.root, done.found, done.labels) == ("coco", tmp_path / "set", 2, 3)
    assert rows(tmp_path) == {"data/a.jpg": "dog", "data/b/c.jpg": "dog;cat"}
    assert not done.problems
    assert read(tmp_path, done.root) == ({"dog", "cat"}, {"data/a.jpg": {"dog"}, "data/b/c.jpg": {"dog", "cat"}})


@pytest.mark.parametrize(
    ("files", "images"),
    [
        (("annotations/instances_train.json", "annotations/instances_val.json"), ("images/train/", "images/val/")),
        (("annotations/train.json", "annotations/test.json"), ("images/", "images/")),
        (("train/_annotations.coco.json", "valid/_annotations.coco.json"), ("train/", "valid/")),
        (("train/labels.json", "val/labels.json"), ("train/data/", "val/data/")),
        (("instances_train2017.json", "instances_val2017.json"), ("train2017/", "val2017/")),
    ],
)
def test_coco_files_of_splits(run, write, touch, tmp_path, files, images):
    for file, folder, name in zip(files, images, ("a.jpg", "b.jpg"), strict=True):
        write(f"set/{file}", coco(name))
        touch(f"set/{folder}{name}")
    done = run("set")
    assert (done.format, done.root, done.found) == ("coco", tmp_path / "set", 2)
    assert list(splits(tmp_path)) == [f"{images[0]}a.jpg", f"{images[1]}b.jpg"]
    assert next(iter(splits(tmp_path).values())) == "train" and len(done.splits) == 2


def test_the_root_of_a_file_in_a_folder_of_annotations_is_above_it(run, write, touch, tmp_path):
    write("set/annotations/instances_default.json", coco("a.jpg", "b.jpg"))
    touch("set/images/default/a.jpg", "set/images/default/b.jpg")
    done = run("set/annotations/instances_default.json")
    assert (done.root, done.found, list(rows(tmp_path))) == (
        tmp_path / "set",
        2,
        ["images/default/a.jpg", "images/default/b.jpg"],
    )
    assert run("set/annotations", overwrite=True).root == tmp_path / "set"


def test_entries_of_coco_that_cannot_be_used_are_counted(run, write, tmp_path):
    annotations = [
        {"image_id": 7, "category_id": "3"},
        {"image_id": 99, "category_id": 3},
        {"image_id": 7, "category_id": 9},
    ]
    write("x.json", coco("a.jpg", "a.jpg", "../b.jpg", "c.jpg", annotations=annotations))
    done = run("x.json")
    assert rows(tmp_path) == {"a.jpg": "dog", "c.jpg": ""}
    assert done.found == 0 and done.problems.lines() == [
        "1 annotation of an image that is not listed: annotations[1] in x.json",
        "1 annotation of a category that is not listed: annotations[2] in x.json",
        "1 image that occurs again; their labels are united: a.jpg",
        "1 image with a path that is not allowed: '../b.jpg': leads out of its folder (\"..\")",
        "2 images without a file in the folder of images: a.jpg, c.jpg",
    ]


def test_absolute_paths_are_relative_to_their_common_folder_or_to_the_root(run, write, touch, tmp_path):
    touch("photos/a/1.jpg", "photos/b/2.jpg", "moved/a/1.jpg", "moved/b/2.jpg")
    write("x.json", coco(f"{tmp_path}/photos/a/1.jpg", f"{tmp_path}/photos/b/2.jpg"))
    for root, found in ((None, "photos"), (tmp_path / "photos", "photos"), (tmp_path / "moved", "moved")):
        done = run("x.json", root=root, overwrite=True)
        assert (done.root, done.found, list(rows(tmp_path))) == (tmp_path / found, 2, ["a/1.jpg", "b/2.jpg"])
    done = run("x.json", root=tmp_path, overwrite=True)
    assert list(rows(tmp_path)) == ["photos/a/1.jpg", "photos/b/2.jpg"]
    write("y.json", coco("C:\\photos\\a\\1.jpg", "C:\\photos\\b\\2.jpg"))
    assert run("y.json", root=tmp_path / "photos", overwrite=True).found == 2


# Label Studio


def task(image, *results, **more):
    return {
        "id": 1,
        "data": {"image": image},
        "annotations": [{"id": 5, "result": list(results), **more}],
        "predictions": [],
    }


def result(kind, *labels, name="tag"):
    return {"from_name": name, "to_name": "img", "type": kind, "value": {"x": 1.5, "rotation": 0, kind: list(labels)}}


def test_label_studio_json(run, write, tmp_path):
    tasks = [
        task("/data/upload/3/0a1b2c3d-a.jpg", result("choices", "dog", "cat"), result("rectanglelabels", "dog")),
        task("/data/local-files/?d=photos/b%20c+1.jpg", result("polygonlabels", "cat")),
        task(
            "s3://bucket/photos/d.jpg", result("brushlabels", "bird"), {"type": "textarea", "value": {"text": ["hm"]}}
        ),
        task("gs://bucket/e.jpg", result("labels", "bird"), result("ellipselabels", "egg")),
        task("https://example.com/web/f.jpg?size=2"),
        task("g.jpg", result("choices", "dog"), was_cancelled=True),
        {"id": 7, "data": {"image": "h.jpg"}, "annotations": []},
        {"id": 8, "data": {"text": "no image"}, "annotations": [{"result": []}]},
        {"id": 9, "data": {"photo": "/data/upload/i.jpg"}, "completions": [{"result": [result("choices", "dog")]}]},
    ]
    write("x.json", tasks)
    done = run("x.json")
    expected = {
        "upload/3/0a1b2c3d-a.jpg": "dog;cat",
        "photos/b c+1.jpg": "cat",
        "photos/d.jpg": "bird",
        "e.jpg": "bird;egg",
        "web/f.jpg": "",
        "upload/i.jpg": "dog",
    }
    assert rows(tmp_path) == expected
    assert (done.format, done.labels, set(done.classes)) == ("label-studio JSON", 7, {"dog", "cat", "bird", "egg"})
    assert done.problems.lines()[:2] == [
        "2 tasks without an annotation: tasks[5] in x.json, tasks[6] in x.json",
        "1 task without an image: tasks[7] in x.json",
    ]
    assert read(tmp_path, None)[1] == {name: set(filter(None, text.split(";"))) for name, text in expected.items()}


@pytest.mark.parametrize(
    "place", ["upload/3/0a1b2c3d-dog.jpg", "0a1b2c3d-dog.jpg", "images/0a1b2c3d-dog.jpg", "dog.jpg"]
)
def test_uploads_are_found_by_their_path_or_by_their_file_name(run, write, touch, tmp_path, place):
    write("x.json", [task("/data/upload/3/0a1b2c3d-dog.jpg", result("choices", "dog"))])
    touch(f"photos/{place}")
    assert (run("x.json", root=tmp_path / "photos").found, list(rows(tmp_path))) == (1, [place])


def test_label_studio_with_the_labels_of_one_field(run, write, tmp_path):
    results = result("choices", "dog", name="what"), result("choices", "blurred", name="quality")
    write("x.json", [task("a.jpg", *results)])
    run("x.json")
    assert rows(tmp_path) == {"a.jpg": "dog;blurred"}
    run("x.json", field="what", overwrite=True)
    assert rows(tmp_path) == {"a.jpg": "dog"}
    with pytest.raises(UserError, match=r"unknown field of .*x.json 'waht': did you mean 'what'"):
        run("x.json", field="waht", overwrite=True)


def test_label_studio_json_min(run, write, tmp_path):
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
    write("x.json", records)
    done = run("x.json")
    assert done.format == "label-studio JSON-MIN"
    assert rows(tmp_path) == {"a.jpg": "dog", "b.jpg": "dog;cat", "c.jpg": "cat;bird;dog", "d.jpg": ""}
    assert done.problems.counts["tasks without an annotation"] == 1


def label_studio_csv(delimiter, *records):
    lines = ["image", "id", "choice", "label", "comment", "annotator", "annotation_id", "lead_time"]
    text = [lines, *([image, "1", choice, label, "so; so", "1", "2", "3.5"] for image, choice, label in records)]
    return "\n".join(delimiter.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in text)


@pytest.mark.parametrize(("name", "delimiter"), [("x.csv", ","), ("x.tsv", "\t")])
def test_label_studio_csv(run, write, tmp_path, name, delimiter):
    boxes = json.dumps([{"x": 1.5, "rectanglelabels": ["cat"]}, {"x": 2.5, "rectanglelabels": ["bird"]}])
    records = ("a.jpg", "dog", ""), ("b.jpg", '{"choices": ["dog", "cat"]}', ""), ("c.jpg", "", boxes)
    write(name, label_studio_csv(delimiter, *records))
    done = run(name)
    assert done.format == "label-studio CSV"
    assert rows(tmp_path) == {"a.jpg": "dog", "b.jpg": "dog;cat", "c.jpg": "cat;bird"}


def test_a_text_column_of_label_studio_must_be_named_if_there_are_several(run, write, tmp_path):
    write("x.csv", "image,animal,annotation_id\na.jpg,dog,1\nb.jpg,cat,2\n")
    run("x.csv")
    assert rows(tmp_path) == {"a.jpg": "dog", "b.jpg": "cat"}
    write("x.csv", "photo,animal,comment,annotation_id\na.jpg,dog,nice,1\nb.jpg,cat,nicer,2\n")
    with pytest.raises(
        UserError, match=r"not clear which column has the labels: give --field NAME \(animal, comment\)"
    ):
        run("x.csv", overwrite=True)
    run("x.csv", overwrite=True, field="animal")
    assert rows(tmp_path) == {"a.jpg": "dog", "b.jpg": "cat"}


# CVAT


def datumaro(*items):
    labels = [{"name": name, "parent": "", "attributes": []} for name in ("dog", "cat")]
    return {"info": {}, "categories": {"label": {"labels": labels, "attributes": []}}, "items": list(items)}


def item(key, *labels, **more):
    kinds = "label", "bbox", "polygon"
    annotations = [{"id": n, "type": kinds[n], "label_id": label, "points": [1.0]} for n, label in enumerate(labels)]
    return {"id": key, "annotations": annotations, "attr": {"frame": 0}, **more}


def test_cvat_datumaro(run, write, touch, tmp_path):
    items = [
        item("a", 0, 1, 1, image={"path": "a.jpg", "size": [4, 4]}),
        item("sub/b", 1, media={"path": "sub/b.jpg"}),
        item("c", image={"path": ""}),
        item("gone", 0),
        item("d.jpg", None, 0),
    ]
    write("set/annotations/default.json", datumaro(*items))
    touch(*(f"set/images/default/{name}" for name in ("a.jpg", "sub/b.jpg", "c.png", "d.jpg")))
    done = run("set", format="cvat")
    folder = "images/default"
    expected = {
        f"{folder}/a.jpg": "dog;cat",
        f"{folder}/sub/b.jpg": "cat",
        f"{folder}/c.png": "",
        f"{folder}/d.jpg": "dog",
    }
    assert rows(tmp_path) == expected
    assert (done.format, done.root, done.found) == ("cvat Datumaro", tmp_path / "set", 4)
    assert done.problems.lines() == [
        "1 annotation without a label that is listed: items[4].annotations[0] in default.json",
        "1 image that has no file: gone in default.json",
    ]
    assert read(tmp_path, done.root)[0] == {"dog", "cat"}


def test_subsets_of_datumaro_are_splits(run, write, tmp_path):
    write("set/annotations/Train.json", datumaro(item("a.jpg", 0)))
    write("set/annotations/Validation.json", datumaro(item("b.jpg", 1)))
    assert run("set").splits == {"train": 1, "val": 1}


def test_cvat_imagenet_is_a_tree_of_folders(run, touch, write, tmp_path):
    touch("set/dog/dog_a.jpg", "set/cat/cat_b.jpg")
    write("set/synsets.txt", "dog\ncat\n")
    assert run("set", format="cvat").format == "folders"
    assert rows(tmp_path) == {"cat/cat_b.jpg": "cat", "dog/dog_a.jpg": "dog"}


@pytest.mark.parametrize("source", ["set", "set/annotations.xml"])
def test_cvat_xml_is_refused_with_the_exports_that_work(run, write, touch, source):
    write("set/annotations.xml", "<annotations/>")
    touch("set/images/a.jpg")
    with pytest.raises(
        UserError, match=r"annotations.xml: XML cannot be read; .*Datumaro 1.0 or COCO 1.0 .* ImageNet 1.0"
    ):
        run(source)


# FiftyOne


def label(name, kind="Classification"):
    return {"_id": {"$oid": "6"}, "_cls": kind, "tags": [], "attributes": {}, "label": name, "confidence": None}


def sample(path, value, tags=(), **more):
    return {
        "filepath": path,
        "tags": list(tags),
        "metadata": None,
        "_media_type": "image",
        "ground_truth": value,
        **more,
    }


def test_fiftyone_samples(run, write, touch, tmp_path):
    detections = {"_cls": "Detections", "detections": [label("dog", "Detection"), label("cat", "Detection")]}
    samples = [
        sample(
            "data/a.jpg",
            label("dog"),
            ["train", "mine"],
            predictions={"_cls": "Detections", "detections": [label("no")]},
        ),
        sample(
            "data/b.jpg", {"_cls": "Classifications", "classifications": [label("cat"), label("bird")]}, ["validation"]
        ),
        sample("data/c.jpg", detections, ["test"]),
        sample("data/d.jpg", {"_cls": "Detections", "detections": []}, ["train"]),
        sample("data/e.jpg", None, ["train"]),
        sample("data/f.jpg", label("dog")),
        sample("data/g.jpg", label("dog"), ["train", "test"]),
    ]
    write("set/samples.json", {"samples": samples})
    write("set/metadata.json", {"name": "mine", "version": "1.0"})
    touch(*(f"set/data/{name}.jpg" for name in "abcd"))
    done = run("set")
    assert rows(tmp_path) == {"data/a.jpg": "dog", "data/b.jpg": "cat;bird", "data/c.jpg": "dog;cat", "data/d.jpg": ""}
    assert list(splits(tmp_path).values()) == ["train", "val", "test", "train"]
    assert (done.format, done.root, done.found) == ("fiftyone samples", tmp_path / "set", 4)
    assert done.problems.lines() == [
        "1 sample without the field 'ground_truth': samples[4] in samples.json",
        "1 sample with the tags of several splits: samples[6] in samples.json",
        "1 file that is not an export, not used: metadata.json",
        "2 images without a split, left out because other images have one: data/f.jpg, data/g.jpg",
    ]
    assert read(tmp_path, done.root)[0] == {"dog", "cat", "bird"}
    run("set", field="predictions", overwrite=True)
    assert rows(tmp_path) == {"data/a.jpg": "no"}


def test_several_fields_of_fiftyone_need_a_choice(run, write):
    one = {"filepath": "a.jpg", "mine": label("dog"), "yours": label("cat")}
    write("samples.json", {"samples": [one]})
    with pytest.raises(UserError, match=r"has several fields of labels: give --field NAME \(mine, yours\)"):
        run("samples.json")
    write("samples.json", {"samples": [{"filepath": "a.jpg"}]})
    with pytest.raises(UserError, match="has no field of labels"):
        run("samples.json")


@pytest.mark.parametrize(
    ("classes", "targets"),
    [
        (["dog", "cat"], [0, [0, 1], []]),
        (
            ["dog", "cat"],
            [{"label": 0, "confidence": 0.5}, [{"label": 0}, {"label": 1, "bounding_box": [0, 0, 1, 1]}], []],
        ),
        (None, ["dog", ["dog", "cat"], []]),
    ],
)
def test_fiftyone_labels(run, write, touch, tmp_path, classes, targets):
    labels = dict(zip(("a", "sub/b", "c.v2"), targets, strict=True))
    write("set/labels.json", {"classes": classes, "labels": {**labels, "none": None, "gone": "dog"}})
    touch("set/data/a.jpg", "set/data/sub/b.png", "set/data/c.v2.jpg")
    done = run("set")
    assert rows(tmp_path) == {"data/a.jpg": "dog", "data/sub/b.png": "dog;cat", "data/c.v2.jpg": ""}
    assert (done.format, done.found) == ("fiftyone labels", 3)
    assert done.problems.counts == {"images without a label": 1, "images that have no file": 1}


def test_fiftyone_labels_that_are_not_in_the_list_are_counted(run, write, tmp_path):
    write("labels.json", {"classes": ["dog"], "labels": {"a.jpg": [0, 1, -1]}})
    assert run("labels.json").problems.counts["labels that are not in the list of classes"] == 2
    assert rows(tmp_path) == {"a.jpg": "dog"}


def test_fiftyone_csv(run, write, touch, tmp_path):
    text = 'filepath,tags,ground_truth.detections.label\na.jpg,"train,x","dog,cat,dog"\nb.jpg,test,cat\nc.jpg,train,\n'
    write("set/labels.csv", text)
    touch("set/data/a.jpg", "set/data/b.jpg", "set/data/c.jpg")
    done = run("set")
    assert rows(tmp_path) == {"data/a.jpg": "dog;cat", "data/b.jpg": "cat", "data/c.jpg": ""}
    assert (done.format, done.found, done.splits) == ("fiftyone CSV", 3, {"train": 2, "test": 1})
    assert run("set", field="ground_truth", overwrite=True).labels == 3
    write("set/labels.csv", "filepath,tags\na.jpg,train\n")
    with pytest.raises(
        UserError, match=r"no column of labels: export it with the fields filepath, tags and FIELD.label"
    ):
        run("set/labels.csv", overwrite=True)


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
def test_a_value_of_the_wrong_type_is_refused_with_its_place(run, write, tmp_path, content, message):
    path = write("x.json", content)
    with pytest.raises(UserError) as error:
        run("x.json")
    assert str(error.value).startswith(f"{path}: {message}")
    assert not (tmp_path / "out.csv").exists()


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
def test_files_that_cannot_be_read(run, write, name, text, message):
    write(name, text)
    with pytest.raises(UserError, match=message):
        run(name.split("/")[0])


def test_text_that_is_not_utf_8(run, write, tmp_path):
    write("x.csv", "").write_bytes(b"image,annotator,choice\na.jpg,1,caf\xe9\n")
    with pytest.raises(UserError, match="is not UTF-8: see line 2; save it as UTF-8"):
        run("x.csv")


def test_large_files_are_refused_before_they_are_read(run, write, monkeypatch):
    monkeypatch.setattr("lifelabel.streams.label_files._MAX_BYTES", 10)
    write("x.json", coco("a.jpg"))
    with pytest.raises(UserError, match="more than 10 bytes"):
        run("x.json")


def test_a_pipe_is_refused(run, tmp_path):
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(UserError, match="not a regular file"):
        run("x.json")


def test_the_format_must_fit(run, write, touch, tmp_path):
    write("x.json", coco("a.jpg"))
    touch("photos/dog/1.jpg")
    for format in ("coco", "label-studio", "cvat", "fiftyone"):
        assert run("x.json", format=format, overwrite=True).format == "coco"
    with pytest.raises(UserError, match=r"x.json is not a folder: --format folders needs"):
        run("x.json", format="folders", overwrite=True)
    with pytest.raises(UserError, match="photos has no coco export"):
        run("photos", format="coco", overwrite=True)
    write("y.json", datumaro(item("a.jpg", 0)))
    with pytest.raises(UserError, match=r"another format .cvat Datumaro.: leave out --format fiftyone"):
        run("y.json", format="fiftyone", overwrite=True)
    with pytest.raises(UserError, match="unknown format 'coca': did you mean 'coco'"):
        run("x.json", format="coca", overwrite=True)
    with pytest.raises(UserError, match="leave out --root"):
        run("photos", root=tmp_path, overwrite=True)


def test_folders_with_other_json_files_are_still_folders(run, write, touch, tmp_path):
    touch("photos/dog/1.jpg")
    write("photos/notes.json", {"by": "me"})
    assert run("photos").format == "folders"
    write("photos/broken.json", "{")
    assert run("photos", format="folders", overwrite=True).problems.counts["files that are not an image"] == 2


def test_exports_of_several_formats_or_too_many_files_are_refused(run, write, monkeypatch):
    write("set/a.json", coco("a.jpg"))
    write("set/b.json", datumaro(item("a.jpg", 0)))
    with pytest.raises(UserError, match=r"several formats .coco, cvat Datumaro.: give one of the files"):
        run("set")
    monkeypatch.setattr(module, "_MAX_FILES", 1)
    with pytest.raises(UserError, match="has 2 JSON and CSV files: give one exported file"):
        run("set")


def test_an_image_in_two_splits_is_a_training_image(run, write, tmp_path):
    write("set/train.json", coco("a.jpg", "b.jpg"))
    write("set/test.json", coco("c.jpg", "b.jpg"))
    done = run("set")
    assert done.problems.counts["images that occur again in another split; the first one counts"] == 1
    assert splits(tmp_path) == {"a.jpg": "train", "b.jpg": "train", "c.jpg": "test"}


def test_labels_and_the_output_are_checked(run, write, touch, tmp_path):
    path = write("x.json", coco("a.jpg", annotations=[]))
    with pytest.raises(UserError, match="coco: none of the images has a label"):
        run("x.json")
    touch("out.csv")
    with pytest.raises(UserError, match=r"out.csv exists: give another --out, or --overwrite"):
        run("x.json")
    for out, message in (("out.txt", "must end in .csv"), ("y.csv", "exists"), ("x.json/a/b.csv", "cannot write to")):
        (tmp_path / "y.csv").mkdir(exist_ok=True)
        write("x.json", coco("a.jpg"))
        with pytest.raises(UserError, match=message):
            convert(path, tmp_path / out, overwrite=True)
    source = write("z.csv", label_studio_csv(",", ("a.jpg", "dog", "")))
    with pytest.raises(UserError, match="is the source itself"):
        convert(source, source, overwrite=True)
    with pytest.raises(UserError, match=r"there is no .*nowhere: give a folder of images"):
        run("nowhere", overwrite=True)
    with pytest.raises(UserError, match=r"there is no folder .*nowhere: give another --root DIR"):
        run("x.json", overwrite=True, root=tmp_path / "nowhere")
    assert run("x.json", overwrite=True).images == 1
    convert(path, tmp_path / "new/folder/out.csv")
    assert (tmp_path / "new/folder/out.csv").exists()
