"""The search for the options of a method: trials train on the first tasks, or on a proxy stream of other classes.

They score training images that were held out.

Coordinate descent: all values of one option are tried, and the best one becomes the new value. Then the next option is
searched. The search starts from the defaults or the options of a file. It ends when the trials are used up, or when a
round over all options has nothing new to try. docs/tune.md documents what is searched, in which order, and why.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.config.config import Config, has_weights, kind_of, merge, plain, yaml_value
from lifelabel.config.run_options import SET_BY_TUNE
from lifelabel.errors import UserError
from lifelabel.methods import METHODS
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.search.planned_run import Backend, PlannedRun
from lifelabel.search.scheduler import Display, run_all
from lifelabel.utils.files import read_limited
from lifelabel.utils.text import counted, printable

_LATER = "later_backbone_lr"
_SHARED: dict[str, dict[str, tuple[Any, ...]]] = {
    "scenes": {
        "lr": (1e-4, 3e-4, 1e-3, 3e-3),
        "backbone_lr": (3e-4, 1e-3, 2e-3),
        _LATER: (0.1, 0.3, 1.0),
        "batch_norm": ("first-task", "running"),
    },
    "photographs": {
        "lr": (3e-4, 1e-3, 3e-3),
        "backbone_lr": (5e-6, 2e-5, 1e-4),
        _LATER: (0.1, 0.3, 1.0),
        "batch_norm": ("frozen", "running", "first-task"),
        "image_size": (224, 288, 352, 416),
    },
}
"""Values of the shared options, by kind of stream. Those of `later_backbone_lr` are fractions of `backbone_lr`.

A backbone without pretrained weights has the values of scenes on photographs too.
"""
_FAILED = "failed.txt"
"""A file in the run folder of a trial that diverged, with the reason. Such a trial is not repeated."""
_MAX_ERROR = 1 << 20
"""Bytes of this file."""

_Point = dict[str, Any]
"""One configuration of the search: a value for every searched option."""


def search_space(method: str, kind: str, fixed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The searched options of a method, in their order, with their values. Fixed options have no values.

    >>> search_space("frozen", "photographs", {"backbone_lr": 1e-5})
    {'lr': (0.0003, 0.001, 0.003), 'learn_first': (False, True), 'backbone_lr': ()}
    """
    cls = METHODS[method]
    shared = {
        name: () if name in fixed else values for name, values in _SHARED[kind].items() if name in cls.shared_options
    }
    if cls.joint and "batch_norm" in shared:  # with one task, first-task is the same as running
        shared["batch_norm"] = tuple(value for value in shared["batch_norm"] if value != "first-task")
    own = {name: () if name in fixed.get("method_options", {}) else values for name, values in cls.search_space.items()}
    lr_first = {name: values for name, values in shared.items() if name == "lr"}
    return {**lr_first, **own, **shared}


@dataclass(frozen=True)
class Search:
    """A search for the options of one method."""

    method: str
    given: dict[str, Any]
    """Options of a file and of flags: the starting point."""
    fixed: dict[str, Any]
    """The options that are not searched: those of flags."""
    out: Path
    trials: int = 12
    first_tasks: int | None = 3
    """The number of tasks of a trial; None for all."""
    hold_out: float = 0.2
    seeds: tuple[int, ...] = (0,)
    command: str = ""
    """The command of this search, for the preset."""
    continue_command: str = ""
    """The command that continues after a stop. It may include other methods."""
    proxy: bool = False
    """Whether trials train on the proxy stream (see `Stream.proxy`)."""
    proxy_images: int | None = None
    """The largest number of images of the proxy stream; None for all."""


@dataclass(frozen=True)
class _Trial:
    """One configuration, and its score: the mean over the seeds of the final mAP on the held-out images."""

    number: int
    changed: str
    options: dict[str, Any]
    folders: tuple[Path, ...]
    score: float
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class Chosen:
    """The result of a search: the best trial, its score as text, and the file with its options."""

    method: str
    best: _Trial
    reached: str
    path: Path

    def __str__(self) -> str:
        values = {**self.best.options, **self.best.options.get("method_options", {})}
        values.pop("method_options", None)
        chosen = ", ".join(f"{name} {_text(value)}" for name, value in values.items())
        return f"{self.method}: {chosen or 'nothing to choose'}: {self.reached} → {self.path}"


def tune(search: Search, display: Display | None = None, backend: Backend | None = None) -> Chosen:
    """Search, and write trials.csv and preset.yaml. Trials that exist already are not repeated.

    `backend` trains the runs (see `run_all`).
    """
    descent = _CoordinateDescent(search, display, backend)  # reports wrong options before a file is written
    descent.folder.create()
    with descent.folder.locked():
        return descent.run()


def first_runs(search: Search) -> list[PlannedRun]:
    """The runs of the first trials that are not finished: those that a search starts at the same time."""
    descent = _CoordinateDescent(search)
    start = descent.start()
    points = descent.points(next(iter(descent.space)), start) if descent.space else {"start": start}
    trials = descent.new_trials(points).values()
    return [plan for _, _, plans in trials for plan in plans if not _has_ended(plan.folder)]


class _CoordinateDescent:
    """A search with its trials so far."""

    def __init__(self, search: Search, display: Display | None = None, backend: Backend | None = None):
        if search.trials < 1:
            raise UserError(f"--trials must be at least 1, not {search.trials}")
        if not search.hold_out > 0:
            raise UserError("--hold-out must be more than 0: options must not be chosen on test images")
        for name in SET_BY_TUNE:
            if name in search.fixed:
                raise UserError(
                    f"--set {name}: the search sets it; give --method, --seeds, --first-tasks, --hold-out, --proxy or "
                    "--proxy-images"
                )
        self.search, self.folder, self.display, self.backend = search, RunFolder(search.out), display, backend
        sets = {
            "method": search.method, "first_tasks": search.first_tasks, "hold_out": search.hold_out,
            "proxy": search.proxy, "proxy_images": search.proxy_images,
        }  # fmt: skip
        self.values = merge({k: v for k, v in search.given.items() if k not in SET_BY_TUNE}, sets)
        self.config = Config.make(self.values, with_preset=False)  # a search must not start from an earlier result
        kind = kind_of(self.config.stream) if has_weights(self.config.weights) else "scenes"
        self.space = search_space(search.method, kind, search.fixed)
        self.own = METHODS[search.method].search_space
        self.trials: dict[str, _Trial] = {}

    def run(self) -> Chosen:
        best, before = self.start(), -1
        if not self.space:
            self.try_all({"start": best})
        while before < len(self.trials) < self.search.trials:
            before = len(self.trials)
            for name in self.space:
                points = self.points(name, best)
                self.try_all(points)
                best = max(points.values(), key=self.score)  # ties keep the current value
        return self.chosen(self.trials[self.key(best)])

    def points(self, name: str, best: _Point) -> dict[str, _Point]:
        """The best point so far, and those with the other values of one option."""
        others = (v for v in self.space[name] if plain(v) != plain(best[name]))
        return {"start": best, **{f"{name}={_text(v)}": {**best, name: v} for v in others}}

    def start(self) -> _Point:
        c = self.config
        point = {name: getattr(c.method_options if name in self.own else c, name) for name in self.space}
        if self.space.get(_LATER):
            point[_LATER] = c.later_backbone_lr / c.backbone_lr
        if METHODS[c.method].joint and point.get("batch_norm") == "first-task":
            point["batch_norm"] = "running"
        return point

    def options(self, point: _Point) -> dict[str, Any]:
        """The options of a point, as in a configuration file."""
        values = {name: plain(value) for name, value in point.items()}
        if self.space.get(_LATER):
            values[_LATER] = float(f"{point[_LATER] * point.get('backbone_lr', self.config.backbone_lr):.6g}")
        own = {name: values.pop(name) for name in self.own}
        return {**values, **({"method_options": own} if own else {})}

    def key(self, point: _Point) -> str:
        return json.dumps(self.options(point))

    def score(self, point: _Point) -> float:
        """The score of a point. It is minus infinity if no trial was left for the point."""
        trial = self.trials.get(self.key(point))
        return trial.score if trial else -math.inf

    def try_all(self, points: Mapping[str, _Point]) -> None:
        """Try the points that are new, as long as trials are left."""
        new = self.new_trials(points)
        missing = [plan for _, _, plans in new.values() for plan in plans if not _has_ended(plan.folder)]
        command = self.search.continue_command
        outcomes = run_all(missing, display=self.display, command=command, backend=self.backend)
        for outcome in outcomes:
            if outcome.diverged:
                RunFolder(outcome.planned.folder).write_text(_FAILED, f"{outcome.error}\n")
        for outcome in outcomes:
            if outcome.error and not outcome.diverged:
                raise UserError(f"{outcome.planned.name}: {outcome.error}")
        for key, (number, changed, plans) in new.items():
            self.trials[key] = _read_trial(number, changed, json.loads(key), [plan.folder for plan in plans])
        if new:
            self.folder.write_text("trials.csv", _trials_csv(self.trials.values()))

    def new_trials(self, points: Mapping[str, _Point]) -> dict[str, tuple[int, str, list[PlannedRun]]]:
        """Number, changed option and runs of the points that are new, by their key."""
        new: dict[str, tuple[int, str, list[PlannedRun]]] = {}
        for changed, point in points.items():
            number, key = len(self.trials) + len(new) + 1, self.key(point)
            if key not in self.trials and number <= self.search.trials:
                new[key] = number, changed, self.planned(number, changed, self.options(point))
        return new

    def planned(self, number: int, changed: str, options: dict[str, Any]) -> list[PlannedRun]:
        """The runs of a trial, one per seed. The names of their folders contain a hash of the configuration."""
        values = merge(self.values, options)
        entries = Config.make(values).with_absolute_paths().entries()
        hashed = json.dumps({k: e.value for k, e in entries.items() if k != "seed" and not e.declaration.get("free")})
        name = f"{number:03}-{hashlib.sha256(hashed.encode()).hexdigest()[:8]}"
        title = f"{self.search.method} trial {number} ({changed})"
        return [
            PlannedRun(f"{title}, seed {seed}", self.folder / f"trials/{name}-{seed}", {**values, "seed": seed})
            for seed in self.search.seeds
        ]

    def chosen(self, best: _Trial) -> Chosen:
        s = self.search
        if best.score == -math.inf:
            raise UserError(f"all trials ({len(self.trials)}) diverged, such as {best.folders[0]}: {best.error}")
        part = f"training images of the first {counted(s.first_tasks or 0, 'tasks')}"
        if s.proxy:
            tasks = len(RunFolder(best.folders[0]).read_json(names.METRICS)["per_task"])
            part = f"images of a proxy stream ({counted(tasks, 'tasks')} of other classes)"
        passes = f", {self.config.epochs} passes" if self.config.epochs > 1 else ""
        reached = (
            f"{100 * best.score:.2f} mAP on held-out {part} "
            f"({counted(len(self.trials), 'trials')}, seeds {', '.join(map(str, s.seeds))}{passes})"
        )
        self.folder.write_text("preset.yaml", _preset(s, self.config.stream, best, reached))
        return Chosen(s.method, best, reached, self.folder / "preset.yaml")


def _has_ended(path: Path) -> bool:
    folder = RunFolder(path)
    return (folder / _FAILED).exists() or folder.is_finished


def _read_trial(number: int, changed: str, options: dict[str, Any], folders: Sequence[Path]) -> _Trial:
    scores, seconds, error = [], 0.0, ""
    for folder in map(RunFolder, folders):
        if (folder / _FAILED).exists():
            error = read_limited(folder / _FAILED, _MAX_ERROR).decode(errors="replace").strip()
            continue
        score, took = _figures(folder)
        if score is None:
            raise UserError("no held-out image has a class of its task: give a larger --hold-out")
        scores.append(score)
        seconds += took
        folder.delete_checkpoints()  # those of all trials would fill the disk
    mean = -math.inf if error else statistics.mean(scores)
    return _Trial(number, changed, options, tuple(folders), mean, seconds, error)


def _figures(folder: RunFolder) -> tuple[float | None, float]:
    """The mAP and the seconds of a run. Its files are untrusted: they may be damaged since."""
    metrics, environment = folder.read_json(names.METRICS), folder.read_json(names.ENVIRONMENT)
    try:
        score, seconds = metrics["final"]["mAP"], environment["seconds"]
        fit = (score is None or 0 <= score <= 1) and 0 <= seconds < math.inf and isinstance(metrics["per_task"], list)
        fit = fit and {"date", "device", "lifelabel", "commit"} <= environment.keys()
    except (AttributeError, KeyError, TypeError):
        fit = False
    if not fit:
        raise UserError(
            f"a file of {folder.path} is damaged: delete this folder, and the same command repeats the trial"
        )
    return score, seconds


def _trials_csv(trials: Iterable[_Trial]) -> str:
    """The text of trials.csv: one line per trial, with the changed option, score, time and all options."""
    rows = []
    for trial in trials:
        options = {k: v for k, v in trial.options.items() if k != "method_options"}
        options |= {f"method.{k}": v for k, v in trial.options.get("method_options", {}).items()}
        rows.append(
            {
                "trial": trial.number,
                "changed": trial.changed,
                "mAP": f"{100 * trial.score:.4f}",
                "seconds": f"{trial.seconds:.1f}",
                **{name: _text(value) for name, value in options.items()},
                "folders": " ".join(folder.name for folder in trial.folders),
                "error": printable(trial.error),
            }
        )
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _preset(search: Search, stream: str, best: _Trial, reached: str) -> str:
    """The text of preset.yaml: the origin of the options as comments, and the options."""
    environment = RunFolder(best.folders[0]).read_json(names.ENVIRONMENT)
    machine = ", ".join(f"{name}: {environment[name]}" for name in ("date", "device"))
    lines = [
        f"# Options of {search.method} on {stream}, chosen by `lifelabel tune`.",
        f"# command: {search.command}",
        f"# reached: {reached}",
        f"# {machine}, lifelabel {environment['lifelabel']} at commit {environment['commit']}",
        f"method: {search.method}",
    ]
    for name, value in best.options.items():
        inner = value if isinstance(value, dict) else {}
        lines.append(f"{name}:" if inner else f"{name}: {yaml_value(value)}")
        lines += [f"  {key}: {yaml_value(part)}" for key, part in inner.items()]
    return "".join(f"{printable(line)}\n" for line in lines)


def _text(value: Any) -> str:
    """A value as --set takes it.

    >>> _text((0.5, 1000.0)), _text(2e-5), _text(None)
    ('0.5,1000', '2e-05', 'none')
    """
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)
