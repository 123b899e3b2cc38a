"""The web application: the API, the page and the report."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from jinja2 import Template
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from lifelabel.serve.guard import DISCONNECTED, REPORT_POLICY, Guard
from lifelabel.serve.requests import FIELD, Refused, read_uploads
from lifelabel.serve.schemas import Choice, ClassList, Error, Health, ModelFacts, Predictions
from lifelabel.serve.service import Service
from lifelabel.utils.text import printable, shorten
from lifelabel.version import __version__

_STATIC = {
    "/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript"),
}  # fmt: skip
_ERRORS = {
    400: "A file cannot be decoded, or the multipart data is damaged.",
    403: "A page of another site sent the request.",
    408: "The request, with its upload, took longer than the time limit.",
    413: "Too many bytes, pixels or images.",
    415: "A file is not an image, or the request is not multipart/form-data.",
    422: "A parameter is wrong, or there is no image.",
    429: "Too many requests are running. Retry-After has the seconds to wait.",
    503: "The process that decodes images was killed twice, perhaps because memory is short.",
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "additionalProperties": False,
                    "properties": {
                        FIELD: {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
                    },
                }
            }
        },
    }
}
_NO_REPORT = {
    "description": "No report.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_router = APIRouter()


def create_app(service: Service, hosts: Collection[str] | None = None) -> ASGIApp:
    """The application of a server. `hosts` are the names that are accepted in Host headers; None: any."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="lifelabel", version=__version__, summary="Labels of images, with their probabilities.",
        docs_url=None, redoc_url=None, lifespan=lifespan,
    )  # fmt: skip
    app.state.service = service
    app.include_router(_router)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_wrong_parameter)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_error)
    paths = {getattr(route, "path", "") for route in _router.routes} | {"/openapi.json"}
    return Guard(app, service.metrics, paths, hosts)


def _service(request: Request) -> Service:
    return request.app.state.service


@_router.post(
    "/predict",
    response_model=Predictions,
    responses={status: {"model": Error, "description": text} for status, text in _ERRORS.items()},
    openapi_extra=_BODY,
)
async def _predict(request: Request, choice: Annotated[Choice, Query()]) -> Response:
    """The labels of one or more images, which are sent as files in parts named `files`.

    A file that cannot be used has an error in place of labels. If all files are like that, the status is that of the
    files, or 400 if they differ.
    """
    service = _service(request)
    with service.admitted():
        try:
            status, body = await asyncio.wait_for(_answer(request, choice), service.limits.timeout)
        except asyncio.TimeoutError:
            reason = f"the request took more than {service.limits.timeout:g} seconds: send fewer images at a time"
            raise Refused(408, reason, {"Connection": "close"}) from None
        return JSONResponse(body, status)


async def _answer(request: Request, choice: Choice) -> tuple[int, dict[str, Any]]:
    service = _service(request)
    uploads = await read_uploads(request, service.limits)
    try:
        return await service.predict(uploads, choice)
    finally:
        for upload in uploads:
            upload.file.close()


@_router.get("/classes", response_model=ClassList)
async def _classes(request: Request) -> Response:
    """The classes with their tasks, thresholds, and the other classes that most often occur with them."""
    return JSONResponse({"classes": _service(request).models.classes()})


@_router.get("/model", response_model=ModelFacts)
async def _model(request: Request) -> Response:
    """Facts about the model, and the limits of the server."""
    service = _service(request)
    limits = {**dataclasses.asdict(service.limits), "workers": service.limits.decoders}
    return JSONResponse({**service.models.facts(), "limits": limits})


@_router.head("/health", include_in_schema=False)
@_router.get("/health", response_model=Health)
async def _health() -> Response:
    """Whether the server answers."""
    return JSONResponse({"status": "ok"})


@_router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def _metrics(request: Request) -> Response:
    """Counts and times in the text format of Prometheus."""
    return Response(_service(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@_router.get("/report", response_class=HTMLResponse, responses={404: _NO_REPORT})
async def _report(request: Request) -> Response:
    """The report of the run."""
    html = await _service(request).models.report()
    return HTMLResponse(html, headers={"Content-Security-Policy": REPORT_POLICY})


@_router.get("/docs", include_in_schema=False)
async def _docs(request: Request) -> Response:
    """The page that documents the API, from its description in openapi.json. It loads nothing from other sites."""
    return HTMLResponse(_docs_template().render(paths=request.app.openapi()["paths"]))


@cache
def _docs_template() -> Template:
    return Template(_read("docs.html").decode(), autoescape=True)


async def _static(request: Request) -> Response:
    name, kind = _STATIC[request.url.path]
    return Response(_read(name), media_type=kind)


for _path in _STATIC:
    _router.add_api_route(_path, _static, methods=["GET", "HEAD"], include_in_schema=False)


@cache
def _read(name: str) -> bytes:
    return files("lifelabel.serve").joinpath("static").joinpath(name).read_bytes()


async def _on_http_error(request: Request, error: Any) -> Response:
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


async def _on_wrong_parameter(request: Request, error: Any) -> Response:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])
    return JSONResponse({"error": f"{printable(shorten(name))}: {printable(shorten(first['msg']))}"}, 422)


async def _on_disconnect(request: Request, error: Any) -> Response:
    return Response(status_code=DISCONNECTED)


async def _on_error(request: Request, error: Any) -> Response:
    return JSONResponse({"error": "an error in the server: see its log"}, 500)
