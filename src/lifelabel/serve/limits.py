"""The limits of a server."""

from __future__ import annotations

from dataclasses import dataclass

from lifelabel.errors import UserError
from lifelabel.images.decode import MAX_PIXELS

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What a client may ask of a server. Raises a `UserError` if a value is not possible."""

    max_bytes: int = 64 << 20
    """Bytes of the body of a request."""
    max_pixels: int = 50_000_000
    """Pixels of an image."""
    max_images: int = 32
    """Images of a request."""
    max_requests: int = 64
    """Requests with images at a time."""
    timeout: float = 30.0
    """Seconds of a request, with its upload."""
    workers: int = 2
    """Processes that decode images."""

    def __post_init__(self) -> None:
        ranges = {
            "max_bytes": (1000, 1 << 40), "max_pixels": (1, MAX_PIXELS), "max_images": (1, 10_000),
            "max_requests": (1, 100_000), "timeout": (0.1, 86_400), "workers": (1, 256),
        }  # fmt: skip
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                flag = "--" + name.replace("_", "-")
                raise UserError(f"{flag} must be {low:,} to {high:,}, not {value:,}")
