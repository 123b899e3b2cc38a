"""From an image file to network input: decoding that trusts no file, transforms that follow the seed, scaling.

docs/photographs.md lists what becomes of each kind of file.
"""

from __future__ import annotations

import functools
import io
import math
import os
import stat
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError, features

from lifelabel.streams.base import BadImage, ImageSource

AUGMENTATIONS = {
    "none": "the image as it is",
    "flip": "mirrored left to right for half of the images (the authors' code: resize, then flip)",
    "crop-flip": "a random part of 50 to 100 % of the area, resized back, then flipped (the paper, A.4)",
}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", *(["AVIF"] if features.check("avif") else []))
"""What Pillow may try; MPO, a JPEG with more pictures behind it, is opened as JPEG."""
LARGEST_FILE = 200_000_000
LARGEST_PICTURE = 100_000_000

_AREA, _ASPECT = 0.5, 4 / 3
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
_ORIENTATION, _TILE_WIDTH, _TILE_HEIGHT = 274, 322, 323


def hush() -> None:
    """Keep Pillow's remarks about odd files off the terminal; what cannot be used is said by `BadImage`.

    Once and for good: filters belong to the process, so setting them around each file is not safe among threads.
    """
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, module=r"PIL\.")


hush()


def open_picture(path: Path | str, least: int = 0) -> Image.Image:
    """The picture in a file, upright, in RGB; `BadImage` says in a few words why there is none.

    With `least` a large JPEG is decoded at a half, a quarter or an eighth, as long as no side falls below it.
    """
    data = _read(path)
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check_size(image)
        if least and min(image.size) >= 2 * least:
            image.draft(None, (least, least))
        image.load()
        return _upright(_to_rgb(image), image)
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage("corrupt" if data.startswith(_MAGIC) else "not an image of a known format") from error
    except Image.DecompressionBombError as error:
        raise BadImage("more than 100 megapixels") from error
    except MemoryError as error:
        raise BadImage("not enough memory to decode it") from error
    except Exception as error:  # decoders raise whatever they like
        raise BadImage("truncated" if "truncated" in str(error).lower() else "corrupt") from error


def _read(path: Path | str) -> bytes:
    """A regular file's bytes. Anything else is not even opened: a named pipe would wait for ever."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise BadImage("not a regular file")
        if not status.st_size:
            raise BadImage("an empty file")
        if status.st_size > LARGEST_FILE:
            raise BadImage("a file of more than 200 MB")
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BadImage("no such file") from error
    except OSError as error:
        raise BadImage(f"cannot be read ({error.strerror})") from error


def _check_size(image: Image.Image) -> None:
    """Refuse by the header, before memory is set aside. A TIFF's tile may be larger than its picture."""
    tags: Mapping[int, int] = getattr(image, "tag_v2", {})
    tile = tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_HEIGHT, 0)
    if max(image.width * image.height, tile) > LARGEST_PICTURE:
        raise BadImage("more than 100 megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Any kind of pixels as RGB: what is transparent over white, 16 bits by their upper eight."""
    mode = image.mode
    if mode == "F":
        raise BadImage("floating-point pixels")
    if mode == "I" or mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise BadImage("pixels of more than 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        drawn = image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(drawn, mask=drawn.getchannel("A"))
        return white
    return image if mode == "RGB" else image.convert("RGB")


def _upright(picture: Image.Image, source: Image.Image) -> Image.Image:
    """Turned as the EXIF data of its source says; data that cannot be read says nothing."""
    if source.format == "JPEG" and not ("exif" in source.info or "xmp" in source.info):
        return picture
    try:
        turn = _TURNS.get(source.getexif().get(_ORIENTATION, 1))
    except Exception:  # damaged EXIF data raises whatever it likes, and the pixels are good
        return picture
    return picture if turn is None else picture.transpose(turn)


def least(size: int, augment: str) -> int:
    """Pixels a side that a picture needs so that its smallest crop is not enlarged to `size`."""
    return math.ceil(size / math.sqrt(_AREA / _ASPECT)) if augment == "crop-flip" else size


def transform(picture: Image.Image, size: int, augment: str, rng: np.random.Generator | None) -> np.ndarray:
    """The whole frame, or a random part of it, as `size` x `size` x 3 bytes; without `rng` nothing is random.

    The random numbers of an image: its flip, then the area, shape and place of its crop. A picture that has the right
    size already is not resampled.
    """
    flip = rng is not None and augment != "none" and rng.random() < 0.5
    part = crop(picture.width, picture.height, rng) if rng is not None and augment == "crop-flip" else None
    if part or picture.size != (size, size):
        from torchvision.transforms.v2 import functional as F  # a second to import, and few commands need it

        picture = F.resized_crop(picture, *part, [size, size]) if part else F.resize(picture, [size, size])
    picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else picture
    return np.frombuffer(picture.tobytes(), np.uint8).reshape(size, size, 3)


def crop(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A random part of a frame (top, left, height, width): 50 to 100 % of its area.

    Its shape differs from that of the frame by 3:4 to 4:3. The network sees every frame squashed to a square, so the
    shape is measured against the frame and not in pixels; a long panorama then loses no more than a square does.
    """
    area, shape, x, y = rng.random(4)
    area, shape = _AREA + (1 - _AREA) * area, _ASPECT ** (2 * shape - 1)
    w = min(width, math.ceil(width * math.sqrt(area * shape)))
    h = min(height, math.ceil(height * math.sqrt(area / shape)))
    return int(y * (height - h + 1)), int(x * (width - w + 1)), h, w


def load(
    source: ImageSource,
    rows: np.ndarray,
    size: int,
    augment: str,
    seed: tuple[int, ...] | None,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, list[tuple[int, str]]]:
    """Pictures as one uint8 array B x `size` x `size` x 3, their positions in `rows`, and (row, why) of the bad ones.

    The random numbers of an image follow from `seed` and its row, so its pixels depend neither on the batch it is in
    nor on the process that loads it. Without a seed (evaluation) nothing is augmented. Given `out`, which may hold more
    images, they are written there.
    """
    augment = "none" if seed is None else augment
    enough = least(size, augment)
    batch = np.empty((len(rows), size, size, 3), np.uint8) if out is None else out
    good: list[int] = []
    bad: list[tuple[int, str]] = []
    for position, row in enumerate(rows.tolist()):
        try:
            picture = source.picture(row, enough)
        except BadImage as error:
            bad.append((row, str(error)))
            continue
        rng = None if seed is None or augment == "none" else _DRAWS.of(seed, row)
        batch[len(good)] = transform(picture, size, augment, rng)
        good.append(position)
    return batch[: len(good)], np.array(good, np.int64), bad


class _Draws(threading.local):
    """The random numbers of each image, from one generator a thread that is set anew: making one takes far longer."""

    def __init__(self) -> None:
        self.bits = np.random.Philox(0)
        self.rng = np.random.Generator(self.bits)
        self.start = self.bits.state

    def of(self, seed: tuple[int, ...], row: int) -> np.random.Generator:
        """The generator at the first number of a row; the key is the seed's, and the counter leaves each row 2^66."""
        self.start["state"]["key"] = _key(seed)
        self.start["state"]["counter"][1] = row
        self.bits.state = self.start
        return self.rng


@functools.lru_cache(maxsize=16)
def _key(seed: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(2, np.uint64)


_DRAWS = _Draws()
