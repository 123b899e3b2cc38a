"""Plans of comparisons: the runs of a table, the studies of the paper, and leaderboards on several streams."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.config.config import Config, kind_of, merge
from lifelabel.config.run_options import VARIED
from lifelabel.errors import UserError, unknown
from lifelabel.methods import METHODS
from lifelabel.nn.device import resolve_device
from lifelabel.options import read
from lifelabel.report.tables import Failure, ResultTable, Row
from lifelabel.runs.finished import read_run
from lifelabel.search.planned_run import Outcome, PlannedRun
from lifelabel.search.studies import STUDIES
from lifelabel.streams import STREAMS, build, is_overlapping, resolve
from lifelabel.utils.files import below

_MAX_ORDERS = 1000
_OF_PHOTOGRAPHS = ("backbone", "weights", "allow_seen_weights", "normalize", "pool", "image_size", "words")
"""Options that are given to streams of photographs only. The drawn images of `scenes` have another network."""
_NOT_IN_A_LEADERBOARD = {
    "stream": "the runs of a leaderboard differ in it; remove it, and give --stream",
    "fidelity": "the runs of a leaderboard differ in it; remove it, and give --fidelities",
    "task_order": "a leaderboard has the order of each stream; compare several with compare",
    "class_order": "a leaderboard has the order of each stream; compare several with compare",
}
"""Options that are refused, with the reason."""


@dataclass(frozen=True)
class Variant:
    """One row of the table: its first cells, its method, options of it or of the run, and the start of folder names."""

    cells: tuple[str, ...]
    method: str
    options: dict[str, Any]
    folder: str


@dataclass(frozen=True)
class Plan:
    """The runs of a table: every variant with every seed and every order of the classes or tasks."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]
    orders: int
    shared: dict[str, Any]
    """Options of every run. An option of a method applies to the methods that have it."""
    out: Path
    order_of: str = "task"
    """What the orders are of: `task`, or `class` for streams with overlapping tasks."""

    @functools.cached_property
    def runs(self) -> list[PlannedRun]:
        """All runs, one variant after the other."""
        return [run for variant in self.variants for run in self.runs_of(variant)]

    def runs_of(self, variant: Variant) -> list[PlannedRun]:
        known = {field.name for field in dataclasses.fields(METHODS[variant.method].Options)}
        given = {k: v for k, v in (self.shared.get("method_options") or {}).items() if k in known}
        of_run = {name: value for name, value in variant.options.items() if name not in known}
        base = merge(self.shared, of_run, {"method": variant.method})
        base["method_options"] = {**given, **{k: v for k, v in variant.options.items() if k in known}}
        planned = []
        for order in range(self.orders):
            for seed in self.seeds:
                named = f", {self.order_of} order {order}" if order else ""
                name = f"{', '.join(variant.cells)}, seed {seed}{named}"
                folder = below(self.out, variant.folder + (f"-o{order}" if order else "") + f"-s{seed}")
                planned.append(PlannedRun(name, folder, {**base, "seed": seed, f"{self.order_of}_order": order}))
        return planned

    def table(
        self, outcomes: Sequence[Outcome | None], title: str, head: tuple[str, ...] = ("method",), **columns: Any
    ) -> ResultTable:
        """The table of the runs, which are read from their folders. None: a run that was not started.

        A row has the last cells of its variant, as many as `head`. `columns` chooses figures: see `ResultTable`.
        """
        of_row, rows, failures = len(self.seeds) * self.orders, [], []
        missing = tuple(run.name for run, outcome in zip(self.runs, outcomes, strict=True) if outcome is None)
        for number, variant in enumerate(self.variants):
            runs = []
            for outcome in filter(None, outcomes[number * of_row : (number + 1) * of_row]):
                try:
                    if outcome.error:
                        raise UserError(outcome.error)
                    runs.append(read_run(outcome.planned.folder))
                except UserError as error:
                    failures.append(Failure(outcome.planned.name, outcome.planned.folder, str(error)))
            rows.append(Row(variant.cells[-len(head) :], tuple(runs), of_row, METHODS[variant.method].joint))
        return ResultTable(title, head, tuple(rows), tuple(failures), missing, **columns)


def method_variants(methods: Sequence[str]) -> tuple[Variant, ...]:
    """One variant per method, in the order of `lifelabel list methods`."""
    listed = list(METHODS)
    ordered = [name for name in listed if name in methods] + [name for name in methods if name not in listed]
    return tuple(Variant((name,), name, {}, folder_name(name)) for name in dict.fromkeys(ordered))


def folder_name(method: str) -> str:
    """The name of a method as the name of a folder.

    >>> folder_name("der++"), folder_name("my_module:MyMethod")
    ('der++', 'my_module-MyMethod')
    """
    return re.sub(r"[^\w.+-]+", "-", method)


def study_variants(name: str) -> tuple[Variant, ...]:
    """The variants of a study of `STUDIES`."""
    study = STUDIES[name]
    return tuple(
        Variant(cells, study.method, options, f"{name}-{number}")
        for number, (cells, options) in enumerate(study.rows, start=1)
    )


def make_plan(
    variants: tuple[Variant, ...], seeds: Sequence[int], orders: int, out: Path, from_file: Mapping[str, Any],
    given: Mapping[str, Any], file_name: str = "the configuration", on_this_machine: bool = True,
) -> Plan:  # fmt: skip
    """A plan of runs. All options are checked here, before the first run starts.

    `from_file` has the options of a YAML file, which messages call `file_name`; those of flags, `given`, override them.
    `on_this_machine=False` does not check that the device exists: a node of a cluster has it.
    """
    if not 1 <= orders <= _MAX_ORDERS:
        raise UserError(f"--orders must be 1 to {_MAX_ORDERS}, not {orders}")
    shared = merge(from_file, given)
    if {shared.get("method")} == {variant.method for variant in variants}:
        del shared["method"]  # the file is a preset of the only method
    for name, flag in VARIED.items():
        if name in shared:
            where = f"--set {name}" if name in given else f"{file_name}: {name}"
            raise UserError(f"{where}: the runs of a comparison differ in it; remove it, and give {flag}")
    _check_method_options(variants, shared.get("method_options") or {})
    plan = Plan(variants, tuple(dict.fromkeys(seeds)), orders, shared, out)
    for variant in variants:
        config = Config.make(plan.runs_of(variant)[0].values)
        device = config.device
        if on_this_machine and device != "auto":  # resolving `auto` would initialise the GPU in this process
            resolve_device(device)
    # the tasks of a proxy stream do not overlap
    overlapping = orders > 1 and not config.proxy and is_overlapping(config.stream, config.stream_options)
    return dataclasses.replace(plan, order_of="class") if overlapping else plan


def _check_method_options(variants: Sequence[Variant], given: Any) -> None:
    """Refuse an option that none of the chosen methods has, or that the rows of a study set."""
    if not isinstance(given, dict):
        raise UserError("method_options must hold `option: value` lines")
    known = {f.name for variant in variants for f in dataclasses.fields(METHODS[variant.method].Options)}
    for name in given:
        if name not in known:
            raise unknown("option of the chosen methods", name, known)
        if any(name in variant.options for variant in variants):
            raise UserError(f"method.{name}: the rows of this study differ in it; remove it")


# Leaderboards: every method with every seed, on several streams and with several fidelities


@dataclass(frozen=True)
class Board:
    """The runs on one stream: a plan for each fidelity."""

    stream: str
    """The name in tables and folders."""
    plans: dict[str, Plan]

    @property
    def runs(self) -> list[PlannedRun]:
        return [run for plan in self.plans.values() for run in plan.runs]


def stream_name(stream: str) -> str:
    """The name of a stream in tables and folders. That of a file or folder is its last part, without the suffix.

    >>> stream_name("scenes"), stream_name("coco/Split-COCO.zip")
    ('scenes', 'Split-COCO')
    """
    return folder_name(stream if stream in STREAMS else Path(stream).stem) or "stream"


def make_boards(
    streams: Sequence[str], fidelities: Sequence[str], methods: Sequence[str], seeds: Sequence[int], out: Path,
    given: Mapping[str, Any], on_this_machine: bool = True,
) -> list[Board]:  # fmt: skip
    """The runs of a leaderboard, in folders `OUT/STREAM-FIDELITY/METHOD-sSEED`. All options are checked here.

    `given` has options of the runs. An option of a stream is given to the streams that declare it, an option of the
    network and its images to streams of photographs, and `epochs` to streams with overlapping tasks. An option that no
    stream gets is refused.
    """
    for name, reason in _NOT_IN_A_LEADERBOARD.items():
        if name in given:
            raise UserError(f"--set {name}: {reason}")
    by_stream = {name: _options_of(stream, given) for name, stream in _by_name(streams).items()}
    _check_all_used(list(by_stream.values()), given)
    boards = []
    for name, values in by_stream.items():
        plans = {}
        for fidelity in fidelities:
            folder = below(out, f"{name}-{fidelity}")
            variants, chosen = _variants(name, fidelity, methods), {**values, "fidelity": fidelity}
            plans[fidelity] = make_plan(variants, seeds, 1, folder, {}, chosen, on_this_machine=on_this_machine)
        boards.append(Board(name, plans))
    return boards


def existing_boards(
    streams: Sequence[str], fidelities: Sequence[str], methods: Sequence[str], seeds: Sequence[int], out: Path
) -> list[Board]:
    """The same folders, for runs that exist. Neither the files of the streams nor their options are needed."""
    boards = []
    for name in _by_name(streams):
        plans = {}
        for fidelity in fidelities:
            variants, folder = _variants(name, fidelity, methods), below(out, f"{name}-{fidelity}")
            plans[fidelity] = Plan(variants, tuple(dict.fromkeys(seeds)), 1, {"fidelity": fidelity}, folder)
        boards.append(Board(name, plans))
    return boards


def check_streams(boards: Iterable[Board]) -> None:
    """Build the stream of each board once: a wrong folder is reported before the first run, not after hours."""
    for board in boards:
        shared = next(iter(board.plans.values())).shared
        build(shared["stream"], shared["stream_options"])


def _by_name(streams: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for stream in dict.fromkeys(streams):
        name = stream_name(stream)
        if name in found:
            raise UserError(f"--stream {found[name]} and --stream {stream} have the same name '{name}': rename one")
        found[name] = stream
    return found


def _variants(stream: str, fidelity: str, methods: Sequence[str]) -> tuple[Variant, ...]:
    """One variant per method. Messages about a run name its stream and fidelity too."""
    variants = method_variants(methods)
    return tuple(dataclasses.replace(each, cells=(stream, fidelity, *each.cells)) for each in variants)


def _options_of(stream: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a stream gets."""
    of_stream = given.get("stream_options") or {}
    kind, resolved = resolve(stream, {})
    known = {field.name for field in dataclasses.fields(STREAMS[kind].Options)}
    own = {name: value for name, value in of_stream.items() if name in known}
    omitted = {"stream_options", *(() if kind_of(kind) == "photographs" else _OF_PHOTOGRAPHS)}
    if "epochs" in given and not is_overlapping(kind, read(STREAMS[kind].Options, {**resolved, **own}, "stream")):
        omitted.add("epochs")
    values = {name: value for name, value in given.items() if name not in omitted}
    return {**values, "stream": stream, "stream_options": own}


def _check_all_used(chosen: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> None:
    for name in given.get("stream_options") or {}:
        if not any(name in values["stream_options"] for values in chosen):
            kinds = {resolve(values["stream"], {})[0] for values in chosen}
            known = {field.name for kind in kinds for field in dataclasses.fields(STREAMS[kind].Options)}
            raise unknown("option of the chosen streams", name, known)
    for name in given:
        if name in _OF_PHOTOGRAPHS and not any(name in values for values in chosen):
            raise UserError(f"{name} is for streams of photographs, and none is given: remove it, or add a --stream")
        if name == "epochs" and not any(name in values for values in chosen):
            raise UserError("epochs is for streams with overlapping tasks, and none is given: remove it")
