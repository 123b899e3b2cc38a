"""Figures of a stream: a contact sheet of each task, the frequencies of the classes, and their co-occurrence.

A contact sheet has training images with their labels. The two charts are drawn from the result of `describe`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from lifelabel.report.charts import chart_text, new_figure, save_figure
from lifelabel.report.stream import MAX_MATRIX_CLASSES, Progress
from lifelabel.report.stream_text import listed
from lifelabel.streams.base import BadImage, Stream
from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import printable

__all__ = ["draw_cooccurrence", "draw_frequencies", "write_sheets"]

_COLUMNS, _ROWS = 6, 4
_WIDTH, _HEIGHT = 200, 150
"""Size of an image on a sheet, in pixels."""
_GAP, _TITLE, _LINE = 12, 52, 16
"""The gap between images and the heights of the title and of a line of a caption, in pixels."""
_CAPTION_LINES = 3
_MORE = 40
"""Room for the number of labels that do not fit, as in "… +7", in pixels."""
_MAX_TRIES = 10 * _COLUMNS * _ROWS
"""Images that are tried for one sheet. If all of them are bad, there is no sheet."""
_VISIBLE, _HIDDEN = "#000000", "#8c8c8c"
_MAX_NAMED_CLASSES = 80
"""Up to this many classes, a chart names each class."""


def write_sheets(stream: Stream, folder: Path, progress: Progress | None = None) -> list[str]:
    """Write task-1.png … for the tasks that have images. Returns the names of the files."""
    digits, written = len(str(len(stream.tasks))), []
    for task in stream.tasks:
        if sheet := _contact_sheet(stream, task.index):
            written.append(f"task-{task.index + 1:0{digits}}.png")
            with atomic_write(folder / written[-1]) as file:
                sheet.save(file, "png", compress_level=1)  # a higher level makes photographs hardly smaller
        if progress:
            progress(task.index + 1, len(stream.tasks))
    return written


def _contact_sheet(stream: Stream, index: int) -> Image.Image | None:
    """Training images of a task, of all its classes, each above its labels. None if no image can be read.

    Visible labels are black and bold, hidden labels are grey. The same stream gives the same sheet.
    """
    images = list(islice(_readable_images(stream, index), _COLUMNS * _ROWS))
    if not images:
        return None
    rows = -(-len(images) // _COLUMNS)
    cell = _HEIGHT + _LINE * _CAPTION_LINES + _GAP
    sheet = Image.new("RGB", (_COLUMNS * (_WIDTH + _GAP) + _GAP, _TITLE + rows * cell), "white")
    draw = ImageDraw.Draw(sheet)
    task = stream.tasks[index]
    title = f"{listed([stream.name], 60)}, task {index + 1} of {len(stream.tasks)}: {listed(task.classes, 110)}"
    draw.text((_GAP, 8), title, _VISIBLE, _font(15, bold=True))
    key = "black: visible labels" + ("; grey: hidden labels" if stream.train.complete else "")
    draw.text((_GAP, 29), key, _HIDDEN, _font(12))
    for position, (row, image) in enumerate(images):
        left, top = _GAP + position % _COLUMNS * (_WIDTH + _GAP), _TITLE + position // _COLUMNS * cell
        small = ImageOps.contain(image, (_WIDTH, _HEIGHT))
        sheet.paste(small, (left, top + _HEIGHT - small.height))
        _draw_caption(draw, left, top + _HEIGHT + 2, _label_names(stream, row, task.columns))
    return sheet


def _readable_images(stream: Stream, index: int) -> Iterator[tuple[int, Image.Image]]:
    for row in islice(_candidates(stream, index), _MAX_TRIES):
        try:
            yield row, stream.train.images.read(row, _WIDTH)
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
    many = len(task.classes) > _COLUMNS * _ROWS
    rank = rng.permutation(len(task.classes)) if many else np.arange(len(task.classes))
    yield from dict.fromkeys(row[np.lexsort((rank[column], round_))].tolist())


def _label_names(stream: Stream, row: int, columns: slice) -> list[tuple[str, bool]]:
    """The labels of an image, and whether each is visible. Visible labels, those of the task's `columns`, are first."""
    names = stream.classes
    labels = [(printable(names[c]), columns.start <= c < columns.stop) for c in stream.train.labels[row].tolist()]
    return sorted(labels, key=lambda label: not label[1])


def _draw_caption(draw: ImageDraw.ImageDraw, left: int, top: int, labels: list[tuple[str, bool]]) -> None:
    """Draw labels in lines as wide as an image, and the number of those that do not fit."""
    x, line = 0.0, 0
    for position, (name, visible) in enumerate(labels):
        font, more = _font(12, bold=visible), len(labels) - position
        text = _cut(name, font) + ("," if more > 1 else "")
        length = font.getlength(f"{text} ")
        is_last_line = line + 1 == _CAPTION_LINES
        if x and x + length > _WIDTH - (_MORE if is_last_line and more > 1 else 0):
            if is_last_line:
                draw.text((left + x, top + line * _LINE), f"… +{more}", _HIDDEN, _font(12))
                return
            x, line = 0.0, line + 1
        draw.text((left + x, top + line * _LINE), text, _VISIBLE if visible else _HIDDEN, font)
        x += length


def _cut(name: str, font: ImageFont.FreeTypeFont) -> str:
    """A name, cut so that the number of labels that do not fit has room after it."""
    short = name[:60]
    while font.getlength(f"{short}…, ") > _WIDTH - _MORE:
        short = short[:-1]
    return short if short == name else f"{short}…"


@functools.cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    from matplotlib.font_manager import FontProperties, findfont

    return ImageFont.truetype(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")), size)


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
