"""Copies of images with their labels and probabilities drawn onto them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from PIL import Image, ImageDraw, ImageFont

__all__ = ["annotate"]

_MIN_SIDE, _MAX_SIDE = 320, 1024
"""Pixels of the longer side of a copy. Smaller images are enlarged, so that text fits."""
_SYSTEM_FONTS = (
    "DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "msyh.ttc",
    "DroidSansFallback.ttf",
)  # fmt: skip
"""Fonts with other scripts, tried where that of Pillow lacks a character. Pillow looks for them in the system."""
_MISSING = "\U0010ffff"
"""A character that no font has: it is drawn as the box for missing characters."""
_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def annotate(image: Image.Image, labels: Mapping[str, float]) -> Image.Image:
    """A copy of an image with one line per label, white on a dark box. A label that cannot be drawn is escaped."""
    copy = image.convert("RGB")
    scale = min(_MAX_SIDE, max(_MIN_SIDE, *copy.size)) / max(copy.size)
    if scale != 1:
        copy = copy.resize((max(1, round(copy.width * scale)), max(1, round(copy.height * scale))))
    size = max(12, max(copy.size) // 36)
    draw = ImageDraw.Draw(copy, "RGBA")
    pad = size // 4
    top = pad
    for name, probability in labels.items() or {"no label": None}.items():
        text, font = _drawable(name, size)
        line = text if probability is None else f"{text} {probability:.2f}"
        if top + size + pad > copy.height:
            break
        while draw.textlength(line, font) > copy.width - 4 * pad and len(text) > 1:
            text = text[:-1]
            line = f"{text}… {probability:.2f}" if probability is not None else text
        right = 3 * pad + draw.textlength(line, font)
        draw.rectangle((pad, top, right, top + size + 2 * pad), fill=(0, 0, 0, 176))
        draw.text((2 * pad, top + pad // 2), line, fill="white", font=font)
        top += size + 2 * pad + 1
    return copy


def _drawable(name: str, size: int) -> tuple[str, _Font]:
    """The name, and the first font that has all of its characters. Without one, its characters are escaped."""
    fonts = _fonts(size)
    for font in fonts:
        if all(_has(font, letter) for letter in set(name)):
            return name, font
    return name.encode("ascii", "backslashreplace").decode(), fonts[0]


@functools.lru_cache(maxsize=8)
def _fonts(size: int) -> tuple[_Font, ...]:
    others = (font for name in _SYSTEM_FONTS for font in _truetype(name, size))
    return ImageFont.load_default(size), *others


def _truetype(name: str, size: int) -> list[_Font]:
    try:
        return [ImageFont.truetype(name, size)]
    except (OSError, ImportError):  # there is no such font, or Pillow has no FreeType
        return []


@functools.lru_cache(maxsize=10_000)
def _has(font: _Font, letter: str) -> bool:
    if letter == " ":
        return True
    try:
        return bytes(font.getmask(letter)) != bytes(font.getmask(_MISSING))
    except (UnicodeError, ValueError, OSError):  # the font of a Pillow without FreeType has Latin letters only
        return letter.isascii()
