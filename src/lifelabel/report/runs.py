"""Finished runs, read back from their folders: rows of a table, mean and standard deviation over seeds."""

from __future__ import annotations

import math
import os
import statistics
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lifelabel.config import Config, read_yaml
from lifelabel.errors import UserError
from lifelabel.runfolder import RunFolder

CONVENTIONS = (
    "mAP, CF1, OF1 in % after the last task, on the whole test set, as the paper's A.5: CF1 is the harmonic mean of CP "
    "and CR at threshold 0.5. Forgetting is A.5's, of mAP by task. ACM error is the mean absolute error of "
    "P(C_i|C_j), i ≠ j, against the stream's true matrix."
)
NOT_IN_LABEL = (
    "stream", "stream_options", "method_options", "seed", "task_order", "save_scores", "device", "compile",
    "checkpoint_seconds", "workers", "strict", "root", "file",
)  # fmt: skip
COLUMNS = ("mAP", "CF1", "OF1", "forgetting", "ACM error", "seconds")


@dataclass(frozen=True)
class FinishedRun:
    path: Path
    config: Config
    metrics: dict[str, Any]
    environment: dict[str, Any]

    @property
    def label(self) -> str:
        return label_of(self.config)

    @property
    def replica(self) -> tuple[int, int]:
        """What is averaged over: the seed and the order of tasks."""
        return self.metrics["seed"], self.config.task_order

    @property
    def fingerprint(self) -> str:
        return str(self.environment.get("stream_fingerprint"))

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
        try:
            with np.load(path, allow_pickle=False) as archive:
                matrices = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
            raise UserError(f"{path} is damaged or cut short") from None
        if not {"classes", f"task_{len(self.metrics['tasks'])}"} <= matrices.keys():
            raise UserError(f"{path} does not hold the matrices of this run")
        return matrices


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths`, and those inside a folder that is none itself."""
    found: list[Path] = []
    for path in paths:
        inside = [p for p in sorted(path.iterdir()) if RunFolder(p).is_run] if path.is_dir() else []
        found += inside if inside and not RunFolder(path).is_run else [path]
    return found


def read_run(path: str | Path) -> FinishedRun:
    folder = RunFolder(path)
    begun = folder.is_run and not (folder / "metrics.json").exists()
    metrics = {"finished": False} if begun else folder.read_json("metrics.json")
    if isinstance(metrics, dict) and metrics.get("finished") is False:
        raise UserError(f"{path} is not finished: go on with `lifelabel train --resume {path}`")
    config = Config.make(read_yaml(folder / "config.yaml"))
    run = FinishedRun(folder.path, config, metrics, folder.read_json("environment.json"))
    try:
        run.curve(), provenance([run]), [run.value(column) for column in COLUMNS]
    except (KeyError, TypeError, IndexError, AttributeError):
        files = "metrics.json or environment.json"
        raise UserError(f"{files} of {path} is damaged, or of another version of lifelabel") from None
    return run


def label_of(config: Config) -> str:
    """The method's name, its fidelity, and every option that was chosen otherwise.

    >>> label_of(Config.make({"fidelity": "release", "seed": 3, "method_options": {"mix": 0.2}}))
    'agcn (release, mix=0.2)'
    """
    usual = Config.make({"stream": config.stream, "method": config.method, "fidelity": config.fidelity}).to_dict()
    chosen = config.to_dict()
    other = {k: v for k, v in chosen.items() if k not in NOT_IN_LABEL and v != usual[k]}
    other |= {k: v for k, v in chosen["method_options"].items() if v != usual["method_options"][k]}
    given = {k: v for k, v in chosen["stream_options"].items() if k not in NOT_IN_LABEL}
    other |= {f"stream.{k}": v for k, v in given.items() if v != usual["stream_options"][k]}
    parts = [config.fidelity] if config.fidelity != "tuned" else []
    parts += [f"{k}={short_value(v)}" for k, v in other.items()]
    return config.method + (f" ({', '.join(parts)})" if parts else "")


def short_value(value: Any) -> str:
    """A value for a label; of a path, its last part."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else str(value)


def by_label(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs in rows of a table: the seeds and task orders of one label together, each run once; named by stream if
    there are several."""
    grouped: dict[str, list[FinishedRun]] = {}
    each = list({run.path.resolve(): run for run in runs}.values())
    names = {run.metrics["stream"] for run in each}
    several = ambiguous(each)
    for run in each:
        name, label = run.metrics["stream"], run.label
        if len(names) > 1:
            label += f" on {name}"
        if name in several:
            label += f" [{run.fingerprint[:8]}]"
        group = grouped.setdefault(label, [])
        same = [other.path for other in group if other.replica == run.replica]
        if same:
            order = f" and the same order of tasks ({run.replica[1]})" if run.replica[1] else ""
            raise UserError(f"{run.path} and {same[0]} are the same run with the same seed{order}: give one of them")
        group.append(run)
    return grouped


def ambiguous(runs: Iterable[FinishedRun]) -> set[str]:
    """Names of streams that stand for several; one with its tasks in another order is no other stream."""
    prints: dict[tuple[str, int], set[str]] = {}
    for run in runs:
        prints.setdefault((run.metrics["stream"], run.config.task_order), set()).add(run.fingerprint)
    return {name for (name, _), found in prints.items() if len(found) > 1}


def rows(runs: Sequence[FinishedRun], compact: bool = False) -> list[list[str]]:
    """A row a label: a cell for each of COLUMNS, mean ± (sample) standard deviation where there are several runs."""
    return [[name, *(cell(column, group, compact) for column in COLUMNS)] for name, group in by_label(runs).items()]


def cell(column: str, runs: Sequence[FinishedRun], compact: bool = False) -> str:
    values = [value for run in runs if (value := run.value(column)) is not None and math.isfinite(value)]
    if not values:
        return "–"
    digits = {"ACM error": 3, "seconds": 0}.get(column, 1 if compact else 2)
    text = f"{statistics.mean(values):.{digits}f}"
    between = "±" if compact else " ± "
    return text + (f"{between}{statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def markdown(runs: Sequence[FinishedRun]) -> str:
    """The table as Markdown, with what it was measured on."""
    head = ["method", *COLUMNS]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(COLUMNS)]
    lines += ["| " + " | ".join(row) + " |" for row in rows(runs)]
    return "\n".join([*lines, "", provenance(runs), "", CONVENTIONS]) + "\n"


def provenance(runs: Sequence[FinishedRun]) -> str:
    """A sentence: on what, with what and when the runs were made."""
    p = facts(runs)
    of = {name: ", ".join(map(str, values)) for name, values in p.items()}
    orders = f", task orders {of['task_orders']}" if p["task_orders"] != [0] else ""
    commits = ", ".join(c[:10] + (" (modified)" if c.endswith("+") else "") for c in map(str, p["commit"]))
    return (
        f"Stream {of['stream']}, seeds {of['seeds']}{orders}; {of['device']}, {of['threads']} threads, torch "
        f"{of['torch']}, finished {of['date']}, lifelabel {of['lifelabel']} at commit {commits}."
    )


def facts(runs: Sequence[FinishedRun]) -> dict[str, list[Any]]:
    """What the runs were made on and with: every value that occurs, sorted."""
    named = {
        "stream": {run.metrics["stream"] for run in runs},
        "seeds": {run.metrics["seed"] for run in runs},
        "task_orders": {run.config.task_order for run in runs},
    }
    keys = ("device", "threads", "torch", "date", "lifelabel", "commit")
    named |= {key: {run.environment[key] for run in runs} for key in keys}
    return {name: sorted(values, key=lambda value: (str(type(value)), value)) for name, values in named.items()}
