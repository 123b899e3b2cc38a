"""Text and files of figures."""

import warnings

import pytest
from matplotlib import pyplot
from PIL import Image

from lifelabel.errors import UserError
from lifelabel.report.charts import chart_text, new_figure, save_figure


def test_a_dollar_is_escaped_after_the_text_is_cut_and_wrapped():
    assert chart_text("$5_to_$10", 24) == r"\$5_to_\$10"
    assert chart_text("$5_to_$10", 8) == r"\$5_to_\$…"
    assert chart_text("a\x1b[2J\nb", 24) == "a�[2J�b"
    assert chart_text("aaa$bbb$", 24, wrap=4) == "aaa\\$\nbbb\\$"
    for wrap in range(1, 12):  # no line ends between a backslash and its dollar
        assert chart_text("$" * 30, 24, wrap=wrap).replace("\n", "") == r"\$" * 23 + "…"


def test_a_figure_has_its_size_and_its_columns(tmp_path):
    figure, axes = new_figure(6, 2.5, columns=3, width_ratios=[2, 1, 1])
    assert list(axes) == figure.axes and len(axes) == 3
    save_figure(figure, tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert (image.format, image.size) == ("PNG", (660, 275))  # 110 dots per inch
    wide, narrow, last = (axis.get_position().width for axis in axes)
    assert wide > 1.5 * narrow and narrow == pytest.approx(last, rel=0.1)
    assert not pyplot.get_fignums()


def test_a_figure_that_cannot_be_drawn_is_closed_and_the_old_file_stays(tmp_path):
    (tmp_path / "a.png").write_bytes(b"old")
    figure, (axis,) = new_figure(2, 2)
    axis.set_title("$\\frac{$")
    with pytest.raises(ValueError, match="frac"):
        save_figure(figure, tmp_path / "a.png")
    assert not pyplot.get_fignums()
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"] and (tmp_path / "a.png").read_bytes() == b"old"


def test_a_figure_that_cannot_be_written_is_closed(tmp_path):
    figure, _ = new_figure(2, 2)
    with pytest.raises(UserError, match=r"cannot write .*none/a.png"):
        save_figure(figure, tmp_path / "none" / "a.png")
    assert not pyplot.get_fignums()


def test_a_character_that_the_font_does_not_have_gives_no_warning(tmp_path):
    figure, (axis,) = new_figure(2, 2)
    axis.set_title("犬")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 1000
