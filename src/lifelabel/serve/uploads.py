"""The files of a request, read within the limits of the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from lifelabel.serve.limits import Limits
from lifelabel.serve.refused import Refused
from lifelabel.utils.text import printable, shorten

__all__ = ["FIELD", "file_name", "read_uploads"]

FIELD = "files"
"""The name of the parts of a request that are images."""
_MAX_FIELD_BYTES = 1000


async def read_uploads(request: Request, limits: Limits) -> list[UploadFile]:
    """The files of a multipart request. Raises `Refused` as soon as a limit is exceeded.

    A file of more than 1 MB is in a temporary file without a name. The caller closes the files.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "multipart/form-data":
        raise Refused(415, f"send images as multipart/form-data, each as a part named {FIELD}")
    parser = _Parser(request, limits)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Refused(400, f"the multipart data is damaged: {printable(shorten(error.message))}") from None
    if not parser.ended:
        await form.close()
        raise Refused(400, "the multipart data is damaged: its last boundary is missing")
    uploads = [part for name, part in form.multi_items() if name == FIELD and isinstance(part, UploadFile)]
    others = [name for name, part in form.multi_items() if name != FIELD or not isinstance(part, UploadFile)]
    if others or not uploads:
        await form.close()
        wrong = f"'{printable(shorten(others[0]))}' is not a file named {FIELD}" if others else "no images"
        raise Refused(422, f"{wrong}: send each image as a file in a part named {FIELD}")
    return uploads


def file_name(upload: UploadFile) -> str:
    """The name that the client gave, for the answer. It is not used as a path."""
    return printable(shorten(upload.filename or "")) or "image"


class _Parser(MultiPartParser):
    """Counts bytes and files while they arrive."""

    def __init__(self, request: Request, limits: Limits):
        super().__init__(request.headers, _limited(request, limits.max_bytes), max_part_size=_MAX_FIELD_BYTES)
        self._limit, self._parts = limits.max_images, 0
        self.ended = False
        """Whether the last boundary arrived. Without it, a part would be left out."""

    def on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > self._limit:
            raise Refused(413, f"more than {self._limit:,} images in a request: send fewer at a time")
        super().on_part_begin()

    def on_headers_finished(self) -> None:
        self._charset = "utf-8"  # not one that the client chose: there are codecs that fail, or change names
        super().on_headers_finished()

    def on_end(self) -> None:
        self.ended = True
        super().on_end()


async def _limited(request: Request, limit: int) -> AsyncGenerator[bytes, Any]:
    refused = Refused(413, f"more than {limit:,} bytes in a request: send fewer or smaller images")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:20]) > limit:
        raise refused
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limit:
            raise refused
        yield chunk
