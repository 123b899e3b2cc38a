"""The evaluation of a model on labelled images: figures, text, a chart of the classes, and its worst mistakes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
from lifelabel.model.model import Model
from lifelabel.report.charts import chart_text, new_figure, save_figure
from lifelabel.report.sheets import COLUMNS, WIDTH, Photo, draw_sheet, save_sheet
from lifelabel.report.stream_text import listed
from lifelabel.runs.names import SKIPPED
from lifelabel.streams.labelled_set import LabelledSet
from lifelabel.utils.markdown import escape, grid, per_class_markdown
from lifelabel.utils.text import counted, task_cell

__all__ = [
    "Evaluation", "calibration_line", "class_lines", "draw_per_class", "headline_table", "markdown", "notes",
    "per_class_columns", "write_mistakes",
]  # fmt: skip

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
        found = {"0.5": self.scored.headline()}
        if self.own_thresholds is not None:
            found["model"] = self._at(self.own_thresholds)
        if threshold is not None:
            found[f"{threshold:g}"] = self._at(threshold)
        return found

    def _at(self, threshold: float | np.ndarray) -> dict[str, float]:
        at = precision_recall_f1(self.scored.probabilities, self.scored.labels, threshold)
        return {"mAP": self.scored.headline()["mAP"], **at}

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
        """The image of a row of the scores. Raises `BadImage` if it cannot be read any more."""
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
    for names, text in (
        (classes["ignored"], "classes that only the set has, whose labels are ignored"),
        (classes["not_evaluated"], "classes that only the model has, not evaluated"),
        (empty, "classes without an image, and so without AP"),
    ):
        if names:
            lines.append(f"{counted(len(names), text)}: {listed(names, _NAMED)}")
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


def draw_per_class(found: dict[str, Any], path: Path) -> bool:
    """Draw the AP of each class as a bar, and its precision and recall. Many classes: the best and the worst ones.

    Returns False if no class has an AP.
    """
    ranked = sorted((row for row in found["per_class"] if row["AP"] is not None), key=lambda row: -row["AP"])
    if not ranked:
        return False
    total, title = len(ranked), "average precision of each class"
    if total > _MAX_BARS:
        ranked = [*ranked[: _MAX_BARS // 2], *ranked[-_MAX_BARS // 2 :]]
        title = f"the {_MAX_BARS // 2} best and the {_MAX_BARS // 2} worst of {total:,} classes"
    figure, (axis,) = new_figure(8, 1.8 + 0.2 * len(ranked))
    place = np.arange(len(ranked))
    axis.barh(place, [100 * row["AP"] for row in ranked], color="0.8", label="AP")
    for key, marker, colour in (("precision", "o", "C0"), ("recall", "|", "C3")):
        known = [k for k, row in enumerate(ranked) if row[key] is not None]
        axis.plot(
            [100 * ranked[k][key] for k in known], known, marker, color=colour, markersize=5 if marker == "o" else 9,
            label=f"{key} at the threshold",
        )  # fmt: skip
    if total > _MAX_BARS:
        axis.axhline(_MAX_BARS // 2 - 0.5, color="0.6", linewidth=0.8)
    names = [f"{chart_text(row['name'], 28)} ({row['positives']:,})" for row in ranked]
    axis.set_yticks(place, names, fontsize=8)
    title = f"{chart_text(found['set']['name'], 40)}: {title}"
    axis.set(xlim=(0, 101), ylim=(len(ranked) - 0.4, -0.6), xlabel="% (number of images with the label)", title=title)
    axis.set_axisbelow(True)
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    save_figure(figure, path)
    return True


def write_mistakes(evaluation: Evaluation, path: Path) -> bool:
    """Write a contact sheet of the mistakes with the highest confidence. Returns False if there is none to show.

    First wrong labels with the highest probability, then missed labels with the lowest. An image is there at most once
    of each kind, and at most four images of a class, unless the others are too few.
    """
    p, labels, known = evaluation.probabilities, evaluation.labels, evaluation.known
    predicted = known & (p >= evaluation.thresholds)
    wrong = np.where(predicted & ~labels, p, -1.0)
    missed = np.where(known & labels & ~predicted, p, 2.0)
    groups = [
        (
            "Wrong labels with the highest probability (grey: the true labels)",
            _photos(evaluation, wrong.argmax(1), -wrong.max(1), 1.0, labels),
        ),
        (
            "Missed labels with the lowest probability (grey: the predicted labels)",
            _photos(evaluation, missed.argmin(1), missed.min(1), 2.0, predicted),
        ),
    ]
    if not any(photos for _, photos in groups):
        return False
    title = f"Mistakes on {listed([evaluation.labelled.name], 80)}"
    key = "black: the label and its probability"
    save_sheet(draw_sheet(title, key, [group for group in groups if group[1]]), path)
    return True


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
