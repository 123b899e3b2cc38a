"""The model card: README.md of a model folder.

All names and figures may come from an untrusted folder: text is escaped, and a value of another type is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lifelabel.model.info import ModelInfo, is_int
from lifelabel.options import change_text
from lifelabel.utils.markdown import escape, grid, per_class_markdown
from lifelabel.utils.text import BELOW_ZERO, counted, shorten, task_cell

_MAX_NAMES = 60
"""Class names per task in the list of tasks."""
_FIGURES = ("mAP", "CF1", "OF1")
_VERSIONS = ("lifelabel", "commit", "torch", "device", "seed", "date")

_USE = """\
With lifelabel installed, and this folder as `MODEL`:

    lifelabel predict MODEL photo.jpg
    lifelabel predict MODEL photos/ --csv > labels.csv

```python
import lifelabel

model = lifelabel.load("MODEL")
model.predict("photo.jpg")  # {label: probability}, the most probable label first
```

Loading runs no code from this folder, and needs no other file."""

_LIMITS = """\
- The set of labels is closed: anything that is not in the table of classes has no label.
- Labels are of the whole image. The model does not say where in the image something is, or how many there are.
- Images should look like the training images. For others, such as drawings, X-rays or satellite images if the model
  learned from photographs, labels and probabilities mean little.
- Images are resized to a square of the size above. Objects of a few pixels in that size are often missed.
- The figures are those of the test images of the stream. Measure the model on your own images before you rely on it."""


def _times(info: ModelInfo) -> str:
    epochs = info.training.get("epochs", 1)
    return "once" if epochs == 1 else f"{epochs} times" if is_int(epochs, 2) else "?"


def model_card(info: ModelInfo) -> str:
    """The card in Markdown."""
    tasks, classes = max(info.task_of_class) + 1, len(info.classes)
    stream = _text(info.stream.get("name")) or "?"
    parts = [
        f"# {escape(info.label)} on {stream}",
        f"A multi-label image classifier of {counted(classes, 'classes')}, trained by lifelabel: method "
        f"{escape(info.method)}, {counted(tasks, 'tasks')}, each training image used {_times(info)}.",
        "## Use",
        _USE,
        "## Training data",
        *_training_data(info, tasks),
        "## Network",
        *_network(info),
        *_figures(info.training),
        "## Classes",
        *_classes(info),
        "## Probabilities and thresholds",
        _thresholds(info),
        "## Limits",
        _LIMITS,
        *_versions(info.training),
    ]
    return "\n\n".join(parts) + "\n"


def _training_data(info: ModelInfo, tasks: int) -> Iterator[str]:
    facts = {"Stream": info.stream.get("name"), "Data set": info.stream.get("dataset")}
    yield _list({**facts, "Fingerprint (SHA-256 of tasks, images and labels)": info.stream.get("fingerprint")})
    images = info.training.get("images")
    images = images if isinstance(images, list) and len(images) == tasks else None
    rows = []
    for task in range(tasks):
        names = [name for name, of in zip(info.classes, info.task_of_class, strict=True) if of == task]
        more = f", … {len(names):,} in all" if len(names) > _MAX_NAMES else ""
        cells = [task_cell(task + 1, info.task_names), ", ".join(names[:_MAX_NAMES]) + more]
        rows.append([*cells, _whole(images[task])] if images else cells)
    yield "\n".join(grid(["task", "classes", *(["training images"] if images else [])], rows, left=2))
    changes = info.training.get("changed_options")
    for change in changes if isinstance(changes, list) else []:
        if isinstance(change, dict):
            yield f"During the training, {escape(change_text(change))}."


def _network(info: ModelInfo) -> Iterator[str]:
    origin = info.provenance
    yield _list(
        {
            "Backbone": info.backbone, "Pool": info.pool, "Images": f"{info.image_size} x {info.image_size} pixels",
            "Initial weights": origin.get("source"), "Trained on": origin.get("trained_on"),
            "URL": origin.get("url"), "SHA-256": origin.get("sha256"), "Precision of the training": info.precision,
        }
    )  # fmt: skip


def _figures(training: Mapping[str, Any]) -> Iterator[str]:
    final = training.get("final")
    if not isinstance(final, dict):
        return
    forgetting = final.get("forgetting")
    forgetting = forgetting if isinstance(forgetting, dict) else {}
    rows = [[name, _percent(final.get(name)), _percent(forgetting.get(name))] for name in _FIGURES]
    yield "## Figures"
    yield (
        "On the test images of the stream, after the last task, at a threshold of 0.5. Forgetting: lower is better, "
        f"{BELOW_ZERO}."
    )
    yield "\n".join(grid(["metric", "value %", "forgetting %"], rows, left=1))


def _classes(info: ModelInfo) -> Iterator[str]:
    final = info.training.get("final")
    ap = info.training.get("ap") or (final.get("ap") if isinstance(final, dict) else None)
    by_class = ap if isinstance(ap, dict) else {}
    values = [value if _is_number(value := by_class.get(name)) else None for name in info.classes]
    cells = [task_cell(task + 1, info.task_names) for task in info.task_of_class]
    more = {} if info.thresholds is None else {"threshold": info.thresholds}
    yield "\n".join(per_class_markdown(info.classes, cells, values, more))


def _thresholds(info: ModelInfo) -> str:
    if info.calibration is None or info.calibration.get("probabilities") == "none":
        text = (
            "The probabilities are the sigmoid of the logits. They are not calibrated: of the labels with probability "
            "0.8, more or less than 80 % may be right. `lifelabel calibrate` fits them on labelled images."
        )
    else:
        text = f"The probabilities are calibrated on {_whole(info.calibration.get('images'))} labelled images."
    if info.thresholds is None:
        return f"{text} An image has the labels whose probability is at least 0.5."
    by = _text((info.calibration or {}).get("by"))
    rule = f" (by {by})" if by else ""
    return f"{text} An image has the labels whose probability is at least the threshold of the class{rule}."


def _versions(training: Mapping[str, Any]) -> Iterator[str]:
    facts = {name: training.get(name) for name in _VERSIONS}
    plugins = training.get("plugins")
    names = [name for name in plugins[:20] if isinstance(name, str)] if isinstance(plugins, list) else []
    facts["plug-ins"] = ", ".join(names)
    if lines := _list(facts):
        yield "## Versions"
        yield lines


def _list(facts: Mapping[str, Any]) -> str:
    """One line per fact that is known."""
    return "\n".join(f"- {name}: {text}" for name, value in facts.items() if (text := _text(value)))


def _text(value: object) -> str:
    """A text or a number, escaped; empty if it is neither."""
    known = isinstance(value, str | int | float) and not isinstance(value, bool)
    return escape(shorten(value)) if known else ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e9  # not NaN


def _percent(value: Any) -> str:
    return f"{100 * value:.1f}" if _is_number(value) else "–"


def _whole(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else "–"
