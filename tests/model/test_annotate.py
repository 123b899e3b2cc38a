import numpy as np
import pytest
from PIL import Image
from support.drawn_images import noise

from lifelabel.model.annotate import annotate


@pytest.mark.parametrize(
    ("size", "expected"),
    [((640, 480), (640, 480)), ((4000, 1000), (1024, 256)), ((20, 30), (213, 320)), ((1, 900), (1, 900))],
)
def test_copies_have_a_size_that_suits_text(size, expected):
    image = Image.new("RGB", size, "white")
    copy = annotate(image, {"dog": 0.93, "beach": 0.5})
    assert copy.size == expected and copy.mode == "RGB" and image.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("colour", ["white", "black", "gray"])
def test_text_is_readable_on_any_background(colour):
    pixels = np.asarray(annotate(Image.new("RGB", (640, 480), colour), {"dog": 0.93})).astype(int)
    box = pixels[8:20, 8:60]
    assert box.max() - box.min() > 150


@pytest.mark.parametrize("labels", [{}, {"пляж": 0.7}, {"浜辺\U0001f3d6": 0.7}, {"long " * 100: 0.5}, {"x\x00y": 0.1}])
def test_any_name_can_be_drawn(labels):
    image = noise(640, 480)
    assert not np.array_equal(np.asarray(annotate(image, labels)), np.asarray(image))


def test_more_labels_than_fit_are_left_out():
    assert annotate(noise(640, 100), {f"label {i}": 0.5 for i in range(1000)}).size == (640, 100)
