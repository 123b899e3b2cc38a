"""Labels for the files of a request: decoding, one forward pass for the images of several requests, and maps."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from starlette.datastructures import UploadFile

from lifelabel.errors import UserError
from lifelabel.model.model import Model
from lifelabel.serve.decoding import DecoderPool
from lifelabel.serve.guard import Metrics
from lifelabel.serve.limits import Limits
from lifelabel.serve.models import Models
from lifelabel.serve.requests import Refused, file_name
from lifelabel.serve.schemas import Choice

_MAX_MAPS = 20
"""Labels of an image that have maps, the most probable ones."""
_WAIT_SECONDS = 0.005
"""How long an image waits for others that are being decoded."""
_T = TypeVar("_T")


class Service:
    """The models of a server with its decoding processes and its thread for forward passes."""

    def __init__(self, models: Models, limits: Limits):
        self.models, self.limits, self.metrics = models, limits, Metrics()
        self.decoders = DecoderPool(limits, self.metrics)
        self.batcher = _Batcher(models.main.batch_size, self.metrics)
        self.failure: UserError | None = None
        """Why the decoding processes did not start. The server ends then, and this is its message."""
        self._running = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From the start to the end of the server."""
        try:
            try:
                await self.decoders.start()
            except UserError as error:
                self.failure = error
                raise
            self.batcher.start()
            yield
        finally:
            await self.decoders.close()
            await self.batcher.close()

    @contextlib.contextmanager
    def admitted(self) -> Any:
        """Within the context, one of the requests that may run at a time."""
        if self._running >= self.limits.max_requests:
            reason = f"{self.limits.max_requests:,} requests are running: try again in a second"
            raise Refused(429, reason, {"Retry-After": "1"})
        self._running += 1
        self.metrics.running.inc()
        try:
            yield
        finally:
            self._running -= 1
            self.metrics.running.dec()

    async def predict(self, uploads: Sequence[UploadFile], choice: Choice) -> tuple[int, dict[str, Any]]:
        """The status and the body of the answer for some files."""
        model = await self.models.get(choice.task)
        results = await asyncio.gather(*(self._result(model, upload, choice) for upload in uploads))
        statuses = [result["status"] for result in results if "status" in result]
        self.metrics.images.inc(len(results) - len(statuses))
        for status in statuses:
            self.metrics.bad_images.labels(status).inc()
        if len(statuses) < len(results):
            return 200, {"results": results}
        first = f"{results[0]['name']}: {results[0]['error']}"
        error = first if len(results) == 1 else f"no file could be used; {first}"
        return statuses[0] if len(set(statuses)) == 1 else 400, {"results": results, "error": error}

    async def _result(self, model: Model, upload: UploadFile, choice: Choice) -> dict[str, Any]:
        name = file_name(upload)
        try:
            async with self.batcher.place():
                pixels = await self.decoders.decode(upload.read, model.info.image_size)
                scores = await self.batcher.score(model, pixels)
                columns = model.label_columns(scores, choice.threshold, choice.top)
                labels = _labels(model, scores, columns, choice.threshold)
                if choice.maps:
                    maps = await self.batcher.call(_maps, model, pixels, columns[:_MAX_MAPS])
                    for label, each in zip(labels, maps, strict=False):
                        label["map"] = each
        except Refused as refused:
            return {"name": name, "error": refused.detail, "status": refused.status_code}
        return {"name": name, "labels": labels}


def _labels(model: Model, scores: np.ndarray, columns: Sequence[int], threshold: float | None) -> list[dict[str, Any]]:
    limits = model.thresholds if threshold is None else np.full(len(scores), threshold)
    return [
        {
            "name": model.classes[column],
            "probability": _rounded(scores[column]),
            "threshold": _rounded(limits[column]),
            "task": model.info.task_of_class[column] + 1,
        }
        for column in columns
    ]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _maps(model: Model, pixels: np.ndarray, columns: Sequence[int]) -> list[list[list[float]] | None]:
    """For each class rows of numbers from 0 to 1: the evidence for it, relative to the place with the most."""
    found = model.activation(torch.from_numpy(pixels.copy())[None], columns) if columns else None
    if found is None:
        return [None] * len(columns)
    positive = found[0].clamp(min=0)
    relative = positive / positive.amax((1, 2), keepdim=True).clamp(min=1e-12)
    return [[[round(value, 3) for value in row] for row in each] for each in relative.tolist()]


@dataclass(frozen=True)
class _Waiting:
    model: Model
    pixels: np.ndarray
    found: asyncio.Future[np.ndarray]


class _Batcher:
    """Collects images up to `batch_size`, and scores them in one thread: the device runs one forward pass at a time."""

    def __init__(self, batch_size: int, metrics: Metrics):
        self._batch_size, self._metrics = batch_size, metrics
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._places = asyncio.Semaphore(2 * batch_size)
        self._coming = 0
        self._thread = ThreadPoolExecutor(1, "forward pass")
        self._task: asyncio.Task[None] | None = None
        metrics.watch_queue(self._queue.qsize)

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._thread.shutdown(cancel_futures=True)

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A place for an image, from before it is decoded. Pixels for two forward passes are in memory at most."""
        async with self._places:
            self._coming += 1
            try:
                yield
            finally:
                self._coming -= 1

    async def score(self, model: Model, pixels: np.ndarray) -> np.ndarray:
        """The probabilities of all classes of one image."""
        item = _Waiting(model, pixels, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(item)
        return await item.found

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call a function in the thread of the forward passes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def _run(self) -> None:
        while True:
            items = [item for item in await self._collect() if not item.found.done()]
            for model in {id(item.model): item.model for item in items}.values():
                await self._forward(model, [item for item in items if item.model is model])

    async def _collect(self) -> list[_Waiting]:
        items = [await self._queue.get()]
        until = time.perf_counter() + _WAIT_SECONDS
        while len(items) < self._batch_size:
            if self._queue.empty():
                left = until - time.perf_counter()
                if left <= 0 or self._coming <= len(items):
                    break
                with contextlib.suppress(asyncio.TimeoutError):
                    items.append(await asyncio.wait_for(self._queue.get(), left))
            else:
                items.append(self._queue.get_nowait())
        return items

    async def _forward(self, model: Model, items: list[_Waiting]) -> None:
        start = time.perf_counter()
        try:
            scores = await self.call(_scores, model, [item.pixels for item in items])
        except Exception as error:  # such as a device that is out of memory: these requests fail, the server continues
            for item in items:
                if not item.found.done():
                    item.found.set_exception(error)
            return
        self._metrics.forward_seconds.observe(time.perf_counter() - start)
        self._metrics.batches.observe(len(items))
        for item, row in zip(items, scores, strict=True):
            if not item.found.done():
                item.found.set_result(row)


def _scores(model: Model, pixels: list[np.ndarray]) -> np.ndarray:
    return model.probabilities(model.logits(torch.from_numpy(np.stack(pixels)))).numpy()
