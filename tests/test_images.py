import io
import os
import struct
import threading
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, features

from lifelabel import images
from lifelabel.backbones import build
from lifelabel.images import AUGMENTATIONS, least, load, open_picture, transform
from lifelabel.streams.base import BadImage

# pytest sets its own filters around each test, so the ones of `images.hush` do not hold here
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning", "ignore:Corrupt EXIF data")

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def noise(width=40, height=24, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def quarters(size=32):
    """Four colours, so that each of the eight ways to turn it looks different."""
    picture = Image.new("RGB", (2 * size, size), WHITE)
    for colour, place in ((RED, (0, 0)), (GREEN, (size, 0)), (BLUE, (0, size // 2))):
        picture.paste(colour, (*place, place[0] + size, place[1] + size // 2))
    return picture


def encoded(picture, kind="JPEG", **settings):
    file = io.BytesIO()
    picture.save(file, kind, **settings)
    return file.getvalue()


def stored(folder, data, name="a.jpg"):
    path = folder / name
    path.write_bytes(data)
    return path


def reason(path):
    with pytest.raises(BadImage) as raised:
        open_picture(path)
    return str(raised.value)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, colour, data):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def tiff(width, height, tile, data=b""):
    """A grey TIFF of one compressed tile."""
    tags = {256: width, 257: height, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 134, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4) + data


# ---------------------------------------------------------------------------------------------- what is refused

JPEG = encoded(noise())
PNG = encoded(noise(), "PNG")


BAD = {
    "zero bytes": (b"", "an empty file"),
    "text": (b"not a picture\n" * 50, "not an image of a known format"),
    "html": (b"<!DOCTYPE html><title>404</title>", "not an image of a known format"),
    "a format that is not read": (encoded(noise(), "ICO"), "not an image of a known format"),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image of a known format"),
    "a JPEG's first bytes": (JPEG[:20], "corrupt"),
    "half a JPEG": (JPEG[: len(JPEG) // 2], "truncated"),
    "half a PNG": (PNG[: len(PNG) // 2], "truncated"),
    "half a GIF": (encoded(noise(), "GIF")[:-200], "truncated"),
    "half a WebP": (encoded(noise(), "WEBP", lossless=True)[:-200], None),
    "half a TIFF": (encoded(noise(), "TIFF")[:-200], None),
    "half a compressed TIFF": (encoded(noise(), "TIFF", compression="tiff_lzw")[:-200], None),
    "half a BMP": (encoded(noise(), "BMP")[:-200], "truncated"),
    "half a PPM": (encoded(noise(), "PPM")[:-200], "truncated"),
    "a PNG with a damaged header": (PNG[:20] + b"\xff" + PNG[21:], "corrupt"),
    "a PNG with a damaged middle": (PNG[:200] + bytes(100) + PNG[300:], None),
    "a huge PNG": (png(60_000, 60_000, 8, 2, b""), "more than 100 megapixels"),
    "a PNG just too large": (png(10_000, 10_001, 8, 2, b""), "more than 100 megapixels"),
    "a huge GIF": (
        b"GIF89a" + struct.pack("<HHBBB", 50_000, 9_999, 0, 0, 0) + b"\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0\x3b",
        "more than 100 megapixels",
    ),
    "a GIF frame larger than its screen": (
        b"GIF89a\x01\0\x01\0\0\0\0\x2c" + struct.pack("<HHHHB", 0, 0, 65535, 65535, 0) + b"\x02\x02\x44\x01\0\x3b",
        "more than 100 megapixels",
    ),
    "a huge TIFF": (tiff(50_000, 50_000, 64), "more than 100 megapixels"),
    "a small TIFF in a huge tile": (tiff(64, 64, 40_000), "more than 100 megapixels"),
    "a huge PPM": (b"P6 20000 20000 255\n", "more than 100 megapixels"),
    "a float TIFF": (encoded(Image.new("F", (4, 4), 0.5), "TIFF"), "floating-point pixels"),
    "a 32-bit TIFF": (encoded(Image.new("I", (4, 4), 70_000), "TIFF"), "pixels of more than 16 bits"),
}
"""Each kind of bad file and what is said of it; None where that differs among versions of the decoder."""


@pytest.mark.parametrize(("data", "expected"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_a_reason(tmp_path, capfd, data, expected):
    said = reason(stored(tmp_path, data))
    assert expected is None or said == expected
    assert said and len(said) < 60 and str(tmp_path) not in said
    assert capfd.readouterr().err == ""


def test_what_is_not_a_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    assert reason(tmp_path / "pipe.jpg") == reason(tmp_path / "folder.jpg") == "not a regular file"
    assert reason(tmp_path / "none.jpg") == reason(stored(tmp_path, JPEG) / "b.jpg") == "no such file"
    assert reason(tmp_path / "loop.jpg").startswith("cannot be read (")
    with pytest.raises(BadImage, match="not a regular file"):
        open_picture(type(tmp_path)("/dev/zero"))


def test_a_huge_file_is_not_read(tmp_path):
    path = stored(tmp_path, JPEG)
    os.truncate(path, images.LARGEST_FILE + 1)  # sparse: takes no room on the disk
    assert reason(path) == "a file of more than 200 MB"


def test_a_large_picture_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "LARGEST_PICTURE", 40 * 24 - 1)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert reason(stored(tmp_path, PNG)) == "more than 100 megapixels"


def test_pillow_is_silent_and_its_settings_stay(tmp_path):
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    odd = JPEG[:2] + b"\xff\xe2" + struct.pack(">H", 12) + b"MPF\0II*\0\xff\xff" + JPEG[2:]
    large = png(9_999, 10_000, 8, 2, b"")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(odd))
        assert len(seen) == 1  # the file does make Pillow speak
        images.hush()
        open_picture(stored(tmp_path, odd))
        Image.open(io.BytesIO(large))
    assert len(seen) == 1
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


# ------------------------------------------------------------------------------------------------- what is used


def test_a_png_that_ends_early_but_in_good_order_is_black_below(tmp_path):
    picture = open_picture(stored(tmp_path, png(8, 50, 8, 0, (b"\0" + b"\xff" * 8) * 20)))
    assert picture.size == (8, 50)
    assert (np.asarray(picture)[:20] == 255).all() and (np.asarray(picture)[20:] == 0).all()


def pixel(path, x=1, y=1):
    picture = open_picture(path)
    assert picture.mode == "RGB"
    return picture.getpixel((x, y))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM", "GIF", "WEBP"])
def test_pixels_come_out_as_they_went_in(tmp_path, kind):
    picture = quarters()
    path = stored(tmp_path, encoded(picture, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert open_picture(path).tobytes() == picture.tobytes()


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_read(tmp_path):
    np.testing.assert_allclose(pixel(stored(tmp_path, encoded(Image.new("RGB", (16, 16), RED), "AVIF"))), RED, atol=4)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_grey_and_palette_become_rgb(tmp_path, mode):
    picture = Image.new("RGB", (8, 8), WHITE)
    picture.paste(0, (0, 0, 4, 8))
    path = stored(tmp_path, encoded(picture.convert(mode), "PNG"))
    assert pixel(path, 1, 1) == (0, 0, 0) and pixel(path, 6, 1) == WHITE


def test_a_grey_jpeg_becomes_rgb(tmp_path):
    assert pixel(stored(tmp_path, encoded(Image.new("L", (8, 8), 77)))) == (77, 77, 77)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_red_is_red(tmp_path, kind):
    path = stored(tmp_path, encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), kind))
    np.testing.assert_allclose(pixel(path), RED, atol=3)


def ycck(colour):
    """An Adobe YCCK JPEG: the bytes of a CMYK one, whose first three channels its marker says are YCbCr."""
    inverted = tuple(255 - part for part in colour)  # as Photoshop writes it, and so every reader expects
    luma = Image.new("RGB", (16, 16), inverted).convert("YCbCr").getpixel((0, 0))
    data = bytearray(encoded(Image.new("CMYK", (16, 16), (*(255 - part for part in luma), 0))))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


@pytest.mark.parametrize("colour", [RED, GREEN, (200, 120, 40)])
def test_ycck_keeps_its_colours(tmp_path, colour):
    np.testing.assert_allclose(pixel(stored(tmp_path, ycck(colour))), colour, atol=6)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_keep_their_upper_eight(tmp_path, kind):
    ramp = np.linspace(0, 65535, 64 * 4).astype(np.uint16).reshape(4, 64)
    picture = open_picture(stored(tmp_path, encoded(Image.fromarray(ramp), kind)))
    np.testing.assert_array_equal(np.asarray(picture), np.repeat((ramp >> 8)[..., None], 3, 2))


def test_big_endian_sixteen_bits(tmp_path):
    ramp = np.linspace(0, 65535, 64).astype(">u2")
    path = stored(tmp_path, b"P5 64 1 65535\n" + ramp.tobytes())
    np.testing.assert_array_equal(np.asarray(open_picture(path))[0, :, 0], ramp >> 8)


def test_sixteen_bit_colour_keeps_its_upper_eight(tmp_path):
    row = np.array([[65535, 32768, 255], [0, 1000, 40000]], ">u2")
    path = stored(tmp_path, png(2, 1, 16, 2, b"\0" + row.tobytes()))
    np.testing.assert_array_equal(np.asarray(open_picture(path))[0], row >> 8)


def test_what_is_transparent_lies_over_white(tmp_path):
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    half.putpixel((1, 1), (9, 9, 9, 0))
    path = stored(tmp_path, encoded(half, "PNG"))
    assert pixel(path, 1, 1) == WHITE and pixel(path, 0, 0) == (255, 127, 127)
    grey = stored(tmp_path, encoded(Image.new("LA", (4, 4), (0, 0)), "PNG"))
    assert pixel(grey) == WHITE
    for picture, key in ((Image.new("RGB", (4, 4), RED), RED), (Image.new("L", (4, 4), 7), 7)):
        assert pixel(stored(tmp_path, encoded(picture, "PNG", transparency=key))) == WHITE
    palette = Image.new("RGB", (4, 4), RED).convert("P", palette=Image.Palette.ADAPTIVE)
    index = palette.getpixel((0, 0))
    assert pixel(stored(tmp_path, encoded(palette, "PNG"))) == RED
    assert pixel(stored(tmp_path, encoded(palette, "PNG", transparency=index))) == WHITE
    assert pixel(stored(tmp_path, encoded(palette, "PNG", transparency=bytes(index + 1)))) == WHITE
    assert pixel(stored(tmp_path, encoded(palette, "GIF", transparency=index))) == WHITE


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_counts(tmp_path, kind):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    settings = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **settings)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.n_frames == 3
    assert pixel(stored(tmp_path, data)) == RED


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "MPO"])
def test_a_picture_stands_upright(tmp_path, kind, turn):
    upright = quarters()
    undo = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}.get(turn, images._TURNS.get(turn))
    lying = upright if undo is None else upright.transpose(undo)
    exif = Image.Exif()
    exif[274] = turn
    settings = {"save_all": True, "append_images": [lying]} if kind == "MPO" else {}
    picture = open_picture(stored(tmp_path, encoded(lying, kind, exif=exif, **settings)))
    assert picture.size == upright.size
    for x, y in ((8, 4), (56, 4), (8, 28), (56, 28)):
        np.testing.assert_allclose(picture.getpixel((x, y)), upright.getpixel((x, y)), atol=40)


@pytest.mark.parametrize("data", [b"Exif\0\0rubbish", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0"])
def test_damaged_exif_leaves_the_picture_as_it_lies(tmp_path, data):
    assert open_picture(stored(tmp_path, encoded(quarters(), exif=data))).size == quarters().size


def test_an_orientation_that_does_not_exist_is_no_turn(tmp_path):
    for turn in (0, 9, 65535):
        exif = Image.Exif()
        exif[274] = turn
        assert open_picture(stored(tmp_path, encoded(quarters(), exif=exif))).size == quarters().size


@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_a_large_jpeg_is_decoded_reduced(tmp_path, kind):
    wide = Image.linear_gradient("L").resize((1600, 900)).convert("RGB")
    exif = Image.Exif()
    exif[274] = 6
    settings = {"save_all": True, "append_images": [wide]} if kind == "MPO" else {}
    path = stored(tmp_path, encoded(wide, kind, exif=exif, **settings))
    assert open_picture(path).size == (900, 1600)
    assert open_picture(path, 224).size == (225, 400)
    assert open_picture(path, 225).size == (225, 400)
    assert open_picture(path, 226).size == (450, 800)
    assert open_picture(path, 451).size == open_picture(path, 5000).size == (900, 1600)
    small = np.asarray(open_picture(path).resize((225, 400), Image.Resampling.BOX), int)
    assert abs(small - np.asarray(open_picture(path, 224))).max() < 6


def test_threads_may_decode_together(tmp_path):
    paths = [stored(tmp_path, encoded(noise(seed=n), "PNG"), f"{n}.png") for n in range(8)]
    out = {}

    def decode(n):
        for _ in range(5):
            out[n] = open_picture(paths[n]).tobytes()

    threads = [threading.Thread(target=decode, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert out == {n: noise(seed=n).tobytes() for n in range(8)}


# --------------------------------------------------------------------------------------------------- transforms


def rng(seed=0):
    return np.random.default_rng(seed)


def test_a_picture_of_the_right_size_keeps_every_bit():
    picture = noise(32, 32)
    pixels = np.asarray(picture)
    np.testing.assert_array_equal(transform(picture, 32, "none", rng()), pixels)
    np.testing.assert_array_equal(transform(picture, 32, "crop-flip", None), pixels)
    for seed in range(8):
        out = transform(picture, 32, "flip", rng(seed))
        np.testing.assert_array_equal(out, pixels[:, ::-1] if rng(seed).random() < 0.5 else pixels)


def test_the_whole_frame_is_squashed():
    picture = quarters(64)
    for kind in AUGMENTATIONS:
        out = transform(picture, 20, kind, None)
        assert out.shape == (20, 20, 3) and out.dtype == np.uint8
        np.testing.assert_array_equal(out, np.asarray(picture.resize((20, 20), Image.Resampling.BILINEAR)))
    assert [tuple(out[y, x]) for y, x in ((0, 0), (0, 19), (19, 0), (19, 19))] == [RED, GREEN, BLUE, WHITE]


@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_a_transform_follows_its_generator(kind):
    picture = noise(64, 48)
    first = [transform(picture, 16, kind, rng(seed)) for seed in range(8)]
    again = [transform(picture, 16, kind, rng(seed)) for seed in range(8)]
    np.testing.assert_array_equal(first, again)
    different = len({out.tobytes() for out in first})
    assert different == {"none": 1, "flip": 2, "crop-flip": 8}[kind]


def ramps(width, height):
    """Red rises to the right, green downwards."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, 0 * x], 2).astype(np.uint8))


@pytest.mark.parametrize(("width", "height"), [(200, 200), (400, 100)])
def test_a_crop_is_half_to_all_of_the_area_wherever_it_lies(width, height):
    picture, draws = ramps(width, height), rng()
    out = np.stack([transform(picture, 32, "crop-flip", draws) for _ in range(300)]).astype(float) / 255
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
    assert images.crop(1, 1, rng()) == (0, 0, 1, 1)
    for seed in range(200):
        top, left, height, width = images.crop(7, 3, rng(seed))
        assert 0 <= top <= 3 - height and 0 <= left <= 7 - width and height * width >= 7 * 3 / 2


def test_no_crop_of_the_least_picture_is_enlarged():
    side = least(224, "crop-flip")
    assert least(224, "none") == least(224, "flip") == 224 and 360 <= side <= 373
    assert min(min(images.crop(side, side, rng(seed))[2:]) for seed in range(2000)) >= 224


# --------------------------------------------------------------------------------------------------------- load


class Some:
    """Pictures from memory, of which every third is bad."""

    knows_labels = False

    def __init__(self, count):
        self.present = np.ones(count, bool)
        self.asked = set()

    def __len__(self):
        return len(self.present)

    def name(self, row):
        return str(row)

    def picture(self, row, least=0):
        self.asked.add(least)
        if row % 3 == 0:
            raise BadImage("every third")
        return noise(30, 20, seed=row)


def test_a_batch_holds_the_good_ones_in_order():
    out, good, bad = load(Some(9), np.array([8, 3, 1, 0, 4]), 16, "none", (1,))
    assert out.shape == (3, 16, 16, 3) and out.dtype == np.uint8
    assert good.tolist() == [0, 2, 4] and bad == [(3, "every third"), (0, "every third")]
    for pixels, row in zip(out, (8, 1, 4), strict=True):
        np.testing.assert_array_equal(pixels, transform(noise(30, 20, seed=row), 16, "none", None))


def test_a_batch_of_bad_ones_is_empty():
    out, good, bad = load(Some(9), np.array([0, 3]), 16, "flip", (1,))
    assert out.shape == (0, 16, 16, 3) and good.shape == (0,) and len(bad) == 2
    assert load(Some(9), np.array([], int), 16, "flip", (1,))[0].shape == (0, 16, 16, 3)


@pytest.mark.parametrize("kind", ["flip", "crop-flip"])
def test_an_image_is_augmented_the_same_in_any_batch(kind):
    rows = np.array([1, 2, 4, 5, 7, 8, 10, 11])
    whole = load(Some(12), rows, 16, kind, (5, 0))[0]
    np.testing.assert_array_equal(whole[::-1], load(Some(12), rows[::-1], 16, kind, (5, 0))[0])
    np.testing.assert_array_equal(whole[2:3], load(Some(12), rows[2:3], 16, kind, (5, 0))[0])
    assert not np.array_equal(whole, load(Some(12), rows, 16, kind, (5, 1))[0])


def test_threads_do_not_share_random_numbers():
    rows = np.array([1, 2, 4, 5, 7, 8])
    alone = {seed: load(Some(9), rows, 16, "crop-flip", (seed,))[0] for seed in range(4)}
    together = {}

    def work(seed):
        for _ in range(10):
            together[seed] = load(Some(9), rows, 16, "crop-flip", (seed,))[0]

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(4):
        np.testing.assert_array_equal(together[seed], alone[seed])


def test_evaluation_augments_nothing_and_asks_for_no_more_than_it_needs():
    source, rows = Some(6), np.array([1, 2])
    out = load(source, rows, 16, "crop-flip", None)[0]
    np.testing.assert_array_equal(out, load(source, rows, 16, "none", (0,))[0])
    assert source.asked == {16}
    load(source, rows, 16, "crop-flip", (0,))
    assert source.asked == {16, least(16, "crop-flip")}


def test_pixels_are_scaled_by_the_backbones_rule():
    backbone = build("resnet18")
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    x = backbone.to_input(torch.from_numpy(pixels))
    assert x.shape == (2, 3, 5, 7)
    for channel in range(3):
        expected = (pixels[..., channel] / 255 - backbone.mean[channel]) / backbone.std[channel]
        np.testing.assert_allclose(x[:, channel].numpy(), expected, atol=1e-5)
