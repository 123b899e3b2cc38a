"""Small copies of public data sets, in the layouts of their releases. Labels are the class names of each image."""

import json


def write(path, value):
    """Write a file and its folder: a text, or JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def write_instances(root, part, classes, labels):
    """The annotations of one part of COCO ("train2014"). Images and categories are numbered in the given order."""
    content = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(labels)],
        "annotations": [
            {"image_id": i, "category_id": classes.index(name)}
            for i, some in enumerate(labels.values())
            for name in some
        ],
        "categories": [{"id": k, "name": name} for k, name in enumerate(classes)],
    }
    write(root / f"annotations/instances_{part}.json", content)


def write_nus_wide(root, concepts, labels, lists=None, of_all=True, of_lists=False):
    """`lists` has the images of "Train" and "Test". Labels are in files of all images, in those of lists, or both."""
    write(root / "ConceptsList/Concepts81.txt", "\n".join(concepts))
    for part, names in {"": list(labels), **(lists or {})}.items():
        write(root / f"ImageList/{part}Imagelist.txt", "".join(name.replace("/", "\\") + "\n" for name in names))
        for concept in concepts if (of_lists if part else of_all) else ():
            name = f"TrainTestLabels/Labels_{concept}_{part}.txt" if part else f"AllLabels/Labels_{concept}.txt"
            write(root / "Groundtruth" / name, "".join(f"{int(concept in labels[image])}\n" for image in names))


def write_voc(root, year, sets):
    """VOC with annotations: for each image set the class names of each image, and whether each object is difficult."""
    home = root / "VOCdevkit" / f"VOC{year}"
    for part, images in sets.items():
        write(home / f"ImageSets/Main/{part}.txt", "".join(f"{key}\n" for key in images))
        for key, objects in images.items():
            text = "".join(f"<object><name>{n}</name><difficult>{int(d)}</difficult></object>" for n, d in objects)
            write(home / f"Annotations/{key}.xml", f"<annotation><folder>VOC{year}</folder>{text}</annotation>")
