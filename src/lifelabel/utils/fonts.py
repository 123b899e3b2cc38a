"""Fonts for text in pictures: those of the system, and that of Pillow where there is none."""

from __future__ import annotations

import functools

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_FONTS = ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "arial.ttf", "Arial.ttf")
"""Fonts with Latin, Greek and Cyrillic letters. Pillow looks for them in the system."""
_BOLD = ("DejaVuSans-Bold.ttf", "LiberationSans-Bold.ttf", "arialbd.ttf", "Arial Bold.ttf")
_OTHER_SCRIPTS = (
    "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "msyh.ttc", "DroidSansFallback.ttf",
)  # fmt: skip
"""Tried where the first font lacks a character."""
_MISSING = "\U0010ffff"
"""A character that no font has: it is drawn as the box for missing characters."""


def drawable(text: str, size: int, bold: bool = False) -> tuple[str, Font]:
    """The text, and the first font that has all of its characters. Without one, its characters are escaped."""
    fonts = _fonts(size, bold)
    for font in fonts:
        if all(_has(font, letter) for letter in set(text)):
            return text, font
    return text.encode("ascii", "backslashreplace").decode(), fonts[0]


@functools.lru_cache(maxsize=8)
def _fonts(size: int, bold: bool = False) -> tuple[Font, ...]:
    latin = next((font for name in (_BOLD if bold else _FONTS) for font in _truetype(name, size)), None)
    others = [font for name in _OTHER_SCRIPTS for font in _truetype(name, size)]
    return (latin or ImageFont.load_default(size), *others)


def _truetype(name: str, size: int) -> list[Font]:
    try:
        return [ImageFont.truetype(name, size)]
    except (OSError, ImportError):  # there is no such font, or Pillow has no FreeType
        return []


@functools.lru_cache(maxsize=10_000)
def _has(font: Font, letter: str) -> bool:
    if letter == " ":
        return True
    try:
        return bytes(font.getmask(letter)) != bytes(font.getmask(_MISSING))
    except (UnicodeError, ValueError, OSError):  # the font of a Pillow without FreeType has Latin letters only
        return letter.isascii()
