"""The plan of a leaderboard: every method with every seed, on several streams and with several fidelities."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifelabel.config.config import kind_of
from lifelabel.errors import UserError, unknown
from lifelabel.options import read
from lifelabel.search.comparison import Plan, Variant, folder_name, make_plan, method_variants
from lifelabel.search.planned_run import PlannedRun
from lifelabel.streams import STREAMS, build, is_overlapping, resolve
from lifelabel.utils.files import below

_OF_PHOTOGRAPHS = ("backbone", "weights", "allow_seen_weights", "normalize", "pool", "image_size", "words")
"""Options that are given to streams of photographs only. The drawn images of `scenes` have another network."""
_SET_BY_FLAGS = {"stream": "--stream", "fidelity": "--fidelities"}
_ORDERS = ("task_order", "class_order")


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
    for name, flag in _SET_BY_FLAGS.items():
        if name in given:
            raise UserError(f"--set {name}: the runs of a leaderboard differ in it; remove it, and give {flag}")
    for name in _ORDERS:
        if name in given:
            raise UserError(f"--set {name}: a leaderboard has the order of each stream; compare several with compare")
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
