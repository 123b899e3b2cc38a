"""What a client may ask of a server: flags of `lifelabel serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from lifelabel.errors import UserError
from lifelabel.images.decode import MAX_PIXELS
from lifelabel.utils.processes import num_cores

_RANGES = {
    "max_bytes": (1000, 1 << 40), "max_pixels": (1, MAX_PIXELS), "max_images": (1, 10_000),
    "max_requests": (1, 100_000), "timeout": (0.1, 86_400), "workers": (1, 256),
}  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """What a client may ask of a server. Raises a `UserError` if a value is not possible."""

    max_bytes: Annotated[int, typer.Option(help="Bytes of a request.")] = 64 << 20
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image.")] = 50_000_000
    max_images: Annotated[int, typer.Option(help="Images of a request.")] = 32
    max_requests: Annotated[int, typer.Option(help="Requests with images at a time.")] = 64
    timeout: Annotated[float, typer.Option(help="Seconds of a request, with its upload.")] = 30
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images [default: the number of cores, 2 to 8].")
    ] = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UserError(f"--{name.replace('_', '-')} must be {low:,} to {high:,}, not {value:,}")

    @property
    def decoders(self) -> int:
        """The number of processes that decode images."""
        return min(8, max(2, num_cores())) if self.workers is None else self.workers
