import io
import os
import struct
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image, ImageFile, features
from support.drawn_images import BLUE, GREEN, RED, WHITE, noise, quarters

from lifelabel.images import decode
from lifelabel.images.decode import NotAnImage, TooManyPixels, decode_image, open_image
from lifelabel.images.source import BadImage

# pytest sets its own filters for each test, so the filters of `_ignore_pillow_warnings` have no effect here
pytestmark = pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning", "ignore:Corrupt EXIF data")


def encoded(image, kind="JPEG", **settings):
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def stored(folder, data, name="a.jpg"):
    path = folder / name
    path.write_bytes(data)
    return path


def reason(path):
    with pytest.raises(BadImage) as raised:
        open_image(path)
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


# Files that are refused

JPEG = encoded(noise())
PNG = encoded(noise(), "PNG")
BAD = {
    "zero bytes": (b"", "an empty file"),
    "text": (b"not an image\n" * 50, "not an image of a known format"),
    "html": (b"<!DOCTYPE html><title>404</title>", "not an image of a known format"),
    "a format that is not read": (encoded(noise(), "ICO"), "not an image of a known format"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(40), "HEIC, which is not read: convert it to JPEG"),
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
"""The content and the expected reason of bad files; None if the reason depends on the version of the decoder."""


@pytest.mark.parametrize(("data", "expected"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_a_reason(tmp_path, capfd, data, expected):
    message = reason(stored(tmp_path, data))
    assert expected is None or message == expected
    assert message and len(message) < 60 and str(tmp_path) not in message
    assert capfd.readouterr().err == ""


def test_only_regular_files_are_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    assert reason(tmp_path / "pipe.jpg") == reason(tmp_path / "folder.jpg") == "not a regular file"
    assert reason(tmp_path / "none.jpg") == reason(stored(tmp_path, JPEG) / "b.jpg") == "no such file"
    assert reason(tmp_path / "loop.jpg").startswith("cannot be read (")
    assert reason("/dev/zero") == "not a regular file"
    assert reason("a\0b.jpg") == reason("a\ud800.jpg") == "not a path"


def test_a_huge_file_is_not_read(tmp_path):
    path = stored(tmp_path, JPEG)
    os.truncate(path, decode._MAX_FILE_BYTES + 1)  # sparse: uses no space on the disk
    assert reason(path) == "a file of more than 200 MB"


def test_a_large_image_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    assert reason(stored(tmp_path, png(10_000, 10_001, 8, 2, b""))) == "more than 100 megapixels"
    with pytest.raises(TooManyPixels, match=r"more than 0\.000959 megapixels"):
        decode_image(PNG, max_pixels=40 * 24 - 1)
    with pytest.raises(NotAnImage):
        decode_image(b"text")


def test_pillow_does_not_warn_and_its_settings_do_not_change(tmp_path):
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES
    odd = JPEG[:2] + b"\xff\xe2" + struct.pack(">H", 12) + b"MPF\0II*\0\xff\xff" + JPEG[2:]
    large = png(9_999, 10_000, 8, 2, b"")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        Image.open(io.BytesIO(odd))
        assert len(seen) == 1  # Pillow does warn about this file
        decode._ignore_pillow_warnings()
        open_image(stored(tmp_path, odd))
        Image.open(io.BytesIO(large))
    assert len(seen) == 1
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


# Files that are used


def test_missing_rows_of_a_valid_png_are_black(tmp_path):
    image = open_image(stored(tmp_path, png(8, 50, 8, 0, (b"\0" + b"\xff" * 8) * 20)))
    assert image.size == (8, 50)
    assert (np.asarray(image)[:20] == 255).all() and (np.asarray(image)[20:] == 0).all()


def pixel(path, x=1, y=1):
    image = open_image(path)
    assert image.mode == "RGB"
    return image.getpixel((x, y))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "BMP", "PPM", "GIF", "WEBP"])
def test_lossless_formats_return_the_same_pixels(tmp_path, kind):
    image = quarters()
    path = stored(tmp_path, encoded(image, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert open_image(path).tobytes() == image.tobytes()


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_read(tmp_path):
    np.testing.assert_allclose(pixel(stored(tmp_path, encoded(Image.new("RGB", (16, 16), RED), "AVIF"))), RED, atol=4)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA"])
def test_grey_and_palette_become_rgb(tmp_path, mode):
    image = Image.new("RGB", (8, 8), WHITE)
    image.paste(0, (0, 0, 4, 8))
    path = stored(tmp_path, encoded(image.convert(mode), "PNG"))
    assert pixel(path, 1, 1) == (0, 0, 0) and pixel(path, 6, 1) == WHITE
    assert pixel(stored(tmp_path, encoded(Image.new("L", (8, 8), 77)))) == (77, 77, 77)  # a JPEG


def ycck(colour):
    """An Adobe YCCK JPEG: the bytes of a CMYK JPEG, with a marker that declares its first three channels as YCbCr."""
    inverted = tuple(255 - part for part in colour)  # Photoshop writes inverted values, and every reader expects them
    luma = Image.new("RGB", (16, 16), inverted).convert("YCbCr").getpixel((0, 0))
    data = bytearray(encoded(Image.new("CMYK", (16, 16), (*(255 - part for part in luma), 0))))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def test_cmyk_and_ycck_keep_their_colours(tmp_path):
    for kind in ("JPEG", "TIFF"):
        path = stored(tmp_path, encoded(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), kind))
        np.testing.assert_allclose(pixel(path), RED, atol=3)
    for colour in (RED, GREEN, (200, 120, 40)):
        np.testing.assert_allclose(pixel(stored(tmp_path, ycck(colour))), colour, atol=6)


def test_sixteen_bits_keep_their_upper_eight(tmp_path):
    ramp = np.linspace(0, 65535, 64 * 4).astype(np.uint16).reshape(4, 64)
    grey = [encoded(Image.fromarray(ramp), kind) for kind in ("PNG", "TIFF", "PPM")]
    for data in (*grey, b"P5 64 4 65535\n" + ramp.astype(">u2").tobytes()):
        image = np.asarray(open_image(stored(tmp_path, data)))
        np.testing.assert_array_equal(image, np.repeat((ramp >> 8)[..., None], 3, 2))
    row = np.array([[65535, 32768, 255], [0, 1000, 40000]], ">u2")
    path = stored(tmp_path, png(2, 1, 16, 2, b"\0" + row.tobytes()))
    np.testing.assert_array_equal(np.asarray(open_image(path))[0], row >> 8)


def test_transparent_pixels_are_blended_with_white(tmp_path):
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    half.putpixel((1, 1), (9, 9, 9, 0))
    path = stored(tmp_path, encoded(half, "PNG"))
    assert pixel(path, 1, 1) == WHITE and pixel(path, 0, 0) == (255, 127, 127)
    grey = stored(tmp_path, encoded(Image.new("LA", (4, 4), (0, 0)), "PNG"))
    assert pixel(grey) == WHITE
    for image, key in ((Image.new("RGB", (4, 4), RED), RED), (Image.new("L", (4, 4), 7), 7)):
        assert pixel(stored(tmp_path, encoded(image, "PNG", transparency=key))) == WHITE
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


BEGINS = {
    1: ("top", "left"), 2: ("top", "right"), 3: ("bottom", "right"), 4: ("bottom", "left"),
    5: ("left", "top"), 6: ("right", "top"), 7: ("right", "bottom"), 8: ("left", "bottom"),
}  # fmt: skip
"""The tag Orientation of the EXIF standard: the sides of the upright image that are the first row and column stored."""


def as_stored(upright, orientation):
    """The pixels of an upright image in the order in which a file with this orientation has them."""
    first_row, first_column = BEGINS[orientation]
    pixels = np.asarray(upright)
    if first_row in ("left", "right"):
        pixels = pixels.swapaxes(0, 1)
    if first_row in ("right", "bottom"):
        pixels = pixels[::-1]
    if first_column in ("right", "bottom"):
        pixels = pixels[:, ::-1]
    return Image.fromarray(np.ascontiguousarray(pixels))


@pytest.mark.parametrize("orientation", BEGINS)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "MPO"])
def test_an_image_is_rotated_upright(tmp_path, kind, orientation):
    upright, exif = quarters(), Image.Exif()
    rotated, exif[274] = as_stored(upright, orientation), orientation
    settings = {"save_all": True, "append_images": [rotated]} if kind == "MPO" else {}
    image = open_image(stored(tmp_path, encoded(rotated, kind, exif=exif, **settings)))
    assert image.size == upright.size
    for x, y in ((8, 4), (56, 4), (8, 28), (56, 28)):
        np.testing.assert_allclose(image.getpixel((x, y)), upright.getpixel((x, y)), atol=40)


def test_exif_data_that_is_damaged_or_has_an_invalid_orientation_is_ignored(tmp_path):
    invalid = [Image.Exif() for _ in range(3)]
    for exif, orientation in zip(invalid, (0, 9, 65535), strict=True):
        exif[274] = orientation
    for exif in (*invalid, b"Exif\0\0rubbish", b"Exif\0\0MM\0*\0\0\xff\xff", b"Exif\0\0"):
        assert open_image(stored(tmp_path, encoded(quarters(), exif=exif))).size == quarters().size


@pytest.mark.parametrize("kind", ["JPEG", "MPO"])
def test_a_large_jpeg_is_decoded_reduced(tmp_path, kind):
    wide = Image.linear_gradient("L").resize((1600, 900)).convert("RGB")
    exif = Image.Exif()
    exif[274] = 6
    settings = {"save_all": True, "append_images": [wide]} if kind == "MPO" else {}
    path = stored(tmp_path, encoded(wide, kind, exif=exif, **settings))
    assert open_image(path).size == (900, 1600)
    assert open_image(path, 224).size == (225, 400)
    assert open_image(path, 225).size == (225, 400)
    assert open_image(path, 226).size == (450, 800)
    assert open_image(path, 451).size == open_image(path, 5000).size == (900, 1600)
    small = np.asarray(open_image(path).resize((225, 400), Image.Resampling.BOX), int)
    assert abs(small - np.asarray(open_image(path, 224))).max() < 6


def test_threads_can_decode_at_the_same_time(tmp_path):
    paths = [stored(tmp_path, encoded(noise(seed=n), "PNG"), f"{n}.png") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        decoded = list(pool.map(lambda path: open_image(path).tobytes(), paths * 5))
    assert decoded == [noise(seed=n).tobytes() for n in range(8)] * 5
