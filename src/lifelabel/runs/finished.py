"""Finished runs, read from their folders. No method, stream or plug-in is loaded.

The files of a run folder are untrusted: a damaged one is a `UserError`, and code that prints their text must escape it.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from lifelabel.errors import UserError
from lifelabel.metrics.over_tasks import BUILT_IN, HEADLINE, mean_of_known
from lifelabel.options import change_text
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.records import Environment, Metrics, says_finished
from lifelabel.utils.arrays import read_arrays, read_headers, read_rows
from lifelabel.utils.text import task_cell

_BLOCKS = ("all", "intra", "old_new", "new_old")
RUN_FACTS = ("device", "threads", "torch", "date", "lifelabel", "commit")
"""What environment.json says about the machine, the versions and the date of a run."""
_MAX_NUMBER = 1e15
_MAX_CLASSES = 1000
"""Classes of a matrix that are in memory."""
_MAX_MATRIX_BYTES = 8 << 30
"""Bytes of all matrices of a run. They are read in blocks."""


@dataclass(frozen=True)
class FinishedRun:
    """The folder of a finished run: config.yaml, metrics.json and environment.json."""

    path: Path
    config: dict[str, Any]
    metrics: Metrics
    environment: Environment
    label: str
    """The method and the options that are not the default."""
    stream: str
    seed: int
    task_order: int
    class_order: int
    epochs: int
    """The number of passes over the images of each task."""
    fingerprint: str
    image_size: int | None
    """Pixels of a side of its images. None: unknown, in a run of an earlier version with the default."""
    precision: str
    """The precision in effect: `auto` is bfloat16 on one machine and float32 on another."""
    tasks: list[list[str]]
    """The classes of each task."""
    ap: dict[str, float]
    """The AP of each class that has a positive test image."""
    equal_options: dict[str, Any]
    """The options that methods in a comparison should have in common."""
    has_preset: bool
    """Whether the options are those that `lifelabel tune` chose for the method."""
    plugin_metrics: dict[str, float | None]
    """The values of the metrics of plug-ins."""
    skipped: dict[str, int]
    """The numbers of training and of test images that could not be read."""
    changed_options: list[str]
    """The options that were changed during the run, as text."""
    groups: dict[str, dict[str, float | None]]
    """mAP, CF1 and OF1 (%) of groups of classes, by the names of the groups."""
    task_names: list[str]
    """The names of the tasks; empty if they have none."""
    unread: dict[str, str] = field(default_factory=dict)
    """What is wrong with damaged parts of the folder, `details` or `acm.npz`. They are not read again."""

    @property
    def order(self) -> tuple[int, int]:
        """The order of the classes and that of the tasks."""
        return self.class_order, self.task_order

    @property
    def sizes(self) -> list[int]:
        """The number of classes of each task."""
        return [len(task) for task in self.tasks]

    @property
    def classes(self) -> list[str]:
        return [name for task in self.tasks for name in task]

    @property
    def joint(self) -> bool:
        """Whether the run trained on all tasks at once."""
        return self.metrics["per_task"][0]["task"] == len(self.tasks) > 1

    def figures(self) -> dict[str, float | None]:
        """All figures by name: scores and forgetting in %, the others in the unit of their name. None: unknown."""
        final, environment = self.metrics["final"], self.environment
        errors = final.get("acm_error") or {}
        footprint = environment.get("footprint") or {}
        found: dict[str, float | None] = {}
        for name in HEADLINE:
            found[name] = _percent(final[name])
            found[f"forgetting_{name}"] = _percent((final.get("forgetting") or {}).get(name))
            found[f"cumulative_mean_{name}"] = _percent((final.get("cumulative_mean") or {}).get(name))
            relative = _number((final.get("relative_forgetting") or {}).get(name))  # may be far below -1
            found[f"relative_forgetting_{name}"] = None if relative is None else 100 * relative
            found[f"average_{name}"] = self._average(name)
        found |= {f"stored_{name}": _number(footprint.get(name)) for name in ("images", "bytes")}
        found["seconds"] = _number(environment["seconds"])
        found["images_per_second"] = _number(environment.get("images_per_second"))
        on_device = _number(environment.get("peak_device_memory_bytes"))
        on_host = _number(environment.get("peak_memory_bytes"))
        found["peak_memory_bytes"] = on_host if on_device is None else on_device
        found |= {f"acm_error_{block}": _number(errors.get(block)) for block in _BLOCKS}
        found |= {f"groups_{name}_{m}": value for name, scores in self.groups.items() for m, value in scores.items()}
        return found | self.plugin_metrics

    def curve(self, name: str = "mAP") -> list[float | None]:
        """A metric (%) of the classes seen so far on the cumulative test set, after each task of the run.

        A joint run has one record: its curve has its final scores on the same test sets. The curve of a run that
        extends another one begins after the tasks of the other.
        """
        records = self.metrics["per_task"]
        scores = records[-1]["cumulative"] if self.joint else [record["seen"] for record in records]
        return [_percent(score[name]) for score in scores]

    def _average(self, name: str) -> float | None:
        """The mean of the curve over all tasks. None: a run that extends another one has no score of its tasks."""
        curve = self.curve(name)
        mean = mean_of_known(curve) if len(curve) == len(self.tasks) else math.nan
        return None if math.isnan(mean) else mean

    @functools.cached_property
    def matrices(self) -> dict[str, np.ndarray]:
        """The arrays in acm.npz; empty if the method has no matrix.

        Of a matrix of more than 1,000 classes, only the 1,000 classes with the strongest relations are in memory.
        `kept` has their columns.
        """
        path = RunFolder(self.path) / names.MATRICES
        if names.MATRICES in self.unread or not path.exists():
            return {}
        sizes = np.cumsum(self.sizes).tolist()
        shapes: dict[str, tuple[int, ...]] = {f"task_{number}": (size, size) for number, size in enumerate(sizes, 1)}
        shapes |= {"truth": (sizes[-1], sizes[-1]), "classes": (sizes[-1],)}
        headers = {name: header for name, header in read_headers(path, _MAX_MATRIX_BYTES).items() if name in shapes}
        fit = all(
            header.shape == shapes[name] and header.dtype.kind in ("U" if name == "classes" else "biuf")
            for name, header in headers.items()
        )
        if not fit or not {"classes", f"task_{len(sizes)}"} <= headers.keys():
            raise UserError(f"{path} does not hold the matrices of this run")
        matrices = headers.keys() - {"classes"}
        if sizes[-1] <= _MAX_CLASSES:
            kept, found = np.arange(sizes[-1]), read_arrays(path, names=matrices)
        else:
            kept = _strongest_classes(path, f"task_{len(sizes)}")
            found = {name: _part(path, name, kept[kept < shapes[name][0]]) for name in matrices}
        return {**found, "classes": np.array(self.classes, object)[kept], "kept": kept}


def _strongest_classes(path: Path, name: str) -> np.ndarray:
    """The classes of a matrix with the strongest relations, in ascending order."""
    strength, start = np.zeros(0), 0
    for block in read_rows(path, name, _MAX_MATRIX_BYTES):
        rows = np.arange(start, start + len(block))
        values = np.where(np.isfinite(block), block, -1)
        values[rows - start, rows] = -1
        strength = strength if start else np.full(block.shape[1], -1.0)
        strength = np.maximum(strength, values.max(0))
        strength[rows] = np.maximum(strength[rows], values.max(1))
        start += len(block)
    return np.sort(np.argsort(-strength, kind="stable")[:_MAX_CLASSES])


def _part(path: Path, name: str, kept: np.ndarray) -> np.ndarray:
    """The rows and columns `kept` of a matrix."""
    parts, start = [], 0
    for block in read_rows(path, name, _MAX_MATRIX_BYTES):
        rows = kept[(kept >= start) & (kept < start + len(block))]
        parts.append(block[np.ix_(rows - start, kept)])
        start += len(block)
    return np.concatenate(parts)


def _number(value: Any) -> float | None:
    if value is not None and not (isinstance(value, int | float) and abs(value) <= _MAX_NUMBER):  # NaN is refused too
        raise TypeError("not a number, or a very large one")
    return value


def _size(value: Any) -> int | None:
    return None if value is None else int(_number(value) or 0)


def _percent(value: Any) -> float | None:
    """A fraction in %. Forgetting can be negative."""
    if value is not None and not (isinstance(value, int | float) and -1 <= value <= 1):
        raise TypeError("not a fraction")
    return None if value is None else 100 * value


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders among `paths`, and those inside a folder that is not a run folder."""
    found: list[Path] = []
    for path in paths:
        inside = [p for p in sorted(path.iterdir()) if RunFolder(p).is_run] if path.is_dir() else []
        found += inside if inside and not RunFolder(path).is_run else [path]
    return found


def read_run(path: str | Path) -> FinishedRun:
    """Read the folder of a finished run. A damaged or unfinished one is an error."""
    folder = RunFolder(path)
    begun = folder.is_run and not (folder / names.METRICS).exists()
    metrics: Any = {"finished": False} if begun else folder.read_json(names.METRICS)
    if not says_finished(metrics):
        raise UserError(f"{path} is not finished: continue with `lifelabel train --resume {path}`")
    config, environment = folder.read_config(), folder.read_json(names.ENVIRONMENT)
    try:
        json.dumps([metrics, environment], allow_nan=False)  # raises ValueError for NaN, which is not JSON
        run = _parse(folder.path, _plain(config), metrics, cast(Environment, environment))
        [_percent(value) for rows in dict.values(metrics.get("by_task", {})) for row in rows for value in row]
        run.figures(), [run.curve(name) for name in HEADLINE], provenance([run])
    except (AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        files = f"{names.CONFIG}, {names.METRICS} or {names.ENVIRONMENT}"
        raise UserError(f"{files} of {path} is damaged, or of another version of lifelabel") from None
    return run


def _parse(path: Path, config: dict[str, Any], metrics: Metrics, environment: Environment) -> FinishedRun:
    """A run with the values of its files. A run of an earlier version may lack those that are read with `get`."""
    dict.keys(config.get("method_options") or {})  # raises TypeError for another type
    final, skipped = metrics["final"], metrics.get("skipped") or {}
    metrics_of_plugins = {str(k): v for k, v in (final.get("conventions") or {}).items() if k not in BUILT_IN}
    return FinishedRun(
        path, config, metrics, environment,
        label=str(environment["label"]),
        stream=str(metrics["stream"]),
        seed=int(metrics["seed"]),
        task_order=int(config["task_order"]),
        class_order=int(config.get("class_order", 0)),
        epochs=int(config.get("epochs", 1)),
        fingerprint=str(environment.get("stream_fingerprint")),
        image_size=_size(environment.get("image_size", config.get("image_size"))),
        precision=str(environment.get("precision", "")),
        tasks=_tasks(metrics["tasks"]),
        ap={str(name): ap for name, ap in (final.get("ap") or {}).items() if ap is not None and 0 <= ap <= 1},
        equal_options={**environment["equal"]},
        has_preset=bool(environment["preset"]),
        plugin_metrics={name: _number(value) for name, value in metrics_of_plugins.items()},
        skipped={split: int(_number(skipped.get(split)) or 0) for split in ("train", "test")},
        changed_options=[change_text(change) for change in environment.get("changed_options", ())],
        groups={
            str(name): {key: _percent(scores[key]) for key in HEADLINE}
            for name, scores in (final.get("groups") or {}).items()
        },
        task_names=_task_names(metrics.get("task_names") or []),
    )  # fmt: skip


def _task_names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("not the names of tasks")
    return [task_cell(number, names) for number in range(1, len(names) + 1)]


def _tasks(tasks: Any) -> list[list[str]]:
    fit = isinstance(tasks, list) and tasks and all(isinstance(task, list) and task for task in tasks)
    if not fit or not all(isinstance(name, str) for task in tasks for name in task):
        raise TypeError("not the classes of tasks")
    return tasks


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """The values of a YAML file as JSON holds them: dates and infinities become text."""
    return json.loads(json.dumps(config, default=str), parse_constant=str)


def group_by_label(runs: Iterable[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs by label: the seeds and orders of one label together, each run once.

    A row of a study can be a run of a comparison too. Two such runs count once, if all their scores are the same.
    Options that all labels have are left out. If there are several streams, the label has the name of the stream too.
    """
    grouped: dict[str, list[FinishedRun]] = {}
    unique = list({run.path.resolve(): run for run in runs}.values())
    streams = {run.stream for run in unique}
    ambiguous = _ambiguous_streams(unique)
    common = common_options(unique)
    for run in unique:
        name, options = _label_parts(run.label)
        options = [option for option in options if option not in common]
        label = f"{name} ({', '.join(options)})" if options else name
        if len(streams) > 1:
            label += f" on {run.stream}"
        if run.stream in ambiguous:
            label += f" [{run.fingerprint[:8]}]"
        group = grouped.setdefault(label, [])
        same = next((other for other in group if (other.seed, other.order) == (run.seed, run.order)), None)
        if same and run.metrics == same.metrics:
            continue
        if same:
            order = f" and the same order of tasks ({run.task_order})" if run.task_order else ""
            order += f" and the same order of classes ({run.class_order})" if run.class_order else ""
            raise UserError(
                f"{run.path} and {same.path} are the same run with the same seed{order}, and their scores differ: give "
                "one of them"
            )
        group.append(run)
    for label, group in grouped.items():
        check_same_tasks(label, group)
    return grouped


def common_options(runs: Sequence[FinishedRun]) -> list[str]:
    """The options, as NAME=VALUE, that the labels of all runs have. None if all labels are the same."""
    labels = {run.label for run in runs}
    parts = [_label_parts(label)[1] for label in labels]
    return [option for option in parts[0] if all(option in part for part in parts)] if len(labels) > 1 else []


def _label_parts(label: str) -> tuple[str, list[str]]:
    """The method and the options of a label.

    >>> _label_parts("agcn (paper, lambdas=[1, 2], lr=0.1)")
    ('agcn', ['paper', 'lambdas=[1, 2]', 'lr=0.1'])
    """
    name, bracket, options = label.removesuffix(")").partition(" (")
    return (name, re.split(r", (?=[\w.]+=)", options)) if bracket and label.endswith(")") else (label, [])


def check_same_tasks(name: str, runs: Sequence[FinishedRun]) -> None:
    """Refuse runs of one row whose learning curves have different lengths."""
    if len({len(run.curve()) for run in runs}) > 1:
        raise UserError(f"runs of '{name}' have different numbers of tasks: report them separately")


def _ambiguous_streams(runs: Iterable[FinishedRun]) -> set[str]:
    """Names of several different streams. A stream with its tasks or classes in another order is the same stream."""
    prints: dict[tuple[str, tuple[int, int]], set[str]] = {}
    for run in runs:
        prints.setdefault((run.stream, run.order), set()).add(run.fingerprint)
    return {name for (name, _), found in prints.items() if len(found) > 1}


def provenance(runs: Sequence[FinishedRun]) -> str:
    """One sentence: stream, seeds, passes, machine, date and commit of the runs."""
    found = facts(runs)
    text = {name: ", ".join(map(str, values)) for name, values in found.items()}
    orders = f", task orders {text['task_orders']}" if found["task_orders"] != [0] else ""
    orders += f", class orders {text['class_orders']}" if found["class_orders"] != [0] else ""
    orders += f", {text['epochs']} passes over the images of each task" if found["epochs"] != [1] else ""
    threads = text["threads"] + (" thread" if found["threads"] == [1] else " threads")
    commits = [c[:10] + (" (modified)" if c.endswith("+") else "") for c in map(str, filter(None, found["commit"]))]
    commit = f" at commit {', '.join(commits)}" if commits else ""
    return (
        f"Stream {text['stream']}, seeds {text['seeds']}{orders}; {text['device']}, {threads}, torch "
        f"{text['torch']}, finished {text['date']}, lifelabel {text['lifelabel']}{commit}."
    )


def facts(runs: Sequence[FinishedRun]) -> dict[str, list[Any]]:
    """Stream, seeds, orders, passes, machine, versions and dates of the runs: every value that occurs, sorted."""
    found: dict[str, set[Any]] = {
        "stream": {run.stream for run in runs},
        "seeds": {run.seed for run in runs},
        "task_orders": {run.task_order for run in runs},
        "class_orders": {run.class_order for run in runs},
        "epochs": {run.epochs for run in runs},
    }
    found |= {key: {dict(run.environment)[key] for run in runs} for key in RUN_FACTS}
    return {name: sorted(values, key=lambda value: (str(type(value)), value)) for name, values in found.items()}
