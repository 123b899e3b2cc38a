"""`lifelabel evaluate`: the figures of a finished model on labelled images."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lifelabel.cli import labelled
from lifelabel.cli.common import CONTEXT, make_folder
from lifelabel.cli.console import print_line, print_table
from lifelabel.cli.flags import Plugins, load_plugins
from lifelabel.cli.metrics import print_metrics
from lifelabel.errors import UserError
from lifelabel.utils.files import write_text

if TYPE_CHECKING:
    from lifelabel.model.model import Model
    from lifelabel.report.evaluation import Evaluation

__all__ = ["commands"]

commands = typer.Typer(rich_markup_mode="markdown", context_settings=CONTEXT)


@commands.command(
    "evaluate",
    epilog="""
Examples:

`lifelabel evaluate runs/mine photos.csv --root photos` (the rows that the run held out)

`lifelabel evaluate runs/mine new-photos.csv --root new-photos --threshold 0.8`

`lifelabel evaluate runs/a --stream scenes --out runs/a-scenes`

`lifelabel evaluate runs/coco --stream voc --root VOCdevkit --save-scores voc.npz; lifelabel metrics voc.npz`
""",
)
def _evaluate(
    run: labelled.RunFolderArgument,
    table: labelled.TableArgument = None,
    stream: labelled.StreamName = None,
    root: labelled.Root = None,
    set_: labelled.StreamSettings = None,
    rows: labelled.Rows = None,
    merge_case: labelled.MergeCase = False,
    alias: labelled.Alias = None,
    threshold: Annotated[
        float | None,
        typer.Option(metavar="T", help="The threshold of all classes [default: those of the model, else 0.5]."),
    ] = None,
    save_scores: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Save logits and labels for `lifelabel metrics`.")
    ] = None,
    out_folder: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="The folder of the results [default: RUN/evaluation]."),
    ] = None,
    device: labelled.Device = "auto",
    batch_size: labelled.BatchSize = None,
    workers: labelled.Workers = None,
    plugin: Plugins = None,
) -> None:
    """Evaluate a finished model on labelled images: all metrics, each class, and the worst mistakes.

    Classes are matched by name. Images that cannot be read are left out and listed.
    """
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"--threshold must be above 0 and at most 1, not {threshold:g}")
    if save_scores is not None and save_scores.suffix != ".npz":
        raise UserError(f"--save-scores {save_scores}: the name must end in .npz")
    load_plugins(plugin)
    from lifelabel.model.files import find_model
    from lifelabel.model.model import load
    from lifelabel.report.evaluation import Evaluation

    begin = time.monotonic()
    model_folder = find_model(run)
    folder = out_folder or _default_folder(run, model_folder)
    if folder.resolve().is_relative_to(model_folder.resolve()):
        raise UserError(f"{folder} is in the model folder: choose another --out")
    labelled.check_writable(folder)
    if save_scores is not None:
        _check_scores(save_scores, model_folder)
    model = load(run, device)
    given = labelled.read_labelled(run, table, stream, root, set_, rows, model.info, merge_case, alias)
    evaluation = Evaluation(model, given.images, labelled.score(model, given.images, batch_size, workers), threshold)
    found = _complete(evaluation, model_folder, given, time.monotonic() - begin)
    with make_folder(folder):
        written = _write(evaluation, found, folder)
    if save_scores is not None:
        _write_scores(evaluation, save_scores)
    _print(found)
    print_line(f"written to {folder}: {', '.join(written)}" + (f"; scores in {save_scores}" if save_scores else ""))


def _check_scores(path: Path, model_folder: Path) -> None:
    if path.resolve().is_relative_to(model_folder.resolve()):
        raise UserError(f"{path} is in the model folder: choose another --save-scores")
    try:
        labelled.check_writable(path.parent)
    except UserError:
        raise UserError(f"cannot write {path}: choose another --save-scores") from None


def _default_folder(run: Path, model_folder: Path) -> Path:
    """`evaluation` in the run folder; in the current folder if RUN is a model folder or cannot be written."""
    if model_folder != run and os.access(run, os.W_OK):
        return run / "evaluation"
    resolved = run.resolve()
    name = resolved.parent.name if resolved.name == "model" else resolved.name
    return Path("evaluation-" + (re.sub(r"[^\w.-]+", "-", name).strip(".-")[:100] or "model"))


def _complete(evaluation: Evaluation, model_folder: Path, given: labelled.Labelled, seconds: float) -> dict[str, Any]:
    """The content of evaluation.json."""
    from lifelabel.engine.environment import machine
    from lifelabel.nn.weights import sha256

    model = evaluation.model
    info, found = model.info, evaluation.found
    notes = [*given.notes]
    if _calibrated_on(model, found["set"]["fingerprint"]):
        notes.append("the model was calibrated on these images: figures that depend on thresholds are too high")
    return {
        "model": {
            "path": str(model_folder), "method": info.method, "label": info.label, "backbone": info.backbone,
            "image_size": info.image_size, "classes": len(info.classes),
            "calibrated_by": (info.calibration or {}).get("by"),
            "tensors_sha256": sha256(model_folder / "model.safetensors"),
            "info_sha256": sha256(model_folder / "model.json"),
        },
        "notes": notes,
        **found,
        "environment": {**machine(model.device), "precision": model.precision, "seconds": round(seconds, 2)},
    }  # fmt: skip


def _calibrated_on(model: Model, fingerprint: str) -> bool:
    images = (model.info.calibration or {}).get("images_of")
    return isinstance(images, dict) and images.get("fingerprint") == fingerprint


def _write(evaluation: Evaluation, found: dict[str, Any], folder: Path) -> list[str]:
    """Write all files. Returns their names."""
    from lifelabel.report.evaluation import draw_per_class, markdown, write_mistakes

    skipped = evaluation.scores.skipped
    for name in ("mistakes.png", "per_class.png", "skipped.jsonl"):
        (folder / name).unlink(missing_ok=True)  # of an earlier evaluation
    figures = []
    if draw_per_class(found, folder / "per_class.png"):
        figures.append("per_class.png")
    if write_mistakes(evaluation, folder / "mistakes.png"):
        figures.append("mistakes.png")
    if skipped:
        lines = (json.dumps({"image": name, "reason": reason}) for name, reason in skipped)
        write_text(folder / "skipped.jsonl", "\n".join(lines) + "\n")
    write_text(folder / "report.md", markdown(found, figures))
    write_text(folder / "evaluation.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    return ["evaluation.json", "report.md", *figures, *(["skipped.jsonl"] if skipped else [])]


def _write_scores(evaluation: Evaluation, path: Path) -> None:
    from lifelabel.engine.run_folder import RunFolder

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        RunFolder(path.parent).write_arrays(path.name, evaluation.arrays())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --save-scores") from None


def _print(found: dict[str, Any]) -> None:
    from rich import box

    from lifelabel.report import evaluation as text
    from lifelabel.report.grids import rich_grid
    from lifelabel.report.per_class import per_class_table

    given = found["set"]
    print_line(
        f"{found['model']['label']} on {given['images']:,} images ({given['rows']} of {given['name']}), "
        f"{found['classes']['evaluated']:,} classes. All in %."
    )
    heads, rows = text.headline_table(found)
    print_table(rich_grid(heads, rows, 1, box=box.SIMPLE))
    print_line(text.calibration_line(found["calibration"]))
    print_table(per_class_table(*text.per_class_columns(found)))
    for line in text.class_lines(found):
        print_line(line)
    print_line("")
    print_metrics(found["metrics"])
    print_line("")
    for line in text.notes(found):
        print_line(f"note: {line}", "yellow")
