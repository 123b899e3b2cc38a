"""Contact sheets: images in rows, and captions as wide as an image."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lifelabel.report import sheets


def caption(labels):
    sheet = Image.new("L", (600, 100), "white")
    sheets._draw_caption(ImageDraw.Draw(sheet), 0, 0, labels)
    return np.asarray(sheet)


def test_a_label_is_black_or_grey_and_printable():
    assert caption([("fork", True)]).min() == 0
    assert caption([("fork", False)]).min() == 0x8C
    assert np.array_equal(caption([("a\nb", True)]), caption([("a\N{REPLACEMENT CHARACTER}b", True)]))


@pytest.mark.parametrize("length", [1, 5, 12, 100])
def test_a_caption_is_not_wider_than_its_image(length):
    inked = np.argwhere(caption([("w" * (length + k % 3), k < 3) for k in range(60)]) < 255)
    assert inked[:, 1].max() < sheets.WIDTH + sheets._GAP
    assert sheets._LINE * 2 < inked[:, 0].max() < sheets._LINE * sheets._CAPTION_LINES + 2


def test_groups_have_headings_and_rows_of_six(tmp_path):
    red, blue = (sheets.Photo(Image.new("RGB", (80, 60), colour), [("a", True)]) for colour in ("red", "blue"))
    sheet = sheets.draw_sheet("title", "key", {"first": [red] * 7, "second": [blue], "none": []})
    cell = 150 + 48 + 12
    assert sheet.size == (6 * 212 + 12, 52 + 3 * 28 + 3 * cell)
    pixels = np.asarray(sheet).astype(int)
    is_red, is_blue = ((pixels[..., c] > 200) & (pixels.sum(2) < 300) for c in (0, 2))
    assert is_red.any(1).nonzero()[0].max() < 52 + 28 + 2 * cell <= is_blue.any(1).nonzero()[0].min()
    sheets.save_sheet(sheet, tmp_path / "s.png")
    assert Image.open(tmp_path / "s.png").size == sheet.size
