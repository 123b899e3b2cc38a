"""Choosing a method's options without peeking: first tasks alone, scored on training images that were held out.

Coordinate descent. From the defaults, or a file's options, the other values of one knob are tried; the best one stays;
then the next knob, round and round, until the trials are spent or a whole round has nothing left to try. docs/tune.md
says what is searched, in which order, and why nothing of the test images is used.
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

import yaml
from rich.console import Console

from lifelabel.config import Config, kind_of, merge
from lifelabel.errors import UserError, plain
from lifelabel.methods import METHODS
from lifelabel.runfolder import RunFolder
from lifelabel.runner import FREE, Planned, Staff, run_all

LATER = "later_backbone_lr"
SHARED: dict[str, dict[str, tuple[Any, ...]]] = {
    # Values of the knobs that methods share; those of `later_backbone_lr` are shares of `backbone_lr`.
    "scenes": {
        "lr": (1e-4, 3e-4, 1e-3, 3e-3),
        "backbone_lr": (3e-4, 1e-3, 2e-3),
        LATER: (0.1, 0.3, 1.0),
        "batch_norm": ("first-task", "running"),
    },
    "photographs": {
        "lr": (3e-4, 1e-3, 3e-3),
        "backbone_lr": (5e-6, 2e-5, 1e-4),
        LATER: (0.1, 0.3, 1.0),
        "batch_norm": ("frozen", "running", "first-task"),
    },
}
OURS = ("method", "seed", "first_tasks", "hold_out")
"""Options that the search sets itself."""
FAILED = "failed.txt"
"""In the folder of a trial that diverged: why. It is not tried again."""
DIVERGED = "Lower lr, backbone_lr or later_backbone_lr"
"""What the engine says of a run that diverged. Any other failure is the user's to put right, and ends the search."""

Point = dict[str, Any]
"""A value for every knob: one configuration of the search."""


def knobs_of(method: str, kind: str, fixed: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The knobs of a method in the order they are tried, with their values; none for those that the user has fixed."""
    cls = METHODS[method]
    used = cls.knobs
    shared = {name: () if name in fixed else values for name, values in SHARED[kind].items() if name in used}
    if cls.joint and "batch_norm" in shared:  # one task: its statistics run, or they do not
        shared["batch_norm"] = tuple(value for value in shared["batch_norm"] if value != "first-task")
    own = {name: () if name in fixed.get("method_options", {}) else values for name, values in cls.tunes.items()}
    first = {name: values for name, values in shared.items() if name == "lr"}
    return {**first, **own, **shared}


@dataclass(frozen=True)
class Search:
    """What is asked for: one method's options, with the rest of the configuration as given."""

    method: str
    given: dict[str, Any]
    """Options as they stand, from a file and flags: where the search starts."""
    fixed: dict[str, Any]
    """Those among them that are not searched."""
    out: Path
    trials: int = 12
    tasks: int = 3
    hold_out: float = 0.2
    seeds: tuple[int, ...] = (0,)
    jobs: int = 1
    command: str = ""
    """The line that does this search, for the preset."""
    again: str = ""
    """The line that goes on after a stop; it may search for other methods too."""


@dataclass(frozen=True)
class Trial:
    """One configuration and what it reached: the mean over the seeds of the final mAP on the held-out images."""

    number: int
    changed: str
    options: dict[str, Any]
    folders: tuple[Path, ...]
    score: float
    seconds: float
    error: str = ""


@dataclass(frozen=True)
class Chosen:
    """The best trial, what it reached in words, and the file that holds its options."""

    method: str
    best: Trial
    reached: str
    path: Path

    def __str__(self) -> str:
        values = {**self.best.options, **self.best.options.get("method_options", {})}
        values.pop("method_options", None)
        chosen = ", ".join(f"{name} {_text(value)}" for name, value in values.items())
        return f"{self.method}: {chosen or 'nothing to choose'}: {self.reached} → {self.path}"


def tune(search: Search, console: Console | None = None, staff: Staff | None = None) -> Chosen:
    """Search, and write trials.csv and preset.yaml into the folder; what was tried before is not tried again.

    `staff` keeps the processes that have made a GPU ready from one trial, and one search, to the next.
    """
    if search.trials < 1:
        raise UserError(f"--trials must be at least 1, not {search.trials}")
    if not search.hold_out > 0:
        raise UserError("--hold-out must be more than 0: options are not chosen on test images")
    for name in OURS:
        if name in search.fixed:
            raise UserError(f"--set {name}: the search sets it itself, by --method, --seeds, --tasks and --hold-out")
    folder = RunFolder(search.out)
    descent = Descent(search, folder, console, staff)  # a mistake in an option shows before any file is touched
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder.path}: {error.strerror}; choose another --out") from None
    with folder.locked():
        return descent.go()


class Descent:
    """The search itself: what is known so far, and what comes next."""

    def __init__(self, search: Search, folder: RunFolder, console: Console | None, staff: Staff | None):
        self.search, self.folder, self.console, self.staff = search, folder, console, staff
        sets = {"method": search.method, "first_tasks": search.tasks, "hold_out": search.hold_out}
        self.values = merge({k: v for k, v in search.given.items() if k not in OURS}, sets)
        self.config = Config.make(self.values, with_preset=False)  # or a search would begin with its own result
        self.knobs = knobs_of(search.method, kind_of(self.config.stream), search.fixed)
        self.known: dict[str, Trial] = {}

    def go(self) -> Chosen:
        best, before = self.start(), -1
        if not self.knobs:
            self.try_all({"start": best})
        while before < len(self.known) < self.search.trials:
            before = len(self.known)
            for knob, values in self.knobs.items():
                points = {"start": best}
                points |= {f"{knob}={_text(v)}": {**best, knob: v} for v in values if _plain(v) != _plain(best[knob])}
                self.try_all(points)
                best = max(points.values(), key=self.score)  # of equals the first: what stands, stays
        return self.chosen(self.known[self.key(best)])

    def start(self) -> Point:
        """The options as they stand."""
        c, own = self.config, METHODS[self.search.method].tunes
        point = {name: getattr(c.method_options if name in own else c, name) for name in self.knobs}
        if self.knobs.get(LATER):
            point[LATER] = c.later_backbone_lr / c.backbone_lr
        if METHODS[c.method].joint and point.get("batch_norm") == "first-task":
            point["batch_norm"] = "running"
        return point

    def options(self, point: Point) -> dict[str, Any]:
        """The options of a configuration, as a configuration file has them."""
        values = {name: _plain(value) for name, value in point.items()}
        if self.knobs.get(LATER):
            values[LATER] = float(f"{point[LATER] * point.get('backbone_lr', self.config.backbone_lr):.6g}")
        own = {name: values.pop(name) for name in METHODS[self.search.method].tunes}
        return {**values, **({"method_options": own} if own else {})}

    def key(self, point: Point) -> str:
        return json.dumps(self.options(point))

    def score(self, point: Point) -> float:
        """What is known of a configuration; one that no trial was left for counts as the worst."""
        trial = self.known.get(self.key(point))
        return trial.score if trial else -math.inf

    def try_all(self, points: Mapping[str, Point]) -> None:
        """Try those that are not known yet, as far as the trials suffice, side by side."""
        new: dict[str, tuple[int, str, list[Planned]]] = {}
        for changed, point in points.items():
            number, key = len(self.known) + len(new) + 1, self.key(point)
            if key not in self.known and number <= self.search.trials:
                new[key] = number, changed, self.planned(number, changed, self.options(point))
        missing = [plan for _, _, plans in new.values() for plan in plans if not settled(plan.folder)]
        again, staff = self.search.again, self.staff
        for outcome in run_all(missing, self.search.jobs, console=self.console, again=again, staff=staff):
            if outcome.error and DIVERGED not in outcome.error:
                raise UserError(f"{outcome.planned.name}: {outcome.error}")
            if outcome.error:
                RunFolder(outcome.planned.folder).write_text(FAILED, outcome.error + "\n")
        for key, (number, changed, plans) in new.items():
            self.known[key] = judged(number, changed, json.loads(key), [plan.folder for plan in plans])
        if new:
            self.folder.write_text("trials.csv", table(self.known.values()))

    def planned(self, number: int, changed: str, options: dict[str, Any]) -> list[Planned]:
        """The runs of a trial, one a seed. A folder's name tells the configuration: none is taken for another."""
        values = merge(self.values, options)
        whole = Config.make(values).with_absolute_paths().to_dict()
        told = json.dumps({name: value for name, value in whole.items() if name not in ("seed", *FREE)})
        name = f"{number:03}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
        title = f"{self.search.method} trial {number} ({changed})"
        return [
            Planned(f"{title}, seed {seed}", self.folder / "trials" / f"{name}-{seed}", {**values, "seed": seed})
            for seed in self.search.seeds
        ]

    def chosen(self, best: Trial) -> Chosen:
        s = self.search
        if best.score == -math.inf:
            raise UserError(f"all {len(self.known)} trials diverged, such as {best.folders[0]}: {best.error}")
        reached = (
            f"{100 * best.score:.2f} mAP on held-out training images of the first {s.tasks} tasks "
            f"({len(self.known)} trials, seeds {', '.join(map(str, s.seeds))})"
        )
        self.folder.write_text("preset.yaml", preset(s, self.config.stream, best, reached))
        return Chosen(s.method, best, reached, self.folder / "preset.yaml")


def settled(path: Path) -> bool:
    """Whether a run has ended, well or not: it then needs no other look."""
    folder = RunFolder(path)
    return (folder / FAILED).exists() or (
        (folder / "metrics.json").exists() and folder.read_json("metrics.json").get("finished") is True
    )


def judged(number: int, changed: str, options: dict[str, Any], folders: Sequence[Path]) -> Trial:
    """A trial as its run folders tell it."""
    scores, seconds, error = [], 0.0, ""
    for folder in map(RunFolder, folders):
        if (folder / FAILED).exists():
            error = (folder / FAILED).read_text(encoding="utf-8").strip()
            continue
        score = folder.read_json("metrics.json")["final"]["mAP"]
        if score is None:
            raise UserError("no held-out image shows a class of its task: give a larger --hold-out")
        scores.append(score)
        seconds += folder.read_json("environment.json")["seconds"]
        (folder / "checkpoint.pt").unlink(missing_ok=True)  # those of a whole search would fill a disk
    mean = -math.inf if error else statistics.mean(scores)
    return Trial(number, changed, options, tuple(folders), mean, seconds, error)


def table(trials: Iterable[Trial]) -> str:
    """trials.csv: every trial with what was changed, what it reached and cost, and all of its options."""
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
                "error": plain(trial.error),
            }
        )
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def preset(search: Search, stream: str, best: Trial, reached: str) -> str:
    """preset.yaml: where the options come from, then the options themselves."""
    ran = RunFolder(best.folders[0]).read_json("environment.json")
    lines = [
        f"# Options of {search.method} on {stream}, chosen by `lifelabel tune`.",
        f"# command: {search.command}",
        f"# reached: {reached}",
        f"# date: {ran['date']}, device: {ran['device']}, lifelabel {ran['lifelabel']} at commit {ran['commit']}",
        f"method: {search.method}",
    ]
    for name, value in best.options.items():
        inner = value if isinstance(value, dict) else {}
        lines.append(f"{name}:" if inner else f"{name}: {_yaml(value)}")
        lines += [f"  {key}: {_yaml(part)}" for key, part in inner.items()]
    return "".join(f"{plain(line)}\n" for line in lines)


def _plain(value: Any) -> Any:
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def _yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("...\n").strip()


def _text(value: Any) -> str:
    """A value for people, as --set takes it.

    >>> _text((0.5, 1000.0)), _text(2e-5), _text(None)
    ('0.5,1000', '2e-05', 'none')
    """
    if isinstance(value, (tuple, list)):
        return ",".join(map(_text, value))
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)
