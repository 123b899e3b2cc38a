"""Every stream by name. A new one is a file here and a line below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lifelabel.streams import scenes
from lifelabel.streams.base import Split, Stream, Task, TrainView


@dataclass(frozen=True)
class Source:
    """Where a stream comes from: a line of help, a dataclass of options, and what makes the stream from them."""

    summary: str
    Options: type
    build: Callable[[Any], Stream]


STREAMS: dict[str, Source] = {
    "scenes": Source(
        "procedural pictures of named things, no download; P(C_i|C_j) is known", scenes.ScenesOptions, scenes.build
    ),
}

__all__ = ["STREAMS", "Source", "Split", "Stream", "Task", "TrainView"]
