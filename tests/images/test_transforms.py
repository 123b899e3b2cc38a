"""Resizing, seeded augmentation and batches."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image
from support.drawn_images import BLUE, GREEN, RED, WHITE, noise, quarters

from lifelabel.images import transforms
from lifelabel.images.source import BadImage
from lifelabel.images.transforms import AUGMENTATIONS, _transform, load_batch, min_side_for


def rng(seed=0):
    return np.random.default_rng(seed)


def test_an_image_of_the_right_size_is_not_resampled():
    image = noise(32, 32)
    pixels = np.asarray(image)
    np.testing.assert_array_equal(_transform(image, 32, "none", rng()), pixels)
    np.testing.assert_array_equal(_transform(image, 32, "crop-flip", None), pixels)
    for seed in range(8):
        out = _transform(image, 32, "flip", rng(seed))
        np.testing.assert_array_equal(out, pixels[:, ::-1] if rng(seed).random() < 0.5 else pixels)


def test_the_whole_image_is_resized_to_a_square():
    image = quarters(64)
    for kind in AUGMENTATIONS:
        out = _transform(image, 20, kind, None)
        assert out.shape == (20, 20, 3) and out.dtype == np.uint8
        np.testing.assert_array_equal(out, np.asarray(image.resize((20, 20), Image.Resampling.BILINEAR)))
    assert [tuple(out[y, x]) for y, x in ((0, 0), (0, 19), (19, 0), (19, 19))] == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_a_transform_depends_on_its_generator_only(kind):
    image = noise(64, 48)
    first = [_transform(image, 16, kind, rng(seed)) for seed in range(8)]
    again = [_transform(image, 16, kind, rng(seed)) for seed in range(8)]
    np.testing.assert_array_equal(first, again)
    different = len({out.tobytes() for out in first})
    assert different == {"none": 1, "flip": 2, "crop-flip": 8}[kind]


def ramps(width, height):
    """An image whose red increases to the right and whose green increases downwards."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 0 * x], 2).astype(np.uint8))


@pytest.mark.parametrize(("width", "height"), [(200, 200), (400, 100)])
def test_a_crop_has_50_to_100_percent_of_the_area_at_any_position(width, height):
    image, draws = ramps(width, height), rng()
    out = np.stack([_transform(image, 32, "crop-flip", draws) for _ in range(300)]).astype(float) / 255
    left, right = out[:, 16, 0, 0], out[:, 16, -1, 0]
    wide = abs(right - left) * 32 / 31
    tall = (out[:, -1, 16, 1] - out[:, 0, 16, 1]) * 32 / 31
    area = wide * tall
    assert 0.48 < area.min() < 0.55 and 0.9 < area.max() < 1.03
    assert 0.6 < wide.min() < 0.7 and 0.6 < tall.min() < 0.7  # sqrt(0.5 * 3 / 4) = 0.61
    assert (wide / tall).min() > 0.73 and (wide / tall).max() < 1.37
    assert 110 < (right < left).sum() < 190
    assert out[..., 0].min() < 0.02 and out[..., 0].max() > 0.98
    assert (out[:, 0, 16, 1] > 0.1).any() and (out[:, -1, 16, 1] < 0.9).any()


def test_a_crop_of_one_pixel_is_that_pixel():
    assert transforms._crop(1, 1, rng()) == (0, 0, 1, 1)
    for seed in range(200):
        top, left, height, width = transforms._crop(7, 3, rng(seed))
        assert 0 <= top <= 3 - height and 0 <= left <= 7 - width and height * width >= 7 * 3 / 2


def test_no_crop_of_an_image_of_the_minimum_side_is_enlarged():
    side = min_side_for(224, "crop-flip")
    assert min_side_for(224, "none") == min_side_for(224, "flip") == 224 and 360 <= side <= 373
    assert min(min(transforms._crop(side, side, rng(seed))[2:]) for seed in range(2000)) >= 224


class MemoryImages:
    """Images in memory. Every third one is bad."""

    def __init__(self):
        self.min_sides = set()

    def read(self, row, min_side=0):
        self.min_sides.add(min_side)
        if row % 3 == 0:
            raise BadImage("every third")
        return noise(30, 20, seed=row)


def test_a_batch_has_the_good_images_in_order():
    out, good, bad = load_batch(MemoryImages(), np.array([8, 3, 1, 0, 4]), 16, "none", (1,))
    assert out.shape == (3, 16, 16, 3) and out.dtype == np.uint8
    assert good.tolist() == [0, 2, 4] and bad == [(3, "every third"), (0, "every third")]
    for pixels, row in zip(out, (8, 1, 4), strict=True):
        np.testing.assert_array_equal(pixels, _transform(noise(30, 20, seed=row), 16, "none", None))
    out, good, bad = load_batch(MemoryImages(), np.array([0, 3]), 16, "flip", (1,))
    assert out.shape == (0, 16, 16, 3) and good.shape == (0,) and len(bad) == 2
    assert load_batch(MemoryImages(), np.array([], int), 16, "flip", (1,))[0].shape == (0, 16, 16, 3)


@pytest.mark.parametrize("kind", ["flip", "crop-flip"])
def test_an_image_is_augmented_the_same_in_any_batch(kind):
    rows = np.array([1, 2, 4, 5, 7, 8, 10, 11])
    batch = load_batch(MemoryImages(), rows, 16, kind, (5, 0))[0]
    np.testing.assert_array_equal(batch[::-1], load_batch(MemoryImages(), rows[::-1], 16, kind, (5, 0))[0])
    np.testing.assert_array_equal(batch[2:3], load_batch(MemoryImages(), rows[2:3], 16, kind, (5, 0))[0])
    assert not np.array_equal(batch, load_batch(MemoryImages(), rows, 16, kind, (5, 1))[0])


def test_threads_do_not_share_random_numbers():
    rows = np.array([1, 2, 4, 5, 7, 8])
    expected = {seed: load_batch(MemoryImages(), rows, 16, "crop-flip", (seed,))[0] for seed in range(4)}
    with ThreadPoolExecutor(4) as pool:
        shared = pool.map(lambda seed: load_batch(MemoryImages(), rows, 16, "crop-flip", (seed,))[0], [*range(4)] * 10)
        for seed, pixels in enumerate(shared):
            np.testing.assert_array_equal(pixels, expected[seed % 4])


def test_evaluation_does_not_augment_and_reads_images_at_the_size_it_needs():
    source, rows = MemoryImages(), np.array([1, 2])
    out = load_batch(source, rows, 16, "crop-flip", None)[0]
    np.testing.assert_array_equal(out, load_batch(source, rows, 16, "none", (0,))[0])
    assert source.min_sides == {16}
    load_batch(source, rows, 16, "crop-flip", (0,))
    assert source.min_sides == {16, min_side_for(16, "crop-flip")}
