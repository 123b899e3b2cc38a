"""`lifelabel metrics`: the metrics of one set of scores under every convention."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import Plugins, load_plugins
from lifelabel.utils.files import write_text
from lifelabel.utils.text import counted


@command(
    "metrics",
    """
lifelabel train --method agcn --save-scores --out runs/a; lifelabel metrics runs/a/scores.npz
lifelabel metrics mine.npz --json mine.json
""",
)
def _metrics(
    scores: Annotated[
        Path,
        typer.Argument(
            metavar="SCORES.npz",
            help="Arrays `logits`, `probabilities` or `scores`, and `labels` (0 or 1), both images × classes; at most "
            "100,000,000 scores.",
        ),
    ],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the metrics to this file too.")
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Compute the metrics of one set of scores under every convention of the literature, in one table."""
    load_plugins(plugin)
    from lifelabel.metrics.conventions import compare, read_scores

    found = compare(read_scores(scores))
    if json_file:
        write_text(json_file, json.dumps(found, indent=1, allow_nan=False) + "\n")
    print_metrics(found)


def print_metrics(found: Mapping[str, Any]) -> None:
    """Print the result of `lifelabel.metrics.conventions.compare`."""
    from lifelabel.metrics.conventions import spread
    from lifelabel.metrics.over_tasks import BUILT_IN, HEADLINE

    print_line(
        f"{counted(found['images'], 'images')}, {counted(found['classes'], 'classes')}, {found['empty_classes']:,} of "
        "them empty; the "
        f"scores are {found['scores']}. All in %. CF1 is the harmonic mean of CP and CR, or the mean of the classes' "
        "F1, at a threshold; a class without a positive image is left out of mAP, or counts 0."
    )
    _print_part(_table(found, "all", f"all {counted(found['images'], 'images')}"))
    if found["labelled_images"] < found["images"]:
        _print_part(
            _table(found, "labelled", f"the {counted(found['labelled_images'], 'images')} with at least one label")
        )
    else:
        _print_part(["Every image has a label: leaving out images without one changes nothing."])
    for name, value in found["conventions"]["all"].items():
        if name not in BUILT_IN:
            _print_part([f"{name} (a metric of a plug-in, on all images): {value}"])
    spans = {name: spread(found, name) for name in HEADLINE}
    texts = [f"{name} {_percent(span[0])} to {_percent(span[1])}" for name, span in spans.items() if span]
    found_texts = ", ".join(texts) or "nothing, because no image has a label"
    _print_part([f"The same scores, by convention and by the images used: {found_texts}"])


def _print_part(lines: Iterable[str]) -> None:
    """Print an empty line and the lines."""
    for line in ("", *lines):
        print_line(line)


def _table(found: Mapping[str, Any], part: str, title: str) -> list[str]:
    """A table with one row per group of publications, at most 80 columns wide."""
    from lifelabel.metrics.over_tasks import HEADLINE

    rows = [("convention", "at", "CF1", "if empty", *HEADLINE)]
    for family in found["families"]:
        words = family["who"], f"{family['threshold']:g}", family["cf1"], family["empty_class"]
        rows.append((*words, *(_percent(family[part][name]) for name in HEADLINE)))
    lines = ["{:<25}  {:<5}  {:<13}  {:<8}{:>8}{:>7}{:>7}".format(*row) for row in rows]
    return [f"On {title}:", *lines]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"
