"""Evaluate a finished model on labelled images: figures, a report, a chart of the classes and the worst mistakes."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lifelabel.engine.environment import machine
from lifelabel.engine.labelled_images import Labelled, check_writable, read_labelled, score
from lifelabel.errors import UserError
from lifelabel.images.source import BadImage
from lifelabel.metrics.conventions import ScoreSet, compare
from lifelabel.metrics.functions import (
    Scored,
    calibration_figures,
    class_calibration_errors,
    counts,
    precision_recall_f1,
)
from lifelabel.metrics.over_tasks import HEADLINE, without_nan
from lifelabel.model.labelled_scores import LabelledScores
from lifelabel.model.model import Model, load
from lifelabel.model.model_folder import find_model
from lifelabel.report.sheets import COLUMNS, WIDTH, Photo, draw_sheet, save_sheet
from lifelabel.report.stream_text import listed
from lifelabel.report.vega import (
    COLOURS,
    chart_obstacle,
    chart_spec,
    chart_text,
    names_channel,
    percent_channel,
    write_spec,
)
from lifelabel.runs.folder import RunFolder
from lifelabel.runs.names import EVALUATION_FILES, MODEL_INFO, MODEL_TENSORS, SKIPPED
from lifelabel.streams.labelled_set import LabelledSet
from lifelabel.utils.files import sha256, write_text
from lifelabel.utils.markdown import escape, grid, per_class_markdown
from lifelabel.utils.text import counted, task_cell

_MAX_BARS = 80
"""A chart of more classes has the best and the worst ones only."""
_ENDS = 5
"""The best and the worst classes that are named."""
_MISTAKES = 2 * COLUMNS
"""Mistakes of each kind on the sheet."""
_OF_CLASS = 4
"""Mistakes of one class on the sheet, before those of other classes."""
_MAX_TRIES = 1000
"""Mistakes of each kind that are considered."""
_NAMED = 200
"""Characters of a list of classes in a note."""


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
            "tensors_sha256": sha256(model_folder / MODEL_TENSORS),
            "info_sha256": sha256(model_folder / MODEL_INFO),
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
        for name in EVALUATION_FILES[2:]:
            (folder / name).unlink(missing_ok=True)
        draw_per_class(found, folder)
        write_mistakes(evaluation, folder)
        figures = [name for name in ("per_class.png", "mistakes.png") if (folder / name).exists()]
        if skipped:
            lines = (json.dumps({"image": name, "reason": reason}) for name, reason in skipped)
            write_text(folder / SKIPPED, "\n".join(lines) + "\n")
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


class Evaluation:
    """The probabilities and predictions of a model for labelled images, of the classes that both have.

    With `threshold`, it replaces the thresholds of the model. An unknown label counts as a negative with the lowest
    score, which changes neither average precision nor precision and recall. `found` has all figures, ready for JSON.
    """

    def __init__(self, model: Model, labelled: LabelledSet, scores: LabelledScores, threshold: float | None = None):
        self.model, self.labelled, self.scores = model, labelled, scores
        columns = scores.common
        self.names = [model.classes[k] for k in columns]
        self.known, self.labels = scores.known[:, columns], scores.labels[:, columns]
        self.logits = np.where(self.known, scores.calibrated(model)[:, columns], -np.inf)
        self.scored = Scored.from_logits(self.logits, self.labels)
        self.probabilities = self.scored.probabilities.numpy()
        own = model.info.thresholds
        self.own_thresholds = None if own is None else np.array(own, np.float64)[columns]
        self.thresholds = np.full(len(self.names), 0.5) if self.own_thresholds is None else self.own_thresholds
        if threshold is not None:
            self.thresholds = np.full(len(self.names), threshold)
        self.found = without_nan(self._figures(threshold))

    def _figures(self, threshold: float | None) -> dict[str, Any]:
        scores, info, known = self.scores, self.model.info, self.known
        unknown, evaluated = int(np.count_nonzero(~known)), set(self.names)
        return {
            "set": {
                "name": self.labelled.name,
                "rows": self.labelled.kind,
                "fingerprint": self.labelled.fingerprint(),
                "images": len(scores),
                "skipped": len(scores.skipped),
                "labels": int(self.labels.sum()),
                "unknown_labels": unknown,
            },
            "classes": {
                "evaluated": len(self.names),
                "ignored": scores.ignored,
                "not_evaluated": [name for name in info.classes if name not in evaluated],
            },
            "headline": self._headline(threshold),
            "calibration": calibration_figures(self.probabilities, self.labels, known),
            "per_class": self._per_class(),
            "metrics": compare(ScoreSet(self.logits, self.labels, "logits")),
        }

    def _headline(self, threshold: float | None) -> dict[str, dict[str, float]]:
        """The headline metrics at 0.5, at the thresholds of the model, and at the given threshold."""
        limits: dict[str, float | np.ndarray] = {"0.5": 0.5}
        if self.own_thresholds is not None:
            limits["model"] = self.own_thresholds
        if threshold is not None:
            limits[f"{threshold:g}"] = threshold
        mean_ap, p, y = self.scored.headline()["mAP"], self.scored.probabilities, self.scored.labels
        return {name: {"mAP": mean_ap, **precision_recall_f1(p, y, limit)} for name, limit in limits.items()}

    def _per_class(self) -> list[dict[str, Any]]:
        number = counts(self.scored.probabilities, self.scored.labels, torch.from_numpy(self.thresholds))
        errors = class_calibration_errors(self.probabilities, self.labels, self.known).tolist()
        unknown = np.count_nonzero(~self.known, axis=0).tolist()
        info = self.model.info
        tasks = [(info.task_of_class[column] + 1) for column in self.scores.common]
        cells = [task_cell(task, info.task_names) for task in tasks]
        columns = zip(number.correct.tolist(), number.predicted.tolist(), number.truth.tolist(), strict=True)
        return [
            {
                "name": name, "task": tasks[k], "task_name": cells[k], "AP": self.scored.ap[k].item(),
                "positives": positives, "unknown": unknown[k], "threshold": float(self.thresholds[k]),
                "predicted": predicted, "correct": correct, "precision": correct / predicted if predicted else None,
                "recall": correct / positives if positives else None, "ECE": errors[k],
            }
            for k, (name, (correct, predicted, positives)) in enumerate(zip(self.names, columns, strict=True))
        ]  # fmt: skip

    def image(self, row: int, min_side: int = 0) -> Any:
        """The image of a row of the scores. Raises `BadImage` if it can no longer be read."""
        part = self.labelled.parts[self.scores.part[row]]
        return part.images.read(int(part.rows[self.scores.position[row]]), min_side)

    def arrays(self) -> dict[str, np.ndarray]:
        """The content of scores.npz, as `lifelabel train --save-scores` writes it, and the names of the images.

        The logits are those of calibrated probabilities.
        """
        parts = self.labelled.parts
        where = list(zip(self.scores.part.tolist(), self.scores.position.tolist(), strict=True))
        names = [parts[part].images.name(int(parts[part].rows[position])) for part, position in where]
        return {
            "logits": self.logits,
            "labels": self.labels,
            "task_of_image": np.array([parts[part].task[position] for part, position in where]),
            "task_of_class": np.array(self.model.info.task_of_class)[self.scores.common],
            "classes": np.array(self.names),
            "images": np.array(names),
        }


# Text


def notes(found: dict[str, Any]) -> list[str]:
    """What a reader of the figures must know: what is left out, and what the images were used for before."""
    classes, given = found["classes"], found["set"]
    empty = [row["name"] for row in found["per_class"] if not row["positives"]]
    lines = list(found.get("notes", []))
    for left_out, text in (
        (classes["ignored"], "classes that only the set has, whose labels are ignored"),
        (classes["not_evaluated"], "classes that only the model has, not evaluated"),
        (empty, "classes without an image, and so without AP"),
    ):
        if left_out:
            lines.append(f"{counted(len(left_out), text)}: {listed(left_out, _NAMED)}")
    if given["unknown_labels"]:
        lines.append(counted(given["unknown_labels"], "unknown labels, left out"))
    if given["skipped"]:
        lines.append(counted(given["skipped"], f"images that cannot be read, left out and listed in {SKIPPED}"))
    return lines


def headline_table(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: the headline metrics in %, at each threshold."""
    names = ("mAP", "CP", "CR", "CF1", "OP", "OR", "OF1")
    texts = {"model": "at the thresholds of the model"}
    rows = [
        [texts.get(at, f"at {at}"), *(_percent(values[name]) for name in names)]
        for at, values in found["headline"].items()
    ]
    return ["", *names], rows


def calibration_line(figures: dict[str, Any]) -> str:
    """Calibration errors, Brier score and log loss."""
    values = {name: "–" if figures[name] is None else f"{figures[name]:.4f}" for name in ("ECE", "Brier", "log_loss")}
    error = "–" if figures["ECE_class"] is None else f"{figures['ECE_class']:.4f}"
    return (
        f"calibration error (ECE) {values['ECE']} over all labels, {error} as the mean of the classes; Brier score "
        f"{values['Brier']}, log loss {values['log_loss']}"
    )


def class_lines(found: dict[str, Any]) -> list[str]:
    """One line for the classes with the highest AP, and one for those with the lowest."""
    ranked = sorted((row for row in found["per_class"] if row["AP"] is not None), key=lambda row: -row["AP"])
    texts = [f"{listed([row['name']], 24)} {_percent(row['AP'])}" for row in ranked]
    if len(texts) < 2:
        return []
    ends = min(_ENDS, len(texts) // 2)
    return [f"best classes by AP: {', '.join(texts[:ends])}", f"worst classes by AP: {', '.join(texts[-ends:][::-1])}"]


def per_class_columns(found: dict[str, Any]) -> tuple[list[str], list[int], list[float | None], dict[str, list[Any]]]:
    """The arguments of `per_class_table`: names, tasks, AP, and further columns."""
    rows = found["per_class"]
    more = {key: [row[key] for row in rows] for key in ("positives", "precision", "recall")}
    more["threshold"] = [f"{row['threshold']:.3f}" for row in rows]
    return [row["name"] for row in rows], [row["task_name"] for row in rows], [row["AP"] for row in rows], more


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def markdown(found: dict[str, Any], figures: Sequence[str] = ()) -> str:
    """The text of report.md. `figures` are the names of image files in the same folder."""
    given, model = found["set"], found["model"]
    lines = [f"# Evaluation of {escape(model['label'])}", ""]
    lines += [
        f"- model: {escape(model['path'])}, sha256 of its tensors `{model['tensors_sha256']}`",
        f"- images: {given['images']:,} {escape(given['rows'])} of {escape(given['name'])}, with "
        f"{counted(given['labels'], 'labels')} of {counted(found['classes']['evaluated'], 'classes')}",
        f"- date: {escape(found['environment']['date'])}",
        *(f"- {escape(line)}" for line in notes(found)),
        "", "## Figures in %", "", *grid(*headline_table(found), left=1),
        "", f"{escape(calibration_line(found['calibration']))}.",
        "", "## Classes", "", *(f"{escape(line)}\n" for line in class_lines(found)),
        *per_class_markdown(*per_class_columns(found)),
        "", "Precision and recall are those at the threshold of the class. evaluation.json has all classes.",
        "", "## Conventions", "", *_conventions(found["metrics"]),
    ]  # fmt: skip
    if figures:
        lines += ["", "## Pictures", "", *(f"![{name}]({name})\n" for name in figures)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _conventions(compared: dict[str, Any]) -> list[str]:
    """The metrics of every convention, on all images and on those that have a label."""
    heads = ["convention", "at", "CF1 is", "empty class", *HEADLINE, *(f"{name}, labelled images" for name in HEADLINE)]
    rows = []
    for family in compared["families"]:
        figures = [_percent(family[part][name]) for part in ("all", "labelled") for name in HEADLINE]
        rows.append([family["who"], f"{family['threshold']:g}", family["cf1"], family["empty_class"], *figures])
    return grid(heads, rows, left=4)


# Pictures


def draw_per_class(found: dict[str, Any], folder: Path) -> None:
    """Draw the AP of each class as a bar, and its precision and recall. Many classes: the best and the worst ones.

    There is no chart if no class has an AP, or if Vega cannot run here.
    """
    ranked = sorted((row for row in found["per_class"] if row["AP"] is not None), key=lambda row: -row["AP"])
    if not ranked or chart_obstacle():
        return
    total, title = len(ranked), "average precision of each class"
    if total > _MAX_BARS:
        ranked = [*ranked[: _MAX_BARS // 2], *ranked[-_MAX_BARS // 2 :]]
        title = f"the {_MAX_BARS // 2} best and the {_MAX_BARS // 2} worst of {total:,} classes"
    y = names_channel("k", {"labelLimit": 220})
    series = {"AP": "#cccccc", "precision at the threshold": COLOURS[0], "recall at the threshold": COLOURS[3]}
    color = {"type": "nominal", "title": None, "scale": {"domain": [*series], "range": [*series.values()]}}
    text = "% (number of images with the label)"
    marks = {
        "AP": {"type": "bar"},
        "precision": {"type": "point", "filled": True, "size": 45, "opacity": 1},
        "recall": {"type": "tick", "thickness": 2, "bandSize": 10},
    }
    layers: list[dict[str, Any]] = [
        {
            "transform": [{"filter": f"isValid(datum.{key})"}],
            "mark": mark,
            "encoding": {"y": y, "x": percent_channel(key, text), "color": {"datum": name, **color}},
        }
        for (key, mark), name in zip(marks.items(), series, strict=True)
    ]
    if total > _MAX_BARS:
        border = {"data": {"values": [{"k": _MAX_BARS // 2}]}, "mark": {"type": "rule", "strokeWidth": 0.8}}
        layers.append({**border, "encoding": {"y": {**y, "bandPosition": 0}}})
    values = [
        {"k": k} | {key: None if row[key] is None else round(100 * row[key], 2) for key in marks}
        for k, row in enumerate(ranked)
    ]
    spec = chart_spec(
        16 * len(ranked) + 10,
        values,
        {"names": [f"{chart_text(row['name'], 28)} ({row['positives']:,})" for row in ranked]},
        title=f"{chart_text(found['set']['name'], 40)}: {title}",
        width=460,
        layer=layers,
    )
    write_spec(spec, folder, "per_class", (".png",))


def write_mistakes(evaluation: Evaluation, folder: Path) -> None:
    """Write a contact sheet of the mistakes with the highest confidence, if there are any.

    First wrong labels with the highest probability, then missed labels with the lowest. An image is there at most once
    of each kind, and at most four images of a class, unless the others are too few.
    """
    p, labels, known = evaluation.probabilities, evaluation.labels, evaluation.known
    predicted = known & (p >= evaluation.thresholds)
    wrong = np.where(predicted & ~labels, p, -1.0)
    missed = np.where(known & labels & ~predicted, p, 2.0)
    wrong_photos = _photos(evaluation, wrong.argmax(1), -wrong.max(1), 1.0, labels)
    missed_photos = _photos(evaluation, missed.argmin(1), missed.min(1), 2.0, predicted)
    groups = {
        "Wrong labels with the highest probability (grey: the true labels)": wrong_photos,
        "Missed labels with the lowest probability (grey: the predicted labels)": missed_photos,
    }
    groups = {heading: photos for heading, photos in groups.items() if photos}
    if not groups:
        return
    title = f"Mistakes on {listed([evaluation.labelled.name], 80)}"
    key = "black: the label and its probability"
    save_sheet(draw_sheet(title, key, groups), folder / "mistakes.png")


def _photos(evaluation: Evaluation, column: np.ndarray, rank: np.ndarray, end: float, grey: np.ndarray) -> list[Photo]:
    """The images with the lowest `rank`, if it is below `end`.

    Each is shown with its class `column` and, in grey, the classes that `grey` marks.
    """
    first: list[int] = []
    later: list[int] = []
    taken = Counter[int]()
    for row in np.argsort(rank, kind="stable")[:_MAX_TRIES].tolist():
        if rank[row] < end:
            taken[column[row]] += 1
            (first if taken[column[row]] <= _OF_CLASS else later).append(row)
    return list(islice(_readable(evaluation, [*first, *later], column, grey), _MISTAKES))


def _readable(evaluation: Evaluation, rows: list[int], column: np.ndarray, grey: np.ndarray) -> Iterator[Photo]:
    for row in rows:
        k = int(column[row])
        others = [evaluation.names[other] for other in np.flatnonzero(grey[row]).tolist() if other != k]
        first = f"{listed([evaluation.names[k]], 24)} {100 * evaluation.probabilities[row, k]:.0f} %"
        try:
            image = evaluation.image(row, WIDTH)
        except BadImage:  # it was readable before
            continue
        yield Photo(image, [(first, True), *((name, False) for name in others or ["no label"])])
