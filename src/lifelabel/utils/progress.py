"""Progress of a long loop, for processes that have no console of their own."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track"]

_T = TypeVar("_T")
_SILENT_SECONDS, _EVERY_SECONDS = 2.0, 0.2


def track(items: Iterable[_T], total: int, what: str) -> Iterator[_T]:
    """The items. In a terminal, one line with their number is shown after two seconds, and removed at the end."""
    shown, next_time, line = sys.stderr.isatty(), time.monotonic() + _SILENT_SECONDS, ""
    try:
        for done, item in enumerate(items, start=1):
            yield item
            if shown and (now := time.monotonic()) >= next_time:
                next_time, line = now + _EVERY_SECONDS, f"{what}: {done:,} of {total:,}"
                print(f"\r{line}", end="", file=sys.stderr, flush=True)
    finally:
        if line:
            print(f"\r{' ' * len(line)}\r", end="", file=sys.stderr, flush=True)
