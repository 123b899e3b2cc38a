"""Pictures of a stream: a contact sheet for each task, class frequencies, and co-occurrence.

Sheets show photographs with their labels; the two charts are drawn from what `describe` counted.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from lifelabel.errors import plain
from lifelabel.report.dataset import LARGEST_MATRIX, Progress
from lifelabel.report.summary import listed
from lifelabel.streams.base import BadImage, Stream

ACROSS, DOWN = 6, 4
WIDTH, HEIGHT = 200, 150
GAP, LINE, CAPTION_LINES, COUNT, TITLE = 12, 16, 3, 40, 52
TRIES = 10 * ACROSS * DOWN
"""Images that are tried for one sheet: where all of them are bad there is none."""
VISIBLE, HIDDEN = "#000000", "#8c8c8c"
NAMED_CLASSES = 80
"""Classes up to which a chart names each."""


def write_sheets(stream: Stream, folder: Path, progress: Progress | None = None) -> list[str]:
    """task-1.png … into a folder, for those tasks that have pictures; the names of the files."""
    digits, written = len(str(len(stream.tasks))), []
    for task in stream.tasks:
        if sheet := contact_sheet(stream, task.index):
            written.append(f"task-{task.index + 1:0{digits}}.png")
            sheet.save(folder / written[-1], compress_level=1)  # the photographs hardly shrink, at any level
        if progress:
            progress(task.index + 1, len(stream.tasks))
    return written


def contact_sheet(stream: Stream, index: int) -> Image.Image | None:
    """Training images of a task, spread over its classes, each over its labels; None where there is no picture.

    The labels that the task shows are black and bold, those it hides are grey. The same stream gives the same sheet.
    """
    chosen = list(islice(_pictures(stream, index), ACROSS * DOWN))
    if not chosen:
        return None
    down = -(-len(chosen) // ACROSS)
    cell = HEIGHT + LINE * CAPTION_LINES + GAP
    sheet = Image.new("RGB", (ACROSS * (WIDTH + GAP) + GAP, TITLE + down * cell), "white")
    draw = ImageDraw.Draw(sheet)
    task = stream.tasks[index]
    title = f"{plain(stream.name)}, task {index + 1} of {len(stream.tasks)}: {listed(task.classes, 110)}"
    draw.text((GAP, 8), title, VISIBLE, _font(15, bold=True))
    key = "black: labels that the task shows" + ("; grey: hidden labels" if stream.train.complete else "")
    draw.text((GAP, 29), key, HIDDEN, _font(12))
    for place, (row, picture) in enumerate(chosen):
        left, top = GAP + place % ACROSS * (WIDTH + GAP), TITLE + place // ACROSS * cell
        small = ImageOps.contain(picture, (WIDTH, HEIGHT))
        sheet.paste(small, (left, top + HEIGHT - small.height))
        _caption(draw, left, top + HEIGHT + 2, _words(stream, row, task.columns))
    return sheet


def _pictures(stream: Stream, index: int) -> Iterator[tuple[int, Image.Image]]:
    for row in islice(_candidates(stream, index), TRIES):
        try:
            yield row, stream.train.images.picture(row, WIDTH)
        except BadImage:
            continue


def _candidates(stream: Stream, index: int) -> Iterator[int]:
    """Rows of the task's training images that have a file: one of each class, then another of each, and so on."""
    task, rows = stream.tasks[index], stream.train.rows[index]
    rng = np.random.default_rng(index)
    rows = rng.permutation(rows[stream.train.images.present[rows]])
    labels = stream.train.labels.take(rows).within(task.columns)
    column, row = labels.column - task.first, rows[labels.row()]
    by_class = np.argsort(column, kind="stable")
    counts = np.bincount(column, minlength=len(task.classes))
    turn = np.empty(len(column), np.int64)
    turn[by_class] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    many = len(task.classes) > ACROSS * DOWN
    rank = rng.permutation(len(task.classes)) if many else np.arange(len(task.classes))
    yield from dict.fromkeys(row[np.lexsort((rank[column], turn))].tolist())


def _words(stream: Stream, row: int, shown: slice) -> list[tuple[str, bool]]:
    """The labels of an image and whether its task shows them; those come first."""
    columns = stream.train.labels[row].tolist()
    names = stream.classes
    visible = [(plain(names[c]), True) for c in columns if shown.start <= c < shown.stop]
    return visible + [(plain(names[c]), False) for c in columns if not shown.start <= c < shown.stop]


def _caption(draw: ImageDraw.ImageDraw, left: int, top: int, words: list[tuple[str, bool]]) -> None:
    """Words in lines as wide as a picture; those that do not fit are counted."""
    x, line = 0.0, 0
    for place, (word, bold) in enumerate(words):
        font, more = _font(12, bold), len(words) - place
        text = _cut(word, font) + ("," if more > 1 else "")
        length = font.getlength(f"{text} ")
        at_end = line + 1 == CAPTION_LINES
        if x and x + length > WIDTH - (COUNT if at_end and more > 1 else 0):
            if at_end:
                draw.text((left + x, top + line * LINE), f"… +{more}", HIDDEN, _font(12))
                return
            x, line = 0.0, line + 1
        draw.text((left + x, top + line * LINE), text, VISIBLE if bold else HIDDEN, font)
        x += length


def _cut(word: str, font: ImageFont.FreeTypeFont) -> str:
    """The word, or as much of it as leaves room for the count of those that do not fit."""
    kept = word[:60]
    while font.getlength(f"{kept}…, ") > WIDTH - COUNT:
        kept = kept[:-1]
    return kept if kept == word else f"{kept}…"


@functools.cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    from matplotlib.font_manager import FontProperties, findfont

    return ImageFont.truetype(findfont(FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")), size)


def draw_frequencies(description: dict[str, Any], path: Path) -> None:
    """Training images of each class: those that hold it, and those that show it."""
    classes = description["classes"]
    figure, axis = _figure(min(3 + 0.24 * len(classes), 26), 4.8)
    edges = np.stack([np.arange(len(classes)) - 0.42, np.arange(len(classes)) + 0.42], 1).ravel()
    series = {"true": ("0.8", "hold it"), "visible": ("C0", "show it to the learner")}
    for key, (colour, label) in series.items():
        if classes[0][key] is None:
            continue
        bars = np.stack([[c[key] for c in classes], np.zeros(len(classes))], 1).ravel()[:-1]
        axis.stairs(bars, edges, fill=True, color=colour, label=label)
    _name_classes(axis.set_xticks, classes, rotation=90)
    _borders(description, axis.axvline)
    title = f"{_text(description['name'])}: training images of each class"
    axis.set(xlim=(-0.6, len(classes) - 0.4), ylabel="images", title=title, axisbelow=True)
    axis.grid(axis="y", alpha=0.3)
    axis.legend()
    _save(figure, path)


def draw_cooccurrence(description: dict[str, Any], path: Path) -> bool:
    """P(C_i | C_j) with a border between tasks; False where there are too many classes to draw."""
    classes, found = description["classes"], description["cooccurrence"]
    if found["matrix"] is None:
        return False
    side = min(3.5 + 0.18 * len(classes), 16)
    figure, axis = _figure(side + 1, side)
    matrix = np.array(found["matrix"])
    np.fill_diagonal(matrix, np.nan)  # 1 by definition
    shown = axis.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
    _name_classes(axis.set_xticks, classes, rotation=90)
    _name_classes(axis.set_yticks, classes)
    for line in (axis.axvline, axis.axhline):
        _borders(description, line)
    axis.set_title(f"{_text(description['name'])}: co-occurrence, {found['labels']}", fontsize=10)
    figure.colorbar(shown, ax=axis, shrink=0.8, label="P(row | column)")
    _save(figure, path)
    return True


def _figure(width: float, height: float) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")


def _name_classes(set_ticks: Any, classes: list[dict[str, Any]], **how: Any) -> None:
    if len(classes) <= NAMED_CLASSES:
        set_ticks(range(len(classes)), [_text(c["name"]) for c in classes], fontsize=7, **how)


def _borders(description: dict[str, Any], line: Any) -> None:
    sizes = [len(task["classes"]) for task in description["tasks"]]
    if len(description["classes"]) <= LARGEST_MATRIX:  # closer lines would hide what they divide
        for border in np.cumsum(sizes)[:-1].tolist():
            line(border - 0.5, color="0.6", linewidth=0.6)


def _text(name: str) -> str:
    """A name for a chart, where `$` would begin a formula."""
    return listed([name], 24).replace("$", r"\$")


def _save(figure: Any, path: Path) -> None:
    from matplotlib import pyplot as plt

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a letter that the font lacks is drawn as a box
            figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)
