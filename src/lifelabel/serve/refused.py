"""An answer that is not the one that the client asked for."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["Refused"]


class Refused(Exception):
    """A request, or one file of it, that cannot be answered: the HTTP status, the reason, and further headers."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None):
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers
