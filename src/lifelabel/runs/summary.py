"""metrics.json, made from the record of each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lifelabel.metrics.over_tasks import HEADLINE, forgetting, mean_of_known, relative_forgetting, without_nan

__all__ = ["says_finished", "summarise"]


def says_finished(metrics: object) -> bool:
    """Whether the content of metrics.json is that of a finished run: the one place where this is decided."""
    return isinstance(metrics, dict) and metrics.get("finished") is True


class _Task(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> Sequence[str]: ...


def summarise(records: Sequence[dict[str, Any]], tasks: Sequence[_Task]) -> dict[str, Any]:
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


def _by_task(records: Sequence[dict[str, Any]], name: str, tasks: int) -> list[list[float | None]]:
    """a[t][j] of one metric, with None above the diagonal and for tasks that were learned before."""
    rows = [[score[name] for score in record["by_task"]] for record in records]
    # a joint run has one record, of its last task
    before = records[0]["task"] - 1 if records and records[0]["task"] < tasks else 0
    return [[None] * tasks] * before + [row + [None] * (tasks - len(row)) for row in rows]
