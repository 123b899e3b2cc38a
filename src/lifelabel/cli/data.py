"""`lifelabel data`: inspect a stream before training, write its manifest, and convert annotations to a table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import file_name, make_folder, progress_bar, stream_settings
from lifelabel.cli.completion import complete_name, stream_names
from lifelabel.cli.console import print_line, print_wide
from lifelabel.cli.flags import OptionFlags, OverwriteFile, Plugins, load_plugins
from lifelabel.errors import UserError
from lifelabel.utils.files import write_text
from lifelabel.utils.text import counted, printable

if TYPE_CHECKING:
    from lifelabel.report.stream_counts import Progress
    from lifelabel.streams import Stream

_SHOWN_CLASSES = 10

_StreamName = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="A name of `lifelabel list streams`, or a path: a manifest (.yaml), a table (.csv, .tsv, .parquet), or a "
        "published split (.zip, or its folder).",
        autocompletion=complete_name(stream_names),
    ),
]
_StreamSettings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any option of the stream as NAME=VALUE.")
]


@command(
    "data inspect",
    """
lifelabel data inspect scenes
lifelabel data inspect Split-COCO.zip
lifelabel data inspect split-coco --root /data/coco --decode
lifelabel data inspect photos.csv --root photos --tasks 4 --out runs/look
""",
    OptionFlags(stream_only=True),
)
def _inspect(
    stream: _StreamName,
    set_: _StreamSettings = None,
    plugin: Plugins = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for report.md, stream.json and figures [default: runs/inspect/NAME]."),
    ] = None,
    decode: Annotated[
        bool | None,
        typer.Option(
            "--decode/--no-decode",
            help="Open every image, and list unusable ones and those with equal pixels [default: up to 10,000 photos].",
        ),
    ] = None,
    no_sheets: Annotated[bool, typer.Option("--no-sheets", help="No contact sheets.")] = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Describe a stream: images, tasks, classes, hidden labels, co-occurrence and problems, in numbers and figures."""
    from lifelabel.report.stream_counts import describe
    from lifelabel.report.stream_text import TERMINAL_WIDTH, terminal
    from lifelabel.report.vega import chart_obstacle

    options = {**flags, **stream_settings(set_)}
    source = _make_stream(stream, options, plugin)
    folder = out_folder or Path("runs/inspect") / file_name(source.name, "stream")
    with make_folder(folder):
        with progress_bar("opening images") as progress:
            description = describe(source, decode, progress, root_given="root" in options)
        print_wide(terminal(description), TERMINAL_WIDTH)
        with progress_bar("contact sheets") as progress:
            images = _write(description, folder, None if no_sheets else source, progress)
        missing = _write_missing(source, folder / "missing.txt")
    listed = f", missing.txt ({counted(missing, 'images without a file')})" if missing else ""
    print_line(f"written to {folder}: report.md, stream.json{listed} and {counted(len(images), 'figures')}")
    if obstacle := chart_obstacle():
        print_line(f"the charts {obstacle}")


@command(
    "data build",
    """
lifelabel data build photos.csv --root photos --tasks 4 --out stream.yaml
lifelabel data build coco --root /data/coco --set order=frequency --set top=20 --tasks 5 --out top20.yaml
""",
    OptionFlags(stream_only=True),
)
def _build(
    stream: _StreamName,
    out_file: Annotated[Path, typer.Option("--out", help="The manifest to write (.yaml).")],
    set_: _StreamSettings = None,
    plugin: Plugins = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="Include the hidden labels too, if they are known.")
    ] = False,
    overwrite: OverwriteFile = False,
    *,
    flags: dict[str, Any],
) -> None:
    """Write the manifest of a stream: every task with its images and visible labels, to share and to train from."""
    from lifelabel.streams.manifest import write as write_manifest

    if out_file.suffix.lower() not in (".yaml", ".yml"):
        raise UserError(f"{out_file} must end in .yaml: --stream recognises a manifest by its suffix")
    if out_file.exists() and not overwrite:
        raise UserError(f"{out_file} exists: give another --out, or --overwrite")
    source = _make_stream(stream, {**flags, **stream_settings(set_)}, plugin)
    with make_folder(out_file.parent):
        digest = write_manifest(source, out_file, complete)
    train, test = (sum(map(len, split.rows)) for split in (source.train, source.test))
    tasks, classes = counted(len(source.tasks), "tasks"), counted(len(source.classes), "classes")
    print_line(f"{source.name}: {tasks}, {classes}, {train:,} training and {counted(test, 'test images')}")
    for line in source.problems.lines():
        print_line(f"problem: {line}", "yellow")
    print_line(f"sha256 {digest}")
    print_line(f"manifest: {out_file}")


@command(
    "data convert",
    """
lifelabel data convert photos --out photos.csv  # folders photos/dog, photos/cat …, or photos/train/dog …
lifelabel data convert project-3.json --out photos.csv --root photos  # Label Studio: JSON, JSON-MIN or CSV
lifelabel data convert cvat-export --out photos.csv  # CVAT: Datumaro, COCO or ImageNet, unpacked
lifelabel data convert fiftyone-export --out photos.csv --field ground_truth
lifelabel data convert annotations --out photos.csv --root images  # COCO: train.json and val.json
lifelabel data convert my-yolo --out photos.csv  # YOLO: data.yaml, images and labels
lifelabel data convert my-images --out photos.csv  # Hugging Face: metadata.jsonl beside the images
""",
)
def _convert(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A folder with one folder per class, a YOLO data set or its data.yaml, an image folder with "
            "metadata.jsonl, an exported file (.json, .csv), or a folder of exported files.",
        ),
    ],
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE.csv", help="The table to write.")],
    format_: Annotated[
        str,
        typer.Option(
            "--format", metavar="NAME", help="auto, folders, coco, label-studio, cvat, fiftyone, yolo or imagefolder."
        ),
    ] = "auto",
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The folder of the images [default: found].")
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="The field of labels, if the export has several.")
    ] = None,
    overwrite: OverwriteFile = False,
) -> None:
    """Write a table from class folders, COCO, Label Studio, CVAT, FiftyOne, YOLO or a Hugging Face image folder."""
    from lifelabel.streams.conversion import convert

    done = convert(source, out_file, format=format_, root=root, field=field, overwrite=overwrite)
    print_line(f"format: {done.format}")
    print_line(f"images: {done.images:,} ({done.found:,} with a file)")
    more = ", …" if len(done.classes) > _SHOWN_CLASSES else ""
    print_line(f"classes: {len(done.classes):,} ({', '.join(done.classes[:_SHOWN_CLASSES])}{more})")
    print_line(f"labels: {done.labels:,}")
    splits = ", ".join(f"{name} {count:,}" for name, count in done.splits.items())
    print_line(f"split: {splits or 'none; a share of the images is used for test (stream.test_share)'}")
    for line in done.problems.lines():
        print_line(f"problem: {line}", "yellow")
    print_line(f"written to {out_file}")
    if not done.found:
        print_line(
            f"no image has a file in {done.root}: run this again with --root DIR, the folder of the images", "yellow"
        )
    folder = shlex.quote(str(done.root)) if done.found else "DIR"
    print_line(f"next: lifelabel data inspect {shlex.quote(str(out_file))} --root {folder}")


def _make_stream(stream: str, options: dict[str, Any], plugins: Sequence[str] | None) -> Stream:
    from lifelabel import streams
    from lifelabel.registry import resolve_name

    load_plugins(plugins)
    return streams.build(resolve_name(stream), options)


def _write_missing(stream: Stream, path: Path) -> int:
    """Write the names of the images that have no file, one per line. Without one, there is no such file."""
    splits = (stream.train, stream.test)
    used = [(split, split.used()) for split in splits if getattr(split.images, "root", None) is not None]
    names = [split.names[row] for split, rows in used for row in rows[~split.images.present[rows]].tolist()]
    if names:
        write_text(path, "".join(f"{printable(name)}\n" for name in names))
    else:
        path.unlink(missing_ok=True)  # of an earlier inspection
    return len(names)


def _write(description: dict[str, Any], folder: Path, source: Stream | None, progress: Progress | None) -> list[str]:
    """Write the report and its figures, with contact sheets of `source`. Returns the names of the figures."""
    from lifelabel.report import stream_figures
    from lifelabel.report.stream_text import markdown

    images = stream_figures.write_charts(description, folder)
    if source:
        images += stream_figures.write_sheets(source, folder, progress)
    write_text(folder / "stream.json", json.dumps(description, indent=1) + "\n")
    write_text(folder / "report.md", markdown(description, images))
    return images
