"""`lifelabel tune`."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lifelabel.cli.commands import command
from lifelabel.cli.common import make_display, parse_methods, parse_seeds, read_config
from lifelabel.cli.console import print_line
from lifelabel.cli.flags import ConfigFile, GivenOptions, Methods, OptionFlags, Quiet
from lifelabel.cli.many_runs import Place
from lifelabel.config.run_options import SET_BY_TUNE
from lifelabel.utils.processes import start_fork_server


@command(
    "tune",
    """
lifelabel tune --method er --out runs/tune-er
lifelabel train --config runs/tune-er/preset.yaml --out runs/er
lifelabel tune --method agcn,lwf --trials 20 --seeds 0-2 --jobs 4 --out runs/tune
lifelabel tune --method all --stream split-coco --root DIR --words glove.6B.300d.txt --out runs/tune-coco
lifelabel tune --method agcn --stream photos.csv --root DIR --set lr=1e-3 --out runs/tune-mine
lifelabel tune --method er --stream split-coco --root DIR --proxy --proxy-images 8000 --out runs/tune-proxy
lifelabel tune --method er,lwf --on slurm --slurm partition=gpu --device cuda --out runs/tune-cluster
""",
    OptionFlags(without=SET_BY_TUNE, stream_argument=True),
)
def _tune(
    place: Place,
    options: GivenOptions,
    method: Methods,
    out_folder: Annotated[
        Path,
        typer.Option("--out", help="Folder for the trials and preset.yaml; with several methods, one folder each."),
    ],
    trials: Annotated[int, typer.Option(help="Configurations to try, the same number for every method.")] = 12,
    first_tasks: Annotated[
        int | None, typer.Option(help="Number of tasks to train on, from the first. [default: 3; with --proxy all]")
    ] = None,
    hold_out: Annotated[float, typer.Option(help="Share of the training images that is scored, not learned.")] = 0.2,
    proxy: Annotated[
        bool,
        typer.Option("--proxy", help="Train on a proxy stream: as many tasks, with classes that the stream lacks."),
    ] = False,
    proxy_images: Annotated[
        int | None, typer.Option(help="Largest number of images of the proxy stream. [default: all]")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Seeds of every trial, as 0 or 0-2; the score is their mean.")] = "0",
    config: ConfigFile = None,
    quiet: Quiet = False,
) -> None:
    """Choose the options of a method on held-out training images, and write them as a preset.

    Trains on the first tasks and scores training images that were held out. No test image, no later task and no hidden
    label is used. With --proxy, trains on all tasks of a proxy stream, which has other classes: no label of the stream
    is used. Options are searched one after the other, from the defaults or a file: lr, the method's own, backbone_lr,
    later_backbone_lr, batch_norm. Options that are given by their flag or with --set are not searched. If the same
    command is given again, finished trials are not repeated.
    """
    start_fork_server("lifelabel.search.scheduler")
    from lifelabel.config.config import Config, merge
    from lifelabel.registry import loaded_plugins
    from lifelabel.search.comparison import folder_name
    from lifelabel.search.tuner import Search, first_runs, tune

    given, names = options.resolve(), parse_methods(method)
    for name in names:
        from_file = read_config(config, {"method": name, "stream": options.flags.get("stream")})
    start = merge(from_file, given)
    if first_tasks is None and not proxy:
        first_tasks = 3
    device, seed_list = start.get("device", "auto"), tuple(dict.fromkeys(parse_seeds(seeds)))
    search_flags: dict[str, Any] = {
        "trials": trials, "first_tasks": first_tasks, "hold_out": hold_out, "proxy": proxy,
        "proxy_images": proxy_images,
    }  # fmt: skip
    words: dict[str, Any] = {
        "stream": start.get("stream", Config.stream), "config": config, **options.flags, **search_flags,
        "proxy": proxy or None, "seeds": seeds, "jobs": place.jobs, "on": place.on if place.is_cluster else None,
    }  # fmt: skip
    repeated = {"set": options.set_ or [], "plugin": loaded_plugins(), "slurm": place.slurm or []}
    continue_command = _command_line({"method": method, **words, "out": out_folder, **repeated})
    with contextlib.nullcontext() if place.is_cluster else place.local(device) as local:
        for name in names:
            folder = out_folder / folder_name(name) if len(names) > 1 else out_folder
            command = _command_line({"method": name, **words, "out": folder, **repeated})
            search = Search(
                name, start, given, folder, **search_flags, seeds=seed_list, command=command,
                continue_command=continue_command,
            )  # fmt: skip
            if place.dry_run:
                place.print_script(first_runs(search), folder, device)
                continue
            print_line(str(tune(search, make_display(quiet), local or place.cluster(folder, device))))


def _command_line(arguments: Mapping[str, Any]) -> str:
    """The command of a search. An argument is a value, True for a flag without a value, or a list for a repeated flag.

    >>> _command_line({"method": "er", "strict": True, "root": None, "hold_out": 0.2, "set": ["lr=1", "seed=2"]})
    'lifelabel tune --method er --strict --hold-out 0.2 --set lr=1 --set seed=2'
    """
    words = ["lifelabel", "tune"]
    for name, argument in arguments.items():
        for value in argument if isinstance(argument, list) else [argument]:
            if value is not None:
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
