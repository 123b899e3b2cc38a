"""Readers of the exports of annotation tools: the images of one JSON or CSV file, with their labels.

A reader accepts the layouts that the tools publish. An entry that cannot be used is counted as a problem.
`lifelabel.streams.conversion` makes a table of the result; see docs/streams/convert.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from lifelabel.errors import UserError, unknown
from lifelabel.images.source import Problems
from lifelabel.streams import label_studio
from lifelabel.streams.label_files import IMAGE_SUFFIXES, SPLITS, Entry, expect, objects
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


def _coco(content: Any, path: Path, problems: Problems, field: str | None) -> list[Entry]:
    names: dict[str, str] = {}
    for i, item in objects(content["categories"], path, "categories"):
        key = str(expect(item.get("id"), (int, str), path, "categories[%d].id", i))
        if key in names:
            raise UserError(f"{path}: categories[{i}].id is {shorten(key)}, which an earlier category has")
        names[key] = expect(item.get("name"), (str,), path, "categories[%d].name", i)
    images: dict[str, Entry] = {}
    for i, item in objects(content["images"], path, "images"):
        key = str(expect(item.get("id"), (int, str), path, "images[%d].id", i))
        if key in images:
            raise UserError(f"{path}: images[{i}].id is {shorten(key)}, which an earlier image has")
        images[key] = Entry(expect(item.get("file_name"), (str,), path, "images[%d].file_name", i), [])
    labels: dict[str, dict[str, None]] = {key: {} for key in images}
    for i, item in objects(content["annotations"], path, "annotations"):
        key = str(expect(item.get("image_id"), (int, str), path, "annotations[%d].image_id", i))
        category = str(expect(item.get("category_id"), (int, str), path, "annotations[%d].category_id", i))
        if key not in images:
            problems.add("annotations of an image that is not listed", f"annotations[{i}] in {path.name}")
        elif category not in names:
            problems.add("annotations of a category that is not listed", f"annotations[{i}] in {path.name}")
        else:
            labels[key][names[category]] = None
    return [entry._replace(labels=list(labels[key])) for key, entry in images.items()]


def _datumaro(content: Any, path: Path, problems: Problems, field: str | None) -> list[Entry]:
    where = "categories.label.labels"
    group = expect(content["categories"].get("label"), (dict,), path, "categories.label")
    names = [
        expect(item.get("name"), (str,), path, f"{where}[%d].name", i)
        for i, item in objects(group.get("labels"), path, where)
    ]
    entries = []
    for i, item in objects(content["items"], path, "items"):
        labels = []
        for j, annotation in objects(item.get("annotations"), path, f"items[{i}].annotations"):
            place = f"items[{i}].annotations[{j}]"
            index = expect(annotation.get("label_id"), (int, type(None)), path, "%s.label_id", place)
            if index is not None and 0 <= index < len(names):
                labels.append(names[index])
            else:
                problems.add("annotations without a label that is listed", f"{place} in {path.name}")
        media = expect(item.get("image", item.get("media", {})), (dict,), path, "items[%d].image", i)
        name = expect(media.get("path") or "", (str,), path, "items[%d].image.path", i)
        key = str(expect(item.get("id"), (str, int), path, "items[%d].id", i))
        entries.append(Entry(name, labels) if name else _by_id(key, labels))
    return entries


def _by_id(key: str, labels: Sequence[str]) -> Entry:
    return Entry(key, labels, is_id=not key.lower().endswith(IMAGE_SUFFIXES))


def _fiftyone_samples(content: Any, path: Path, problems: Problems, field: str | None) -> list[Entry]:
    samples = list(objects(content["samples"], path, "samples"))
    fields = dict.fromkeys(
        name for _, sample in samples for name, value in sample.items() if _is_label_field(name, value)
    )
    chosen = _one_field(fields, path, field)
    entries = []
    for i, sample in samples:
        image = expect(sample.get("filepath"), (str,), path, "samples[%d].filepath", i)
        tags = expect(sample.get("tags") or [], (list,), path, "samples[%d].tags", i)
        value = expect(sample.get(chosen), (dict, type(None)), path, "samples[%d].%s", i, chosen)
        if value is None:
            problems.add(f"samples without the field '{chosen}'", f"samples[{i}] in {path.name}")
            continue
        where = f"samples[{i}].{chosen}"
        lists = [(name, value[name]) for name in _FIFTYONE_LISTS if name in value]
        items = [item for name, found in lists for _, item in objects(found, path, f"{where}.{name}")]
        labels = [expect(item.get("label"), (str,), path, "%s.label", where) for item in (items if lists else [value])]
        entries.append(Entry(image, labels, _split_of_tags(tags, f"samples[{i}] in {path.name}", problems)))
    return entries


def _is_label_field(name: str, value: Any) -> bool:
    return (
        isinstance(value, dict)
        and not name.startswith("_")
        and any(isinstance(value.get(key), list if key != "label" else str) for key in ("label", *_FIFTYONE_LISTS))
    )


def _one_field(fields: Iterable[str], path: Path, field: str | None) -> str:
    """The given field, else `ground_truth`, else the only one."""
    names = list(fields)
    if field is not None and field not in names:
        raise unknown(f"field of {path}", field, names)
    chosen = field or next((name for name in names if name.split(".")[0] == "ground_truth"), None)
    if chosen is None and len(names) != 1:
        listed = ", ".join(map(shorten, names))
        reason = f"has several fields of labels: give --field NAME ({listed})" if names else "has no field of labels"
        raise UserError(f"{path} {reason}")
    return chosen or names[0]


def _split_of_tags(tags: Iterable[Any], where: str, problems: Problems) -> str | None:
    splits = {SPLITS[tag.lower()] for tag in tags if isinstance(tag, str) and tag.lower() in SPLITS}
    if len(splits) > 1:
        problems.add("samples with the tags of several splits", where)
    return splits.pop() if len(splits) == 1 else None


def _fiftyone_labels(content: Any, path: Path, problems: Problems, field: str | None) -> list[Entry]:
    classes = expect(content["classes"] or [], (list,), path, "classes")
    names = [expect(name, (str,), path, "classes[%d]", i) for i, name in enumerate(classes)]
    entries = []
    for key, target in content["labels"].items():
        where = f"labels[{shorten(key)!r}]"
        if target is None:
            problems.add("images without a label", f"{where} in {path.name}")
            continue
        labels = []
        for item in target if isinstance(target, list) else [target]:
            label = expect(item.get("label") if isinstance(item, dict) else item, (int, str), path, "%s", where)
            if isinstance(label, int) and not 0 <= label < len(names):
                problems.add("labels that are not in the list of classes", f"{where} is {shorten(label)}")
            else:
                labels.append(names[label] if isinstance(label, int) else label)
        entries.append(_by_id(key, labels))
    return entries


def _fiftyone_rows(content: Any, path: Path, problems: Problems, field: str | None) -> list[Entry]:
    """The rows of CSV: the columns `filepath`, `tags` and FIELD.label or FIELD.detections.label, lists with commas."""
    fields = [name for name in (content[0] if content else {}) if name.endswith(".label") or name == field]
    if not fields:
        raise UserError(f"{path} has no column of labels: export it with the fields filepath, tags and FIELD.label")
    named = next((name for name in fields if name.split(".")[0] == field), field)
    chosen = _one_field(fields, path, named)
    entries = []
    for i, row in enumerate(content):
        labels = [label for label in row.get(chosen, "").split(",") if label.strip()]
        tags = [tag.strip() for tag in row.get("tags", "").split(",")]
        split = _split_of_tags(tags, f"row {i + 1} in {path.name}", problems)
        entries.append(Entry(row.get("filepath", ""), labels, split))
    return entries


READERS: dict[str, Callable[[Any, Path, Problems, str | None], list[Entry]]] = {
    "coco": _coco,
    "label-studio JSON": label_studio.read_tasks,
    "label-studio JSON-MIN": label_studio.read_rows,
    "label-studio CSV": label_studio.read_rows,
    "cvat Datumaro": _datumaro,
    "fiftyone samples": _fiftyone_samples,
    "fiftyone labels": _fiftyone_labels,
    "fiftyone CSV": _fiftyone_rows,
}
"""The reader of each layout: (content, file, problems, the field of labels or None) to entries."""
