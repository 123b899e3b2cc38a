"""Images for tests of decoding and augmentation."""

import io

import numpy as np
from PIL import Image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def noise(width=40, height=24, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image, kind="PNG", **options):
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def quarters(size=32):
    """An image of four colours. Each of its eight orientations is different."""
    image = Image.new("RGB", (2 * size, size), WHITE)
    for colour, corner in ((RED, (0, 0)), (GREEN, (size, 0)), (BLUE, (0, size // 2))):
        image.paste(colour, (*corner, corner[0] + size, corner[1] + size // 2))
    return image
