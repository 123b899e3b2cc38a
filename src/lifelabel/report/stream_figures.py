"""Figures of a stream: a contact sheet of each task, the frequencies of the classes, and their co-occurrence.

A contact sheet has training images with their labels. The two charts are drawn from the result of `describe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lifelabel.images.source import BadImage
from lifelabel.report.sheets import COLUMNS, WIDTH, Photo, draw_sheet, save_sheet
from lifelabel.report.stream_counts import MAX_MATRIX_CLASSES, Progress
from lifelabel.report.stream_text import listed
from lifelabel.report.vega import COLOURS, chart_obstacle, chart_spec, chart_text, names_channel, write_spec
from lifelabel.streams.stream import Stream

_ROWS = 4
_MAX_TRIES = 10 * COLUMNS * _ROWS
"""Images that are tried for one sheet. If all of them are bad, there is no sheet."""
_MAX_NAMED_CLASSES = 80
"""Up to this many classes, a chart names each class."""
_GAP = 0.16
"""Between two bars, as a share of their distance."""


def write_sheets(stream: Stream, folder: Path, progress: Progress | None = None) -> list[str]:
    """Write task-1.png … for the tasks that have images. Returns the names of the files."""
    digits, written = len(str(len(stream.tasks))), []
    for task in stream.tasks:
        if sheet := _contact_sheet(stream, task.index):
            written.append(f"task-{task.index + 1:0{digits}}.png")
            save_sheet(sheet, folder / written[-1])
        if progress:
            progress(task.index + 1, len(stream.tasks))
    return written


def _contact_sheet(stream: Stream, index: int) -> Image.Image | None:
    """Training images of a task, of all its classes, each above its labels. None if no image can be read.

    Visible labels are black and bold, hidden labels are grey. The same stream gives the same sheet.
    """
    images = list(islice(_readable_images(stream, index), COLUMNS * _ROWS))
    if not images:
        return None
    task = stream.tasks[index]
    title = f"{listed([stream.name], 60)}, task {index + 1} of {len(stream.tasks)}: {listed(task.classes, 110)}"
    key = "black: visible labels" + ("; grey: hidden labels" if stream.train.complete else "")
    photos = [Photo(image, _label_names(stream, row, task.columns)) for row, image in images]
    return draw_sheet(title, key, {"": photos})


def _readable_images(stream: Stream, index: int) -> Iterator[tuple[int, Image.Image]]:
    for row in islice(_candidates(stream, index), _MAX_TRIES):
        try:
            yield row, stream.train.images.read(row, WIDTH)
        except BadImage:
            continue


def _candidates(stream: Stream, index: int) -> Iterator[int]:
    """Rows of the training images of a task that have a file: one image of each class, then a second one, and so on."""
    task, rows = stream.tasks[index], stream.train.rows[index]
    rng = np.random.default_rng(index)
    rows = rng.permutation(rows[stream.train.images.present[rows]])
    labels = stream.train.labels.take(rows).within(task.columns)
    column, row = labels.column - task.offset, rows[labels.row()]
    by_class = np.argsort(column, kind="stable")
    counts = np.bincount(column, minlength=len(task.classes))
    round_ = np.empty(len(column), np.int64)
    round_[by_class] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    many = len(task.classes) > COLUMNS * _ROWS
    rank = rng.permutation(len(task.classes)) if many else np.arange(len(task.classes))
    yield from dict.fromkeys(row[np.lexsort((rank[column], round_))].tolist())


def _label_names(stream: Stream, row: int, columns: slice) -> list[tuple[str, bool]]:
    """The labels of an image, and whether each is visible. Visible labels, those of the task's `columns`, are first."""
    names = stream.classes
    labels = [(names[c], columns.start <= c < columns.stop) for c in stream.train.labels[row].tolist()]
    return sorted(labels, key=lambda label: not label[1])


def write_charts(description: dict[str, Any], folder: Path) -> list[str]:
    """Draw the frequencies of the classes, and their co-occurrence if there are few enough. Returns the names.

    There are no charts if Vega cannot run here.
    """
    if chart_obstacle():
        return []
    names = write_spec(_frequencies(description), folder, "frequencies", (".png",))
    if description["cooccurrence"]["matrix"] is not None:
        names += write_spec(_cooccurrence(description), folder, "cooccurrence", (".png",))
    return names


def _frequencies(description: dict[str, Any]) -> dict[str, Any]:
    """The number of training images of each class: with the label, and with the label visible."""
    classes = description["classes"]
    series = {"true": ("true label", "#cccccc"), "visible": ("visible label", COLOURS[0])}
    known = {key: look for key, look in series.items() if classes[0][key] is not None}
    values = [
        {"c": number, "n": each[key], "s": name}
        for key, (name, _) in known.items()
        for number, each in enumerate(classes)
    ]
    names, colours = zip(*known.values(), strict=True)
    color = {"field": "s", "type": "nominal", "title": None, "scale": {"domain": names, "range": colours}}
    y = {"field": "n", "type": "quantitative", "title": "images", "stack": None}
    x = _class_channel(description, "x", "c", _GAP)
    layers = [{"mark": "bar", "encoding": {"x": x, "y": y, "color": color}}, _borders(description, "x", _GAP)]
    width = min(80 + 14 * len(classes), 1500)
    return _chart(description, "training images of each class", width, 280, values, layers)


def _cooccurrence(description: dict[str, Any]) -> dict[str, Any]:
    """P(C_i | C_j), without the diagonal, which is 1 by definition."""
    matrix = description["cooccurrence"]["matrix"]
    cells = [{"i": i, "j": j, "p": p} for i, row in enumerate(matrix) for j, p in enumerate(row) if i != j]
    side = len(matrix) * max(4, min(24, 800 // len(matrix)))
    color = {
        "field": "p", "type": "quantitative", "scale": {"scheme": "viridis", "domain": [0, 1]},
        "legend": {"title": "P(row | column)", "gradientLength": 200},
    }  # fmt: skip
    axes = {channel: _class_channel(description, channel, field) for channel, field in (("x", "j"), ("y", "i"))}
    borders = [_borders(description, channel) for channel in ("x", "y")]
    layers = [{"mark": "rect", "encoding": {**axes, "color": color}}, *borders]
    return _chart(description, f"co-occurrence, {description['cooccurrence']['labels']}", side, side, cells, layers)


def _chart(
    description: dict[str, Any], title: str, width: int, height: int, values: list[dict[str, Any]], layers: list[Any]
) -> dict[str, Any]:
    names = [chart_text(each["name"], 24) for each in description["classes"]]
    title = f"{chart_text(description['name'], 24)}: {title}"
    return chart_spec(height, values, {"names": names}, width=width, title=title, layer=layers)


def _class_channel(description: dict[str, Any], channel: str, field: str, padding: float = 0) -> dict[str, Any]:
    """The channel of a field with the numbers of classes, with their names if there are few enough."""
    count = len(description["classes"])
    scale = {"domain": [*range(count)], "paddingInner": padding, "paddingOuter": padding / 2}
    axis = {"labels": count <= _MAX_NAMED_CLASSES, "labelAngle": -90 if channel == "x" else 0, "grid": False}
    return names_channel(field, axis, scale=scale)


def _borders(description: dict[str, Any], channel: str, padding: float = 0) -> dict[str, Any]:
    """Lines between the tasks."""
    sizes = [len(task["classes"]) for task in description["tasks"]]
    few = len(description["classes"]) <= MAX_MATRIX_CLASSES  # closer lines would hide the bars
    places = [{"b": border} for border in np.cumsum(sizes)[:-1].tolist()] if few else []
    place = {**_class_channel(description, channel, "b", padding), "bandPosition": 0}
    mark = {"type": "rule", "color": "#9aa0a8", "strokeWidth": 0.8}
    return {"data": {"values": places}, "mark": mark, "encoding": {channel: place}}
