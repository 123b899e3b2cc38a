"""Readers of the exports of annotation tools: the images of one JSON or CSV file, with their labels.

A reader accepts the layouts that the tools publish. An entry that cannot be used is counted as a problem.
`lifelabel.streams.conversion` makes a table of the result; see docs/streams/convert.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lifelabel.errors import UserError
from lifelabel.streams import label_studio
from lifelabel.streams.label_files import IMAGE_SUFFIXES, SPLITS, Entry, Export
from lifelabel.utils.text import shorten

__all__ = ["READERS", "kind_of"]

_FIFTYONE_LISTS = ("classifications", "detections", "polylines", "keypoints")


def kind_of(content: Any, is_csv: bool, tool: str = "auto") -> str | None:
    """The layout of a file, a key of `READERS`; None if it is not known. `tool` decides if the layout has no marks.

    >>> kind_of([{"data": {"image": "a.jpg"}, "annotations": []}], is_csv=False)
    'label-studio JSON'
    """
    if isinstance(content, list):
        keys = content[0].keys() if content and isinstance(content[0], dict) else set()
        if not is_csv and isinstance(content[0] if keys else None, dict) and isinstance(content[0].get("data"), dict):
            return "label-studio JSON"
        if keys & label_studio.MARKS or (keys and tool == "label-studio"):
            return "label-studio CSV" if is_csv else "label-studio JSON-MIN"
        return "fiftyone CSV" if is_csv and "filepath" in keys else None
    if not isinstance(content, dict):
        return None
    has = {name: type(content.get(name)) for name in ("images", "annotations", "categories", "items", "samples")}
    if has["images"] is list and has["annotations"] is list and has["categories"] is list:
        return "coco"
    if has["items"] is list and has["categories"] is dict:
        return "cvat Datumaro"
    if has["samples"] is list:
        return "fiftyone samples"
    return "fiftyone labels" if "classes" in content and isinstance(content.get("labels"), dict) else None


def _coco(content: Any, export: Export) -> list[Entry]:
    names: dict[str, str] = {}
    for i, item in export.objects(content["categories"], "categories"):
        key = str(export.expect(item.get("id"), (int, str), "categories[%d].id", i))
        if key in names:
            raise UserError(f"{export.path}: categories[{i}].id is {shorten(key)}, which an earlier category has")
        names[key] = export.expect(item.get("name"), (str,), "categories[%d].name", i)
    images: dict[str, Entry] = {}
    for i, item in export.objects(content["images"], "images"):
        key = str(export.expect(item.get("id"), (int, str), "images[%d].id", i))
        if key in images:
            raise UserError(f"{export.path}: images[{i}].id is {shorten(key)}, which an earlier image has")
        images[key] = Entry(export.expect(item.get("file_name"), (str,), "images[%d].file_name", i), [])
    labels: dict[str, dict[str, None]] = {key: {} for key in images}
    for i, item in export.objects(content["annotations"], "annotations"):
        key = str(export.expect(item.get("image_id"), (int, str), "annotations[%d].image_id", i))
        category = str(export.expect(item.get("category_id"), (int, str), "annotations[%d].category_id", i))
        if key not in images:
            export.skip("annotations of an image that is not listed", f"annotations[{i}]")
        elif category not in names:
            export.skip("annotations of a category that is not listed", f"annotations[{i}]")
        else:
            labels[key][names[category]] = None
    return [entry._replace(labels=list(labels[key])) for key, entry in images.items()]


def _datumaro(content: Any, export: Export) -> list[Entry]:
    where = "categories.label.labels"
    group = export.expect(content["categories"].get("label"), (dict,), "categories.label")
    names = [
        export.expect(item.get("name"), (str,), f"{where}[%d].name", i)
        for i, item in export.objects(group.get("labels"), where)
    ]
    entries = []
    for i, item in export.objects(content["items"], "items"):
        labels = []
        for j, annotation in export.objects(item.get("annotations"), f"items[{i}].annotations"):
            place = f"items[{i}].annotations[{j}]"
            index = export.expect(annotation.get("label_id"), (int, type(None)), "%s.label_id", place)
            if index is not None and 0 <= index < len(names):
                labels.append(names[index])
            else:
                export.skip("annotations without a label that is listed", place)
        media = export.expect(item.get("image", item.get("media", {})), (dict,), "items[%d].image", i)
        name = export.expect(media.get("path") or "", (str,), "items[%d].image.path", i)
        key = str(export.expect(item.get("id"), (str, int), "items[%d].id", i))
        entries.append(Entry(name, labels) if name else _by_id(key, labels))
    return entries


def _by_id(key: str, labels: Sequence[str]) -> Entry:
    return Entry(key, labels, is_id=not key.lower().endswith(IMAGE_SUFFIXES))


def _fiftyone_samples(content: Any, export: Export) -> list[Entry]:
    samples = list(export.objects(content["samples"], "samples"))
    fields = dict.fromkeys(
        name for _, sample in samples for name, value in sample.items() if _is_label_field(name, value)
    )
    chosen = _one_field(fields, export)
    entries = []
    for i, sample in samples:
        image = export.expect(sample.get("filepath"), (str,), "samples[%d].filepath", i)
        tags = export.expect(sample.get("tags") or [], (list,), "samples[%d].tags", i)
        value = export.expect(sample.get(chosen), (dict, type(None)), "samples[%d].%s", i, chosen)
        if value is None:
            export.skip(f"samples without the field '{chosen}'", f"samples[{i}]")
            continue
        where = f"samples[{i}].{chosen}"
        lists = [(name, value[name]) for name in _FIFTYONE_LISTS if name in value]
        items = [item for name, found in lists for _, item in export.objects(found, f"{where}.{name}")]
        labels = [export.expect(item.get("label"), (str,), "%s.label", where) for item in (items if lists else [value])]
        entries.append(Entry(image, labels, _split_of_tags(tags, f"samples[{i}]", export)))
    return entries


def _is_label_field(name: str, value: Any) -> bool:
    return (
        isinstance(value, dict)
        and not name.startswith("_")
        and any(isinstance(value.get(key), list if key != "label" else str) for key in ("label", *_FIFTYONE_LISTS))
    )


def _one_field(fields: Iterable[str], export: Export) -> str:
    """The given field, else `ground_truth`, else the only one."""
    names = list(fields)
    export.check_field(names)
    chosen = export.field or next((name for name in names if name.split(".")[0] == "ground_truth"), None)
    if chosen is None and len(names) != 1:
        listed = ", ".join(map(shorten, names))
        reason = f"has several fields of labels: give --field NAME ({listed})" if names else "has no field of labels"
        raise UserError(f"{export.path} {reason}")
    return chosen or names[0]


def _split_of_tags(tags: Iterable[Any], where: str, export: Export) -> str | None:
    splits = {SPLITS[tag.lower()] for tag in tags if isinstance(tag, str) and tag.lower() in SPLITS}
    if len(splits) > 1:
        export.skip("samples with the tags of several splits", where)
    return splits.pop() if len(splits) == 1 else None


def _fiftyone_labels(content: Any, export: Export) -> list[Entry]:
    classes = export.expect(content["classes"] or [], (list,), "classes")
    names = [export.expect(name, (str,), "classes[%d]", i) for i, name in enumerate(classes)]
    entries = []
    for key, target in content["labels"].items():
        where = f"labels[{shorten(key)!r}]"
        if target is None:
            export.skip("images without a label", where)
            continue
        labels = []
        for item in target if isinstance(target, list) else [target]:
            label = export.expect(item.get("label") if isinstance(item, dict) else item, (int, str), "%s", where)
            if isinstance(label, int) and not 0 <= label < len(names):
                export.problems.add("labels that are not in the list of classes", f"{where} is {shorten(label)}")
            else:
                labels.append(names[label] if isinstance(label, int) else label)
        entries.append(_by_id(key, labels))
    return entries


def _fiftyone_rows(content: Any, export: Export) -> list[Entry]:
    """The rows of CSV: the columns `filepath`, `tags` and FIELD.label or FIELD.detections.label, lists with commas."""
    fields = [name for name in (content[0] if content else {}) if name.endswith(".label") or name == export.field]
    if not fields:
        raise UserError(
            f"{export.path} has no column of labels: export it with the fields filepath, tags and FIELD.label"
        )
    named = next((name for name in fields if name.split(".")[0] == export.field), export.field)
    chosen = _one_field(fields, dataclasses.replace(export, field=named))
    entries = []
    for i, row in enumerate(content):
        labels = [label for label in row.get(chosen, "").split(",") if label.strip()]
        tags = [tag.strip() for tag in row.get("tags", "").split(",")]
        split = _split_of_tags(tags, f"row {i + 1}", export)
        entries.append(Entry(row.get("filepath", ""), labels, split))
    return entries


READERS: dict[str, Callable[[Any, Export], list[Entry]]] = {
    "coco": _coco,
    "label-studio JSON": label_studio.read_tasks,
    "label-studio JSON-MIN": label_studio.read_rows,
    "label-studio CSV": label_studio.read_rows,
    "cvat Datumaro": _datumaro,
    "fiftyone samples": _fiftyone_samples,
    "fiftyone labels": _fiftyone_labels,
    "fiftyone CSV": _fiftyone_rows,
}
"""The reader of each layout: from the content of a file to its entries."""
