"""What a server shows: the model of the run, those after earlier tasks, and the report of the run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from lifelabel.errors import UserError
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import find_model
from lifelabel.serve.guard import LOGGER
from lifelabel.serve.requests import Refused
from lifelabel.utils.files import below, read_limited

_KEPT = 2
"""Models after earlier tasks that are kept in memory."""
_FOLDER = re.compile(r"model-task-([1-9]\d{0,5})")
_MAX_REPORT_BYTES = 100 << 20
_FACTS = ("date", "lifelabel", "seed", "device")


class Models:
    """The model at `path`, a run folder or a model folder, on a device. Those after earlier tasks are loaded on use."""

    def __init__(self, path: str | Path, device: str = "auto"):
        self.folder = Path(path)
        self.main = load(path, device)
        self.is_run = find_model(path) != self.folder
        matches = [_FOLDER.fullmatch(each.name) for each in self.folder.iterdir()] if self.is_run else []
        self.tasks = sorted(int(match[1]) for match in matches if match)
        """The tasks after which a model was kept."""
        self.of_task = functools.lru_cache(_KEPT)(self._load)
        self._report = functools.cache(self._make_report)
        self._loading, self._reporting = asyncio.Lock(), asyncio.Lock()
        size = self.main.info.image_size
        pixels = torch.zeros(1, size, size, 3, dtype=torch.uint8)
        self.main.logits(pixels)  # the first forward pass is slow
        self.has_maps = self.main.activation(pixels, [0]) is not None

    async def get(self, task: int | None) -> Model:
        """The model after a task, from 1; without a task that of the run."""
        if task is None:
            return self.main
        if task not in self.tasks:
            known = ", ".join(map(str, self.tasks))
            hint = f"give one of {known}" if known else "the run kept none, leave task out"
            raise Refused(422, f"there is no model after task {task}: {hint}")
        async with self._loading:  # two requests do not load the same model
            with _refused(500, f"the model after task {task} is damaged: see the log of the server"):
                return await asyncio.to_thread(self.of_task, task)

    def _load(self, task: int) -> Model:
        return load(below(self.folder, f"model-task-{task}"), str(self.main.device))

    def facts(self) -> dict[str, Any]:
        """What users want to know about the model."""
        info = self.main.info
        final = info.training.get("final")
        figures = {name: final.get(name) for name in ("mAP", "CF1", "OF1")} if isinstance(final, dict) else {}
        return {
            "label": info.label,
            "method": info.method,
            "backbone": info.backbone,
            "image_size": info.image_size,
            "classes": len(info.classes),
            "tasks": max(info.task_of_class) + 1,
            "stream": {name: info.stream.get(name) for name in ("name", "dataset", "fingerprint")},
            "initial_weights": info.provenance,
            "calibrated": info.calibration is not None,
            "figures": {name: value for name, value in figures.items() if isinstance(value, int | float)},
            "training": {name: info.training[name] for name in _FACTS if name in info.training},
            "device": str(self.main.device),
            "kept_tasks": self.tasks,
            "maps": self.has_maps,
            "report": self.is_run,
        }

    def classes(self) -> list[dict[str, Any]]:
        """The classes with their tasks, thresholds and related classes."""
        info, thresholds = self.main.info, self.main.thresholds.tolist()
        relations = info.relations or [()] * len(info.classes)
        rows = zip(info.classes, info.task_of_class, thresholds, relations, strict=True)
        return [
            {
                "name": name,
                "task": task + 1,
                "threshold": threshold,
                "related": [{"name": info.classes[other], "probability": value} for other, value in related],
            }
            for name, task, threshold, related in rows
        ]

    async def report(self) -> bytes:
        """The file report.html in the run folder, or a report that is made on the first request."""
        if not self.is_run:
            raise Refused(404, "no report: reports are made of runs, and this server has only a model")
        async with self._reporting:
            with _refused(404, "no report: the run cannot be read, see the log of the server"):
                return await asyncio.to_thread(self._report)

    def _make_report(self) -> bytes:
        from lifelabel.report.page import REPORT, report_html
        from lifelabel.report.tables import ResultTable
        from lifelabel.runs.finished import read_run

        file = below(self.folder, REPORT)
        if file.is_file():
            return read_limited(file, _MAX_REPORT_BYTES)
        return report_html(ResultTable.from_runs([read_run(self.folder)])).encode()


@contextlib.contextmanager
def _refused(status: int, reason: str) -> Iterator[None]:
    """Log a `UserError`: it names folders, which clients need not know. The answer has the given reason."""
    try:
        yield
    except UserError as error:
        LOGGER.log(logging.ERROR if status >= 500 else logging.WARNING, "%s", error)
        raise Refused(status, reason) from None
