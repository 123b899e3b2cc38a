"""Contact sheets: small images in rows, each above its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageOps

from lifelabel.utils.files import atomic_write
from lifelabel.utils.fonts import Font, drawable
from lifelabel.utils.text import printable

COLUMNS = 6
WIDTH, _HEIGHT = 200, 150
"""Size of an image on a sheet, in pixels."""
_GAP, _TITLE, _HEADING, _LINE = 12, 52, 28, 16
"""The gap between images and the heights of the title, of a heading and of a line of a caption, in pixels."""
_CAPTION_LINES = 3
_MORE = 40
"""Room for the number of labels that do not fit, as in "… +7", in pixels."""
_BLACK, _GREY = "#000000", "#8c8c8c"


class Photo(NamedTuple):
    """An image and its labels, each with whether it is black and bold. The others are grey."""

    image: Image.Image
    labels: Sequence[tuple[str, bool]]


def draw_sheet(title: str, key: str, groups: Mapping[str, Sequence[Photo]]) -> Image.Image:
    """A sheet with a title, a line that explains it, and groups of images by heading, which may be empty."""
    cell = _HEIGHT + _LINE * _CAPTION_LINES + _GAP
    heights = [_HEADING * bool(heading) + -(-len(photos) // COLUMNS) * cell for heading, photos in groups.items()]
    sheet = Image.new("RGB", (COLUMNS * (WIDTH + _GAP) + _GAP, _TITLE + sum(heights)), "white")
    draw = ImageDraw.Draw(sheet)
    _draw_text(draw, (_GAP, 8), title, _BLACK, 15, bold=True)
    _draw_text(draw, (_GAP, 29), key, _GREY, 12)
    begin = _TITLE
    for (heading, photos), height in zip(groups.items(), heights, strict=True):
        if heading:
            _draw_text(draw, (_GAP, begin + 2), heading, _BLACK, 14, bold=True)
        top = begin + _HEADING * bool(heading)
        for position, photo in enumerate(photos):
            left, upper = _GAP + position % COLUMNS * (WIDTH + _GAP), top + position // COLUMNS * cell
            small = ImageOps.contain(photo.image, (WIDTH, _HEIGHT))
            sheet.paste(small, (left, upper + _HEIGHT - small.height))
            _draw_caption(draw, left, upper + _HEIGHT + 2, photo.labels)
        begin += height
    return sheet


def save_sheet(sheet: Image.Image, path: Path) -> None:
    with atomic_write(path) as file:
        sheet.save(file, "png", compress_level=1)  # a higher level makes photographs hardly smaller


def _draw_text(
    draw: ImageDraw.ImageDraw, place: tuple[float, float], text: str, colour: str, size: int, bold: bool = False
) -> None:
    shown, font = drawable(text, size, bold)
    draw.text(place, shown, colour, font)


def _draw_caption(draw: ImageDraw.ImageDraw, left: int, top: int, labels: Sequence[tuple[str, bool]]) -> None:
    """Draw labels in lines as wide as an image, and the number of those that do not fit."""
    x, line = 0.0, 0
    for position, (name, bold) in enumerate(labels):
        more = len(labels) - position
        shown, font = drawable(printable(name), 12, bold)
        text = _cut(shown, font) + ("," if more > 1 else "")
        length = font.getlength(f"{text} ")
        is_last_line = line + 1 == _CAPTION_LINES
        if x and x + length > WIDTH - (_MORE if is_last_line and more > 1 else 0):
            if is_last_line:
                _draw_text(draw, (left + x, top + line * _LINE), f"… +{more}", _GREY, 12)
                return
            x, line = 0.0, line + 1
        draw.text((left + x, top + line * _LINE), text, _BLACK if bold else _GREY, font)
        x += length


def _cut(name: str, font: Font) -> str:
    """A name, cut so that the number of labels that do not fit has room after it."""
    short = name[:60]
    while font.getlength(f"{short}…, ") > WIDTH - _MORE:
        short = short[:-1]
    return short if short == name else f"{short}…"
