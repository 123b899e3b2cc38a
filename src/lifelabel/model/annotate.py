"""Copies of images with their labels and probabilities drawn onto them."""

from __future__ import annotations

from collections.abc import Mapping

from PIL import Image, ImageDraw

from lifelabel.utils.fonts import drawable

_MIN_SIDE, _MAX_SIDE = 320, 1024
"""Pixels of the longer side of a copy. Smaller images are enlarged, so that text fits."""


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
        text, font = drawable(name, size)
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
