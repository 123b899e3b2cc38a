"""Test pictures in a report, with the probabilities of every method after each of its tasks."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from PIL import Image

from lifelabel.report.score_figures import best_method
from lifelabel.report.tables import Row
from lifelabel.runs.details import Example, RunDetails, read_details
from lifelabel.runs.finished import FinishedRun
from lifelabel.utils.text import printable, task_text

SCALE = 200
"""Probabilities in the page are whole numbers, rounded down: a threshold of two digits decides as without rounding."""
_THRESHOLD = 0.7
"""Of the labels under the pictures, as in Fig. 1 of the paper."""
_MAX_PICTURES = 48
_MAX_BYTES = 1_500_000
"""Of all pictures in the page."""
_MAX_SIDE = 1024
"""Pixels: a file of a few bytes can claim to be a picture of gigabytes."""
_MAX_NAME = 80


def pictures(rows: Sequence[Row]) -> dict[str, Any] | None:
    """The data of the section: groups of pictures, one for each stream, and the methods. None if there are no pictures.

    All methods on a stream show the same pictures. They are the most confident mistakes of the methods, in turn.
    """
    groups: dict[tuple[Any, ...], list[tuple[int, FinishedRun, RunDetails]]] = {}
    for number, row in enumerate(rows):
        run = row.first_run
        details = read_details(run)
        if details and details.examples and len({len(task.scores) for task in details.tasks}) == 1:
            groups.setdefault(_examples_key(run, details), []).append((number, run, details))
    count, size = (limit // max(len(groups), 1) for limit in (_MAX_PICTURES, _MAX_BYTES))
    found: dict[str, Any] = {"scale": SCALE, "threshold": _THRESHOLD, "groups": [], "methods": []}
    for members in groups.values():
        chosen = _choose([details for _, _, details in members], count, size)
        if chosen:
            found["groups"].append(_group(members[0][1], chosen))
            found["methods"] += [
                {
                    "method": number,
                    "name": printable(rows[number].name),
                    "group": len(found["groups"]) - 1,
                    "tasks": [task.task for task in details.tasks],
                    "texts": [task_text(task.task, run.task_names) for task in details.tasks],
                    "scores": [_encode(task.scores[[example.index for example in chosen]]) for task in details.tasks],
                }
                for number, run, details in members
            ]
    if not found["methods"]:
        return None
    return {
        **found,
        "chosen": best_method((row.first_run for row in rows), (each["method"] for each in found["methods"])),
    }


def _examples_key(run: FinishedRun, details: RunDetails) -> tuple[Any, ...]:
    """Equal for runs whose rows of `TaskDetails.scores` are the same images. An image that was left out moves them."""
    left_out = [run.environment.get(name) for name in ("images_missing", "images_skipped")]
    return run.stream, run.fingerprint, *map(str, left_out), str(run.tasks), len(details.tasks[-1].scores)


def _choose(runs: Sequence[RunDetails], count: int, size: int) -> list[Example]:
    """The first example of each run, then the second of each, and so on. Each image once, files that are JPEG only."""
    chosen: dict[int, Example] = {}
    for turn in zip_longest(*(details.examples for details in runs)):
        for example in turn:
            if example is None or example.index in chosen or len(chosen) == count:
                continue
            length = len(example.jpeg) * 4 // 3
            if length <= size and _is_picture(example.jpeg):
                chosen[example.index] = example
                size -= length
    return list(chosen.values())


def _is_picture(data: bytes) -> bool:
    """Whether the bytes are a JPEG file of a small picture."""
    if not data.startswith(b"\xff\xd8\xff"):
        return False
    try:
        with Image.open(io.BytesIO(data), formats=["JPEG"]) as image:
            if max(image.size) > _MAX_SIDE:
                return False
            image.load()
    except Exception:  # Pillow raises many kinds of errors for a damaged file
        return False
    return True


def _group(run: FinishedRun, chosen: Sequence[Example]) -> dict[str, Any]:
    return {
        "classes": [printable(name)[:_MAX_NAME] for name in run.classes],
        "sizes": run.sizes,
        "pictures": [
            {
                "name": printable(example.name)[-_MAX_NAME:],
                "jpeg": base64.b64encode(example.jpeg).decode(),
                "labels": np.flatnonzero(example.labels & example.known).tolist(),
                "unknown": np.flatnonzero(~example.known).tolist(),
            }
            for example in chosen
        ],
    }


def _encode(scores: np.ndarray) -> str:
    """Probabilities, pictures x classes, as bytes in base64. NaN becomes 0.

    They are stored as float16: 0.9 is 0.89990 there, and must not become 0.89, but the number before it is below 0.9.
    """
    values = np.floor(np.nan_to_num(scores.astype(np.float64)) * SCALE + 0.05)
    return base64.b64encode(values.clip(0, SCALE).astype(np.uint8).tobytes()).decode()
