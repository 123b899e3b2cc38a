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
from lifelabel.report.charts import chart_text, new_figure, save_figure
from lifelabel.report.sheets import COLUMNS, WIDTH, Photo, draw_sheet, save_sheet
from lifelabel.report.stream import MAX_MATRIX_CLASSES, Progress
from lifelabel.report.stream_text import listed
from lifelabel.streams.stream import Stream

__all__ = ["draw_cooccurrence", "draw_frequencies", "write_sheets"]

_ROWS = 4
_MAX_TRIES = 10 * COLUMNS * _ROWS
"""Images that are tried for one sheet. If all of them are bad, there is no sheet."""
_MAX_NAMED_CLASSES = 80
"""Up to this many classes, a chart names each class."""


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
    return draw_sheet(title, key, [("", photos)])


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


def draw_frequencies(description: dict[str, Any], path: Path) -> None:
    """Draw the number of training images of each class: with the label, and with the label visible."""
    classes = description["classes"]
    figure, (axis,) = new_figure(min(3 + 0.24 * len(classes), 26), 4.8)
    edges = np.stack([np.arange(len(classes)) - 0.42, np.arange(len(classes)) + 0.42], 1).ravel()
    series = {"true": ("0.8", "true label"), "visible": ("C0", "visible label")}
    for key, (colour, label) in series.items():
        if classes[0][key] is None:
            continue
        bars = np.stack([[c[key] for c in classes], np.zeros(len(classes))], 1).ravel()[:-1]
        axis.stairs(bars, edges, fill=True, color=colour, label=label)
    _name_classes(axis.set_xticks, classes, rotation=90)
    _draw_borders(description, axis.axvline)
    title = f"{chart_text(description['name'], 24)}: training images of each class"
    axis.set(xlim=(-0.6, len(classes) - 0.4), ylabel="images", title=title, axisbelow=True)
    axis.grid(axis="y", alpha=0.3)
    axis.legend()
    save_figure(figure, path)


def draw_cooccurrence(description: dict[str, Any], path: Path) -> bool:
    """Draw P(C_i | C_j) with a border between tasks. Returns False if there are too many classes to draw."""
    classes, found = description["classes"], description["cooccurrence"]
    if found["matrix"] is None:
        return False
    side = min(3.5 + 0.18 * len(classes), 16)
    figure, (axis,) = new_figure(side + 1, side)
    matrix = np.array(found["matrix"])
    np.fill_diagonal(matrix, np.nan)  # 1 by definition
    image = axis.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
    _name_classes(axis.set_xticks, classes, rotation=90)
    _name_classes(axis.set_yticks, classes)
    for line in (axis.axvline, axis.axhline):
        _draw_borders(description, line)
    axis.set_title(f"{chart_text(description['name'], 24)}: co-occurrence, {found['labels']}", fontsize=10)
    figure.colorbar(image, ax=axis, shrink=0.8, label="P(row | column)")
    save_figure(figure, path)
    return True


def _name_classes(set_ticks: Any, classes: list[dict[str, Any]], **look: Any) -> None:
    if len(classes) <= _MAX_NAMED_CLASSES:
        set_ticks(range(len(classes)), [chart_text(c["name"], 24) for c in classes], fontsize=7, **look)


def _draw_borders(description: dict[str, Any], line: Any) -> None:
    sizes = [len(task["classes"]) for task in description["tasks"]]
    if len(description["classes"]) <= MAX_MATRIX_CLASSES:  # closer lines would hide the bars
        for border in np.cumsum(sizes)[:-1].tolist():
            line(border - 0.5, color="0.6", linewidth=0.6)
