"""Functions of several commands: parsing of settings, seeds and methods, checks, and displays."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lifelabel.cli.console import err, print_table
from lifelabel.errors import UserError, unknown
from lifelabel.parallel.torchrun import is_first_process
from lifelabel.utils.text import shorten, task_cell

if TYPE_CHECKING:
    from lifelabel.engine.callback import Callback
    from lifelabel.metrics.over_tasks import Convention
    from lifelabel.report.stream_counts import Progress
    from lifelabel.search.scheduler import Display

_MAX_SEEDS = 1000


def parse_settings(settings: Sequence[str] | None) -> dict[str, Any]:
    """`NAME=VALUE` texts as nested options. Values are read as YAML.

    >>> parse_settings(["lr=0.1", "stream.tasks=4", "method.lambdas=[1, 2, 3]"])
    {'lr': 0.1, 'stream_options': {'tasks': 4}, 'method_options': {'lambdas': [1, 2, 3]}}
    """
    from lifelabel.utils.yaml_reader import parse_yaml

    values: dict[str, Any] = {}
    for text in settings or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise UserError(f"--set takes NAME=VALUE, not '{text}'")
        # a single sign, such as a separator, is text: YAML cannot read a comma, and reads | as empty
        is_sign = len(value) == 1 and not value.isalnum() and value != "~"
        parsed = value if is_sign else parse_yaml(value, f"--set {name}", f"cannot read the value '{shorten(value)}'")
        section, dot, inner = name.strip().partition(".")
        if dot and section in ("stream", "method"):
            values.setdefault(f"{section}_options", {})[inner] = parsed
        else:
            values[name.strip()] = parsed
    return values


def stream_settings(settings: Sequence[str] | None) -> dict[str, Any]:
    """The options of `--set`, with or without `stream.` before the name.

    >>> stream_settings(["stream.tasks=4", "order=[cat, dog]"])
    {'tasks': 4, 'order': ['cat', 'dog']}
    """
    given = parse_settings(settings)
    if "method_options" in given:
        raise UserError("--set method.…: this command has no method; give only options of the stream")
    return {**given.pop("stream_options", {}), **given}


def parse_seeds(text: str) -> list[int]:
    """The seeds in a text such as `0`, `0-2` or `0,3,5`.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for part in text.split(","):
        start, dash, end = part.strip().partition("-")
        try:
            some = range(int(start), int(end if dash else start) + 1)
        except ValueError:
            raise UserError(f"--seeds takes 0 or 0-2 or 0,3,5, not '{text}'") from None
        if not 1 <= some.stop - some.start <= _MAX_SEEDS:
            raise UserError(f"--seeds '{part}' contains no seed, or more than {_MAX_SEEDS}")
        seeds += some
    return seeds


def parse_methods(text: str) -> list[str]:
    """The methods in a text such as `er,lwf`, or all of them for `all`. The plug-in in `module:NAME` is loaded.

    >>> parse_methods("er, lwf")
    ['er', 'lwf']
    """
    from lifelabel.methods import METHODS
    from lifelabel.registry import resolve_name

    names = list(METHODS) if text == "all" else [resolve_name(name.strip()) for name in text.split(",")]
    for name in names:
        if name not in METHODS:
            raise unknown("method", name, [*METHODS, "all"])
    return list(dict.fromkeys(names))


def parse_convention(name: str) -> Convention:
    """How a table summarises its scores, by its name."""
    from lifelabel.metrics.over_tasks import CONVENTIONS

    if name not in CONVENTIONS:
        raise unknown("convention", name, CONVENTIONS)
    return CONVENTIONS[name]


def read_config(path: Path | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a YAML file. A file whose options would not fit the given ones is refused.

    It may set another fidelity, whose options would override the given one, or options of another method or stream.
    """
    from lifelabel.utils.yaml_reader import read_yaml

    values = read_yaml(path) if path else {}
    if "fidelity" in given and values.get("fidelity", given["fidelity"]) != given["fidelity"]:
        raise UserError(f"{path} sets fidelity: {values['fidelity']} and its options, which override --fidelity")
    for kind in ("method", "stream"):
        name = given.get(kind)
        if name and values.get(f"{kind}_options") and values.get(kind) != name:
            raise UserError(f"{path} holds options of {kind} {values.get(kind)}: remove them to use --{kind} {name}")
    return values


def make_callback(quiet: bool) -> Callback:
    from lifelabel.cli.progress_bars import ProgressBar, Quiet
    from lifelabel.engine.callback import Callback

    if not is_first_process():
        return Callback()
    return Quiet() if quiet else ProgressBar(err)


def make_display(quiet: bool) -> Display | None:
    from lifelabel.cli.progress_bars import RunsDisplay

    return None if quiet else RunsDisplay(err)


def print_class_table(
    metrics: Mapping[str, Any], ap: Mapping[str, float | None], more: Mapping[str, Sequence[Any]] | None = None
) -> None:
    """The AP of classes after a run, with the number of their test images. `metrics` is metrics.json."""
    from lifelabel.report.text_tables import per_class_table

    names = metrics.get("task_names") or []
    task_of = {name: task_cell(number, names) for number, of in enumerate(metrics["tasks"], 1) for name in of}
    columns = {**(more or {}), "test images": [metrics["final"]["positives"][name] for name in ap]}
    print_table(per_class_table([*ap], [task_of[name] for name in ap], [*ap.values()], columns))


def file_name(name: str, default: str) -> str:
    """A name as that of a file or folder; the default if no character is left.

    >>> file_name("../Split COCO", "stream")
    'Split-COCO'
    """
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")[:100] or default


@contextmanager
def make_folder(folder: Path) -> Iterator[Path]:
    """Create a folder for output. Errors of the file system inside the block become one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from None


@contextmanager
def progress_bar(what: str) -> Iterator[Progress | None]:
    """A bar in a terminal. It starts with the first update: worker processes must not inherit its thread."""
    if not err.is_interactive:
        yield None
        return
    from rich import progress
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()
    bar = progress.Progress(*columns, console=err, transient=True, redirect_stdout=False)  # else stdout goes to stderr

    def update(done: int, total: int) -> None:
        if not bar.tasks:
            bar.add_task(what, total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()
