"""Evaluate a finished model on labelled images: what `lifelabel evaluate` does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lifelabel.engine.environment import machine
from lifelabel.engine.labelled_images import Labelled, check_writable, read_labelled, score
from lifelabel.errors import UserError
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import find_model
from lifelabel.report.evaluation import Evaluation, draw_per_class, markdown, write_mistakes
from lifelabel.runs import names
from lifelabel.runs.folder import RunFolder
from lifelabel.utils.files import sha256, write_text

__all__ = ["FILES", "evaluate"]

FILES = names.EVALUATION_FILES
"""What is written into the folder of an evaluation, if there is something to write."""


def evaluate(
    run: str | Path, table: str | Path | None = None, *, stream: str | None = None, root: str | Path | None = None,
    stream_options: Mapping[str, Any] | None = None, rows: str | None = None, include_trained: bool = False,
    threshold: float | None = None, save_scores: str | Path | None = None, out: str | Path | None = None,
    device: str = "auto", batch_size: int | None = None, workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The figures of a finished model on the labelled images of a table or of a stream, as fractions.

    Keywords have the names of the flags of `lifelabel evaluate`; `stream_options` has what `--set stream.NAME=VALUE`
    sets. The result is the content of evaluation.json. With `out`, it is written there with the report and the
    pictures. `progress` is called with the number of images so far and the number of all.
    """
    run, table, scores_file = Path(run), table and Path(table), save_scores and Path(save_scores)
    if threshold is not None and not 0 < threshold <= 1:
        raise UserError(f"--threshold must be above 0 and at most 1, not {threshold:g}")
    if scores_file and scores_file.suffix != ".npz":
        raise UserError(f"--save-scores {scores_file}: the name must end in .npz")
    begin = time.monotonic()
    model_folder, folder = find_model(run), None if out is None else Path(out)
    if folder is not None:
        if folder.resolve().is_relative_to(model_folder.resolve()):
            raise UserError(f"{folder} is in the model folder: choose another --out")
        check_writable(folder)
    if scores_file:
        _check_scores(scores_file, model_folder)
    model = load(run, device)
    given = read_labelled(run, table or None, stream, root, stream_options, rows, model, include_trained, progress)
    evaluation = Evaluation(model, given.images, score(model, given.images, batch_size, workers, progress), threshold)
    found = _complete(evaluation, model_folder, given, time.monotonic() - begin)
    if folder is not None:
        _write(evaluation, found, folder)
    if scores_file:
        _write_scores(evaluation, scores_file)
    return found


def _check_scores(path: Path, model_folder: Path) -> None:
    if path.resolve().is_relative_to(model_folder.resolve()):
        raise UserError(f"{path} is in the model folder: choose another --save-scores")
    try:
        check_writable(path.parent)
    except UserError:
        raise UserError(f"cannot write {path}: choose another --save-scores") from None


def _complete(evaluation: Evaluation, model_folder: Path, given: Labelled, seconds: float) -> dict[str, Any]:
    """The content of evaluation.json."""
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
            "tensors_sha256": sha256(model_folder / names.MODEL_TENSORS),
            "info_sha256": sha256(model_folder / names.MODEL_INFO),
        },
        "notes": notes,
        **found,
        "environment": {**machine(model.device), "precision": model.precision, "seconds": round(seconds, 2)},
    }  # fmt: skip


def _calibrated_on(model: Model, fingerprint: str) -> bool:
    images = (model.info.calibration or {}).get("images_of")
    return isinstance(images, dict) and images.get("fingerprint") == fingerprint


def _write(evaluation: Evaluation, found: dict[str, Any], folder: Path) -> None:
    """Write all files. Those of an earlier evaluation are deleted."""
    skipped = evaluation.scores.skipped
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES[2:]:
            (folder / name).unlink(missing_ok=True)
        drawn = draw_per_class(found, folder / "per_class.png"), write_mistakes(evaluation, folder / "mistakes.png")
        figures = [name for name, there in zip(("per_class.png", "mistakes.png"), drawn, strict=True) if there]
        if skipped:
            lines = (json.dumps({"image": name, "reason": reason}) for name, reason in skipped)
            write_text(folder / names.SKIPPED, "\n".join(lines) + "\n")
        write_text(folder / "report.md", markdown(found, figures))
        write_text(folder / "evaluation.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another --out") from None


def _write_scores(evaluation: Evaluation, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        RunFolder(path.parent).write_arrays(path.name, evaluation.arrays())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; choose another --save-scores") from None
