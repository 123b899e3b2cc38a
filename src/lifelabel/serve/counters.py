"""What a server counts and measures, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

__all__ = ["Metrics"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The metrics of one server. They belong to it, not to the process: tests have several servers."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "lifelabel_requests", "Answered requests.", ["path", "status"], registry=registry
        )  # fmt: skip
        self.request_seconds = Histogram(
            "lifelabel_request_seconds", "Seconds of a request.", ["path"], buckets=_SECONDS, registry=registry
        )
        self.images = Counter("lifelabel_images", "Images with labels.", registry=registry)
        self.bad_images = Counter(
            "lifelabel_bad_images", "Files without labels, by the status of the file.", ["status"], registry=registry
        )
        self.decode_seconds = Histogram(
            "lifelabel_decode_seconds", "Seconds in which an image is decoded.", buckets=_SECONDS, registry=registry
        )
        self.replaced = Counter(
            "lifelabel_decoders_replaced", "Decoding processes that crashed or were ended.", registry=registry
        )
        self.forward_seconds = Histogram(
            "lifelabel_forward_seconds", "Seconds of a forward pass.", buckets=_SECONDS, registry=registry
        )
        self.batches = Histogram(
            "lifelabel_batch_images", "Images of a forward pass.", buckets=_SIZES, registry=registry
        )  # fmt: skip
        self.running = Gauge("lifelabel_requests_running", "Requests with images that are running.", registry=registry)

    def watch_queue(self, length: Callable[[], float]) -> None:
        """Report the number of images that wait for a forward pass."""
        queue = Gauge("lifelabel_queue_images", "Images that wait for a forward pass.", registry=self._registry)
        queue.set_function(length)

    def text(self) -> bytes:
        return generate_latest(self._registry)
