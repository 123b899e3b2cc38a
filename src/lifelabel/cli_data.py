"""`lifelabel data`: look at a stream before anything is learned from it, and write its manifest."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from lifelabel.errors import UserError, plain

if TYPE_CHECKING:
    from lifelabel.report.dataset import Progress
    from lifelabel.streams import Stream

data = typer.Typer(
    help="Look at a stream: what is in it, and what is wrong with it; write its manifest.",
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
out, err = Console(), Console(stderr=True)

StreamName = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="A name of `lifelabel list streams`, or a path: a manifest (.yaml), a table (.csv, .tsv, .parquet), or a "
        "published split (.zip, or its folder).",
    ),
]
Root = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder of the images; the same as `--set root=DIR`.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any option of the stream as NAME=VALUE.")
]


@data.command(
    epilog="""
Examples:

`lifelabel data inspect scenes`

`lifelabel data inspect Split-COCO.zip`

`lifelabel data inspect split-coco --root /data/coco --decode`

`lifelabel data inspect photos.csv --root photos --set tasks=4 --out runs/look`
"""
)
def inspect(
    stream: StreamName,
    root: Root = None,
    set_: Settings = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for report.md, stream.json and pictures [default: runs/inspect/NAME]."),
    ] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Open every image, and list those that are bad.")] = False,
    no_sheets: Annotated[bool, typer.Option("--no-sheets", help="No contact sheets.")] = False,
) -> None:
    """What is in a stream: images, tasks, classes, hidden labels, co-occurrence, problems; figures and pictures."""
    from lifelabel.report.dataset import describe
    from lifelabel.report.summary import TERMINAL_WIDTH, terminal

    source = make(stream, root, set_)
    folder = out_folder or Path("runs/inspect") / file_name(source.name)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with bar("opening images") as progress:
        description = describe(source, decode, progress)
    Console(width=max(out.width, TERMINAL_WIDTH)).print(terminal(description), highlight=False)
    with writing(folder), bar("contact sheets") as progress:
        pictures = write(description, folder, None if no_sheets else source, progress)
    say(f"written to {folder}: report.md, stream.json and {len(pictures):,} pictures")


@data.command(
    epilog="""
Examples:

`lifelabel data build photos.csv --root photos --set tasks=4 --out stream.yaml`

`lifelabel data build coco --root /data/coco --set order=frequency --set top=20 --set tasks=5 --out top20.yaml`
"""
)
def build(
    stream: StreamName,
    out_file: Annotated[Path, typer.Option("--out", help="The manifest to write (.yaml).")],
    root: Root = None,
    set_: Settings = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Keep the hidden labels too, where they are known.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file in --out.")] = False,
) -> None:
    """Write a stream's manifest: every task with its images and visible labels, to share and to train from."""
    from lifelabel.streams.manifest import write as write_manifest

    if out_file.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"{out_file} must end in .yaml: --stream knows a manifest by that")
    if out_file.exists() and not overwrite:
        raise UserError(f"{out_file} exists: give another --out, or --overwrite")
    source = make(stream, root, set_)
    with writing(out_file):
        out_file.parent.mkdir(parents=True, exist_ok=True)
        digest = write_manifest(source, out_file, complete)
    train, test = (sum(map(len, split.rows)) for split in (source.train, source.test))
    tasks, classes = len(source.tasks), len(source.classes)
    say(f"{plain(source.name)}: {tasks:,} tasks, {classes:,} classes, {train:,} training and {test:,} test images")
    for line in source.problems.lines():
        say(f"problem: {plain(line)}", style="yellow")
    say(f"sha256 {digest}")
    say(f"manifest: {out_file}")


def make(stream: str, root: Path | None, settings: list[str] | None) -> Stream:
    from lifelabel import streams

    return streams.build(stream, stream_options(root, settings or []))


def stream_options(root: Path | None, settings: list[str]) -> dict[str, Any]:
    """What `--root` and `--set` ask of the stream, with or without `stream.` before the name.

    >>> stream_options(Path("photos"), ["stream.tasks=4", "order=[cat, dog]"])
    {'root': 'photos', 'tasks': 4, 'order': ['cat', 'dog']}
    """
    from lifelabel.cli_common import parse_settings

    given = parse_settings(settings)
    if "method_options" in given:
        raise UserError("--set method.…: there is no method here; give options of the stream")
    from_root = {} if root is None else {"root": str(root)}
    return {**from_root, **given.pop("stream_options", {}), **given}


def file_name(name: str) -> str:
    """A stream's name as the name of a folder, whatever it holds.

    >>> file_name("../Split COCO")
    'Split-COCO'
    """
    return re.sub(r"[^\w.-]+", "-", name).strip(".-")[:100] or "stream"


def write(description: dict[str, Any], folder: Path, source: Stream | None, progress: Progress | None) -> list[str]:
    """Write the report and its pictures, with contact sheets of `source`; the names of the pictures."""
    from lifelabel.report import sheets
    from lifelabel.report.summary import markdown

    sheets.draw_frequencies(description, folder / "frequencies.png")
    pictures = ["frequencies.png"]
    if sheets.draw_cooccurrence(description, folder / "cooccurrence.png"):
        pictures.append("cooccurrence.png")
    if source:
        pictures += sheets.write_sheets(source, folder, progress)
    (folder / "stream.json").write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(description, pictures), encoding="utf-8")
    return pictures


@contextmanager
def writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write to {path}: {error.strerror or error}; choose another --out") from None


@contextmanager
def bar(what: str) -> Iterator[Progress | None]:
    """A bar on a terminal, from the first figure on: by then worker processes are there, and share no thread of it."""
    if not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()
    shown = Progress(*columns, console=err, transient=True)

    def update(done: int, total: int) -> None:
        if not shown.tasks:
            shown.add_task(what, total=total)
            shown.start()
        shown.update(shown.task_ids[0], completed=done)

    try:
        yield update
    finally:
        shown.stop()


def say(line: str, style: str | None = None) -> None:
    out.print(line, style=style, highlight=False, markup=False, soft_wrap=True)
