"""`lifelabel export`: a finished model as ONNX, as a program of torch, or as a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import Plugins, RunArgument, load_plugins


@command(
    "export",
    """
lifelabel export runs/a --format onnx --out exports/a
lifelabel export runs/a --format onnx --preprocess --images photos --out exports/a --overwrite
lifelabel export runs/a --format torch-export --out exports/a-torch
""",
)
def _export(
    run: RunArgument,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder for the export.")],
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="TEXT",
            help="onnx (model.onnx), torch-export (model.pt2) or safetensors (a model folder for lifelabel).",
        ),
    ] = "onnx",
    preprocess: Annotated[
        bool,
        typer.Option("--preprocess", help="Resize and normalize in the export: it takes pixels of images of any size."),
    ] = False,
    opset: Annotated[
        int | None,
        typer.Option(metavar="N", help="The version of the ONNX operators, from 18. Default: that of torch."),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="PATH", help="Check the export with photographs too: a file or a folder (the first 32 are used)."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an export in DIR.")] = False,
    plugin: Plugins = None,
) -> None:
    """Export a finished model: images in, calibrated probabilities out. The export is compared with the model."""
    load_plugins(plugin)
    from lifelabel.model.exporter import RUNTIMES, export
    from lifelabel.utils.memory import keep_freed_memory

    keep_freed_memory()
    check = export(
        run, out_folder, file_format, preprocess=preprocess, opset=opset, overwrite=overwrite, images=images or ()
    )
    print_line(f"largest difference from the model: {check.difference:.1e}, {check.images} images in batches of 1 to 8")
    if check.resize_difference is not None:
        print_line(f"largest difference with images of other sizes, which are resized: {check.resize_difference:.1e}")
    print_line(
        f"images/s: {check.speed:.4g} in {RUNTIMES[file_format]}, {check.model_speed:.4g} in lifelabel, ratio "
        f"{check.speed / check.model_speed:.2f}"
    )
    print_line(f"written to {out_folder}: {', '.join(check.files)}")
