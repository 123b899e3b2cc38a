"""The files of a request, read within the limits of the server."""

from __future__ import annotations

from fastapi import Request
from python_multipart.multipart import parse_options_header
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from lifelabel.serve.limits import Limits
from lifelabel.utils.text import printable, shorten

__all__ = ["FIELD", "Refused", "file_name", "read_uploads"]

FIELD = "files"
"""The name of the parts of a request that are images."""
_MAX_FIELD_BYTES = 1000


class Refused(HTTPException):
    """A request, or one file of it, that cannot be answered: the HTTP status, the reason, and further headers."""


async def read_uploads(request: Request, limits: Limits) -> list[UploadFile]:
    """The files of a multipart request. Raises `Refused` as soon as a limit is exceeded.

    A file of more than 1 MB is in a temporary file without a name. The caller closes the files.
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data":
        raise Refused(415, f"send images as multipart/form-data, each as a part named {FIELD}")
    boundary = options.get(b"boundary", b"")
    content_type = b"multipart/form-data"
    if boundary and not {*b'"\\'} & {*boundary}:
        # without the charset that the client chose: there are codecs that fail, or change names
        content_type += b'; boundary="%s"' % boundary
    body = _Body(request, boundary, limits)
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-type"]
    scope = {**request.scope, "headers": [*headers, (b"content-type", content_type)]}
    count = limits.max_images
    try:
        form = await Request(scope, body.receive).form(
            max_files=count, max_fields=count, max_part_size=_MAX_FIELD_BYTES
        )
    except Refused:
        raise
    except HTTPException as error:
        raise Refused(400, f"the multipart data is damaged: {printable(shorten(error.detail))}") from None
    if not body.ended:
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


class _Body:
    """Counts the bytes and the parts of a multipart body while they arrive."""

    def __init__(self, request: Request, boundary: bytes, limits: Limits):
        self._request, self._boundary, self._limits = request, boundary, limits
        self._bytes = self._parts = 0
        self._tail = b"\r\n"  # the first boundary is at the start of the body
        self.ended = False
        """Whether the last boundary arrived. Without it, a part would be left out."""
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > limits.max_bytes:
            raise self._too_large()

    async def receive(self) -> Message:
        message = await self._request.receive()
        if message["type"] == "http.request":
            self._count(message.get("body", b""))
        return message

    def _count(self, chunk: bytes) -> None:
        self._bytes += len(chunk)
        if self._bytes > self._limits.max_bytes:
            raise self._too_large()
        begin, end = (b"\r\n--" + self._boundary + after for after in (b"\r", b"--"))
        data = self._tail + chunk
        self._parts += data.count(begin) - self._tail.count(begin)
        self.ended = self.ended or end in data
        self._tail = data[-len(begin) :]  # a boundary may be divided between two chunks
        if self._parts > self._limits.max_images:
            raise Refused(413, f"more than {self._limits.max_images:,} images in a request: send fewer at a time")

    def _too_large(self) -> Refused:
        return Refused(413, f"more than {self._limits.max_bytes:,} bytes in a request: send fewer or smaller images")
