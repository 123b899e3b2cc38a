"""Decoding of untrusted image files. docs/image-files.md lists the formats and how each defect is handled."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError, features

from lifelabel.errors import UserError
from lifelabel.images.source import BadImage
from lifelabel.utils.files import open_regular

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".mpo",
)  # fmt: skip
"""The suffixes by which images are found in folders."""
HEIC_SUFFIXES = (".heic", ".heif")
HEIC = "HEIC, which is not read: convert it to JPEG"
"""Why a photograph of an iPhone is not used. Its decoders had holes that let an image run code, in 2026."""

_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(["AVIF"] if features.check("avif") else []))
"""Formats that Pillow may try. MPO, a JPEG followed by further images, is opened as JPEG."""
_MAX_FILE_BYTES = 200_000_000
_BLOCK = 1 << 20
MAX_PIXELS = 100_000_000
"""The most pixels of an image. More than 179 million are not opened by Pillow."""
_EXIF_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
_HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
_ORIENTATION, _TILE_WIDTH, _TILE_HEIGHT = 274, 322, 323


def _ignore_pillow_warnings() -> None:
    """Switch off Pillow's warnings about unusual files. `BadImage` reports the files that cannot be used.

    This is done once per process: warning filters are global, so changing them around each file is not thread-safe.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, module=r"PIL\.")


_ignore_pillow_warnings()


class NotAnImage(BadImage):
    """The bytes have none of the known formats."""


class TooManyPixels(BadImage):
    """The image is larger than allowed, or than memory allows."""


def open_image(path: Path | str, min_side: int = 0) -> Image.Image:
    """The image in a file, upright, in RGB. Raises `BadImage` with the reason if it cannot be used.

    With `min_side` a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, if no side falls below `min_side` pixels.
    """
    return decode_image(_read(path), min_side)


def decode_image(data: bytes | bytearray, min_side: int = 0, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The image in the bytes of a file: see `open_image`. The number of pixels is checked before they are decoded."""
    try:
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
        _check_size(image, max_pixels)
        if min_side and min(image.size) >= 2 * min_side:
            image.draft(None, (min_side, min_side))
        image.load()
        return upright_rgb(image)
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        if data.startswith(_MAGIC):
            raise BadImage("corrupt") from error
        if data[4:8] == b"ftyp" and data[8:12] in _HEIC_BRANDS:
            raise NotAnImage(HEIC) from error
        raise NotAnImage("not an image of a known format") from error
    except Image.DecompressionBombError as error:
        raise _too_many(max_pixels) from error
    except MemoryError as error:
        raise TooManyPixels("not enough memory to decode it") from error
    except Exception as error:  # decoders raise many types of exceptions
        raise BadImage("truncated" if "truncated" in str(error).lower() else "corrupt") from error


def upright_rgb(image: Image.Image) -> Image.Image:
    """An image that Pillow has opened, in RGB, rotated and mirrored by its EXIF orientation.

    Raises `BadImage` if its pixels cannot be used. Unreadable EXIF data is ignored.
    """
    rgb = _to_rgb(image)
    if image.format == "JPEG" and not ("exif" in image.info or "xmp" in image.info):
        return rgb
    try:
        transpose = _EXIF_TRANSPOSE.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data raises many types of exceptions; the pixels are valid
        return rgb
    return rgb if transpose is None else rgb.transpose(transpose)


def check_bytes(size: int) -> None:
    """Raise `BadImage` for a file of this many bytes that is not to be read."""
    if not size:
        raise BadImage("an empty file")
    if size > _MAX_FILE_BYTES:
        raise BadImage("a file of more than 200 MB")


def _read(path: Path | str) -> bytes:
    """The bytes of a regular file."""
    try:
        with open_regular(path, buffering=0) as file:
            check_bytes(os.fstat(file.fileno()).st_size)
            return file.read()
    except UserError as error:
        raise BadImage("not a regular file") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadImage("no such file") from error
    except OSError as error:
        raise BadImage(f"cannot be read ({error.strerror})") from error
    except ValueError as error:  # a null byte, or characters that file names cannot have
        raise BadImage("not a path") from error


def file_bytes(file: bytes | bytearray | BinaryIO) -> bytes | bytearray:
    """The bytes of a file, or of an open file from its beginning. Raises `BadImage` if they are not to be read."""
    data = file if isinstance(file, bytes | bytearray) else _read_open(file)
    check_bytes(len(data))
    return data


def _read_open(file: BinaryIO) -> bytearray:
    data = bytearray()
    try:
        if file.seekable():
            file.seek(0)
        while len(data) <= _MAX_FILE_BYTES and (block := file.read(_BLOCK)):
            data += block
    except Exception as error:  # it is closed, opened as text, or an object of another library
        raise BadImage(f"an open file that cannot be read as bytes ({error})") from error
    return data


def _check_size(image: Image.Image, max_pixels: int) -> None:
    """Check the size in the header before memory is allocated. A TIFF tile can be larger than its image."""
    tags: Mapping[int, int] = getattr(image, "tag_v2", {})
    tile = tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_HEIGHT, 0)
    if max(image.width * image.height, tile) > max_pixels:
        raise _too_many(max_pixels)


def _too_many(max_pixels: int) -> TooManyPixels:
    return TooManyPixels(f"more than {max_pixels / 1e6:g} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB. Transparent pixels are blended with white. 16-bit values are reduced to 8 bits."""
    mode = image.mode
    if mode == "F":
        raise BadImage("floating-point pixels")
    if mode == "I" or mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise BadImage("pixels of more than 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(rgba, mask=rgba.getchannel("A"))
        return white
    return image if mode == "RGB" else image.convert("RGB")
