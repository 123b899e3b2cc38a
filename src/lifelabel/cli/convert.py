"""`lifelabel data convert`: a table from folders of images or from the export of an annotation tool."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.console import print_line

_SHOWN_CLASSES = 10


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
            "--format",
            metavar="NAME",
            help="auto, folders, coco, label-studio, cvat, fiftyone, yolo or imagefolder.",
        ),
    ] = "auto",
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="The folder of the images [default: found].")
    ] = None,
    field: Annotated[
        str | None, typer.Option("--field", metavar="NAME", help="The field of labels, if the export has several.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file in --out.")] = False,
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
