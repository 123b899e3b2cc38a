"""The records of a run, as its files hold them. metrics.json is made from the record of each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

from lifelabel.metrics.over_tasks import HEADLINE, forgetting, mean_of_known, relative_forgetting, without_nan

_Scores = Mapping[str, float | None]
"""Metrics as fractions, by their names. None: not defined, as for a class without a positive image."""


class TaskRecord(TypedDict, total=False):
    """The metrics after a task. Those of the last task have all entries that its stream allows."""

    task: int
    """The number of the task, from 1."""
    seen: _Scores
    """Of the classes so far, on the cumulative test set."""
    by_task: Sequence[_Scores]
    """Row t of a[t][j]: of the classes of task j, on all test images."""
    skipped: dict[str, int]
    """Images that could not be read, by split."""
    conventions: _Scores
    """Of all classes on all test images: `lifelabel.metrics.METRICS`."""
    cumulative: list[_Scores]
    """Of each cumulative test set, after the last task."""
    groups: Mapping[str, _Scores]
    ap: _Scores
    positives: dict[str, int]
    acm_error: _Scores


class Metrics(TypedDict, total=False):
    """metrics.json."""

    stream: str
    method: str
    fidelity: str
    seed: int
    classes: list[str]
    tasks: list[list[str]]
    """The classes of each task."""
    task_names: list[str]
    """Missing if no task has a name."""
    finished: bool
    by_task: dict[str, list[list[float | None]]]
    """a[t][j] of mAP, CF1 and OF1."""
    per_task: list[TaskRecord]
    final: dict[str, Any]
    """The scores after the last task, and forgetting. Missing in a run that is not finished."""
    skipped: dict[str, int]


class Environment(TypedDict, total=False):
    """environment.json: what the run ran on, what it has cost, and the SHA-256 of its files."""

    label: str
    equal: dict[str, Any]
    preset: bool
    processes: int
    changed_options: list[dict[str, Any]]
    precision: str
    recorded: bool
    compiled: bool
    seconds: float
    images_per_second: float | None
    peak_memory_bytes: int | None
    peak_device_memory_bytes: int | None
    footprint: dict[str, Any]
    stream_fingerprint: str
    image_size: int
    """Pixels of a side."""
    images_by_task: list[int | None]
    images_missing: int
    images_skipped: int
    weights: dict[str, Any]
    sha256: dict[str, str]
    date: str
    lifelabel: str
    commit: str | None
    python: str
    torch: str
    device: str
    threads: int


def says_finished(metrics: object) -> bool:
    """Whether the content of metrics.json is that of a finished run: the one place where this is decided."""
    return isinstance(metrics, dict) and metrics.get("finished") is True


class _Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> Sequence[str]: ...


def summarise(records: Sequence[TaskRecord], tasks: Sequence[_Task]) -> Metrics:
    """metrics.json: the final metrics, forgetting by both definitions, the matrices a[t][j], and every record."""
    names = [task.name for task in tasks]
    summary: dict[str, Any] = {
        "classes": [name for task in tasks for name in task.classes],
        "tasks": [list(task.classes) for task in tasks],
        **({"task_names": names} if any(names) else {}),
        "finished": bool(records) and records[-1]["task"] == len(tasks),
        "by_task": {name: _by_task(records, name, len(tasks)) for name in HEADLINE},
        "per_task": list(records),
    }
    if summary["finished"]:
        last = records[-1]
        lifelong = len(records) > 1
        final: dict[str, Any] = dict(last["seen"])
        final["cumulative_mean"] = {n: mean_of_known([s[n] for s in last["cumulative"]]) for n in HEADLINE}
        if lifelong:
            final["forgetting"] = {n: forgetting(summary["by_task"][n]) for n in HEADLINE}
            tail = last["cumulative"][-len(records) :]  # a run that extends another one has no records of its tasks
            final["relative_forgetting"] = {
                n: relative_forgetting([r["seen"][n] for r in records], [s[n] for s in tail]) for n in HEADLINE
            }
        if "acm_error" in last:
            final["acm_error"] = last["acm_error"]
        if "groups" in last:
            final["groups"] = last["groups"]
        summary["final"] = {**final, **{name: last[name] for name in ("conventions", "ap", "positives")}}
    return without_nan(summary)


def _by_task(records: Sequence[TaskRecord], name: str, tasks: int) -> list[list[float | None]]:
    """a[t][j] of one metric, with None above the diagonal and for tasks that were learned before."""
    rows: list[list[float | None]] = [[score[name] for score in record["by_task"]] for record in records]
    # a joint run has one record, of its last task
    before = records[0]["task"] - 1 if records and records[0]["task"] < tasks else 0
    return [[*row, *[None] * (tasks - len(row))] for row in [*[[]] * before, *rows]]
