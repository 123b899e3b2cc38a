"""Labels for the files of a request: decoding, the forward pass, and maps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import torch
from starlette.datastructures import UploadFile

from lifelabel.errors import UserError
from lifelabel.model.model import Model
from lifelabel.serve.batching import Batcher
from lifelabel.serve.counters import Metrics
from lifelabel.serve.decoding import DecoderPool
from lifelabel.serve.limits import Limits
from lifelabel.serve.models import Models
from lifelabel.serve.refused import Refused
from lifelabel.serve.schemas import Choice
from lifelabel.serve.uploads import file_name

__all__ = ["Service"]

_MAX_MAPS = 20
"""Labels of an image that have maps, the most probable ones."""


class Service:
    """The models of a server with its decoding processes and its thread for forward passes."""

    def __init__(self, models: Models, limits: Limits):
        self.models, self.limits, self.metrics = models, limits, Metrics()
        self.decoders = DecoderPool(limits, self.metrics)
        self.batcher = Batcher(models.main.batch_size, self.metrics)
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
            return {"name": name, "error": refused.reason, "status": refused.status}
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
