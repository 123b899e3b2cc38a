"""One forward pass for the images of several requests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from lifelabel.model.model import Model
from lifelabel.serve.counters import Metrics

__all__ = ["Batcher"]

_WAIT_SECONDS = 0.005
"""How long an image waits for others that are being decoded."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Item:
    model: Model
    pixels: np.ndarray
    found: asyncio.Future[np.ndarray]


class Batcher:
    """Collects images up to `batch_size`, and scores them in one thread: the device runs one forward pass at a time."""

    def __init__(self, batch_size: int, metrics: Metrics):
        self._batch_size, self._metrics = batch_size, metrics
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()
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
        item = _Item(model, pixels, asyncio.get_running_loop().create_future())
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

    async def _collect(self) -> list[_Item]:
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

    async def _forward(self, model: Model, items: list[_Item]) -> None:
        start = time.perf_counter()
        try:
            scores = await self.call(_scores, model, [item.pixels for item in items])
        except Exception as error:  # such as a device that is out of memory: these requests fail, the server goes on
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
