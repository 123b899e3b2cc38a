"""The process that decodes images for a server: untrusted bytes in, pixels of one size out.

It runs `main` with pipes as stdin and stdout. Decoders of image formats are C code. A defect in one of them ends this
process or fills its memory, not the server. So it imports no torch, and has limits on its memory and its files.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from typing import BinaryIO

from PIL import Image

from lifelabel.images.decode import NotAnImage, TooManyPixels, decode_image
from lifelabel.images.source import BadImage
from lifelabel.utils.processes import init_child

JOB = struct.Struct("<IIQ")
"""The header of a job: side of the result in pixels, the most pixels of the image, bytes of the file that follow."""
ANSWER = struct.Struct("<HI")
"""The header of an answer: `GOOD` or the status for the client, and the bytes that follow: pixels, or the reason."""
GOOD, BAD = 200, (400, 413, 415)
_BYTES_PER_PIXEL = 16
"""Memory that decoding takes: RGBA, its RGB copy, and the buffers of the decoder."""
_BASE_BYTES = 256 << 20


def main() -> None:
    """Answer jobs from stdin until it is closed. The argument is the most pixels of an image."""
    init_child()
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else may write into the answers
    Image.init()  # formats are imported before files are limited
    _limit(_BASE_BYTES + _BYTES_PER_PIXEL * int(sys.argv[1]))
    answers.write(ANSWER.pack(GOOD, 0))  # ready
    answers.flush()
    while header := _read(jobs, JOB.size):
        size, max_pixels, length = JOB.unpack(header)
        status, payload = _answer(_read(jobs, length), size, max_pixels)
        answers.write(ANSWER.pack(status, len(payload)))
        answers.write(payload)
        answers.flush()


def decode_square(data: bytes, size: int, max_pixels: int) -> bytes:
    """`size` x `size` x 3 bytes: the pixels of `lifelabel.images.transforms.load_batch` without augmentation."""
    image = decode_image(data, size, max_pixels)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return image.tobytes()


def _answer(data: bytes, size: int, max_pixels: int) -> tuple[int, bytes]:
    try:
        if not data:
            raise BadImage("an empty file")
        return GOOD, decode_square(data, size, max_pixels)
    except NotAnImage as error:
        return 415, str(error).encode()
    except TooManyPixels as error:
        return 413, str(error).encode()
    except MemoryError:
        return 413, b"not enough memory to decode it"
    except BadImage as error:
        return 400, str(error).encode()


def _read(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    if len(data) < length:  # the server has ended
        sys.exit()
    return data


def _limit(memory: int) -> None:
    """Limit this process to `memory` more bytes than it has now, to no new files and to no core dumps."""
    with contextlib.suppress(ImportError, OSError, ValueError):  # there are no such limits on Windows
        import resource

        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
        if sys.platform == "linux":
            with open("/proc/self/statm") as file:
                limits[resource.RLIMIT_AS] = int(file.read().split()[0]) * resource.getpagesize() + memory
        for name, value in limits.items():
            resource.setrlimit(name, (value, value))


if __name__ == "__main__":
    main()
