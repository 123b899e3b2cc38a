"""Readers of the exports of annotation tools: the images of one JSON or CSV file, with their labels.

A reader accepts the layouts that the tools publish. An entry that cannot be used is counted as a problem.
`lifelabel.streams.conversion` makes a table of the result; see docs/streams/convert.md.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from lifelabel.errors import UserError
from lifelabel.images.decode import IMAGE_SUFFIXES
from lifelabel.streams.label_files import LABEL_FIELDS, SPLITS, Entry, Export, as_list
from lifelabel.utils.text import shorten

_ADDED_COLUMNS = {
    "id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement", "history", "file_upload",
}  # fmt: skip
"""Columns that Label Studio adds to the fields of a task and to the labels."""
_MARKS = {"annotator", "annotation_id", "lead_time"}
"""Columns by which its exports are recognised."""
_LABEL_COLUMNS = {"choice", "choices", *LABEL_FIELDS}
"""Columns whose plain text is a label. In another column it can also be a comment."""
_FIFTYONE_LISTS = ("classifications", "detections", "polylines", "keypoints")


def kind_of(content: Any, is_csv: bool, tool: str = "auto") -> str | None:
    """The layout of a file, a key of `READERS`; None if it is not known. `tool` decides if the layout has no marks.

    >>> kind_of([{"data": {"image": "a.jpg"}, "annotations": []}], is_csv=False)
    'label-studio JSON'
    """
    match content:
        case [{"data": dict()}, *_] if not is_csv:
            return "label-studio JSON"
        case [dict() as first, *_] if first.keys() & _MARKS or (first and tool == "label-studio"):
            return "label-studio CSV" if is_csv else "label-studio JSON-MIN"
        case [{"filepath": _}, *_] if is_csv:
            return "fiftyone CSV"
        case {"images": list(), "annotations": list(), "categories": list()}:
            return "coco"
        case {"items": list(), "categories": dict()}:
            return "cvat Datumaro"
        case {"samples": list()}:
            return "fiftyone samples"
        case {"classes": _, "labels": dict()}:
            return "fiftyone labels"
    return None


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
        for item in as_list(target):
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


# Label Studio: JSON, JSON-MIN and CSV


def _label_studio_tasks(content: Any, export: Export) -> list[Entry]:
    """The tasks of the JSON export. An image has the labels of all its annotations; predictions are not used."""
    entries = []
    tags: set[str] = set()
    for i, task in export.objects(content, "tasks"):
        data = export.expect(task.get("data"), (dict,), "tasks[%d].data", i)
        image = _image_url(data)
        if image is None:
            export.skip("tasks without an image", f"tasks[{i}]")
            continue
        name = "annotations" if "annotations" in task else "completions"
        annotations = list(export.objects(task.get(name) or [], f"tasks[{i}].{name}"))
        kept = [(j, item) for j, item in annotations if not (item.get("was_cancelled") or item.get("skipped"))]
        if not kept:
            export.skip("tasks without an annotation", f"tasks[{i}]")
            continue
        labels: list[str] = []
        for j, annotation in kept:
            place = f"tasks[{i}].{name}[{j}].result"
            for k, result in export.objects(annotation.get("result") or [], place):
                tag = export.expect(result.get("from_name", ""), (str,), "%s[%d].from_name", place, k)
                tags.add(tag)
                if export.field is None or tag == export.field:
                    value = export.expect(result.get("value", {}), (dict,), "%s[%d].value", place, k)
                    labels += _named_labels(value, export, f"{place}[{k}].value")
        entries.append(Entry(image, labels))
    export.check_field(tags)
    return entries


def _named_labels(value: Mapping[str, Any], export: Export, where: str) -> list[str]:
    """The labels of one result: of `choices`, `rectanglelabels`, `polygonlabels`, `brushlabels`, `labels` …"""
    labels: list[str] = []
    for key, found in value.items():
        if _is_label_key(key):
            found = [found] if isinstance(found, str) else export.expect(found, (list,), "%s.%s", where, key)
            labels += (export.expect(text, (str,), "%s.%s[%d]", where, key, n) for n, text in enumerate(found))
    return labels


def _is_label_key(key: str) -> bool:
    return key == "choices" or key.endswith("labels")


def _image_url(fields: Mapping[str, Any]) -> str | None:
    """The image of a task: the field `image`, or else the first field with the name of an image file."""
    if isinstance(fields.get("image"), str) and fields["image"]:
        return _local_path(fields["image"])
    return next((_local_path(value) for value in fields.values() if _is_image(value)), None)


def _is_image(value: Any) -> bool:
    return isinstance(value, str) and _local_path(value).lower().endswith(IMAGE_SUFFIXES)


def _local_path(url: str) -> str:
    """The path of the image at a URL of Label Studio. A text that is no URL is returned unchanged.

    >>> _local_path("/data/upload/3/abcd-a.jpg"), _local_path("/data/local-files/?d=photos/a%20b.jpg")
    ('upload/3/abcd-a.jpg', 'photos/a b.jpg')
    >>> _local_path("s3://bucket/photos/a.jpg"), _local_path("https://example.com/photos/a.jpg?size=2")
    ('photos/a.jpg', 'photos/a.jpg')
    """
    scheme, mark, rest = url.partition("://")
    if mark and scheme not in ("http", "https"):
        return "/" + unquote(rest).lstrip("/") if scheme == "file" else rest.partition("/")[2]
    if not mark and not url.startswith("/data/"):
        return url
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    if parts.path.rstrip("/").endswith("/data/local-files"):
        query = re.search(r"(?:^|&)d=([^&]*)", parts.query)
        return unquote(query[1]).lstrip("/") if query else ""
    _, upload, name = parts.path.partition("/data/upload/")
    if upload:
        return "upload/" + unquote(name)
    return unquote(parts.path).lstrip("/") if mark else url


def _label_studio_rows(content: Any, export: Export) -> list[Entry]:
    """The rows of JSON-MIN or CSV. A label is a text, or an object or a list, which CSV has as JSON."""
    records = []
    for i, item in export.objects(content, "rows"):
        if "annotation_id" in item and not item["annotation_id"]:
            export.skip("tasks without an annotation", f"rows[{i}]")
        else:
            records.append((i, {name: _parsed(value) for name, value in item.items()}))
    image_column = _image_column(record for _, record in records)
    columns = _label_columns([record for _, record in records], image_column, export)
    entries = []
    for i, record in records:
        image = record.get(image_column)
        if not isinstance(image, str) or not image:
            export.skip("tasks without an image", f"rows[{i}]")
            continue
        labels: list[str] = []
        for name in columns:
            value = record.get(name)
            for part in as_list(value):
                if isinstance(part, dict):
                    labels += _named_labels(part, export, f"rows[{i}].{name}")
                elif part:
                    labels.append(export.expect(part, (str,), "rows[%d].%s", i, name))
        entries.append(Entry(_local_path(image), labels))
    return entries


def _parsed(value: Any) -> Any:
    """A text that is a JSON object or list as such; anything else unchanged."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def _image_column(records: Iterable[Mapping[str, Any]]) -> str:
    """The column `image`, or else the first column with the name of an image file."""
    found = [name for record in records for name, value in record.items() if name == "image" or _is_image(value)]
    return "image" if "image" in found or not found else found[0]


def _label_columns(records: list[dict[str, Any]], image: str, export: Export) -> list[str]:
    """The columns with labels, in the order of the file: the given one, or those that can only be labels."""
    sure: dict[str, bool] = {}
    for record in records:
        for name, value in record.items():
            parts = [part for part in as_list(value) if part and isinstance(part, (str, dict))]
            if parts and name != image and name not in _ADDED_COLUMNS:
                has_labels = any(isinstance(part, dict) and any(map(_is_label_key, part)) for part in parts)
                sure[name] = sure.get(name, name.lower() in _LABEL_COLUMNS) or has_labels
    export.check_field(sure)
    chosen = [export.field] if export.field else [name for name in sure if sure[name]] or list(sure)
    if len(chosen) > 1 and not any(sure.values()):
        names = ", ".join(map(shorten, sure))
        raise UserError(f"{export.path}: it is not clear which column has the labels: give --field NAME ({names})")
    return chosen


READERS: dict[str, Callable[[Any, Export], list[Entry]]] = {
    "coco": _coco,
    "label-studio JSON": _label_studio_tasks,
    "label-studio JSON-MIN": _label_studio_rows,
    "label-studio CSV": _label_studio_rows,
    "cvat Datumaro": _datumaro,
    "fiftyone samples": _fiftyone_samples,
    "fiftyone labels": _fiftyone_labels,
    "fiftyone CSV": _fiftyone_rows,
}
"""The reader of each layout: from the content of a file to its entries."""
