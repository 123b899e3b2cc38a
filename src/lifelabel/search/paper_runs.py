"""The runs behind the tables and figures of the AGCN paper, in one of three regimes, and how long they take."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lifelabel.config.config import Config, kind_of
from lifelabel.engine.setup import make_setting
from lifelabel.errors import UserError
from lifelabel.images.loader import DEFAULT_IMAGE_SIZE
from lifelabel.methods import METHODS
from lifelabel.methods.buffer import BufferOptions
from lifelabel.nn.device import resolve_device
from lifelabel.nn.learner import Learner, LinearHead
from lifelabel.report.paper_claims import NEGATIVE, REGIMES, TABLE_1, TARGETS
from lifelabel.runs.finished import read_run
from lifelabel.search.comparison import Plan, Variant, make_plan, stream_name
from lifelabel.search.planned_run import existing_outcome
from lifelabel.search.studies import STUDIES
from lifelabel.streams import build
from lifelabel.utils.files import below

_HEADS = {"table2": ("matrix",), "table3": ("λ1 / λ2 / λ3",)}
"""The head of the rows; of the others it is `method`."""
_GRAPH_RATES = (1e-4, 3e-4, 1e-3)
"""Rates of the graph besides that of the authors, which is too small for one pass over small tasks."""


@dataclass(frozen=True)
class Reproduction:
    """The runs behind a table or figure. The cell of a variant is its row in the paper, and after `, ` what differs."""

    target: str
    regime: str
    plan: Plan

    @property
    def head(self) -> tuple[str, ...]:
        return _HEADS.get(self.target, ("method",))

    @property
    def title(self) -> str:
        stream = stream_name(self.plan.shared["stream"])
        return f"{TARGETS[self.target]}, on {stream}, regime {self.regime}"


def reproduction(
    target: str, regime: str, seeds: Sequence[int], out: Path, given: Mapping[str, Any], methods: Sequence[str] = (),
    on_this_machine: bool = True,
) -> Reproduction:  # fmt: skip
    """Plan the runs of a target, or those of some methods. All options are checked here.

    A given `lr` is that of the graph: the other methods keep their rate, and a row that sets it has its own.

    Runs are in folders `OUT/STREAM-FIDELITY/METHOD-sSEED`, as those of a leaderboard: several targets share them.
    """
    fidelity = REGIMES[regime]
    if "fidelity" in given:
        raise UserError("--set fidelity: the regime sets it; remove it, and give --regime")
    shared = {"stream": "scenes", **given, "fidelity": fidelity}
    folder = below(out, f"{stream_name(shared['stream'])}-{fidelity}")
    rate = {"lr": Config.make({"lr": shared.pop("lr")}).lr} if "lr" in shared else {}
    named = [
        _named(each, shared, rate if METHODS[each.method].label_graph else {}) for each in _variants(target, regime)
    ]
    unique: dict[str, Variant] = {}
    for each in named:  # a given rate can make two rows the same run
        unique.setdefault(each.folder, each)
    variants = tuple(unique.values())
    if unplanned := set(methods) - {variant.method for variant in variants}:
        raise UserError(f"{target} has no run of {', '.join(sorted(unplanned))}: leave out --methods, or give others")
    variants = tuple(variant for variant in variants if not methods or variant.method in methods)
    return Reproduction(
        target, regime, make_plan(variants, seeds, 1, folder, {}, shared, on_this_machine=on_this_machine)
    )


def _variants(target: str, regime: str) -> list[Variant]:
    """The rows of a target: their names, methods and options. `_named` names their folders."""
    if target in ("fig4", "a6"):
        return [_row("agcn", "agcn")]
    if target in ("table2", "table3"):
        study = STUDIES["acm" if target == "table2" else "lambdas"]
        # the refinement of scores is ours: the rows of Table 2 are without it
        rows = [(cells, options) for cells, options in study.rows if not options.get("context")]
        if target == "table3":
            return [_row(" / ".join(cells), study.method, **options) for cells, options in rows]
        return [*(_row(cells[0], study.method, **options) for cells, options in rows), _row("prs", "prs")]
    found = []
    for method in TABLE_1["Split-COCO"]:
        found.append(_row(method, method))
        known = {field.name for field in dataclasses.fields(METHODS[method].Options)}
        if "hidden_labels" in known and target == "table1":
            found.append(_row(f"{method}, {NEGATIVE}", method, hidden_labels="negative"))
        if method == "prs" and target == "table1":  # its code trains all classes of the stream from the first task on
            found.append(_row("prs, negative-all", method, hidden_labels="negative-all"))
    if target == "table1" and regime != "ours":
        found += [_row(f"agcn, graph lr {rate:g}", "agcn", lr=rate) for rate in _GRAPH_RATES]
        found.append(_row("agcn, graph lr 0.0003, λ3 = 10^3", "agcn", lr=3e-4, lambdas=(0.07, 0.93, 1e3)))
    return found


def _row(name: str, method: str, **options: Any) -> Variant:
    return Variant((name,), method, options, "")


def _named(variant: Variant, shared: Mapping[str, Any], given: Mapping[str, Any]) -> Variant:
    """The variant with a folder for its method and those of its options that are not those of the regime.

    It has the options in `given` that it does not set itself.

    The same run has the same folder in every target.
    """
    base = {"stream": shared["stream"], "method": variant.method, "fidelity": shared["fidelity"]}
    defaults = Config.make(base)
    parts, options = [variant.method], {}
    for name, value in {**given, **variant.options}.items():
        owner = defaults if hasattr(defaults, name) else defaults.method_options
        if getattr(owner, name) != value:
            options[name] = value
            text = "-".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)
            parts.append(f"{name.replace('_', '-')}-{text}")
    return dataclasses.replace(variant, options=options, folder="_".join(parts))


# How long the runs take


@dataclass(frozen=True)
class Estimate:
    """The seconds of one run, and whether they were measured in a finished run of the same kind."""

    seconds: float
    finished: bool = False


def estimate(reproduction: Reproduction) -> dict[Path, Estimate]:
    """The expected seconds of each run, by its folder.

    A finished run has its own. For the others, a step of the backbone is timed on this machine, and counted for every
    training and test image: once more for replayed images, and a forward pass for an expert. A run that cannot be
    continued is an error.
    """
    plan = reproduction.plan
    stream = build(plan.shared["stream"], plan.shared.get("stream_options") or {})
    train, tested = sum(len(rows) for rows in stream.train.rows), sum(len(rows) for rows in stream.test.rows)
    speeds: dict[tuple[Any, ...], tuple[float, float]] = {}
    found: dict[Path, Estimate] = {}
    for run in plan.runs:
        if outcome := existing_outcome(run):
            if outcome.error:
                raise UserError(outcome.error)
            found[run.folder] = Estimate(read_run(run.folder).figures()["seconds"] or 0.0, True)
            continue
        config = run.config
        method, options = METHODS[config.method], config.method_options
        key = (config.backbone, config.image_size, config.batch_size, config.precision)
        if key not in speeds:
            speeds[key] = _seconds_per_image(config)
        step, forward = speeds[key]
        images = train * config.epochs
        learned = images * step * (1 + isinstance(options, BufferOptions))
        learned += images * forward * any("expert" in vars(each).get("saved", ()) for each in method.__mro__)
        found[run.folder] = Estimate(learned + tested * forward * (1 if method.joint else len(stream.tasks)))
    return found


def _seconds_per_image(config: Config) -> tuple[float, float]:
    """The seconds of a training step and of a forward pass of the backbone, for one image."""
    device = resolve_device(config.device)
    config = dataclasses.replace(config, weights="none", compile="off")  # their files may be on another machine
    setting = make_setting(config, lambda names: torch.zeros(0), device)
    head = LinearHead(setting.backbone.dim)
    head.grow(1, device)
    learner = Learner(head, setting)
    learner.begin_task(first_task=True)
    side = config.image_size or (64 if kind_of(config.stream) == "scenes" else DEFAULT_IMAGE_SIZE)
    images = torch.zeros(config.batch_size, 3, side, side, device=device)

    def step() -> None:
        learner.step(head(learner.train_features(images)).square().mean())

    @torch.no_grad()
    def forward() -> None:
        learner.eval_features(images)

    return _time(step, device) / len(images), _time(forward, device) / len(images)


def _time(function: Any, device: torch.device) -> float:
    """The seconds of one call, after two that are not counted."""
    found = 0.0
    for _ in range(3):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found = time.perf_counter() - start
    return found
