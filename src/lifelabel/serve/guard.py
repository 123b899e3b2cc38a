"""What every request and every answer passes: checks against other web sites, headers, counters, unexpected errors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER = logging.getLogger("lifelabel.serve")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""A report has its scripts in the page. In a sandbox it has another origin, and cannot call the API."""
_HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
DISCONNECTED = 499
"""The status in the metrics of a client that ended the connection. It gets no answer."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_M = TypeVar("_M", Counter, Gauge, Histogram)


class Metrics:
    """The metrics of one server. They belong to it, not to the process: tests have several servers."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        seconds, sizes = {"buckets": _SECONDS}, {"buckets": _SIZES}
        self.requests = self._add(Counter, "requests", "Answered requests.", "path", "status")
        self.request_seconds = self._add(Histogram, "request_seconds", "Seconds of a request.", "path", **seconds)
        self.images = self._add(Counter, "images", "Images with labels.")
        self.bad_images = self._add(Counter, "bad_images", "Files without labels, by the status of the file.", "status")
        self.decode_seconds = self._add(Histogram, "decode_seconds", "Seconds in which an image is decoded.", **seconds)
        self.replaced = self._add(Counter, "decoders_replaced", "Decoding processes that crashed or were ended.")
        self.forward_seconds = self._add(Histogram, "forward_seconds", "Seconds of a forward pass.", **seconds)
        self.batches = self._add(Histogram, "batch_images", "Images of a forward pass.", **sizes)
        self.running = self._add(Gauge, "requests_running", "Requests with images that are running.")

    def _add(self, kind: type[_M], name: str, text: str, *labels: str, **more: Any) -> _M:
        return kind(f"lifelabel_{name}", text, labels, registry=self._registry, **more)

    def watch_queue(self, length: Callable[[], float]) -> None:
        """Report the number of images that wait for a forward pass."""
        self._add(Gauge, "queue_images", "Images that wait for a forward pass.").set_function(length)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class Guard:
    """An ASGI application around another one. `hosts` are the names by which the server may be called; None: any."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str], hosts: Collection[str] | None):
        self._app, self._metrics, self._paths, self._hosts = app, metrics, set(paths), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), DISCONNECTED

        async def send_checked(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            if wrong := _foreign(scope, self._hosts):
                await JSONResponse({"error": wrong[1]}, wrong[0])(scope, receive, send_checked)
            else:
                await self._app(scope, receive, send_checked)
        except Exception:  # the application has sent an answer with status 500
            LOGGER.exception("%s %s failed", scope["method"], scope["path"] if scope["path"] in self._paths else "")
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, status).inc()
            self._metrics.request_seconds.labels(path).observe(time.perf_counter() - start)


def _foreign(scope: Scope, hosts: Collection[str] | None) -> tuple[int, str] | None:
    """Status and reason if another web site may have made a browser send this request.

    A site can let its own name resolve to this machine. Then its pages may read our answers; but the browser sends the
    name of the site as Host. A page of another site can send a form to us; but the browser adds its Origin.
    """
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if hosts is not None and host_name(host) not in hosts:
        return 400, "this server has another name: use the address that it printed, or add the name with --allow-host"
    if scope["method"] in ("GET", "HEAD"):
        return None
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    is_ours = origin is None or origin.partition("://")[2].lower() == host.lower()
    if not is_ours or site in ("cross-site", "same-site"):
        return 403, "requests from pages of other sites are refused"
    return None


def host_name(host: str) -> str:
    """The name in a Host header, in lower case and without the port.

    >>> host_name("Example.org:8000"), host_name("[::1]:80"), host_name("::1")
    ('example.org', '::1', '::1')
    """
    bare_ipv6 = host.count(":") > 1 and not host.startswith("[")
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() and not bare_ipv6 else host).strip("[]").lower()
