"""The report of the run that is served."""

from __future__ import annotations

import asyncio

from lifelabel.errors import UserError
from lifelabel.serve.guard import LOGGER
from lifelabel.serve.models import Models
from lifelabel.serve.refused import Refused
from lifelabel.utils.files import below, read_limited

__all__ = ["Report"]

_MAX_BYTES = 100 << 20


class Report:
    """The file report.html in the run folder, or a report that is made on the first request."""

    def __init__(self, models: Models):
        self._models = models
        self._made: bytes | None = None
        self._lock = asyncio.Lock()

    async def html(self) -> bytes:
        """Raises `Refused` if there is no run."""
        if not self._models.is_run:
            raise Refused(404, "no report: reports are made of runs, and this server has only a model")
        async with self._lock:
            if self._made is None:
                try:
                    self._made = await asyncio.to_thread(self._make)
                except UserError as error:  # it names folders, which clients need not know
                    LOGGER.warning("no report: %s", error)
                    raise Refused(404, "no report: the run cannot be read, see the log of the server") from None
            return self._made

    def _make(self) -> bytes:
        from lifelabel.report.page import REPORT, report_html
        from lifelabel.report.tables import ResultTable
        from lifelabel.runs.finished import read_run

        file = below(self._models.folder, REPORT)
        if file.is_file():
            return read_limited(file, _MAX_BYTES)
        return report_html(ResultTable.from_runs([read_run(self._models.folder)])).encode()
