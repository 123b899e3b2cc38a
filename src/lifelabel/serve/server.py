"""The server process: its socket, its signals, and uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import functools
import ipaddress
import logging
import os
import platform
import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lifelabel.errors import UserError
from lifelabel.serve.app import create_app
from lifelabel.serve.guard import LOGGER, host_name
from lifelabel.serve.limits import Limits
from lifelabel.serve.models import Models
from lifelabel.serve.service import Service
from lifelabel.utils.processes import catch_stop_signals

_SHUTDOWN_SECONDS = 10
_BACKLOG = 1024
_M_ARENA_MAX = -8


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host name or address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def serve(
    path: str | Path, host: str, port: int, device: str, limits: Limits, allow: Collection[str],
    on_start: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve the model at `path` until Ctrl-C or SIGTERM. `on_start` is called with the address.

    Running requests are finished first, for 10 seconds at most. A second signal ends them.
    """
    _use_one_heap()
    listening = _listen(host, port)
    try:
        service = Service(Models(path, device), limits)
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        _run(service, listening, _names(host, allow), lambda: on_start(address))
    finally:
        listening.close()


def _names(host: str, allow: Collection[str]) -> set[str] | None:
    """The names by which clients may call the server; None: any. Each is without a port."""
    if not is_loopback(host) and not allow:
        return None
    local = {"localhost", "127.0.0.1", "::1"} if is_loopback(host) else set()
    return {host_name(name) for name in (host, *allow)} | local


def _use_one_heap() -> None:
    """Let all threads use the heap of the main thread, before there are any.

    The heap of another thread gives its memory back to the system after every forward pass: 40 % more CPU time on the
    CPU (benchmarks/serve.py). `keep_freed_memory` changes only the heap of the main thread.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UserError(f"--port must be 0 to 65535, not {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        opened = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        # with the protocol, asyncio sends answers at once; without it an answer may wait 40 ms (Nagle's algorithm)
        return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=opened.detach())
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host} port {port}: {reason}; give another --port or --host") from None


def _run(service: Service, listening: socket.socket, names: set[str] | None, on_start: Callable[[], None]) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    LOGGER.addHandler(handler)
    for library in ("uvicorn.error", "python_multipart"):  # a line for each client that sends garbage
        logging.getLogger(library).setLevel(logging.CRITICAL)
    protocol: Any = functools.partial(_Protocol, service.limits.timeout)
    config = uvicorn.Config(
        create_app(service, names), http=protocol, ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, timeout_graceful_shutdown=_SHUTDOWN_SECONDS, proxy_headers=False,
    )  # fmt: skip
    server = _Server(config, on_start)
    try:
        with catch_stop_signals(server.stop):
            asyncio.run(server.run_until_stopped(listening))
    except SystemExit:  # of uvicorn, if the application does not start
        if service.failure is None:
            raise
        raise service.failure from None
    finally:
        LOGGER.removeHandler(handler)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: after a shutdown, those raise the signal again."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]):
        super().__init__(config)
        self._on_start = on_start
        self._cancel: Callable[[], object] = lambda: None

    async def run_until_stopped(self, listening: socket.socket) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        try:
            await self.serve([listening])
        except asyncio.CancelledError:
            if not self.should_exit:
                raise

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
        if not self.started:  # uvicorn reads the flags only after its start
            self._cancel()


class _Protocol(H11Protocol):
    """A connection that is closed if no complete request head arrives in time, or if its answer is not read.

    uvicorn has no limit for this.
    """

    def __init__(self, seconds: float, **given: Any):
        super().__init__(**given)
        self._seconds, self._running, self._is_open, self._inner = seconds, 0, True, self.app
        self.app = self._request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._is_open = False
        self._timer.cancel()

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application. While it runs, a request has arrived and is answered."""
        self._timer.cancel()
        self._running += 1  # the next request may arrive before this one has ended
        try:
            await self._inner(scope, receive, send)  # type: ignore[arg-type]  # uvicorn has other types
        finally:
            self._running -= 1
            if self._is_open and not self._running:
                self._wait()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._close)

    def _close(self) -> None:
        # `close` would wait until the client has read the answer
        self.transport.abort() if self.transport.get_write_buffer_size() else self.transport.close()
