import json

import pytest
from support import data_sets

from lifelabel.errors import UserError
from lifelabel.streams import coco

CATEGORIES = [{"id": 3, "name": "car"}, {"id": 1, "name": "person", "supercategory": "person"}]


def image(number, edition="COCO_train2014_"):
    return {"id": number, "file_name": f"{edition}{number:012}.jpg", "width": 640, "height": 480, "license": 1}


def region(image_id, category_id, crowd=0):
    info = {"counts": [5, 7], "size": [480, 640]} if crowd else [[1.5, 2e-1, 3, -4.0], [5, 6]]
    ids = {"id": 100 * image_id + category_id, "image_id": image_id, "category_id": category_id}
    return {"segmentation": info, "iscrowd": crowd, "bbox": [0, 0, 9, 9], **ids}


def write(root, name, images, annotations, categories=CATEGORIES):
    content = {"info": {"year": 2014}, "images": images, "annotations": annotations, "categories": categories}
    data_sets.write(root / f"annotations/instances_{name}.json", content)


@pytest.fixture
def root(tmp_path):
    write(tmp_path, "train2014", [image(9), image(25), image(30)], [region(25, 1), region(25, 3), region(9, 3)])
    write(tmp_path, "val2014", [image(42, "COCO_val2014_")], [region(42, 1)])
    return tmp_path


def test_images_are_in_the_order_of_the_files_and_classes_in_the_order_of_their_ids(root):
    found = coco.read(root)
    assert (found.name, found.root, found.classes) == ("coco", root, ("person", "car"))
    assert list(found.train.names) == [f"COCO_train2014_{n:012}.jpg" for n in (9, 25, 30)]
    assert [row.tolist() for row in found.train.labels] == [[1], [0, 1], []]
    assert list(found.test.names) == ["COCO_val2014_000000000042.jpg"]
    assert found.test.labels.dense().tolist() == [[True, False]]
    assert not found.problems
    # crowds count, and repeats count once
    write(root, "train2014", [image(9), image(25)], [region(9, 3), region(9, 3), region(25, 1, crowd=1)])
    assert [row.tolist() for row in coco.read(root).train.labels] == [[1], [0]]


def test_the_edition_of_2017_is_read_if_2014_is_not_complete(root):
    write(root, "train2017", [image(9, "")], [region(9, 1)])
    write(root, "val2017", [image(25, "")], [])
    assert len(coco.read(root).train.names) == 3
    (root / "annotations/instances_val2014.json").unlink()
    found = coco.read(root)
    assert list(found.train.names) == ["000000000009.jpg"]
    assert list(found.test.names) == ["000000000025.jpg"]


def test_missing_files_are_named(root, tmp_path):
    with pytest.raises(UserError, match=r"there is no folder .*nowhere: give the folder that contains COCO's"):
        coco.read(tmp_path / "nowhere")
    (root / "annotations/instances_val2014.json").unlink()
    with pytest.raises(UserError, match=r"has no annotations/instances_val2014.json: .*2017"):
        coco.read(root)
    (root / "annotations/instances_train2014.json").unlink()
    with pytest.raises(UserError, match=r"has no annotations/instances_train2014.json and no annotations/instances_v"):
        coco.read(root)


def instances(categories, images=()):
    return json.dumps({"categories": categories, "images": images, "annotations": []})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"images": [', "is damaged: it is not valid JSON"),
        (b"\xff\xfe\x00", "is damaged: it is not valid JSON"),
        ("[" * 100_000, "is damaged: it is not valid JSON"),
        ("[]", "no list 'categories'"),
        ('{"image_id": 1}', "no list 'categories'"),
        (json.dumps({"categories": CATEGORIES, "images": [image(1)]}), "no list 'annotations'"),
        (instances([]), "must list at least one category"),
        (instances(CATEGORIES), "no images"),
        (instances([{"id": 1}]), "category without"),
        (instances(CATEGORIES * 2), "category 3 twice"),
        (instances([{"id": k, "name": "car"} for k in (1, 2)]), "each with a different name"),
        (instances(CATEGORIES, [image(9), {"id": 9, "file_name": "b.jpg"}]), "image id 9 for two files; .* b.jpg"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(root, text, message):
    path = root / "annotations/instances_train2014.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError, match=message) as error:
        coco.read(root)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_files_of_two_data_sets_are_refused(root):
    write(root, "val2014", [image(42)], [], categories=[{"id": 1, "name": "person"}])
    with pytest.raises(UserError, match=r"does not list the same categories as annotations/instances_train2014.json"):
        coco.read(root)


def test_a_huge_file_is_refused_without_reading_it(root):
    path = root / "annotations/instances_train2014.json"
    with path.open("r+b") as file:
        file.truncate((4 << 30) + 1)
    with pytest.raises(UserError, match=f"{path.name} has more than 4,294,967,296 bytes"):
        coco.read(root)


def test_entries_that_cannot_be_used_are_skipped_and_counted(root):
    images = [image(9), image(9), {"file_name": "no-id.jpg"}, "text", {"id": 5, "file_name": "../../up.jpg"}, image(25)]
    images += [{"id": 77, "file_name": "two\nlines.jpg"}, {"id": [1], "file_name": "list.jpg"}]
    annotations = [region(9, 1), region(99, 1), region(25, 8), {"id": 3}, {"image_id": [9], "category_id": 1}]
    write(root, "train2014", images, annotations)
    found = coco.read(root)
    assert list(found.train.names) == [image(9)["file_name"], image(25)["file_name"]]
    assert [row.tolist() for row in found.train.labels] == [[0], []]
    assert found.problems.counts == {
        "images listed twice": 1,
        "images skipped: no id or no usable file name": 5,
        "annotations of an image that is not listed": 3,
        "annotations of a category that is not listed": 1,
    }
    assert "image 99 in instances_train2014.json" in "\n".join(found.problems.lines())


def test_labels_by_name_over_chosen_classes(root):
    found = coco.labels_by_name(root, ["car", "person"])
    assert found["COCO_train2014_000000000025.jpg"] == {0, 1}
    assert found["COCO_train2014_000000000009.jpg"] == {0}
    assert found["COCO_train2014_000000000030.jpg"] == frozenset()
    assert found["COCO_val2014_000000000042.jpg"] == {1}
    assert coco.labels_by_name(root, ["person"])["COCO_train2014_000000000025.jpg"] == {0}
    with pytest.raises(UserError, match=r"unknown category .*'cart': did you mean 'car'"):
        coco.labels_by_name(root, ["cart"])


def test_labels_by_name_has_the_number_of_an_image_in_either_edition(tmp_path):
    assert coco.labels_by_name(tmp_path / "nowhere", ["car"]) is None
    write(tmp_path, "train2017", [image(9, "")], [region(9, 3)])
    found = coco.labels_by_name(tmp_path, ["car"])
    assert found[coco.number("COCO_val2014_000000000009.jpg")] == found["000000000009.jpg"] == {0}
