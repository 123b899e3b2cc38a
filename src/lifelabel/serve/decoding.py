"""A pool of processes that decode images. A process that crashes or takes too long is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np

from lifelabel.errors import UserError
from lifelabel.serve.decoder import ANSWER, BAD, GOOD, JOB
from lifelabel.serve.guard import Metrics
from lifelabel.serve.limits import Limits
from lifelabel.serve.requests import Refused

_BUFFER = 1 << 20
"""Bytes of an answer that are read at a time."""
_START_SECONDS = 60
_RETRY_SECONDS = 1.0
_DECODE_SECONDS = 10.0
_MAX_REASON = 1000
_ATTEMPTS = 2
_EXIT_SECONDS = 1.0
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM) if sys.platform != "win32" else ()
"""Signals that no defect of a decoder causes. The system sends SIGKILL if memory is short."""
_KILLED = "the process that decodes images was killed, perhaps because memory is short: try again later"
_NO_START = "a process that decodes images does not start: is memory short, or the number of processes or open files?"


class DecoderPool:
    """Decodes images in `limits.workers` processes, one image at a time in each."""

    def __init__(self, limits: Limits, metrics: Metrics):
        self._limits, self._metrics = limits, metrics
        self.seconds = min(_DECODE_SECONDS, limits.timeout / 2)
        """The time limit of one image. It is shorter than that of a request, so that its other images get labels."""
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers: set[_Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        started = await asyncio.gather(*(self._add() for _ in range(self._limits.decoders)), return_exceptions=True)
        for error in started:
            if isinstance(error, BaseException):
                raise error

    async def decode(self, read: Callable[[], Awaitable[bytes]], size: int) -> np.ndarray:
        """The pixels (`size` x `size` x 3) of an image. Raises `Refused` if it has none.

        Its bytes are read when a process is idle, so few files are in memory. If the process ends, another one tries
        the image again: the system, or a person, may have killed it.
        """
        data: bytes | None = None
        for attempt in range(_ATTEMPTS):
            worker = await self._idle.get()
            try:
                data = await read() if data is None else data
                start = time.perf_counter()
                job = JOB.pack(size, self._limits.max_pixels, len(data))
                status, payload = await asyncio.wait_for(worker.answer(job, data, 3 * size**2), self.seconds)
            except asyncio.TimeoutError:
                self._replace(worker)
                raise Refused(400, f"took more than {self.seconds:g} seconds to decode") from None
            except (asyncio.IncompleteReadError, OSError):
                killed = await worker.was_killed()
                self._replace(worker)
                if attempt + 1 == _ATTEMPTS:
                    raise (Refused(503, _KILLED) if killed else Refused(400, "crashed the decoder")) from None
            except BaseException:  # the request has ended: an answer for it may still come
                self._replace(worker)
                raise
            else:
                break
        self._idle.put_nowait(worker)
        self._metrics.decode_seconds.observe(time.perf_counter() - start)
        if status != GOOD:
            raise Refused(status, payload.decode(errors="replace"))
        return np.frombuffer(payload, np.uint8).reshape(size, size, 3)

    def _replace(self, worker: _Worker) -> None:
        self._metrics.replaced.inc()
        task = asyncio.ensure_future(self._start_in_place_of(worker))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_in_place_of(self, worker: _Worker) -> None:
        await worker.end()
        self._workers.discard(worker)
        while True:
            try:
                return await self._add()
            except UserError:  # memory or processes may be short for a while
                await asyncio.sleep(_RETRY_SECONDS)

    async def _add(self) -> None:
        worker = await _Worker.start(self._limits.max_pixels)
        self._workers.add(worker)
        self._idle.put_nowait(worker)

    async def close(self) -> None:
        """End all processes."""
        starting = list(self._starting)
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(worker.end() for worker in self._workers))


class _Worker:
    """One process of the pool."""

    def __init__(self, process: asyncio.subprocess.Process):
        assert process.stdin is not None and process.stdout is not None
        self._process, self._jobs, self._answers = process, process.stdin, process.stdout

    @staticmethod
    async def start(max_pixels: int) -> _Worker:
        # the process finds the same packages, and none in the current folder
        path = os.pathsep.join(entry for entry in sys.path if entry)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "lifelabel.serve.decoder", str(max_pixels),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
                env={**os.environ, **threads, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}, limit=_BUFFER,
            )  # fmt: skip
        except OSError:
            raise UserError(_NO_START) from None
        worker = _Worker(process)
        try:
            await asyncio.wait_for(worker._answer(0), _START_SECONDS)
        except BaseException as error:
            await worker.end()
            if isinstance(error, asyncio.TimeoutError | asyncio.IncompleteReadError | OSError):
                raise UserError(_NO_START) from None
            raise
        return worker

    async def answer(self, header: bytes, data: bytes, expected: int) -> tuple[int, bytes]:
        """Status and content. Good content has `expected` bytes."""
        self._jobs.write(header)
        self._jobs.write(data)
        await self._jobs.drain()
        return await self._answer(expected)

    async def _answer(self, expected: int) -> tuple[int, bytes]:
        status, length = ANSWER.unpack(await self._answers.readexactly(ANSWER.size))
        # a defect of a decoder may let an image write the answer: it is not trusted
        if not (length == expected if status == GOOD else status in BAD and length <= _MAX_REASON):
            raise OSError("not an answer of this program")
        return status, await self._answers.readexactly(length)

    async def was_killed(self) -> bool:
        """Whether a signal from outside has ended the process, so that it sends no further answer."""
        with contextlib.suppress(asyncio.TimeoutError):
            return -await asyncio.wait_for(self._process.wait(), _EXIT_SECONDS) in _FROM_OUTSIDE
        return False

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._jobs.close()
        with contextlib.suppress(OSError):
            await self._answers.read()
        await self._process.wait()
