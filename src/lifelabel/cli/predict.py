"""`lifelabel predict`: the labels of images."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, TextIO, cast

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import file_name, make_folder, progress_bar
from lifelabel.cli.console import err, print_line
from lifelabel.cli.flags import Inference, OverwriteFile, Plugins, RunArgument, load_plugins
from lifelabel.errors import Stopped, UserError
from lifelabel.images.arguments import STDIN, image_files
from lifelabel.utils.files import atomic_write
from lifelabel.utils.text import counted, printable

if TYPE_CHECKING:
    import numpy as np

    from lifelabel.model.model import Model

_MAX_LISTED = 20
_MAX_WIDTH = 60
"""Columns of the paths in a table."""
_BAR_FROM = 100
"""Images from which there is a progress bar."""
_Labels = Mapping[str, float]
_Found = Sequence[tuple[str, _Labels]]
_Write = Callable[[_Found], None]


@command(
    "predict",
    """
lifelabel predict runs/a photo.jpg
lifelabel predict runs/a photos/ --out labels.csv
lifelabel predict runs/a 'photos/**/*.jpg' --top 3 --json
find photos -newer last | lifelabel predict runs/a - --threshold 0.8
lifelabel predict runs/a photos/ --annotate labelled/
""",
)
def _predict(
    run: RunArgument,
    images: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGES",
            help="Files; folders, searched with the folders in them; patterns in quotation marks, such as "
            "`'photos/**/*.jpg'`; `-` for a list of paths on stdin, one per line.",
        ),
    ],
    inference: Inference,
    threshold: Annotated[
        float | None, typer.Option(help="Labels of at least this probability [default: the thresholds of the model].")
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
    overwrite: OverwriteFile = False,
    annotate: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for copies of the images with their labels drawn onto them."),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Print the labels of images with their probabilities, or write them to a file.

    Images that cannot be read are skipped and listed at the end; then the exit code is 1.
    """
    if json_ + csv_ + table > 1:
        raise UserError("--json, --csv and --table: give one of them")
    make_writer = _writer(".jsonl" if json_ else ".csv" if csv_ else ".txt" if table else "", out_file, overwrite)
    for flag, value, low in (("--workers", inference.workers, 0), ("--batch-size", inference.batch_size, 1)):
        if value is not None and value < low:
            raise UserError(f"{flag} must be at least {low}, not {value}")
    problems, done = _Problems(), 0
    try:
        files = image_files(images, problems.add, annotate)
        first = next(files, None)
        if first is None:
            raise problems.none_found()
        load_plugins(plugin)
        model = _load(run, inference.device, threshold, top)
        if make_writer is _csv_table:
            _check_separator(model.classes)
        disturbs = STDIN in images or (out_file is None and sys.stdout.isatty())
        total = 0 if disturbs or not err.is_interactive else sum(1 for _ in image_files(images, lambda *_: None))
        with _Results(out_file, make_writer, annotate) as results:
            for batch in _batches(model, itertools.chain([first], files), inference, total):
                found = []
                for path, scores in batch:
                    if isinstance(scores, str):
                        problems.add(path, scores)
                    else:
                        found.append((path, model.labels(scores, threshold, top)))
                if found:
                    results.write(found)
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
    model: Model, files: Iterator[str], inference: Inference, total: int
) -> Iterator[list[tuple[str, np.ndarray | str]]]:
    """The scores of the files in lists, one list per batch. With a bar, if there are many files."""
    from lifelabel.model.inputs import batches_of

    scored = model.score_files(files, inference.batch_size, inference.workers)
    done = 0
    with progress_bar("") if total >= _BAR_FROM else contextlib.nullcontext() as progress:
        for batch in batches_of(scored, inference.batch_size or model.batch_size):
            done += len(batch)
            if progress:
                progress(done, total)
            yield batch


class _Results(contextlib.ExitStack):
    """Writes labels to stdout, or to a file that appears when it has all of them, and copies with labels.

    Nothing is opened before the first results: a command without any writes no header and creates no folder.
    """

    def __init__(self, path: Path | None, make_writer: Callable[[TextIO], _Write], annotate: Path | None):
        super().__init__()
        self.path, self.make_writer, self.annotate = path, make_writer, annotate
        self.file: TextIO | None = None
        self.draw: Callable[[str, _Labels], None] | None = None

    def write(self, found: _Found) -> None:
        if self.file is None:
            self.draw = _annotator(self.annotate) if self.annotate else None
            self.file = self.enter_context(self._opened())
            self.write_labels = self.make_writer(self.file)
        self.write_labels(found)
        self.file.flush()
        if self.draw:
            for path, labels in found:
                self.draw(path, labels)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[TextIO]:
        if self.path is None:
            yield sys.stdout
            return
        with make_folder(self.path.parent), atomic_write(self.path) as handle:
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
    stem = file_name(os.path.splitext(os.path.basename(path))[0], "image")
    while True:
        key = stem.casefold()  # some file systems do not distinguish upper and lower case
        used[key] += 1
        if used[key] == 1:
            return f"{stem}.jpg"
        stem = f"{stem}-{used[key]}"
