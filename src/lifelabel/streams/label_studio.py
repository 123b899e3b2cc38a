"""Readers of the exports of Label Studio: JSON, JSON-MIN and CSV."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from lifelabel.errors import UserError
from lifelabel.streams.label_files import IMAGE_SUFFIXES, Entry, Export
from lifelabel.utils.text import shorten

__all__ = ["MARKS", "read_rows", "read_tasks"]

_COLUMNS = {
    "id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement", "history", "file_upload",
}  # fmt: skip
"""Columns that Label Studio adds to the fields of a task and to the labels."""
MARKS = {"annotator", "annotation_id", "lead_time"}
_LABEL_COLUMNS = {"choice", "choices", "label", "labels", "class", "classes", "category", "categories", "tag", "tags"}
"""Columns whose plain text is a label. In another column it can also be a comment."""


def read_tasks(content: Any, export: Export) -> list[Entry]:
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


def read_rows(content: Any, export: Export) -> list[Entry]:
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
            for part in value if isinstance(value, list) else [value]:
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
            parts = value if isinstance(value, list) else [value]
            if name == image or name in _COLUMNS or not any(isinstance(part, (str, dict)) and part for part in parts):
                continue
            has_labels = any(isinstance(part, dict) and any(map(_is_label_key, part)) for part in parts)
            sure[name] = sure.get(name, name.lower() in _LABEL_COLUMNS) or has_labels
    export.check_field(sure)
    chosen = [export.field] if export.field else [name for name in sure if sure[name]] or list(sure)
    if len(chosen) > 1 and not any(sure.values()):
        names = ", ".join(map(shorten, sure))
        raise UserError(f"{export.path}: it is not clear which column has the labels: give --field NAME ({names})")
    return chosen
