"""`lifelabel tune` and `lifelabel metrics`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli_common import check_file, err, out, parse_methods, parse_seeds, parse_settings, side_by_side
from lifelabel.errors import UserError

commands = typer.Typer(rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]})


@commands.command(
    epilog="""
Examples:

`lifelabel tune --method er --out runs/tune-er`

`lifelabel train --config runs/tune-er/preset.yaml --out runs/er`

`lifelabel tune --method agcn,lwf --trials 20 --seeds 0-2 --jobs 4 --out runs/tune`

`lifelabel tune --method all --stream split-coco --root DIR --words glove.6B.300d.txt --out runs/tune-coco`

`lifelabel tune --method agcn --stream photos.csv --root DIR --set lr=1e-3 --out runs/tune-mine`
"""
)
def tune(
    method: Annotated[str, typer.Option(help="Whose options: a name of `lifelabel list methods`, or a,b, or all.")],
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder for the trials and preset.yaml; with several methods, a folder each.")
    ],
    stream: Annotated[
        str | None, typer.Option(help="What to learn from: a name of `lifelabel list streams`, or a file of yours.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Configurations to try, as many for every method.")] = 12,
    tasks: Annotated[int, typer.Option(help="Learn the first tasks alone.")] = 3,
    hold_out: Annotated[float, typer.Option(help="Share of the training images that is scored, not learned.")] = 0.2,
    seeds: Annotated[str, typer.Option(help="Seeds of every trial, as 0 or 0-2; their mean counts.")] = "0",
    jobs: Annotated[
        int | None, typer.Option(help="Runs side by side; by default one on each GPU, or on each core.")
    ] = None,
    root: Annotated[str | None, typer.Option(metavar="DIR", help="The folder of the stream's images.")] = None,
    words: Annotated[str | None, typer.Option(help="A GloVe text file for the label words.")] = None,
    weights: Annotated[str | None, typer.Option(help="First weights: none, imagenet, or a file.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    workers: Annotated[str | None, typer.Option(metavar="INT", help="Processes a run that decode images.")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any option as NAME=VALUE; what is set is not searched."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of options: where the search starts.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the last line.")] = False,
) -> None:
    """Choose a method's options without peeking, and write them as a preset.

    Trains on the first tasks alone and scores training images that were held out: no test image, no later task and no
    hidden label is touched. Knobs are turned one after the other, from the defaults or a file: lr, the method's
    own, backbone_lr, later_backbone_lr, batch_norm. The same command again redoes nothing.
    """
    from lifelabel.config import Config, merge, read_yaml
    from lifelabel.runner import Staff
    from lifelabel.tune import Search
    from lifelabel.tune import tune as search

    fixed, from_file = parse_settings(set_ or []), read_yaml(config) if config else {}
    same = {"words": words, "weights": weights, "device": device, "workers": workers}
    flags = {"stream": stream, "stream_options": {"root": root} if root else None, **same}
    given = merge(from_file, {name: value for name, value in flags.items() if value is not None}, fixed)
    typed: dict[str, Any] = {
        "stream": given.get("stream", Config.stream), "root": root, "config": config, **same, "trials": trials,
        "tasks": tasks, "hold-out": hold_out, "seeds": seeds, "jobs": jobs,
    }  # fmt: skip
    chosen, each = parse_methods(method), tuple(dict.fromkeys(parse_seeds(seeds)))
    at_once = side_by_side(jobs, given.get("device", "auto"))
    for name in chosen:
        check_file(config, from_file, {"method": name, "stream": stream})
    with Staff() as staff:
        for name in chosen:
            folder = out_folder / name if len(chosen) > 1 else out_folder
            own, whole = (
                command_line({"method": of, **typed, "out": into}, set_ or [])
                for of, into in ((name, folder), (method, out_folder))
            )
            asked = Search(name, given, fixed, folder, trials, tasks, hold_out, each, at_once, own, whole)
            print(search(asked, None if quiet else err, staff))


def command_line(flags: Mapping[str, Any], settings: Sequence[str]) -> str:
    """The line that does the same again.

    >>> command_line({"method": "er", "root": None, "out": "my runs"}, ["lr=1"])
    "lifelabel tune --method er --out 'my runs' --set lr=1"
    """
    words = [word for flag, value in flags.items() if value is not None for word in (f"--{flag}", str(value))]
    return shlex.join(["lifelabel", "tune", *words, *(word for text in settings for word in ("--set", text))])


@commands.command(
    epilog="""
Examples:

`lifelabel train --method agcn --save-scores --out runs/a; lifelabel metrics runs/a/scores.npz`

`lifelabel metrics mine.npz --json mine.json`
"""
)
def metrics(
    scores: Annotated[
        Path,
        typer.Argument(
            metavar="SCORES.npz",
            help="Arrays `logits`, `probabilities` or `scores`, and `labels` (0 or 1), both images × classes.",
        ),
    ],
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the figures here too.")
    ] = None,
) -> None:
    """The figures of one set of scores under every convention of the literature, side by side: why papers disagree."""
    from lifelabel.conventions import FIGURES, compare, read_scores, spread

    found = compare(read_scores(scores))
    if json_file:
        try:
            json_file.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"cannot write {json_file}: {error.strerror}") from None
    show(
        f"{found['images']:,} images, {found['classes']:,} classes, {found['empty_classes']:,} of them empty; the "
        f"scores are {found['scores']}. All in %. CF1 is the harmonic mean of CP and CR, or the mean of the classes' "
        "F1, at a threshold; a class that no image shows is left out of mAP, or counts 0."
    )
    show(table(found, "all", f"all {found['images']:,} images"))
    if found["labelled_images"] < found["images"]:
        show(table(found, "labelled", f"the {found['labelled_images']:,} images that show a class"))
    else:
        show("\nEvery image shows a class: to leave out those that do not changes nothing.")
    spans = {name: spread(found, name) for name in FIGURES}
    texts = [f"{name} {percent(span[0])} to {percent(span[1])}" for name, span in spans.items() if span]
    show(
        "\nThe same scores, by convention and images alone: "
        + (", ".join(texts) or "nothing, as no image shows a class")
    )


def table(found: Mapping[str, Any], part: str, title: str) -> str:
    """A row a family; it fits 80 columns."""
    from lifelabel.conventions import FIGURES

    rows = [("convention", "at", "CF1", "if empty", *FIGURES)]
    for family in found["families"]:
        words = family["who"], f"{family['threshold']:g}", family["cf1"], family["empty_class"]
        rows.append((*words, *(percent(family[part][name]) for name in FIGURES)))
    lines = ["{:<25}  {:<5}  {:<13}  {:<8}{:>8}{:>7}{:>7}".format(*row) for row in rows]
    return "\n".join(["", f"On {title}:", *lines])


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f}"


def show(text: str) -> None:
    out.print(text, highlight=False, markup=False, soft_wrap=True)
