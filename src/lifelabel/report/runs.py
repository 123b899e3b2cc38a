"""Finished runs, read back from their folders: rows of a table, mean and standard deviation over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.errors import UserError
from lifelabel.runfolder import RunFolder

CONVENTIONS = (
    "mAP, CF1, OF1 in % after the last task, on the whole test set, as the paper's A.5: CF1 is the harmonic mean of CP "
    "and CR at threshold 0.5. Forgetting is A.5's, of mAP by task. ACM error is the mean absolute error of "
    "P(C_i|C_j), i ≠ j, against the stream's true matrix."
)
COLUMNS = ("mAP", "CF1", "OF1", "forgetting", "ACM error", "seconds")


@dataclass(frozen=True)
class FinishedRun:
    path: Path
    metrics: dict[str, Any]
    environment: dict[str, Any]

    @property
    def method(self) -> str:
        return self.metrics["method"] + (
            "" if self.metrics["fidelity"] == "tuned" else f" ({self.metrics['fidelity']})"
        )

    def value(self, column: str) -> float | None:
        """A cell of the table; None where the run has no such figure."""
        final = self.metrics["final"]
        if column == "seconds":
            return self.environment["seconds"]
        if column == "forgetting":
            value = final.get("forgetting", {}).get("mAP")
        elif column == "ACM error":
            return final.get("acm_error", {}).get("all")
        else:
            value = final[column]
        return None if value is None else 100 * value

    def curve(self) -> list[float | None]:
        """mAP (%) over the classes seen so far on the cumulative test set, after each task.

        A run that saw all tasks at once has no such history: its curve is its final scores on the same sets.
        """
        records = self.metrics["per_task"]
        lifelong = len(records) == len(self.metrics["tasks"])
        scores = [r["seen"]["mAP"] for r in records] if lifelong else [s["mAP"] for s in records[-1]["cumulative"]]
        return [None if s is None else 100 * s for s in scores]

    def matrices(self) -> dict[str, np.ndarray]:
        """What acm.npz holds; empty where the method has no matrix."""
        path = self.path / "acm.npz"
        if not path.exists():
            return {}
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}


def read_run(path: str | Path) -> FinishedRun:
    folder = RunFolder(path)
    metrics = folder.read_json("metrics.json")
    if not metrics.get("finished"):
        raise UserError(f"{path} is not finished: go on with `lifelabel train --resume {path}`")
    return FinishedRun(folder.path, metrics, folder.read_json("environment.json"))


def by_method(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    grouped: dict[str, list[FinishedRun]] = {}
    for run in runs:
        grouped.setdefault(run.method, []).append(run)
    return grouped


def rows(runs: Sequence[FinishedRun]) -> list[list[str]]:
    """A row a method: its name, then a cell for each of COLUMNS, mean ± standard deviation where there are seeds."""
    return [[name, *(cell(column, group) for column in COLUMNS)] for name, group in by_method(runs).items()]


def cell(column: str, runs: Sequence[FinishedRun]) -> str:
    values = [value for run in runs if (value := run.value(column)) is not None and math.isfinite(value)]
    if not values:
        return "–"
    digits = {"ACM error": 3, "seconds": 0}.get(column, 2)
    text = f"{statistics.mean(values):.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def markdown(runs: Sequence[FinishedRun]) -> str:
    """The table as Markdown, with what it was measured on."""
    head = ["method", *COLUMNS]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(runs)]
    return "\n".join([*lines, "", provenance(runs), "", CONVENTIONS]) + "\n"


def provenance(runs: Sequence[FinishedRun]) -> str:
    def all_of(key: str) -> str:
        return ", ".join(sorted({str(run.environment[key]) for run in runs}))

    seeds = ", ".join(map(str, sorted({run.metrics["seed"] for run in runs})))
    streams = ", ".join(sorted({run.metrics["stream"] for run in runs}))
    return (
        f"Stream {streams}, seeds {seeds}; {all_of('device')}, {all_of('threads')} threads, torch {all_of('torch')}, "
        f"finished {all_of('date')}, lifelabel {all_of('lifelabel')} at commit {all_of('commit')}."
    )
