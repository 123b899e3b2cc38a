"""The font of a text, on a system that may have few fonts."""

import pytest
from PIL import ImageFont

from lifelabel.utils import fonts


@pytest.mark.parametrize("bold", [False, True])
def test_a_name_without_glyphs_is_escaped(monkeypatch, bold):
    assert fonts.drawable("sky", 12, bold)[0] == "sky"
    assert fonts.drawable("\U000f0000", 12, bold)[0] == r"\U000f0000"  # no font has a character for private use
    monkeypatch.setattr(fonts, "_fonts", lambda size, bold: (ImageFont.load_default_imagefont(),))  # without FreeType
    assert fonts.drawable("été", 12, bold)[0] == r"\xe9t\xe9" and fonts.drawable("sky", 12, bold)[0] == "sky"


def test_a_system_without_fonts_has_that_of_pillow(monkeypatch):
    monkeypatch.setattr(fonts, "_truetype", lambda name, size: [])
    fonts._fonts.cache_clear()
    text, font = fonts.drawable("sky", 15)
    assert text == "sky" and font.getlength(text) > 10
    fonts._fonts.cache_clear()
