"""`lifelabel predict`: the labels of images."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TextIO, cast

import typer

from lifelabel.cli.common import CONTEXT, make_folder
from lifelabel.cli.console import err, print_line
from lifelabel.cli.flags import Plugins, load_plugins
from lifelabel.errors import Stopped, UserError
from lifelabel.images.arguments import STDIN, image_files
from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import counted, printable

if TYPE_CHECKING:
    import numpy as np

    from lifelabel.model.model import Model

__all__ = ["commands"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)

_MAX_LISTED = 20
_MAX_WIDTH = 60
"""Columns of the paths in a table."""
_BAR_FROM = 100
"""Images from which there is a progress bar."""
_Labels = Mapping[str, float]
_Found = Sequence[tuple[str, _Labels]]
_Write = Callable[[_Found], None]


@commands.command(
    "predict",
    epilog="""
Examples:

`lifelabel predict runs/a photo.jpg`

`lifelabel predict runs/a photos/ --out labels.csv`

`lifelabel predict runs/a 'photos/**/*.jpg' --top 3 --json`

`find photos -newer last | lifelabel predict runs/a - --threshold 0.8`

`lifelabel predict runs/a photos/ --annotate labelled/`
""",
)
def _predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of a model.")],
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES",
            help="Files; folders, searched with the folders in them; patterns in quotation marks, such as "
            "`'photos/**/*.jpg'`; `-` for a list of paths on stdin, one per line.",
        ),
    ],
    threshold: Annotated[
        float | None,
        typer.Option(help="Labels of at least this probability [default: the thresholds of the model]."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="The most probable labels, this many at most.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object per line: image, labels.")] = False,
    csv_: Annotated[
        bool, typer.Option("--csv", help="A table: image, labels, probabilities, with ; in between.")
    ] = False,
    table: Annotated[bool, typer.Option("--table", help="One line per image, to read [default].")] = False,
    out_file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write a file in place of printing: .csv as --csv, .jsonl as --json, .txt as --table.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file in --out.")] = False,
    annotate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for copies of the images with their labels drawn onto them."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images at a time [default: by image size].")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode images [default: the number of cores for a GPU, else 0].")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    plugin: Plugins = None,
) -> None:
    """Print the labels of images with their probabilities, or write them to a file.

    Images that cannot be read are skipped and listed at the end; then the exit code is 1.
    """
    if json_ + csv_ + table > 1:
        raise UserError("--json, --csv and --table: give one of them")
    make_writer = _writer(".jsonl" if json_ else ".csv" if csv_ else ".txt" if table else "", out_file, overwrite)
    if workers is not None and workers < 0:
        raise UserError(f"--workers must be at least 0, not {workers}")
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size must be at least 1, not {batch_size}")
    problems = _Problems()
    done = 0
    try:
        files = image_files(images, problems.add, annotate)
        first = next(files, None)
        if first is None:
            raise problems.none_found()
        load_plugins(plugin)
        model = _load(run, device, threshold, top)
        if make_writer is _csv_table:
            _check_separator(model.classes)
        with contextlib.ExitStack() as closing:
            file: TextIO | None = None
            draw: Callable[[str, _Labels], None] | None = None
            disturbs = STDIN in images or (out_file is None and sys.stdout.isatty())
            counted_images = [] if disturbs else images
            for batch in _batches(model, itertools.chain([first], files), counted_images, batch_size, workers):
                found = []
                for path, scores in batch:
                    if isinstance(scores, str):
                        problems.add(path, scores)
                    else:
                        found.append((path, model.labels(scores, threshold, top)))
                if not found:
                    continue
                if file is None:  # not earlier: a command without results writes no header and creates no folder
                    draw = _annotator(annotate) if annotate is not None else None
                    file = closing.enter_context(_results(out_file))
                    write = make_writer(file)
                write(found)
                file.flush()
                if draw is not None:
                    for path, labels in found:
                        draw(path, labels)
                done += len(found)
    except KeyboardInterrupt:
        unwritten = f"; {out_file} is not written" if out_file else ""
        raise Stopped(f"stopped after {counted(done, 'images')}{unwritten}") from None
    if not done and problems.missing == problems.count:
        raise problems.none_found()
    if done and out_file is not None:
        print_line(f"{counted(done, 'images')} in {out_file}")
    problems.print()
    if problems.count:
        raise typer.Exit(1)


def _load(run: Path, device: str, threshold: float | None, top: int | None) -> Model:
    from lifelabel.model.model import check_choice, load
    from lifelabel.utils.memory import keep_freed_memory

    check_choice(threshold, top)
    keep_freed_memory()
    return load(run, device)


class _Problems:
    """Arguments and files without labels: their number, and the first of them."""

    def __init__(self) -> None:
        self.count = self.missing = 0
        self.first: list[str] = []

    def add(self, path: str, reason: str) -> None:
        self.count += 1
        self.missing += reason.startswith("no ")  # such file, image in this folder, image matches
        if len(self.first) < _MAX_LISTED:
            self.first.append(f"{printable(path)}: {reason}")

    def none_found(self) -> UserError:
        """The error for a command that found no image at all."""
        if not self.count:
            return UserError("no images: stdin has no paths")
        more = f"; {self.count - 1:,} more" if self.count > 1 else ""
        return UserError(f"no images: {self.first[0]}{more}")

    def print(self) -> None:
        if self.count:
            print_line(f"{self.count:,} without labels:", "yellow", err)
            for line in self.first:
                print_line(f"  {line}", None, err)
            if self.count > len(self.first):
                print_line(f"  … and {self.count - len(self.first):,} more", None, err)


def _batches(
    model: Model, files: Iterator[str], arguments: list[str], batch_size: int | None, workers: int | None
) -> Iterator[list[tuple[str, np.ndarray | str]]]:
    """The scores of the files in lists, one list per batch. With a bar in a terminal, if `arguments` name many."""
    from lifelabel.model.inputs import batches_of

    scored = batches_of(model.score_files(files, batch_size, workers), batch_size or model.batch_size)
    total = sum(1 for _ in image_files(arguments, lambda *_: None)) if err.is_interactive else 0
    if total < _BAR_FROM:
        yield from scored
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = BarColumn(20), MofNCompleteColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=err, transient=True, redirect_stdout=False)  # else our lines go to stderr
    task = bar.add_task("", total=total)
    try:
        for batch in scored:
            bar.start()  # after the first batch: worker processes must not inherit its thread
            bar.update(task, advance=len(batch))
            yield batch
    finally:
        bar.stop()


@contextlib.contextmanager
def _results(path: Path | None) -> Iterator[TextIO]:
    """Where results are written: stdout, or a file that appears when it has all of them."""
    if path is None:
        yield sys.stdout
        return
    with make_folder(path.parent), atomic_write(path) as handle:
        text = io.TextIOWrapper(cast(BinaryIO, handle), "utf-8", newline="")
        yield text
        text.detach()


def _json_lines(file: TextIO) -> _Write:
    def write(found: _Found) -> None:
        for path, labels in found:
            rounded = {name: _rounded(probability) for name, probability in labels.items()}
            file.write(json.dumps({"image": path, "labels": rounded}) + "\n")

    return write


def _check_separator(classes: Sequence[str]) -> None:
    for name in classes:
        if ";" in name:
            raise UserError(f"the class '{name}' has a ;, which separates labels in the table of --csv: use --json")


def _csv_table(file: TextIO) -> _Write:
    if isinstance(file, io.TextIOWrapper):
        # UTF-8, whatever the language of the system is; file names may have bytes that are not UTF-8
        file.reconfigure(encoding="utf-8", errors="surrogateescape")
    safe = printable if file.isatty() else str
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(("image", "labels", "probabilities"))

    def write(found: _Found) -> None:
        for path, labels in found:
            numbers = (f"{_rounded(probability):g}" for probability in labels.values())
            writer.writerow((safe(path), ";".join(labels), ";".join(numbers)))

    return write


def _text_table(file: TextIO) -> _Write:
    from rich.cells import cell_len

    width = 0

    def write(found: _Found) -> None:
        nonlocal width
        lines = [(printable(path), labels) for path, labels in found]
        width = min(_MAX_WIDTH, max([width, *(cell_len(path) for path, _ in lines)]))
        for path, labels in lines:
            text = "  ".join(f"{printable(name)} {probability:.2f}" for name, probability in labels.items())
            file.write(f"{path}{' ' * (width - cell_len(path))}  {text or '–'}\n")

    return write


_WRITERS = {".csv": _csv_table, ".jsonl": _json_lines, ".txt": _text_table}


def _writer(flag: str, out: Path | None, overwrite: bool) -> Callable[[TextIO], _Write]:
    """The function for the format of a flag or of the file in --out. `flag` is its suffix, or empty."""
    suffix = ".txt" if out is None else out.suffix.lower()
    if out is not None and (suffix not in _WRITERS or flag not in ("", suffix)):
        ends = flag or ".csv, .jsonl (one JSON object per line) or .txt"
        raise UserError(f"--out {out}: the name must end in {ends}")
    if out is not None and out.exists() and not overwrite:
        raise UserError(f"{out} exists: give another --out, or --overwrite")
    return _WRITERS[flag or suffix]


def _rounded(probability: float) -> float:
    return float(f"{probability:.6g}")


def _annotator(folder: Path) -> Callable[[str, _Labels], None]:
    """A function that writes a copy of an image, with its labels drawn onto it, to a new folder."""
    from lifelabel.images.decode import open_image
    from lifelabel.images.source import BadImage
    from lifelabel.model.annotate import annotate

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--annotate {folder} has files already: give a new folder")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; give another --annotate") from None
    used: Counter[str] = Counter()

    def write(path: str, labels: _Labels) -> None:
        with contextlib.suppress(BadImage):  # it has been read before: it was changed meanwhile
            copy = annotate(open_image(path, 1024), labels)
            target = folder / _new_name(path, used)
            try:
                copy.save(target, "JPEG", quality=90)
            except OSError as error:
                raise UserError(f"cannot write {target}: {error.strerror or error}; give another --annotate") from None

    return write


def _new_name(path: str, used: Counter[str]) -> str:
    """A new file name for the copy of an image: its own name, with a number if another image has the same one.

    >>> used = Counter()
    >>> [_new_name(path, used) for path in ("a/x.png", "b/X.jpg", "x-2.jpg", "../..", "a/c\\\\d.jpg")]
    ['x.jpg', 'X-2.jpg', 'x-2-2.jpg', 'image.jpg', 'c-d.jpg']
    """
    stem = os.path.splitext(os.path.basename(path))[0]
    stem = re.sub(r"[^\w.-]+", "-", stem).strip(".-")[:100] or "image"
    while True:
        key = stem.casefold()  # some file systems do not distinguish upper and lower case
        used[key] += 1
        if used[key] == 1:
            return f"{stem}.jpg"
        stem = f"{stem}-{used[key]}"
